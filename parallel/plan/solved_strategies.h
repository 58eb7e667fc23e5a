// Lays out a step as one of fewer layers was. Variables of the two problems are the same but for numbers in their names.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph {

class SolvedStrategies {
 public:
  // First the problem, then what was chosen.
  void remember(const AssignmentProblem& problem) { nodes_ = problem.nodes; }
  void choose(const std::vector<uint32_t>& choice);
  // Nothing if the problem has other variables, or lacks a strategy.
  std::optional<std::vector<uint32_t>> choice_of(const AssignmentProblem& problem) const;

 private:
  std::vector<AssignmentNode> nodes_;
  std::map<std::string, std::string> strategies_;  // by name
};

}  // namespace shadowgraph
