// Eliminates variables bucket by bucket: finds the least sum of tables over choices, or a bound of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shadowgraph {

// The cost of what is not allowed; sums of a few thousand stay below the largest int64.
constexpr int64_t kImpossible = int64_t{1} << 59;

// Costs of the choices of some variables; the last variable's choice changes fastest.
struct CostTable {
  std::vector<uint32_t> variables;  // ascending
  std::vector<int64_t> costs;       // >= 0, clamped to kImpossible
};

struct Elimination {
  int64_t minimum = 0;           // of the sum, or a bound from below
  bool exact = true;             // no table was split
  int64_t largest = 0;           // entries of a table
  std::vector<uint32_t> choice;  // by variable: attains the minimum if exact
};

// `order` names each variable once. A table that would have more than `limit` entries is split.
Elimination eliminate(std::span<const uint32_t> domains, std::vector<CostTable> tables, std::span<const uint32_t> order,
                      int64_t limit);
// Returns an order that keeps tables small: always the variable whose neighbours' choices multiply to the least.
std::vector<uint32_t> elimination_order(std::span<const uint32_t> domains, std::span<const CostTable> tables);

}  // namespace shadowgraph
