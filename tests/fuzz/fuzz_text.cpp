// libFuzzer target: round trip of graphs in text form.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

using namespace shadowgraph;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const Graph graph = parse(std::string_view(reinterpret_cast<const char*>(data), size));
    violations(graph);
    const std::string text = to_text(graph);
    const std::string again = to_text(parse(text));
    if (again != text) {
      std::fprintf(stderr, "round trip differs:\n%s\n----\n%s\n", text.c_str(), again.c_str());
      std::abort();
    }
    to_text(graph, PrintPreset::kShort);
    to_text(graph, PrintPreset::kFingerprint);
  } catch (const ParseError&) {}
  return 0;
}
