// Writes the largest storages at the peak, those of equal layers as one row.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "profiler/profile/text_blocks.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/steady_state.h"

namespace shadowgraph {
namespace {

// A path whose numbers stand apart: "layers.3.fc" is "layers.{}.fc" and 3.
struct NumberedPath {
  std::string pattern;
  std::vector<int64_t> numbers;
};

NumberedPath numbered(std::string_view path) {
  NumberedPath result;
  for (size_t at = 0; at < path.size();) {
    const size_t end = std::min(path.find_first_of(". ", at), path.size());
    const std::string_view part = path.substr(at, end - at);
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    if (number) {
      result.numbers.push_back(std::stoll(std::string(part)));
      result.pattern += '#';
    } else {
      result.pattern += part;
    }
    if (end < path.size()) result.pattern += path[end];
    at = end + 1;
  }
  return result;
}

struct LargestRow {
  int64_t total = 0;
  int64_t count = 0;
  const LiveStorage* first = nullptr;
  std::string pattern;
  std::vector<std::pair<int64_t, int64_t>> ranges;  // of each number
};

std::string where_of(const LargestRow& row) {
  std::string text;
  size_t number = 0;
  for (const char c : row.pattern) {
    if (c != '#' || number == row.ranges.size()) {
      text += c;
      continue;
    }
    const auto& [least, most] = row.ranges[number++];
    text += least == most ? fmt::format("{}", least) : fmt::format("{{{}..{}}}", least, most);
  }
  return text;
}

std::vector<LiveStorage> alive_at_peak(const Profile& profile) {
  const Graph& graph = profile.graph();
  const MemoryTimeline& timeline = profile.timeline();
  std::vector<StorageId> alive = timeline.alive_at(profile.leading_peak().node, std::numeric_limits<size_t>::max());
  if (const auto steady = steady_state(graph, timeline)) {
    alive.insert(alive.end(), steady->kept.begin(), steady->kept.end());
  }
  return describe_storages(graph, timeline, alive);
}

}  // namespace

std::string largest_text(const Profile& profile) {
  if (profile.top_at_peak.empty()) return {};
  const std::vector<LiveStorage> alive = alive_at_peak(profile);
  std::map<std::tuple<int64_t, StorageKind, c10::ScalarType, std::vector<int64_t>, std::string>, LargestRow> rows;
  for (const LiveStorage& live : alive) {
    NumberedPath path = numbered(live.module.empty() ? live.producer : live.module + " " + live.producer);
    LargestRow& row = rows[{live.bytes, live.kind, live.dtype, live.shape, path.pattern}];
    if (row.count == 0) {
      row.first = &live;
      row.pattern = std::move(path.pattern);
      for (const int64_t number : path.numbers) row.ranges.emplace_back(number, number);
    }
    row.total += live.bytes;
    ++row.count;
    for (size_t i = 0; i < row.ranges.size() && i < path.numbers.size(); ++i) {
      row.ranges[i] = {std::min(row.ranges[i].first, path.numbers[i]), std::max(row.ranges[i].second, path.numbers[i])};
    }
  }
  std::vector<const LargestRow*> largest;
  for (const auto& [key, row] : rows) largest.push_back(&row);
  std::ranges::stable_sort(largest, [](const auto* a, const auto* b) { return a->total > b->total; });
  if (largest.size() > profile.top_at_peak.size()) largest.resize(profile.top_at_peak.size());
  std::vector<std::string> tensors;
  size_t width = 0;
  for (const LargestRow* row : largest) {
    const std::string times = row->count == 1 ? "" : fmt::format("{} x ", row->count);
    tensors.push_back(
        row->first->dtype == c10::ScalarType::Undefined
            ? times
            : fmt::format("{}{}[{}]", times, dtype_name(row->first->dtype), fmt::join(row->first->shape, ",")));
    width = std::max(width, tensors.back().size());
  }
  std::string text = "\nlargest at the peak:\n";
  for (size_t i = 0; i < largest.size(); ++i) {
    text += fmt::format("  {:>11}  {:<15}  {:<{}}  {}\n", human_bytes(largest[i]->total),
                        to_string(largest[i]->first->kind), tensors[i], width, where_of(*largest[i]));
  }
  return text;
}

}  // namespace shadowgraph
