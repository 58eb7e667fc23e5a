// Assigns the nodes of a training step to positions along its forward, and to pipeline stages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Nodes that depend only on parameters: weight.t(), weight.to(bf16), FSDP's all_gather and its inputs.
class ParameterSources {
 public:
  explicit ParameterSources(const ProgramCosts& costs);
  // Returns whether the node reads data from parameters and from nothing else. Uninitialized memory does not count.
  bool reads_only_parameters(NodeId node) const { return alone_[node] != 0; }

 private:
  IdMap<NodeId, char> alone_{0};
};

// Orders a step's nodes along its forward, so that cutting the forward also cuts backward. Positions count forward
// nodes that depend on parameters or draw random numbers. A cut at p is before the node at p.
class ForwardLine {
 public:
  static constexpr int32_t kNowhere = -1;

  // Throws Error if the graph is not a training step.
  explicit ForwardLine(const ProgramCosts& costs);

  int32_t length() const { return static_cast<int32_t>(nodes_.size()); }
  NodeId node(int32_t position) const { return nodes_[static_cast<size_t>(position)]; }
  // Position of a node: its own for a forward node, that of the differentiated node for a backward node, the earliest
  // of the summands for a sum of gradients. kNowhere for is_free() nodes, optimizer nodes and placeholders.
  int32_t position(NodeId node) const { return position_[node]; }
  // Returns whether the node depends only on inputs and buffers, so that any stage can compute it.
  bool is_free(NodeId node) const { return free_[node]; }
  // Bytes that a cut at a position passes to the next stage in forward.
  int64_t crossing(int32_t position) const { return crossing_[static_cast<size_t>(position)]; }

 private:
  void find_free(const ProgramCosts& costs);
  void place_backward(const ProgramCosts& costs);
  void place_gathers(const ProgramCosts& costs);
  void count_crossing(const ProgramCosts& costs);
  int32_t at_first_user(const ProgramCosts& costs, NodeId node) const;
  int32_t by_neighbors(const Graph& graph, NodeId node) const;

  std::vector<NodeId> nodes_;
  IdMap<NodeId, int32_t> position_{kNowhere};
  IdMap<NodeId, char> free_{0};
  std::vector<int64_t> crossing_;
};

// Assigns each node of a step to stages and to a piece of them, for given cuts.
enum class Piece : uint8_t { kForward, kInputGradient, kWeightGradient, kOptimizer, kNone };

class StageAssignment {
 public:
  // `cuts`: positions at which the second stage begins, the third, ...
  StageAssignment(const ProgramCosts& costs, const ForwardLine& line, std::vector<int32_t> cuts);

  int32_t stages() const { return static_cast<int32_t>(cuts_.size()) + 1; }
  int32_t stage_at(int32_t position) const {
    return static_cast<int32_t>(std::ranges::upper_bound(cuts_, position) - cuts_.begin());
  }
  // Ascending. Free nodes: all stages that use them. Optimizer nodes and placeholders: none.
  const std::vector<int32_t>& stages_of(NodeId node) const { return stages_of_[node]; }
  Piece piece(NodeId node) const { return piece_[node]; }

 private:
  void split_backward(const ProgramCosts& costs);
  void assign_free_nodes(const ProgramCosts& costs, const ForwardLine& line);

  std::vector<int32_t> cuts_;
  IdMap<NodeId, std::vector<int32_t>> stages_of_;
  IdMap<NodeId, Piece> piece_{Piece::kNone};
};

}  // namespace shadowgraph
