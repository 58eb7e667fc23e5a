// libFuzzer target: profile.json, read like in `compare` and in pages.
#include "cli/figures.h"
#include "tests/fuzz/read_input.h"
#include "viz/saved_profile.h"

using namespace shadowgraph;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return read_json_input(data, size, [](const nlohmann::json& json) {
    saved_profile(json_text(json), "input");
    const cli::Figures figures(json, "input");
    figures.at("peak/bytes");
    figures.modules();
    figures.operators();
    figures.at_peak();
  });
}
