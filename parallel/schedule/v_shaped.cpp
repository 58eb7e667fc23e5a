// Schedules in which a micro-batch runs to the last rank and back: rank r has stages r and 2n-1-r.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "parallel/schedule/known_schedules.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

// "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241, section 6).
std::vector<PipelineAction> zbv_row(const PipelineSize& size, int32_t rank, int32_t microbatches) {
  const int32_t out = rank, back = 2 * size.ranks - 1 - rank;
  RowWriter row(2 * size.ranks);
  const auto whole = [&row](int32_t stage) {
    row.input_gradient(stage);
    row.weight_gradient(stage);
  };
  for (int32_t i = 0; i < 2 * (size.ranks - rank) - 1; ++i) row.forward(out);
  for (int32_t i = 0; i < rank; ++i) {
    row.forward(back);
    row.forward(out);
  }
  for (int32_t i = 0; i < size.ranks - rank; ++i) {
    row.forward(back);
    whole(back);
  }
  while (row.forwards(back) < row.forwards(out) || row.forwards(out) < microbatches) {
    if (row.forwards(out) < microbatches) row.forward(out);
    whole(out);
    row.forward(back);
    whole(back);
  }
  for (int32_t i = 0; i < rank; ++i) {
    row.input_gradient(out);
    row.input_gradient(back);
  }
  for (int32_t i = 0; i < size.ranks - rank; ++i) {
    row.input_gradient(out);
    row.weight_gradient(out);
  }
  while (row.weights(back) < row.inputs(back)) row.weight_gradient(back);
  while (row.weights(out) < row.inputs(out)) row.weight_gradient(out);
  return row.take();
}

// DualPipe (DeepSeek-V3, arXiv 2412.19437), cut in half: forward of one micro-batch beside backward of another.
class DualPipeRank {
 public:
  DualPipeRank(const PipelineSize& size, int32_t rank)
      : size_(size), rank_(rank), out_(rank), back_(2 * size.ranks - 1 - rank), row_(2 * size.ranks) {}

  std::vector<PipelineAction> row() {
    const int32_t after = size_.ranks - rank_ - 1;  // ranks behind this one
    repeat(2 * after, [&] { row_.forward(out_); });
    repeat(rank_ + 1, [&] {
      row_.forward(out_);
      row_.forward(back_);
    });
    repeat(after, [&] {
      input_gradient(back_);
      weight_gradient();
      row_.forward(back_);
    });
    for (int32_t i = 0; i < size_.microbatches - 2 * size_.ranks + rank_ + 1; ++i) {
      row_.forward(out_);
      if (i > 0 || after > 0) row_.overlap_next();  // apart at the turn, where the gradient would wait for the forward
      row_.backward(back_);
      forward_beside_backward();
    }
    repeat(after, [&] {
      row_.backward(back_);
      forward_beside_backward();
    });
    drain(after);
    return row_.take();
  }

 private:
  template <class Do>
  static void repeat(int32_t times, Do&& once) {
    for (int32_t i = 0; i < times; ++i) once();
  }
  void forward_beside_backward() {
    row_.forward(back_);
    row_.overlap_next();
    row_.backward(out_);
  }
  void input_gradient(int32_t stage) {
    row_.input_gradient(stage);
    weights_.push_back(stage);
  }
  void weight_gradient() {
    if (weights_.empty()) return;
    row_.weight_gradient(weights_.front());
    weights_.pop_front();
  }
  // No forwards are left. In the second half weight gradients wait, and fill what would be bubbles.
  void drain(int32_t after) {
    bool splits = false;
    const auto backward = [&](int32_t stage) { splits ? input_gradient(stage) : row_.backward(stage); };
    for (int32_t i = 0; i < rank_ + 1; ++i) {
      const bool half = i == (rank_ + 1) / 2;
      if (half && rank_ % 2 == 1) splits = true;
      backward(back_);
      if (half && rank_ % 2 == 0) splits = true;
      backward(out_);
    }
    repeat(after, [&] {
      weight_gradient();
      backward(out_);
    });
    repeat(rank_ + 1, [&] { weight_gradient(); });
  }

  const PipelineSize& size_;
  int32_t rank_, out_, back_;
  std::deque<int32_t> weights_;
  RowWriter row_;
};

}  // namespace

PipelineSchedule::Rows zbv_rows(const PipelineSize& size) {
  // Its pattern needs so many micro-batches; those that there are not are left out.
  const int32_t microbatches = std::max(2 * size.ranks - 1, size.microbatches);
  PipelineSchedule::Rows rows;
  for (int32_t rank = 0; rank < size.ranks; ++rank) {
    std::vector<PipelineAction> row = zbv_row(size, rank, microbatches);
    std::erase_if(row, [&](const PipelineAction& a) { return a.microbatch >= size.microbatches; });
    rows.push_back(std::move(row));
  }
  return rows;
}

PipelineSchedule::Rows dualpipe_v_rows(const PipelineSize& size) {
  if (size.microbatches < 2 * size.ranks) {
    throw Error(fmt::format("schedule dualpipe_v: {} ranks have {} stages and need as many micro-batches, not {}",
                            size.ranks, 2 * size.ranks, size.microbatches));
  }
  PipelineSchedule::Rows rows;
  for (int32_t rank = 0; rank < size.ranks; ++rank) rows.push_back(DualPipeRank(size, rank).row());
  return rows;
}

}  // namespace shadowgraph
