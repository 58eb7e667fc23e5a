#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "parallel/schedule/known_schedules.h"
#include "parallel/schedule/schedule_check.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/plan/pipeline.h"
#include "support/text.h"

namespace shadowgraph {
bool computes(const PipelineAction& action) { return action.work <= PipelineWork::kWeightGradient; }
bool transfers(const PipelineAction& action) {
  return action.work >= PipelineWork::kSendForward && action.work <= PipelineWork::kReceiveBackward;
}

PipelineSchedule::PipelineSchedule(std::string name, Rows rows)
    : name_(std::move(name)), rows_(std::make_shared<const Rows>(std::move(rows))) {
  ScheduleFacts facts = check_schedule(name_, *rows_);
  rank_of_ = std::move(facts.rank_of);
  microbatches_ = facts.microbatches;
  has_transfers_ = facts.has_transfers;
}

std::vector<std::string> PipelineSchedule::names() {
  std::vector<std::string> names;
  for (const KnownSchedule& known : known_schedules()) names.emplace_back(known.name);
  return names;
}

int32_t PipelineSchedule::stages_per_rank(std::string_view name, int32_t requested) {
  const int32_t fixed = known_schedule(name).stages_per_rank;
  return fixed > 0 ? fixed : requested;
}

PipelineSchedule PipelineSchedule::named(std::string_view name, const PipelineSize& size) {
  const KnownSchedule& known = known_schedule(name);
  const auto refuse = [&](const std::string& why) { throw Error(fmt::format("schedule {}: {}", name, why)); };
  if (size.ranks < 1 || size.stages_per_rank < 1 || size.microbatches < 1) {
    refuse("ranks, stages and micro-batches must be at least 1");
  }
  if (int64_t{size.ranks} * size.stages_per_rank * size.microbatches > 1 << 22) refuse("it is too large");
  if (known.stages_per_rank > 0 && size.stages_per_rank != known.stages_per_rank) {
    refuse(fmt::format("it needs {} per rank, not {}", known.stages_per_rank == 1 ? "one stage" : "two stages",
                       size.stages_per_rank));
  }
  return {std::string(name), known.rows(size)};
}

namespace {

constexpr std::array<std::string_view, kPipelineWorks> kWorkNames = {
    "F",      "B",       "I",       "W",           "SEND_F",      "RECV_F",      "SEND_B",
    "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD"};
constexpr std::string_view kOverlap = "OVERLAP_F_B";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

class ScheduleReader {
 public:
  explicit ScheduleReader(const std::string& name) : name_(name) {}

  PipelineSchedule::Rows rows(std::string_view text) {
    PipelineSchedule::Rows rows;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line_;
      // An empty line is a rank without actions, except at the end of the file.
      if (trimmed(line).empty() && trimmed(text).empty()) continue;
      rows.push_back(row(line));
    }
    return rows;
  }

 private:
  [[noreturn]] void refuse(std::string_view cell) const {
    throw ParseError(fmt::format("{}, line {}, cell {}: '{}' is not an action; expected for example 2F0, 1B3, "
                                 "0SEND_F1, 0UNSHARD or (0F8;7B0)OVERLAP_F_B",
                                 name_, line_, cell_, terminal_text(cell.substr(0, 60))),
                     line_, cell_);
  }

  std::vector<PipelineAction> row(std::string_view line) {
    std::vector<PipelineAction> row;
    cell_ = 0;
    for (bool more = true; more;) {
      const size_t end = std::min(line.find(','), line.size());
      more = end < line.size();
      ++cell_;
      std::string_view cell = trimmed(line.substr(0, end));
      if (cell.size() > 1 && cell.front() == '"' && cell.back() == '"') cell = cell.substr(1, cell.size() - 2);
      if (!cell.empty()) add_cell(row, cell);
      line.remove_prefix(more ? end + 1 : end);
    }
    return row;
  }

  void add_cell(std::vector<PipelineAction>& row, std::string_view cell) const {
    if (cell.front() != '(') return row.push_back(action(cell, cell));
    const size_t close = cell.find(')');
    if (close == cell.npos || cell.substr(close + 1) != kOverlap) refuse(cell);
    std::string_view parts = cell.substr(1, close - 1);
    for (bool more = true; more;) {
      const size_t end = std::min(parts.find(';'), parts.size());
      more = end < parts.size();
      row.push_back(action(trimmed(parts.substr(0, end)), cell));
      if (!computes(row.back())) refuse(cell);
      row.back().overlaps_next = more;
      parts.remove_prefix(more ? end + 1 : end);
    }
  }

