// Turns usages of pairs into usages of nodes. An edge that uses bytes becomes a node with one strategy a pair, tied to
// both ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/sharding/assignment.h"

namespace shadowgraph {

bool has_edge_usages(const AssignmentProblem& problem);

struct NodeUsages {
  AssignmentProblem problem;   // nodes of the given one first
  std::vector<uint32_t> edge;  // of the given problem, by added node
};
// Extended choices cost the same as before. A forbidden pair has no strategy.
NodeUsages with_node_usages(const AssignmentProblem& problem);
// Returns the choice of the added nodes too; empty if one of its pairs is forbidden.
std::vector<uint32_t> extended(const NodeUsages& usages, const AssignmentProblem& problem,
                               std::span<const uint32_t> choice);

}  // namespace shadowgraph
