// The combinatorial problem behind automatic sharding: one strategy for each node, so that costs are least and memory
// is enough. It knows nothing of graphs, tensors or libtorch; shadowgraph/sharding/problem.h makes one of a captured step,
// the IOPDDL contest has others (https://github.com/google/iopddl).
//
//     minimise    sum over nodes  times * costs[s]  +  sum over edges  times * costs[s of a][s of b]
//     so that     at each point of time, usages of what lives then (nodes by s, edges by both) <= usage_limit
//
// Costs and usages are integers, so that results are the same on every machine. Sums are 128 bits wide.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// A choice, or a pair of choices, that is not allowed.
constexpr int64_t kForbidden = std::numeric_limits<int64_t>::max();
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Alive from `begin` to before `end`, `count` times at once. Several of a node or edge must not overlap.
struct LiveInterval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count = 1;
  friend bool operator==(const LiveInterval&, const LiveInterval&) = default;
};

struct AssignmentNode {
  std::string name;                     // for people
  std::vector<std::string> strategies;  // for people: "S(0),R"; empty, or one for each cost
  std::vector<int64_t> costs;           // by strategy; at least one; kForbidden or >= 0
  std::vector<int64_t> usages;          // bytes by strategy; empty: none
  std::vector<LiveInterval> live;       // when they are used
  int64_t times = 1;                    // how many nodes of the program this one stands for: its costs count so often
  int32_t pinned = -1;                  // a strategy that it must have; below 0: free
};

// Costs of pairs, by rows: of strategy i of the one node and j of the other, costs[i * columns + j]. Edges that look
// the same share one.
struct CostMatrix {
  uint32_t rows = 0;
  uint32_t columns = 0;
  std::vector<int64_t> costs;   // kForbidden or >= 0
  std::vector<int64_t> usages;  // bytes by pair; empty: none
  int64_t at(uint32_t i, uint32_t j) const { return costs[size_t{i} * columns + j]; }
};

struct AssignmentEdge {
  uint32_t a = 0;  // nodes; the same one twice is allowed (a layer that follows one like it): its diagonal counts
  uint32_t b = 0;
  uint32_t matrix = 0;  // of AssignmentProblem::matrices; rows are strategies of a
  int64_t times = 1;
  std::vector<LiveInterval> live;  // when its usages are used
};

struct AssignmentProblem {
  std::string name;
  std::vector<AssignmentNode> nodes;
  std::vector<CostMatrix> matrices;
  std::vector<AssignmentEdge> edges;
  int64_t usage_limit = kNoLimit;

  // Throws Error that names the first node or edge that is wrong. Sizes may not fit, figures be negative, intervals
  // overlap or be empty, an index be out of range.
  void check() const;
};

// A demand that could be given up: a strategy that a node must have, or one of several. Problems have it in their
// costs. What is kept here is its name and what the costs were without it, to say which demands contradict each other.
struct AssignmentPin {
  std::string name;  // for people: "layers.*.weight=R,S(0)"
  uint32_t node = 0;
  std::vector<int64_t> costs;  // of the node, without the pin
};

struct AssignmentCost {
  __extension__ using Wide = __int128;
  bool allowed = true;  // no forbidden choice or pair
  Wide cost = 0;        // of the allowed ones
  Wide peak = 0;        // highest usage, and
  int64_t peak_at = 0;  // the first point of time when it is reached
  bool within_limit = true;
  bool feasible() const { return allowed && within_limit; }
};
// What a choice costs. Linear in problem and intervals (times a logarithm). Throws Error if `choice` does not fit.
AssignmentCost evaluate(const AssignmentProblem& problem, std::span<const uint32_t> choice);

}  // namespace shadowgraph