  PipelineAction action(std::string_view text, std::string_view cell) const {
    PipelineAction action;
    const char* const end = text.data() + text.size();
    const auto stage = std::from_chars(text.data(), end, action.stage);
    if (stage.ec != std::errc() || action.stage < 0) refuse(cell);
    std::string_view rest(stage.ptr, static_cast<size_t>(end - stage.ptr));
    const size_t letters = std::min(rest.find_first_of("0123456789-+"), rest.size());
    const auto work = std::find(kWorkNames.begin(), kWorkNames.end(), rest.substr(0, letters));
    if (work == kWorkNames.end()) refuse(cell);
    action.work = static_cast<PipelineWork>(work - kWorkNames.begin());
    rest.remove_prefix(letters);
    if (rest.empty()) return action;
    const auto microbatch = std::from_chars(rest.data(), end, action.microbatch);
    if (microbatch.ec != std::errc() || microbatch.ptr != end || action.microbatch < 0) refuse(cell);
    return action;
  }

  const std::string& name_;
  int line_ = 0;
  int cell_ = 0;
};

}  // namespace

std::string to_string(const PipelineAction& action) {
  const std::string_view work = kWorkNames[static_cast<size_t>(action.work)];
  return action.microbatch < 0 ? fmt::format("{}{}", action.stage, work)
                               : fmt::format("{}{}{}", action.stage, work, action.microbatch);
}

PipelineSchedule PipelineSchedule::from_csv(std::string_view text, const std::string& name) {
  return {name, ScheduleReader(name).rows(text)};
}

PipelineSchedule PipelineSchedule::read_csv_file(const std::string& path) { return from_csv(read_file(path), path); }

std::string PipelineSchedule::to_csv() const {
  std::string text;
  for (const auto& row : *rows_) {
    bool inside = false;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += inside ? ";" : ",";
      if (!inside && row[i].overlaps_next) text += "(";
      text += to_string(row[i]);
      if (inside && !row[i].overlaps_next) text += fmt::format("){}", kOverlap);
      inside = row[i].overlaps_next;
    }
    text += "\n";
  }
  return text;
}

namespace {

using enum PipelineWork;

constexpr int32_t kMostStages = 1 << 16;
constexpr int32_t kMostMicrobatches = 1 << 20;
constexpr int64_t kMostActions = int64_t{1} << 26;

class ScheduleCheck {
 public:
  ScheduleCheck(const std::string& name, const PipelineSchedule::Rows& rows) : name_(name), rows_(rows) {}

  ScheduleFacts run() {
    place_stages();
    check_counts();
    check_order();
    return std::move(facts_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw Error("schedule " + name_ + ": " + why); }

  void place_stages() {
    if (rows_.empty()) refuse("it has no ranks");
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      for (size_t i = 0; i < rows_[rank].size(); ++i) {
        const PipelineAction& a = rows_[rank][i];
        const bool both_compute = computes(a) && i + 1 < rows_[rank].size() && computes(rows_[rank][i + 1]);
        if (a.overlaps_next && !both_compute) refuse(fmt::format("{} does not overlap a compute action", to_string(a)));
        if (a.stage < 0 || a.stage >= kMostStages) refuse(fmt::format("{}: invalid stage", to_string(a)));
        const bool of_microbatch = computes(a) || transfers(a) || waited_send(a);
        if (of_microbatch && a.microbatch < 0) refuse(fmt::format("{} has no micro-batch", to_string(a)));
        if (a.microbatch >= kMostMicrobatches) refuse(fmt::format("{}: invalid micro-batch", to_string(a)));
        facts_.microbatches = std::max(facts_.microbatches, a.microbatch + 1);
        facts_.has_transfers |= transfers(a);
        auto& rank_of = facts_.rank_of;
        if (static_cast<size_t>(a.stage) >= rank_of.size()) rank_of.resize(a.stage + 1, -1);
        if (rank_of[a.stage] < 0) rank_of[a.stage] = static_cast<int32_t>(rank);
        if (rank_of[a.stage] != static_cast<int32_t>(rank)) {
          refuse(fmt::format("stage {} is on ranks {} and {} ({})", a.stage, rank_of[a.stage], rank, to_string(a)));
        }
      }
    }
    stages_ = static_cast<int32_t>(facts_.rank_of.size());
    if (stages_ == 0 || facts_.microbatches == 0) refuse("it has no compute actions");
    if (int64_t{stages_} * facts_.microbatches > kMostActions / kPipelineWorks) refuse("it is too large");
    for (int32_t s = 0; s < stages_; ++s) {
      if (facts_.rank_of[s] < 0) refuse(fmt::format("stage {} is not assigned to a rank", s));
    }
  }

