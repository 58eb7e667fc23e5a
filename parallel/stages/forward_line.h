// Lays a step's nodes along its forward, so that cuts of forward cut all of it.
#pragma once

#include <string>
#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// Positions count forward nodes that depend on parameters or draw numbers. A cut at p lies before the node at p.
class ForwardLine {
 public:
  static constexpr int32_t kNowhere = -1;

  // Throws Error for graphs that are no training steps.
  explicit ForwardLine(const ProgramCosts& costs);

  int32_t length() const { return static_cast<int32_t>(nodes_.size()); }
  NodeId node(int32_t position) const { return nodes_[static_cast<size_t>(position)]; }
  // Where a node belongs: a forward node to its own position, a backward node to the one that it differentiates. A sum of
  // gradients belongs to the earliest of what it sums. kNowhere: is_free(), of the optimizer, or a placeholder.
  int32_t position(NodeId node) const { return position_[node]; }
  // Depends on inputs and buffers alone: any stage can compute it.
  bool is_free(NodeId node) const { return free_[node]; }
  // Bytes that a cut at a position hands on in forward.
  int64_t crossing(int32_t position) const { return crossing_[static_cast<size_t>(position)]; }

 private:
  void find_free(const ProgramCosts& costs);
  void place_backward(const ProgramCosts& costs);
  void place_gathers(const ProgramCosts& costs);
  void count_crossing(const ProgramCosts& costs);
  int32_t at_first_user(const ProgramCosts& costs, NodeId node) const;
  int32_t by_neighbours(const Graph& graph, NodeId node) const;

  std::vector<NodeId> nodes_;
  IdMap<NodeId, int32_t> position_{kNowhere};
  IdMap<NodeId, char> free_{0};
  std::vector<int64_t> crossing_;
};

}  // namespace shadowgraph
