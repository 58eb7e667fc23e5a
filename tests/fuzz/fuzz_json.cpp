// libFuzzer target: round trip of graphs in JSON.
#include <cstdio>
#include <cstdlib>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "tests/fuzz/read_input.h"

using namespace shadowgraph;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return read_json_input(data, size, [](const nlohmann::json& json) {
    const Graph graph = from_json(json);
    violations(graph);
    const std::string text = to_text(graph);
    if (to_text(from_json(to_json(graph))) != text || to_text(parse(text)) != text) {
      std::fprintf(stderr, "round trip differs:\n%s\n", text.c_str());
      std::abort();
    }
  });
}