  void check_counts() const {
    DoneActions seen(stages_, facts_.microbatches);
    for (const auto& row : rows_) {
      std::vector<int32_t> reduced(stages_, 0);
      for (const PipelineAction& a : row) {
        if (const auto send = waited_send(a); send && !seen.has(*send, a.stage, a.microbatch)) {
          refuse(fmt::format("{} has no earlier send to wait for", to_string(a)));
        }
        if (a.work == kReduceGradients) ++reduced[a.stage];
        if (a.work == kWaitReduce && reduced[a.stage]-- == 0) {
          refuse(fmt::format("{} has no earlier REDUCE_GRAD to wait for", to_string(a)));
        }
        if (!computes(a) && !transfers(a) && !waited_send(a)) continue;
        if (seen.has(a.work, a.stage, a.microbatch)) refuse(fmt::format("{} occurs twice", to_string(a)));
        seen.add(a);
      }
    }
    for (int32_t s = 0; s < stages_; ++s) {
      for (int32_t m = 0; m < facts_.microbatches; ++m) {
        if (!seen.has(kForward, s, m)) refuse(fmt::format("{}F{} is missing", s, m));
        const bool whole = seen.has(kBackward, s, m);
        const bool input = seen.has(kInputGradient, s, m), weight = seen.has(kWeightGradient, s, m);
        if (whole && (input || weight))
          refuse(fmt::format("{0}B{1} and {0}{2}{1} exclude each other", s, m, input ? 'I' : 'W'));
        if (!whole && !input) refuse(fmt::format("{0}B{1} or {0}I{1} is missing", s, m));
        if (!whole && !weight) refuse(fmt::format("{}W{} is missing", s, m));
      }
    }
  }

  bool is_ready(const PipelineAction& a, const DoneActions& done) const {
    const int32_t s = a.stage, m = a.microbatch;
    const bool first = s == 0, last = s + 1 == stages_;
    switch (a.work) {
      case kForward:
        return first || (by_transfer(s - 1, s) ? done.has(kReceiveForward, s, m) : done.has(kForward, s - 1, m));
      case kBackward:
      case kInputGradient:
        if (!done.has(kForward, s, m)) return false;
        return last || (by_transfer(s, s + 1) ? done.has(kReceiveBackward, s, m) : done.has_input_gradient(s + 1, m));
      case kWeightGradient:
        return done.has(kInputGradient, s, m);
      case kSendForward:
        return !last && done.has(kForward, s, m);
      case kReceiveForward:
        return !first && done.has(kSendForward, s - 1, m);
      case kSendBackward:
        return !first && done.has_input_gradient(s, m);
      case kReceiveBackward:
        return !last && done.has(kSendBackward, s + 1, m);
      // The other rank has posted the receive.
      case kWaitSendForward:
        return done.has(kReceiveForward, s + 1, m);
      case kWaitSendBackward:
        return done.has(kReceiveBackward, s - 1, m);
      default:
        return true;
    }
  }
  bool by_transfer(int32_t from, int32_t to) const {
    return facts_.has_transfers && facts_.rank_of[from] != facts_.rank_of[to];
  }

  // Receives are posted asynchronously: a rank continues past them, and waits at the action that needs the data.
  void check_order() const {
    DoneActions done(stages_, facts_.microbatches);
    std::vector<size_t> next(rows_.size(), 0);
    std::vector<std::vector<PipelineAction>> posted(rows_.size());
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < rows_.size(); ++rank) {
        std::erase_if(posted[rank], [&](const PipelineAction& a) {
          const bool ready = is_ready(a, done);
          if (ready) done.add(a);
          return ready;
        });
        for (; next[rank] < rows_[rank].size(); ++next[rank]) {
          const PipelineAction& a = rows_[rank][next[rank]];
          if (is_ready(a, done)) {
            done.add(a);
          } else if (receives(a)) {
            posted[rank].push_back(a);
          } else {
            break;
          }
          progress = true;
        }
      }
    }
    std::string stuck;
    for (size_t rank = 0; rank < rows_.size(); ++rank) {
      if (next[rank] == rows_[rank].size() && posted[rank].empty()) continue;
      const PipelineAction& a = next[rank] < rows_[rank].size() ? rows_[rank][next[rank]] : posted[rank].front();
      stuck += fmt::format("{}rank {} at {}", stuck.empty() ? "" : ", ", rank, to_string(a));
    }
    if (!stuck.empty()) refuse("its ranks deadlock: " + stuck);
  }

  const std::string& name_;
  const PipelineSchedule::Rows& rows_;
  int32_t stages_ = 0;
  ScheduleFacts facts_;
};

