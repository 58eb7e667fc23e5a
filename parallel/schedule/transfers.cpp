// Puts sends and receives into a schedule that has none.
//
// All ranks are run in rounds of one step each. A step that another rank needs puts its send behind itself, and the
// receive to the end of what that rank has done so far. So both sides meet in one order and none waits for ever. torch
// does the same (_add_send_recv), and its files are compared with these.
#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "parallel/schedule/schedule_check.h"
#include "shadowgraph/parallel/schedule.h"

namespace shadowgraph {
namespace {

using enum PipelineWork;

class TransferPlacing {
 public:
  explicit TransferPlacing(const PipelineSchedule& schedule)
      : schedule_(schedule),
        done_(schedule.stages(), schedule.microbatches()),
        rows_(static_cast<size_t>(schedule.ranks())),
        next_(rows_.size(), 0) {}

  PipelineSchedule::Rows rows() {
    // The schedule was checked: some rank can always go on.
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (int32_t rank = 0; rank < schedule_.ranks(); ++rank) goes_on |= step(rank);
    }
    return std::move(rows_);
  }

 private:
  // One action, or those that overlap.
  bool step(int32_t rank) {
    const auto row = schedule_.of(rank);
    const size_t begin = next_[static_cast<size_t>(rank)];
    if (begin == row.size()) return false;
    size_t end = begin;
    while (row[end].overlaps_next) ++end;
    ++end;
    for (size_t i = begin; i < end; ++i) {
      if (!is_ready(row[i])) return false;
    }
    auto& written = rows_[static_cast<size_t>(rank)];
    written.insert(written.end(), row.begin() + static_cast<std::ptrdiff_t>(begin),
                   row.begin() + static_cast<std::ptrdiff_t>(end));
    for (size_t i = begin; i < end; ++i) {
      done_.add(row[i]);
      transfer(row[i]);
    }
    next_[static_cast<size_t>(rank)] = end;
    return true;
  }

  bool is_ready(const PipelineAction& a) const {
    if (a.work == kForward && a.stage > 0) {
      return done_.has(on_one_rank(a.stage - 1, a.stage) ? kForward : kReceiveForward,
                       on_one_rank(a.stage - 1, a.stage) ? a.stage - 1 : a.stage, a.microbatch);
    }
    if ((a.work == kBackward || a.work == kInputGradient) && a.stage + 1 < schedule_.stages()) {
      return on_one_rank(a.stage, a.stage + 1) ? done_.has_input_gradient(a.stage + 1, a.microbatch)
                                               : done_.has(kReceiveBackward, a.stage, a.microbatch);
    }
    return true;
  }

  void transfer(const PipelineAction& a) {
    if (a.work == kForward && a.stage + 1 < schedule_.stages()) {
      move(a, a.stage + 1, kSendForward, kReceiveForward);
    } else if ((a.work == kBackward || a.work == kInputGradient) && a.stage > 0) {
      move(a, a.stage - 1, kSendBackward, kReceiveBackward);
    }
  }
  void move(const PipelineAction& a, int32_t to, PipelineWork send, PipelineWork receive) {
    if (on_one_rank(a.stage, to)) return;
    put({.work = send, .stage = a.stage, .microbatch = a.microbatch});
    put({.work = receive, .stage = to, .microbatch = a.microbatch});
  }
  void put(const PipelineAction& a) {
    rows_[static_cast<size_t>(schedule_.rank_of(a.stage))].push_back(a);
    done_.add(a);
  }
  bool on_one_rank(int32_t a, int32_t b) const { return schedule_.rank_of(a) == schedule_.rank_of(b); }

  const PipelineSchedule& schedule_;
  DoneActions done_;
  PipelineSchedule::Rows rows_;
  std::vector<size_t> next_;
};

}  // namespace

PipelineSchedule PipelineSchedule::with_transfers() const {
  if (has_transfers_) return *this;
  return {name_, TransferPlacing(*this).rows()};
}

namespace {

// A row with its missing waits. The local backward proves that the other rank has used the activation.
std::vector<PipelineAction> with_waits(std::span<const PipelineAction> row) {
  std::vector<PipelineAction> with, stated, pending, backwards;
  std::ranges::copy_if(row, std::back_inserter(stated), [](const auto& a) { return waited_send(a).has_value(); });
  for (const PipelineAction& a : row) {
    with.push_back(a);
    if (a.work == kSendForward || a.work == kSendBackward) {
      const auto work = a.work == kSendForward ? kWaitSendForward : kWaitSendBackward;
      const PipelineAction wait{.work = work, .stage = a.stage, .microbatch = a.microbatch};
      if (std::ranges::find(stated, wait) == stated.end()) pending.push_back(wait);
    }
    if (a.work == kBackward || a.work == kInputGradient) backwards.push_back(a);
    if (a.overlaps_next) continue;
    for (const PipelineAction& b : backwards) {
      const PipelineAction wait{.work = kWaitSendForward, .stage = b.stage, .microbatch = b.microbatch};
      if (std::erase(pending, wait) != 0) with.push_back(wait);
    }
    backwards.clear();
  }
  with.insert(with.end(), pending.begin(), pending.end());
  return with;
}

}  // namespace

PipelineSchedule PipelineSchedule::with_send_waits() const {
  Rows rows;
  for (const auto& row : *rows_) rows.push_back(with_waits(row));
  return {name_, std::move(rows)};
}

}  // namespace shadowgraph
