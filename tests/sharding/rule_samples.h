// Small programs that call operators with sharding rules; dimensions that may be sharded divide by 2, 3 and 4.
#pragma once

#include <ostream>
#include <span>
#include <string_view>

namespace shadowgraph {

struct RuleSample {
  std::string_view name;
  void (*run)();
};
inline void PrintTo(const RuleSample& sample, std::ostream* out) { *out << sample.name; }
std::span<const RuleSample> rule_samples();

}  // namespace shadowgraph
