// Pipeline schedules. The table is at the end, after the functions that generate the rows.
#include "parallel/schedule/known_schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <deque>
#include <tuple>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

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

// A rank of an interleaved schedule: warm-up forwards, then alternating forward and backward, then other backwards.
class InterleavedRank {
 public:
  InterleavedRank(const PipelineSize& size, int32_t rank, int32_t round, bool splits_backward, int32_t per_hop)
      : size_(size),
        rank_(rank),
        round_(round),
        splits_(splits_backward),
        per_hop_(per_hop),
        total_(size.stages_per_rank * size.microbatches),
        fill_(std::min((size.stages_per_rank - 1) * round + per_hop * (size.ranks - 1 - rank), total_)),
        row_(size.ranks * size.stages_per_rank) {}

  std::vector<PipelineAction> row() {
    for (int32_t i = 0; i < fill_; ++i) row_.forward(forward_stage(i));
    for (int32_t i = 0; i < total_; ++i) {
      if (fill_ + i < total_) row_.forward(forward_stage(fill_ + i));
      backward(backward_stage(i));
      // Weight gradients are delayed by the warm-up of the earlier ranks.
      if (splits_ && i >= per_hop_ * rank_) weight();
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
  int32_t per_hop_, total_, fill_;
  std::deque<int32_t> weights_;  // stages whose weight gradients are still to be computed
  RowWriter row_;
};

template <class Row>
PipelineSchedule::Rows rows_of_ranks(const PipelineSize& size, const Row& row) {
  PipelineSchedule::Rows rows;
  for (int32_t rank = 0; rank < size.ranks; ++rank) rows.push_back(row(rank));
  return rows;
}

// Interleaved schedules process micro-batches in rounds, switching between the stages of a rank. `per_hop`: warm-up
// forwards per later rank.
PipelineSchedule::Rows interleaved(const PipelineSize& size, const char* name, bool splits_backward, int32_t per_hop) {
  const int32_t rounds = std::max(1, size.microbatches / size.ranks);
  if (size.microbatches % rounds != 0) {
    throw Error(
        fmt::format("schedule {}: {} micro-batches do not divide into {} rounds over {} ranks; use a multiple of the "
                    "number of ranks",
                    name, size.microbatches, rounds, size.ranks));
  }
  return rows_of_ranks(size, [&](int32_t rank) {
    return InterleavedRank(size, rank, size.microbatches / rounds, splits_backward, per_hop).row();
  });
}

PipelineSchedule::Rows gpipe_rows(const PipelineSize& size) {
  return rows_of_ranks(size, [&](int32_t rank) {
    RowWriter row(size.ranks);
    for (int32_t m = 0; m < size.microbatches; ++m) row.forward(rank);
    for (int32_t m = 0; m < size.microbatches; ++m) row.backward(rank);
    return row.take();
  });
}

PipelineSchedule::Rows one_forward_one_backward_rows(const PipelineSize& size) {
  return rows_of_ranks(size,
                       [&](int32_t rank) { return InterleavedRank(size, rank, size.microbatches, false, 1).row(); });
}

// Backwards are those of the forwards in reverse order.
PipelineSchedule::Rows looped_rows(const PipelineSize& size) {
  return rows_of_ranks(size, [&](int32_t rank) {
    std::vector<PipelineAction> row;
    for (int32_t k = 0; k < size.stages_per_rank; ++k) {
      for (int32_t m = 0; m < size.microbatches; ++m) {
        row.push_back({.work = PipelineWork::kForward, .stage = k * size.ranks + rank, .microbatch = m});
      }
    }
    for (size_t i = row.size(); i-- > 0;) {
      row.push_back({.work = PipelineWork::kBackward, .stage = row[i].stage, .microbatch = row[i].microbatch});
    }
    return row;
  });
}

// Schedules that repeat one block every six slots ("Pipeline Parallelism with Controllable Memory", arXiv 2405.15362).
//
// All actions are assumed to take equally long. A micro-batch visits each rank four times: F0 on the way out, F1 on the
// way back, B1 and B0 for its gradient. From rank to rank it moves by one slot on the way out, and by `back` slots on
// the way back. On every rank the four must differ modulo six, and the two remaining slots are for weight gradients.
// The sum of the steps determines the activation memory: 4 slots per rank in v_min and 6 in v_half, 12 in 1F1B.

constexpr int64_t kPeriod = 6;

class RepeatedBlock {
 public:
  RepeatedBlock(const PipelineSize& size, int64_t back) : size_(size), back_(back) { find_turns(); }

  PipelineSchedule::Rows rows() const {
    return rows_of_ranks(size_, [&](int32_t rank) { return row(rank); });
  }

 private:
  using Times = std::array<int64_t, 4>;  // F0, F1, B1, B0

  Times times(int64_t rank) const {
    const int64_t behind = size_.ranks - 1 - rank;
    return {rank, turns_[0] + behind * back_, turns_[1] + rank, turns_[2] + behind * back_};
  }
  bool fits() const {
    for (int32_t rank = 0; rank < size_.ranks; ++rank) {
      Times at = times(rank);
      for (int64_t& time : at) time %= kPeriod;
      std::ranges::sort(at);
      if (std::ranges::adjacent_find(at) != at.end()) return false;
    }
    return true;
  }
  // Finds the earliest turning points at the last rank, at the first, and at the last again.
  void find_turns() {
    const int64_t hops = size_.ranks - 1;
    for (int64_t late = 0; late < 3 * kPeriod; ++late) {
      for (int64_t a = 0; a <= late; ++a) {
        for (int64_t b = 0; a + b <= late; ++b) {
          turns_[0] = hops + 1 + a;
          turns_[1] = turns_[0] + hops * back_ + 1 + b;
          turns_[2] = turns_[1] + hops + 1 + (late - a - b);
          if (fits()) return;
        }
      }
    }
  }

  std::vector<PipelineAction> row(int32_t rank) const {
    using enum PipelineWork;
    const int32_t out = rank, back = 2 * size_.ranks - 1 - rank;
    const Times at = times(rank);
    // Weight gradients take the first free slot after each backward.
    std::array<bool, kPeriod> taken{};
    for (const int64_t time : at) taken[static_cast<size_t>(time % kPeriod)] = true;
    const auto free_after = [&](int64_t time) {
      do ++time;
      while (taken[static_cast<size_t>(time % kPeriod)]);
      taken[static_cast<size_t>(time % kPeriod)] = true;
      return time;
    };
    const int64_t weight_back = free_after(at[2]), weight_out = free_after(at[3]);
    std::vector<std::tuple<int64_t, PipelineAction>> timed;
    for (int32_t m = 0; m < size_.microbatches; ++m) {
      const auto add = [&](int64_t time, PipelineWork work, int32_t stage) {
        timed.emplace_back(time + kPeriod * m, PipelineAction{.work = work, .stage = stage, .microbatch = m});
      };
      add(at[0], kForward, out);
      add(at[1], kForward, back);
      add(at[2], kInputGradient, back);
      add(at[3], kInputGradient, out);
      add(weight_back, kWeightGradient, back);
      add(weight_out, kWeightGradient, out);
    }
    std::ranges::sort(timed, {}, [](const auto& entry) { return std::get<0>(entry); });
    std::vector<PipelineAction> row;
    for (const auto& [time, action] : timed) row.push_back(action);
    return row;
  }

  const PipelineSize& size_;
  int64_t back_;
  std::array<int64_t, 3> turns_{};
};

// V-shaped schedules: a micro-batch goes to the last rank and back; rank r has stages r and 2n-1-r.

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

// DualPipeV (DualPipe, DeepSeek-V3, arXiv 2412.19437, cut in half): overlaps forward and backward of two micro-batches.
class DualPipeRank {
 public:
  DualPipeRank(const PipelineSize& size, int32_t rank)
      : size_(size), rank_(rank), out_(rank), back_(2 * size.ranks - 1 - rank), row_(2 * size.ranks) {}

  std::vector<PipelineAction> row() {
    const int32_t after = size_.ranks - rank_ - 1;  // later ranks
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
      if (i > 0 || after > 0)
        row_.overlap_next();  // not at the turning point, where the gradient depends on the forward
      row_.backward(back_);
      forward_with_backward();
    }
    repeat(after, [&] {
      row_.backward(back_);
      forward_with_backward();
    });
    drain(after);
    return row_.take();
  }

 private:
  template <class Do>
  static void repeat(int32_t times, Do&& once) {
    for (int32_t i = 0; i < times; ++i) once();
  }
  void forward_with_backward() {
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
  // After the last forward. In the second half, weight gradients are delayed to fill bubbles.
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

PipelineSchedule::Rows zbv_rows(const PipelineSize& size) {
  // The pattern needs at least this many micro-batches; the extra ones are removed.
  const int32_t microbatches = std::max(2 * size.ranks - 1, size.microbatches);
  return rows_of_ranks(size, [&](int32_t rank) {
    std::vector<PipelineAction> row = zbv_row(size, rank, microbatches);
    std::erase_if(row, [&](const PipelineAction& a) { return a.microbatch >= size.microbatches; });
    return row;
  });
}

PipelineSchedule::Rows dualpipe_v_rows(const PipelineSize& size) {
  if (size.microbatches < 2 * size.ranks) {
    throw Error(fmt::format("schedule dualpipe_v: {} ranks need at least {} micro-batches, not {}", size.ranks,
                            2 * size.ranks, size.microbatches));
  }
  return rows_of_ranks(size, [&](int32_t rank) { return DualPipeRank(size, rank).row(); });
}

constexpr KnownSchedule kSchedules[] = {
    {.name = "gpipe",
     .about = "all forwards, then all backwards",
     .rows = gpipe_rows,
     .stages_per_rank = 1,
     .torch_class = "ScheduleGPipe"},
    {.name = "1f1b",
     .about = "alternates forward and backward: a rank holds one micro-batch per remaining rank",
     .rows = one_forward_one_backward_rows,
     .stages_per_rank = 1,
     .torch_class = "Schedule1F1B",
     .in_megatron = true,
     .searched = true,
     .steady_rounds = 2},
    {.name = "interleaved",
     .about = "1F1B with several stages per rank, in rounds of micro-batches",
     .rows = [](const PipelineSize& size) { return interleaved(size, "interleaved", false, 2); },
     .torch_class = "ScheduleInterleaved1F1B",
     .in_megatron = true,
     .searched = true,
     .min_stages_per_rank = 2,
     .in_rounds = true,
     .steady_rounds = 4},
    {.name = "looped_bfs",
     .about = "all micro-batches through one stage of a rank, then through its next",
     .rows = looped_rows,
     .torch_class = "ScheduleLoopedBFS",
     .min_stages_per_rank = 2},
    {.name = "zero_bubble",
     .about = "interleaved, with weight gradients filling bubbles; ZB1P with one stage per rank",
     .rows = [](const PipelineSize& size) { return interleaved(size, "zero_bubble", true, 1); },
     .splits_backward = true,
     .torch_class = "ScheduleInterleavedZeroBubble",
     .searched = true,
     .in_rounds = true},
    // "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241), ZB-H2.
    {.name = "zb_h2",
     .about = "no bubbles between a rank's first and last action, with twice the memory of 1F1B",
     .rows = [](const PipelineSize& size) { return interleaved(size, "zb_h2", true, 2); },
     .stages_per_rank = 1,
     .splits_backward = true,
     .in_rounds = true},
    {.name = "zbv",
     .about = "no bubbles if F, I and W take equally long, with the memory of 1F1B",
     .rows = zbv_rows,
     .stages_per_rank = 2,
     .v_shaped = true,
     .splits_backward = true,
     .torch_class = "ScheduleZBVZeroBubble",
     .searched = true},
    {.name = "dualpipe_v",
     .about = "overlaps forward of one micro-batch with backward of another",
     .rows = dualpipe_v_rows,
     .stages_per_rank = 2,
     .v_shaped = true,
     .splits_backward = true,
     .torch_class = "ScheduleDualPipeV"},
    {.name = "v_half",
     .about = "half the activation memory of 1F1B",
     .rows = [](const PipelineSize& size) { return RepeatedBlock(size, 2).rows(); },
     .stages_per_rank = 2,
     .v_shaped = true,
     .splits_backward = true,
     .searched = true},
    {.name = "v_min",
     .about = "a third of the activation memory of 1F1B",
     .rows = [](const PipelineSize& size) { return RepeatedBlock(size, 1).rows(); },
     .stages_per_rank = 2,
     .v_shaped = true,
     .splits_backward = true,
     .searched = true},
};

}  // namespace

std::span<const KnownSchedule> known_schedules() { return kSchedules; }

const KnownSchedule& known_schedule(std::string_view name) {
  const auto found = std::ranges::find(kSchedules, name, &KnownSchedule::name);
  if (found != std::end(kSchedules)) return *found;
  throw Error(fmt::format("unknown schedule '{}'; expected one of {}, or a CSV file", name,
                          fmt::join(PipelineSchedule::names(), ", ")));
}

}  // namespace shadowgraph
