// libFuzzer target: JSON to graph and back.
#include <cstdio>
#include <cstdlib>

#include "fuzz/read_input.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

using namespace shadowgraph;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return read_json_input(data, size, [](const nlohmann::json& json) {
    const Graph graph = from_json(json);
    violations(graph);
    const std::string text = to_text(graph);
    if (to_text(from_json(to_json(graph))) != text || to_text(parse(text)) != text) {
      std::fprintf(stderr, "does not come back:\n%s\n", text.c_str());
      std::abort();
    }
  });
}
