// Writes the summary table within the text's width: columns that do not fit are left out, JSON has them.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "profiler/profile/text_blocks.h"
#include "shadowgraph/profile/summary_table.h"

namespace shadowgraph {
namespace {

// Three digits are enough beside others: "1.23 GiB", "12.3 MiB", "512 B".
std::string short_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto number = static_cast<double>(bytes);
  size_t unit = 0;
  for (; number >= 999.5 && unit + 1 < std::size(kUnits); ++unit) number /= 1024;
  return fmt::format("{:.{}f} {}", number, unit == 0 || number >= 99.95 ? 0 : number >= 9.995 ? 1 : 2, kUnits[unit]);
}

struct TableColumn {
  const char* heading;
  bool needed;  // whether it stands in a table that has no room for all
  std::string (*figure)(const SummaryRow& row);
};

constexpr TableColumn kTableColumns[] = {
    {"Accumulate", false, [](const SummaryRow& row) { return short_bytes(row.accumulate); }},
    {"Saved", true, [](const SummaryRow& row) { return short_bytes(row.figures.incremental); }},
    {"Output", true, [](const SummaryRow& row) { return short_bytes(row.figures.output); }},
    {"Temp", true, [](const SummaryRow& row) { return short_bytes(row.figures.temporary); }},
    {"Param", true, [](const SummaryRow& row) { return short_bytes(row.figures.parameters); }},
    {"Backward", true, [](const SummaryRow& row) { return short_bytes(row.figures.backward); }},
    {"Fwd FLOPs", true, [](const SummaryRow& row) { return human_count(row.figures.forward_flops.matmul); }},
    {"Bwd FLOPs", true, [](const SummaryRow& row) { return human_count(row.figures.backward_flops.matmul); }},
    {"Fwd elem.", false, [](const SummaryRow& row) { return human_count(row.figures.forward_flops.elementwise); }},
    {"Bwd elem.", false, [](const SummaryRow& row) { return human_count(row.figures.backward_flops.elementwise); }},
};

struct DrawnColumn {
  std::vector<std::string> cells;  // the heading first
  size_t width = 0;
  bool needed = true;
};

DrawnColumn drawn(std::string heading, bool needed, const SummaryTable& table, auto&& cell) {
  DrawnColumn column{.cells = {std::move(heading)}, .needed = needed};
  for (const SummaryRow& row : table.rows) column.cells.push_back(cell(row));
  for (const std::string& text : column.cells) column.width = std::max(column.width, text.size());
  return column;
}

std::string right_aligned(const std::vector<DrawnColumn>& columns, size_t line) {
  std::string text;
  for (const DrawnColumn& column : columns) text += fmt::format("  {:>{}}", column.cells[line], column.width);
  return text;
}

}  // namespace

std::string to_text(const SummaryTable& table) {
  const auto kind_of = [](const SummaryRow& row) {
    return row.repeats > 1 ? fmt::format("{} x{}", row.op_type, row.repeats) : row.op_type;
  };
  DrawnColumn kinds = drawn("Op type", true, table, kind_of);
  DrawnColumn names = drawn("Op", true, table, [](const SummaryRow& row) { return row.op; });
  std::vector<DrawnColumn> figures;
  size_t width = 0;
  for (const TableColumn& column : kTableColumns) {
    figures.push_back(drawn(column.heading, column.needed, table, column.figure));
    width += figures.back().width + 2;
  }
  const size_t all_names = kinds.width + 2 + names.width;
  for (size_t at = figures.size(); at-- > 0 && all_names + width > kTextWidth;) {
    if (figures[at].needed) continue;
    width -= figures[at].width + 2;
    figures.erase(figures.begin() + static_cast<std::ptrdiff_t>(at));
  }
  // Where both names do not fit, one follows the other. What is still too long stands above its figures.
  const size_t room = kTextWidth > width ? kTextWidth - width : 0;
  const size_t for_names = std::max<size_t>(std::min(all_names, room), 16);
  std::string text;
  for (size_t line = 0; line < names.cells.size(); ++line) {
    std::string name = all_names <= room ? fmt::format("{:<{}}  {}", kinds.cells[line], kinds.width, names.cells[line])
                                         : fmt::format("{} ({})", names.cells[line], kinds.cells[line]);
    if (name.size() > for_names) {
      text += name + "\n";
      name.clear();
    }
    text += fmt::format("{:<{}}", name, for_names) + right_aligned(figures, line) + "\n";
    if (line == 0) text += std::string(for_names + width, '-') + "\n";
  }
  return text;
}

}  // namespace shadowgraph
