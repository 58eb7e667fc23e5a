// Schedules that repeat one block every six slots ("Pipeline Parallelism with Controllable Memory", arXiv 2405.15362).
//
// All actions are taken for equally long. A micro-batch passes a rank at four times: out at F0, back at F1, its gradient
// out at B1 and back at B0. Each moves by so many slots from rank to rank. On every rank the four must differ modulo six,
// and weight gradients take the two slots that are left. How long a micro-batch stays decides what is held. The steps add
// up to 4 slots a rank in v_min and 6 in v_half, where 1F1B has 12.
#include <algorithm>
#include <array>
#include <tuple>

#include "parallel/schedule/known_schedules.h"

namespace shadowgraph {
namespace {

constexpr int64_t kPeriod = 6;

// Slots from one rank to the next.
struct BlockSteps {
  int64_t forward_out, forward_back, backward_out, backward_back;
};
constexpr BlockSteps kMinimum{1, 1, 1, 1};
constexpr BlockSteps kHalf{1, 2, 1, 2};

class RepeatedBlock {
 public:
  RepeatedBlock(const PipelineSize& size, const BlockSteps& steps) : size_(size), steps_(steps) { find_turns(); }

  PipelineSchedule::Rows rows() const {
    PipelineSchedule::Rows rows;
    for (int32_t rank = 0; rank < size_.ranks; ++rank) rows.push_back(row(rank));
    return rows;
  }

 private:
  using Times = std::array<int64_t, 4>;  // F0, F1, B1, B0

  Times times(int64_t rank) const {
    const int64_t behind = size_.ranks - 1 - rank;
    return {rank * steps_.forward_out, turns_[0] + behind * steps_.forward_back, turns_[1] + rank * steps_.backward_out,
            turns_[2] + behind * steps_.backward_back};
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
  // The soonest turns at the last rank, at the first, and at the last again.
  void find_turns() {
    const int64_t hops = size_.ranks - 1;
    const int64_t first = hops * steps_.forward_out + 1;
    for (int64_t late = 0; late < 3 * kPeriod; ++late) {
      for (int64_t a = 0; a <= late; ++a) {
        for (int64_t b = 0; a + b <= late; ++b) {
          turns_[0] = first + a;
          turns_[1] = turns_[0] + hops * steps_.forward_back + 1 + b;
          turns_[2] = turns_[1] + hops * steps_.backward_out + 1 + (late - a - b);
          if (fits()) return;
        }
      }
    }
  }

  std::vector<PipelineAction> row(int32_t rank) const {
    using enum PipelineWork;
    const int32_t out = rank, back = 2 * size_.ranks - 1 - rank;
    const Times at = times(rank);
    // Weight gradients: the first slot behind each backward that nothing of the block has.
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
  const BlockSteps& steps_;
  std::array<int64_t, 3> turns_{};
};

}  // namespace

PipelineSchedule::Rows v_half_rows(const PipelineSize& size) { return RepeatedBlock(size, kHalf).rows(); }
PipelineSchedule::Rows v_min_rows(const PipelineSize& size) { return RepeatedBlock(size, kMinimum).rows(); }

}  // namespace shadowgraph
