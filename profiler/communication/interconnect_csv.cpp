#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "shadowgraph/profile/collective_kind.h"
#include "shadowgraph/profile/interconnect.h"
#include "shadowgraph/text.h"
#include "support/csv_reader.h"
#include "support/printable.h"

namespace shadowgraph {
namespace {

struct MeasuredCollectives {
  CollectiveKind kind;
  int64_t processes;
  std::string axis;
  auto operator<=>(const MeasuredCollectives&) const = default;
};

// Makes a table of medians. A larger payload that was measured to take less counts as long as the smaller one: readers
// want both columns to rise.
CollectiveTable rising_medians(std::map<double, std::vector<double>>& by_bytes) {
  CollectiveTable table;
  for (auto& [bytes, seconds] : by_bytes) {
    std::sort(seconds.begin(), seconds.end());
    const size_t middle = seconds.size() / 2;
    double median = seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
    if (!table.empty()) median = std::max(median, table.back().second);
    table.emplace_back(bytes, median);
  }
  return table;
}

}  // namespace

void Interconnect::add_csv(const std::string& path) {
  const CsvTable csv(shadowgraph::read_file(path), path, {"collective", "processes", "bytes", "seconds", "axis"});
  std::map<MeasuredCollectives, std::map<double, std::vector<double>>> measured;
  std::map<std::pair<std::string, CollectiveKind>, int64_t> of_axis;
  for (const CsvRow& row : csv.rows()) {
    const auto kind = parse_collective_kind(row.text("collective"));
    if (!kind) row.fail("collective '" + terminal_text(row.text("collective")) + "' is none; all_reduce is one");
    const int64_t processes = row.count("processes");
    if (processes < 2 || processes > 1'000'000'000) row.fail("processes are 2 or more, and fewer than 1,000,000,000");
    const std::string axis(row.text_or_empty("axis"));
    if (!axis.empty() && of_axis.try_emplace({axis, *kind}, processes).first->second != processes) {
      row.fail("axis '" + terminal_text(axis) + "' has another number of processes than in the rows before");
    }
    measured[{*kind, processes, axis}][row.amount("bytes")].push_back(row.amount("seconds"));
  }
  for (auto& [of, by_bytes] : measured) {
    (of.axis.empty() ? tables[of.kind][of.processes] : axes[of.axis].tables[of.kind]) = rising_medians(by_bytes);
  }
}

}  // namespace shadowgraph
