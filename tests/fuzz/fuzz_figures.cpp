// libFuzzer target: round trip of device specs and interconnects.
#include <cstdio>
#include <cstdlib>

#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "tests/fuzz/read_input.h"

using namespace shadowgraph;

namespace {

void check_same(const nlohmann::json& first, const nlohmann::json& again) {
  if (first == again) return;
  std::fprintf(stderr, "round trip differs:\n%s\n", json_text(first).c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  read_json_input(data, size, [](const nlohmann::json& json) {
    const nlohmann::json written = to_json(device_spec_from_json(json, "input"));
    check_same(written, to_json(device_spec_from_json(written, "input")));
  });
  return read_json_input(data, size, [](const nlohmann::json& json) {
    const nlohmann::json written = to_json(interconnect_from_json(json, "input"));
    check_same(written, to_json(interconnect_from_json(written, "input")));
  });
}
