// Makes the rows of the schedules that have names, by rank.
#pragma once

#include "shadowgraph/plan/pipeline.h"

namespace shadowgraph {

// Throw Error for sizes that they are not made for.
PipelineSchedule::Rows gpipe_rows(const PipelineSize& size);
PipelineSchedule::Rows one_forward_one_backward_rows(const PipelineSize& size);
PipelineSchedule::Rows looped_rows(const PipelineSize& size);
PipelineSchedule::Rows interleaved_rows(const PipelineSize& size);
PipelineSchedule::Rows zero_bubble_rows(const PipelineSize& size);
PipelineSchedule::Rows zbv_rows(const PipelineSize& size);
PipelineSchedule::Rows dualpipe_v_rows(const PipelineSize& size);
PipelineSchedule::Rows v_half_rows(const PipelineSize& size);
PipelineSchedule::Rows v_min_rows(const PipelineSize& size);

// Writes the row of one rank, counting micro-batches by stage and kind.
class RowWriter {
 public:
  explicit RowWriter(int32_t stages)
      : forwards_(static_cast<size_t>(stages)), inputs_(forwards_), weights_(forwards_) {}
  void forward(int32_t stage) { add(PipelineWork::kForward, stage, forwards_); }
  void input_gradient(int32_t stage) { add(PipelineWork::kInputGradient, stage, inputs_); }
  void weight_gradient(int32_t stage) { add(PipelineWork::kWeightGradient, stage, weights_); }
  void backward(int32_t stage) {
    add(PipelineWork::kBackward, stage, inputs_);
    ++weights_[static_cast<size_t>(stage)];
  }
  // What was written last and what comes next are computed together.
  void overlap_next() { row_.back().overlaps_next = true; }
  int32_t forwards(int32_t stage) const { return forwards_[static_cast<size_t>(stage)]; }
  int32_t inputs(int32_t stage) const { return inputs_[static_cast<size_t>(stage)]; }
  int32_t weights(int32_t stage) const { return weights_[static_cast<size_t>(stage)]; }
  std::vector<PipelineAction> take() { return std::move(row_); }

 private:
  void add(PipelineWork work, int32_t stage, std::vector<int32_t>& counts) {
    row_.push_back({.work = work, .stage = stage, .microbatch = counts[static_cast<size_t>(stage)]++});
  }
  std::vector<int32_t> forwards_, inputs_, weights_;
  std::vector<PipelineAction> row_;
};

}  // namespace shadowgraph
