// Says which stage and which piece of it each node of a step belongs to, once the cuts are known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "parallel/stages/forward_line.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

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
