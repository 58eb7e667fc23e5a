// Usages of pairs as usages of nodes: an edge that uses bytes becomes a node with one strategy a pair, tied to both ends.
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
// Costs the same for choices that are extended; pairs that are forbidden have no strategy.
NodeUsages with_node_usages(const AssignmentProblem& problem);
// The choice of the nodes that were added; empty if a pair of it is forbidden.
std::vector<uint32_t> extended(const NodeUsages& usages, const AssignmentProblem& problem,
                               std::span<const uint32_t> choice);

}  // namespace shadowgraph
