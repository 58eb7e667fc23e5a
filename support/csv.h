// CSV writer and reader (RFC 4180). Fields with a comma, a quote or a line break are quoted; non-printable characters
// are escaped, as on a terminal.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/text.h"

namespace shadowgraph {

class Csv {
 public:
  explicit Csv(std::string_view names) : out_(std::string(names) + '\n') {}  // header "node,op"
  explicit Csv(const std::vector<std::string>& names) {
    for (const std::string& name : names) text(name);
    end();
  }
  void text(std::string_view field) {
    std::string shown = terminal_text(field);
    // A spreadsheet would run it as a formula.
    if (!shown.empty() && std::string_view("=+-@\t").find(shown[0]) != std::string_view::npos) shown.insert(0, 1, '\'');
    if (shown.find_first_of(",\"\n") == shown.npos) return cell(shown);
    std::string quoted;
    for (const char c : shown) quoted.append(c == '"' ? 2 : 1, c);
    cell('"' + quoted + '"');
  }
  void number(int64_t value) { cell(std::to_string(value)); }
  void real(double value) { cell(fmt::format("{:.6g}", value)); }
  void node(std::optional<uint32_t> place) { text(place ? std::to_string(*place) : std::string()); }
  void end() {
    out_ += '\n';
    start_ = true;
  }
  std::string take() { return std::move(out_); }

 private:
  void cell(std::string_view shown) {
    if (!start_) out_ += ',';
    start_ = false;
    out_ += shown;
  }

  std::string out_;
  bool start_ = true;
};

// Reads CSV with a header line. Rows store their line number for error messages with file, line and column:
// "gemm.csv:7: m is 'x', expected a number > 0".
class CsvRow {
 public:
  // Returns "" if the file has no such column, or the field is empty.
  std::string_view text_or_empty(std::string_view column) const;
  const std::string& text(std::string_view column) const;
  double amount(std::string_view column) const;  // a finite number > 0
  int64_t count(std::string_view column) const;  // an integer > 0
  bool has(std::string_view column) const { return !text_or_empty(column).empty(); }
  // Throws ParseError with file, line and `why`.
  [[noreturn]] void fail(const std::string& why) const;

 private:
  friend class CsvTable;
  const class CsvTable* table_ = nullptr;
  std::vector<std::string> fields_;
  int line_ = 0;
};

class CsvTable {
 public:
  // Throws ParseError for a column that is not in `known`, rows with a wrong number of fields, unterminated quotes.
  CsvTable(std::string_view text, std::string name, const std::vector<std::string_view>& known);
  CsvTable(const CsvTable&) = delete;
  CsvTable& operator=(const CsvTable&) = delete;
  const std::vector<CsvRow>& rows() const { return rows_; }

 private:
  friend class CsvRow;
  std::optional<size_t> place_of(std::string_view column) const;
  std::string name_;
  std::vector<std::string> columns_;
  std::vector<CsvRow> rows_;
};

}  // namespace shadowgraph
