// Says in words what the usages of a problem come to at one point of time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph {

// The least that each node can use, by itself. Where that is too much together, nothing fits.
class LeastNeeds {
 public:
  explicit LeastNeeds(const AssignmentProblem& problem);
  bool exceed_limit() const;
  // Says why nothing fits, or (not shown) why nothing was found.
  std::string to_text(bool shown) const;

 private:
  const AssignmentProblem& problem_;
  AssignmentCost::Wide peak_ = 0;
  int64_t at_ = 0;
  std::string most_;
};

// Names what uses most then: "w (2.00 GiB), copy of w for n3 (1.00 GiB) and 3 more".
std::string most_used_at(const AssignmentProblem& problem, std::span<const uint32_t> choice, int64_t time);

}  // namespace shadowgraph
