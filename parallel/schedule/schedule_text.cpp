// Actions in words, and schedules as torch.distributed.pipelining's CSV.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "shadowgraph/error.h"
#include "shadowgraph/parallel/schedule.h"
#include "shadowgraph/text.h"
#include "support/printable.h"

namespace shadowgraph {
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
      // A rank without actions would be a row of nothing; at the end of a file it is only a line feed.
      if (trimmed(line).empty() && trimmed(text).empty()) continue;
      rows.push_back(row(line));
    }
    return rows;
  }

 private:
  [[noreturn]] void refuse(std::string_view cell) const {
    throw ParseError(fmt::format("{}, line {}, cell {}: '{}' is no action; they are written 2F0, 1B3, 0SEND_F1, "
                                 "0UNSHARD or (0F8;7B0)OVERLAP_F_B",
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

}  // namespace shadowgraph
