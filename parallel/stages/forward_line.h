// Which nodes read what comes from parameters alone: weight.t(), weight.to(bf16), FSDP's all_gather and what is before
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

class ParameterSources {
 public:
  explicit ParameterSources(const ProgramCosts& costs);
  // Something from parameters, and nothing from elsewhere. Fresh memory comes from nowhere.
  bool reads_parameters_alone(NodeId node) const { return alone_[node] != 0; }

 private:
  IdMap<NodeId, char> alone_{0};
};

// Lays a step's nodes along its forward, so that cuts of forward cut all of it.
// Positions count forward nodes that depend on parameters or draw numbers. A cut at p lies before the node at p.
class ForwardLine {
 public:
  static constexpr int32_t kNowhere = -1;

  // Throws Error for graphs that are no training steps.
  explicit ForwardLine(const ProgramCosts& costs);

  int32_t length() const { return static_cast<int32_t>(nodes_.size()); }
  NodeId node(int32_t position) const { return nodes_[static_cast<size_t>(position)]; }
  // Where a node belongs: a forward node to its own position, a backward node to the one that it differentiates. A sum
  // of gradients belongs to the earliest of what it sums. kNowhere: is_free(), of the optimizer, or a placeholder.
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

// Says which stage and which piece of it each node of a step belongs to, once the cuts are known.
enum class Piece : uint8_t { kForward, kInputGradient, kWeightGradient, kOptimizer, kNone };

class StageAssignment {
 public:
  // `cuts`: positions at which the second stage begins, the third, ...
  StageAssignment(const ProgramCosts& costs, const ForwardLine& line, std::vector<int32_t> cuts);

  int32_t stages() const { return static_cast<int32_t>(cuts_.size()) + 1; }
  int32_t stage_at(int32_t position) const {
    return static_cast<int32_t>(std::ranges::upper_bound(cuts_, position) - cuts_.begin());
  }
  // Rising; of a free node those that use it, of the optimizer's and of placeholders none.
  const std::vector<int32_t>& stages_of(NodeId node) const { return stages_of_[node]; }
  Piece piece(NodeId node) const { return piece_[node]; }

 private:
  void split_backward(const ProgramCosts& costs);
  void hand_back_free(const ProgramCosts& costs, const ForwardLine& line);

  std::vector<int32_t> cuts_;
  IdMap<NodeId, std::vector<int32_t>> stages_of_;
  IdMap<NodeId, Piece> piece_{Piece::kNone};
};

}  // namespace shadowgraph
