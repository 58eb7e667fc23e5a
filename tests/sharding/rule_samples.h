// Small programs that call what rules speak of, on tensors whose sizes divide by 2, 3 and 4 where they may be cut.
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
