// libFuzzer target: JSON to graph and back.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

using namespace shadowgraph;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Text that is no JSON is nlohmann's business.
  const nlohmann::json json = nlohmann::json::parse(data, data + size, nullptr, false);
  if (json.is_discarded()) return 0;
  try {
    const Graph graph = from_json(json);
    violations(graph);
    const std::string text = to_text(graph);
    if (to_text(from_json(to_json(graph))) != text || to_text(parse(text)) != text) {
      std::fprintf(stderr, "does not come back:\n%s\n", text.c_str());
      std::abort();
    }
  } catch (const ParseError&) {}
  return 0;
}
