// libFuzzer target: sharding rules.
#include "shadowgraph/error.h"
#include "sharding/rules/rule_text.h"

using namespace shadowgraph;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    parse_rules({reinterpret_cast<const char*>(data), size}, "input");
  } catch (const Error&) {}
  return 0;
}