// Adds sends and receives to a schedule that has none. Runs all ranks in rounds of one step each. After a step whose
// result another rank needs, adds the send to this rank and the receive at the current end of the other rank's row;
// both have the same order, without deadlocks. torch does the same (_add_send_recv); tests compare the results.
class TransferPlacing {
 public:
  explicit TransferPlacing(const PipelineSchedule& schedule)
      : schedule_(schedule),
        done_(schedule.stages(), schedule.microbatches()),
        rows_(static_cast<size_t>(schedule.ranks())),
        next_(rows_.size(), 0) {}

  PipelineSchedule::Rows rows() {
    // The schedule has been checked: some rank can always continue.
    for (bool progress = true; progress;) {
      progress = false;
      for (int32_t rank = 0; rank < schedule_.ranks(); ++rank) progress |= step(rank);
    }
    return std::move(rows_);
  }

 private:
  // Runs one action, or a group of overlapping ones.
  bool step(int32_t rank) {
    const auto row = schedule_.of(rank);
    const size_t begin = next_[static_cast<size_t>(rank)];
    if (begin == row.size()) return false;
    size_t end = begin + 1;
    while (row[end - 1].overlaps_next) ++end;
    const auto together = row.subspan(begin, end - begin);
    if (!std::ranges::all_of(together, [&](const PipelineAction& a) { return is_ready(a); })) return false;
    auto& written = rows_[static_cast<size_t>(rank)];
    written.insert(written.end(), together.begin(), together.end());
    for (const PipelineAction& a : together) {
      done_.add(a);
      transfer(a);
    }
    next_[static_cast<size_t>(rank)] = end;
    return true;
  }

  bool is_ready(const PipelineAction& a) const {
    if (a.work == kForward && a.stage > 0) {
      return on_one_rank(a.stage - 1, a.stage) ? done_.has(kForward, a.stage - 1, a.microbatch)
                                               : done_.has(kReceiveForward, a.stage, a.microbatch);
    }
    if (is_backward(a) && a.stage + 1 < schedule_.stages()) {
      return on_one_rank(a.stage, a.stage + 1) ? done_.has_input_gradient(a.stage + 1, a.microbatch)
                                               : done_.has(kReceiveBackward, a.stage, a.microbatch);
    }
    return true;
  }

  void transfer(const PipelineAction& a) {
    if (a.work == kForward && a.stage + 1 < schedule_.stages()) {
      move(a, a.stage + 1, kSendForward, kReceiveForward);
    } else if (is_backward(a) && a.stage > 0) {
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

// Adds missing waits to a row. The local backward implies that the other rank has used the activation.
std::vector<PipelineAction> with_waits(std::span<const PipelineAction> row) {
  std::vector<PipelineAction> with, stated, pending, backwards;
  std::ranges::copy_if(row, std::back_inserter(stated), [](const auto& a) { return waited_send(a).has_value(); });
  for (const PipelineAction& a : row) {
    with.push_back(a);
    if (sends(a)) {
      const auto work = a.work == kSendForward ? kWaitSendForward : kWaitSendBackward;
      const PipelineAction wait{.work = work, .stage = a.stage, .microbatch = a.microbatch};
      if (std::ranges::find(stated, wait) == stated.end()) pending.push_back(wait);
    }
    if (is_backward(a)) backwards.push_back(a);
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

std::optional<PipelineWork> waited_send(const PipelineAction& a) {
  if (a.work == kWaitSendForward) return kSendForward;
  if (a.work == kWaitSendBackward) return kSendBackward;
  return std::nullopt;
}

ScheduleFacts check_schedule(const std::string& name, const PipelineSchedule::Rows& rows) {
  return ScheduleCheck(name, rows).run();
}

PipelineSchedule PipelineSchedule::with_transfers() const {
  return has_transfers_ ? *this : PipelineSchedule(name_, TransferPlacing(*this).rows());
}

PipelineSchedule PipelineSchedule::with_send_waits() const {
  Rows rows;
  for (const auto& row : *rows_) rows.push_back(with_waits(row));
  return {name_, std::move(rows)};
}

}  // namespace shadowgraph
