// Writes a page on how fake tensors run every aten overload of this libtorch, and checks that each is supported.
//
//     operator_coverage [--check] FILE WAYS COUNTS ALLOW_LIST
//
// FILE is the page. WAYS is its first table, the number of overloads by implementation (tests/coverage/ways.md),
// written along with FILE. COUNTS is the table written by `conformance --table`, ALLOW_LIST its list of accepted
// disagreements; the page shows both. --check writes FILE only. It fails if an overload has neither an implementation
// nor a reason for its absence, if WAYS is outdated, or if COUNTS has samples that are wrong, have no rule or crash.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <sstream>

#include "core/fake/dispatch/operator_info.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "tests/conformance/allow_list.h"
#include "tests/coverage/refused.h"

namespace shadowgraph {
namespace {

enum class Class : uint8_t { kRule, kDecomposition, kOutForm, kMeta, kDataDependent, kRefused, kMissing };

struct ClassText {
  const char* name;
  const char* explanation;
};
constexpr ClassText kClasses[] = {
    {"own rule", "a shape rule in `core/fake/rules/`"},
    {"decomposition", "runs as the operators that it is composed of"},
    {"out= form", "as its functional form, the results resized to what that gives"},
    {"C++ Meta", "libtorch's own kernel on meta tensors; composites among them reach the rules of what they call"},
    {"data-dependent", "the result, or its size, is data: `DataDependentError`, or a size given by the user"},
    {"refused", "a typed error, for the reason in the table"},
    {"missing", "a typed error: no rule exists yet"},
};

struct Row {
  std::string op;
  Class how;
  std::string note;
};

Row row_of(const c10::OperatorHandle& op) {
  const ExecutionRoute way = execution_route(op);
  const std::string name = toString(op.operator_name());
  switch (way.kind) {
    case ExecutionRoute::Kind::kRule:
      return {name, Class::kRule, ""};
    case ExecutionRoute::Kind::kDecomposition:
      return {name, Class::kDecomposition, ""};
    case ExecutionRoute::Kind::kOutForm:
      return {name, Class::kOutForm, ""};
    case ExecutionRoute::Kind::kMeta:
      return {name, Class::kMeta, ""};
    case ExecutionRoute::Kind::kDataDependent:
      return {name, Class::kDataDependent, way.takes_sizes ? "a size can be given" : ""};
    case ExecutionRoute::Kind::kNone:
      break;
  }
  const std::string reason = conformance::why_refused(way.form != nullptr ? way.form->op : op);
  return {name, reason.empty() ? Class::kMissing : Class::kRefused, reason};
}

using Rows = std::map<std::string, Row>;

Rows rows_of_all() {
  Rows rows;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    if (const auto op = c10::Dispatcher::singleton().findSchema(name)) rows.emplace(toString(name), row_of(*op));
  }
  return rows;
}

std::string ways_of(const Rows& rows) {
  std::string text = "| how | overloads | what it means |\n|---|---|---|\n";
  for (size_t i = 0; i < std::size(kClasses); ++i) {
    const auto count = std::count_if(rows.begin(), rows.end(),
                                     [&](const auto& entry) { return static_cast<size_t>(entry.second.how) == i; });
    text += fmt::format("| {} | {} | {} |\n", kClasses[i].name, count, kClasses[i].explanation);
  }
  return text + fmt::format("| all | {} | |\n", rows.size());
}

std::string page(const Rows& rows, const std::string& counts, const conformance::AllowList& allow) {
  std::string text = fmt::format(
      "# How fake tensors run each operator\n"
      "Written by `make operator-coverage` for libtorch {}.\n\n"
      "## Counts\n{}",
      TORCH_VERSION, ways_of(rows));
  text +=
      "\n## Against eager\nPyTorch's OpInfo samples, for real on the CPU and on fakes, as of the last change of "
      "rules:\n\n" +
      counts +
      "\n## Disagreements that stand\n`tests/conformance/allow_list.txt`. *data*: eager looks at values that fake "
      "tensors do not have.\n\n| operator | kind | difference | reason |\n|---|---|---|---|\n";
  const auto escaped = [](std::string text) {
    for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, 1, '\\');
    return text;
  };
  for (const conformance::AllowRow& row : allow.rows()) {
    text += fmt::format("| `{}` | {} | `{}` | {} |\n", row.op, row.data ? "data" : "allowed", escaped(row.pattern),
                        row.reason);
  }
  text += "\n## Every overload\n| operator | how | |\n|---|---|---|\n";
  for (const auto& [name, row] : rows) {
    text += fmt::format("| {} | {} | {} |\n", name.substr(6), kClasses[static_cast<size_t>(row.how)].name, row.note);
  }
  return text;
}

// Splits a line of a Markdown table into trimmed cells; empty if the line is not a table row.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  if (!line.starts_with("| ")) return cells;
  for (size_t begin = 1, end; (end = line.find('|', begin)) != std::string::npos; begin = end + 1) {
    const size_t first = line.find_first_not_of(' ', begin), last = line.find_last_not_of(' ', end - 1);
    cells.push_back(first < end ? line.substr(first, last - first + 1) : "");
  }
  return cells;
}

// Lists unacceptable counts in COUNTS, one per line.
std::string bad_counts(const std::string& counts) {
  std::string said;
  std::vector<std::string> columns;
  size_t dtypes = 0;
  std::istringstream lines(counts);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> cells = cells_of(line);
    if (columns.empty() && !cells.empty() && cells[0] == "dtype") {
      columns = cells;
      continue;
    }
    if (cells.empty() || cells.size() != columns.size()) continue;
    ++dtypes;
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool bad = columns[i] == "wrong" || columns[i] == "no rule" || columns[i] == "crash";
      if (bad && cells[i] != "0") said += fmt::format("{} samples of {} are '{}'\n", cells[i], cells[0], columns[i]);
    }
  }
  if (dtypes == 0) said += "there is no table of samples by dtype\n";
  return said;
}

int check(const Rows& rows, const std::string& ways_file, const std::string& counts_file) {
  bool good = true;
  for (const auto& [name, row] : rows) {
    if (row.how != Class::kMissing) continue;
    good = false;
    std::cerr << name << " has no way to run: write a rule (core/fake/rules/), or the reason why not into "
              << "tests/coverage/refused.cpp\n";
  }
  if (read_file(ways_file) != ways_of(rows)) {
    good = false;
    std::cerr << ways_file
              << " counts other ways than these; if they are meant, run make operator-coverage and commit it\n"
              << ways_of(rows);
  }
  if (const std::string said = bad_counts(read_file(counts_file)); !said.empty()) {
    good = false;
    std::cerr << counts_file << ":\n" << said;
  }
  return good ? 0 : 1;
}

int run(const std::vector<std::string>& arguments) {
  const bool only_check = !arguments.empty() && arguments[0] == "--check";
  if (arguments.size() != (only_check ? 5 : 4)) {
    throw Error("usage: operator_coverage [--check] FILE WAYS COUNTS ALLOW_LIST");
  }
  const auto file = arguments.begin() + (only_check ? 1 : 0);
  const Rows rows = rows_of_all();
  write_file(file[0], page(rows, read_file(file[2]), conformance::AllowList(file[3])));
  if (only_check) return check(rows, file[1], file[2]);
  write_file(file[1], ways_of(rows));
  return 0;
}

}  // namespace
}  // namespace shadowgraph

int main(int argc, char** argv) {
  try {
    return shadowgraph::run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "operator_coverage: " << error.what() << '\n';
    return 2;
  }
}
