// Schedules in which a micro-batch runs through the ranks in their order, once or several times.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "parallel/schedule/known_schedules.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// The interleaved schedules take micro-batches in rounds, so that each stage of a rank has its turn.
struct Rounds {
  int32_t microbatches_a_round = 0;

  Rounds(const PipelineSize& size, const char* name) {
    const int32_t rounds = std::max(1, size.microbatches / size.ranks);
    microbatches_a_round = size.microbatches / rounds;
    if (size.microbatches % rounds != 0) {
      throw Error(
          fmt::format("schedule {}: {} micro-batches do not divide into {} rounds over {} ranks; give a multiple", name,
                      size.microbatches, rounds, size.ranks));
    }
  }
};

// One rank's part of an interleaved schedule: forwards that fill the pipeline, then forward and backward in turns, then
// the backwards that are left.
class InterleavedRank {
 public:
  InterleavedRank(const PipelineSize& size, int32_t rank, const Rounds& rounds, bool splits_backward)
      : size_(size),
        rank_(rank),
        round_(rounds.microbatches_a_round),
        splits_(splits_backward),
        total_(size.stages_per_rank * size.microbatches),
        row_(size.ranks * size.stages_per_rank) {
    const int32_t a_hop = splits_ ? 1 : 2;
    const int32_t fill = (size.stages_per_rank - 1) * round_ + a_hop * (size.ranks - 1 - rank);
    fill_ = std::min(fill, total_);
  }

  std::vector<PipelineAction> row() {
    for (int32_t i = 0; i < fill_; ++i) row_.forward(forward_stage(i));
    for (int32_t i = 0; i < total_; ++i) {
      if (fill_ + i < total_) row_.forward(forward_stage(fill_ + i));
      backward(backward_stage(i));
      // A weight gradient waits for as many turns as the rank has others before it.
      if (splits_ && i >= rank_) weight();
    }
    while (!weights_.empty()) weight();
    return row_.take();
  }

 private:
  int32_t forward_stage(int32_t i) const { return (i / round_) % size_.stages_per_rank * size_.ranks + rank_; }
  int32_t backward_stage(int32_t i) const {
    return (size_.stages_per_rank - 1 - (i / round_) % size_.stages_per_rank) * size_.ranks + rank_;
  }
  void backward(int32_t stage) {
    if (!splits_) return row_.backward(stage);
    row_.input_gradient(stage);
    weights_.push_back(stage);
  }
  void weight() {
    row_.weight_gradient(weights_.front());
    weights_.pop_front();
  }

  const PipelineSize& size_;
  int32_t rank_, round_;
  bool splits_;
  int32_t total_, fill_ = 0;
  std::deque<int32_t> weights_;  // stages whose weight gradients are still to be computed
  RowWriter row_;
};

PipelineSchedule::Rows interleaved(const PipelineSize& size, const char* name, bool splits_backward) {
  const Rounds rounds(size, name);
  PipelineSchedule::Rows rows;
  for (int32_t rank = 0; rank < size.ranks; ++rank) {
    rows.push_back(InterleavedRank(size, rank, rounds, splits_backward).row());
  }
  return rows;
}

}  // namespace

PipelineSchedule::Rows gpipe_rows(const PipelineSize& size) {
  PipelineSchedule::Rows rows;
  for (int32_t rank = 0; rank < size.ranks; ++rank) {
    RowWriter row(size.ranks);
    for (int32_t m = 0; m < size.microbatches; ++m) row.forward(rank);
    for (int32_t m = 0; m < size.microbatches; ++m) row.backward(rank);
    rows.push_back(row.take());
  }
  return rows;
}

PipelineSchedule::Rows one_forward_one_backward_rows(const PipelineSize& size) {
  PipelineSchedule::Rows rows;
  for (int32_t rank = 0; rank < size.ranks; ++rank) {
    RowWriter row(size.ranks);
    const int32_t fill = std::min(size.ranks - 1 - rank, size.microbatches);
    for (int32_t m = 0; m < fill; ++m) row.forward(rank);
    for (int32_t m = 0; m < size.microbatches; ++m) {
      if (fill + m < size.microbatches) row.forward(rank);
      row.backward(rank);
    }
    rows.push_back(row.take());
  }
  return rows;
}

PipelineSchedule::Rows looped_rows(const PipelineSize& size) {
  PipelineSchedule::Rows rows;
  for (int32_t rank = 0; rank < size.ranks; ++rank) {
    std::vector<PipelineAction>& row = rows.emplace_back();
    for (int32_t k = 0; k < size.stages_per_rank; ++k) {
      for (int32_t m = 0; m < size.microbatches; ++m) {
        row.push_back({.work = PipelineWork::kForward, .stage = k * size.ranks + rank, .microbatch = m});
      }
    }
    for (int32_t k = size.stages_per_rank - 1; k >= 0; --k) {
      for (int32_t m = size.microbatches - 1; m >= 0; --m) {
        row.push_back({.work = PipelineWork::kBackward, .stage = k * size.ranks + rank, .microbatch = m});
      }
    }
  }
  return rows;
}

PipelineSchedule::Rows interleaved_rows(const PipelineSize& size) { return interleaved(size, "interleaved", false); }
PipelineSchedule::Rows zero_bubble_rows(const PipelineSize& size) { return interleaved(size, "zero_bubble", true); }

}  // namespace shadowgraph
