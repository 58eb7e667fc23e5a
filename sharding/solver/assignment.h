#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shadowgraph/shard/solver.h"

namespace shadowgraph {

inline double seconds_of(AssignmentCost::Wide picoseconds) { return static_cast<double>(picoseconds) * 1e-12; }

inline std::string text_of(AssignmentCost::Wide value) {
  std::string digits;
  const bool negative = value < 0;
  do {
    digits += static_cast<char>('0' + static_cast<int>(negative ? -(value % 10) : value % 10));
    value /= 10;
  } while (value != 0);
  if (negative) digits += '-';
  return {digits.rbegin(), digits.rend()};
}

// The minimum usage of each node. If their sum exceeds the limit, the problem is infeasible.
class MinimumUsages {
 public:
  explicit MinimumUsages(const AssignmentProblem& problem);
  bool exceed_limit() const;
  // Describes why the problem is infeasible, or (if not `shown`) why no solution was found.
  std::string to_text(bool shown) const;

 private:
  const AssignmentProblem& problem_;
  AssignmentCost::Wide peak_ = 0;
  int64_t at_ = 0;
  std::string most_;
};

// Lists the largest usages at a point: "w (2.00 GiB), copy of w for n3 (1.00 GiB) and 3 more".
std::string most_used_at(const AssignmentProblem& problem, std::span<const uint32_t> choice, int64_t time);

}  // namespace shadowgraph
