// Reads comma-separated values as RFC 4180 has them, with one line of names first. Each field knows its line, so that
// errors name the file, the line and the column. "gemm.csv:7: m is 'x', which is no whole number above 0"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shadowgraph {

class CsvRow {
 public:
  // Empty if the file has no such column, or the row nothing in it.
  std::string_view text_or_empty(std::string_view column) const;
  const std::string& text(std::string_view column) const;
  double amount(std::string_view column) const;  // a finite number above 0
  int64_t count(std::string_view column) const;  // a whole number above 0
  bool has(std::string_view column) const { return !text_or_empty(column).empty(); }
  // Throws ParseError: file, line and `why`.
  [[noreturn]] void fail(const std::string& why) const;

 private:
  friend class CsvTable;
  const class CsvTable* table_ = nullptr;
  std::vector<std::string> fields_;
  int line_ = 0;
};

class CsvTable {
 public:
  // Throws ParseError for a column that is not in `known`, rows with another number of fields, quotes that do not end.
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
