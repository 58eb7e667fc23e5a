#include "support/csv.h"

#include <algorithm>
#include <cmath>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

constexpr double kMostExact = 9007199254740992.0;  // 2^53

[[noreturn]] void refuse_line(const std::string& name, int line, const std::string& why) {
  throw ParseError(name + ":" + std::to_string(line) + ": " + why, line, 1);
}

// Splits text into records with their first line number. Quoted fields may contain line breaks.
class Records {
 public:
  Records(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  bool next(std::vector<std::string>& fields, int& line) {
    fields.clear();
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) step();
    if (at_ >= text_.size()) return false;
    line = line_;
    for (;;) {
      fields.push_back(field());
      if (at_ >= text_.size() || text_[at_] != ',') break;
      ++at_;
    }
    if (at_ < text_.size() && text_[at_] == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] == '\n') step();
    return true;
  }

 private:
  void step() { line_ += text_[at_++] == '\n'; }
  std::string field() {
    std::string result;
    if (at_ >= text_.size() || text_[at_] != '"') {
      while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n' && text_[at_] != '\r')
        result += text_[at_++];
      const size_t first = result.find_first_not_of(" \t");
      return first == result.npos ? "" : result.substr(first, result.find_last_not_of(" \t") - first + 1);
    }
    const int began = line_;
    ++at_;
    for (;; step()) {
      if (at_ >= text_.size()) refuse_line(name_, began, "a quoted field is not terminated");
      if (text_[at_] != '"') {
        result += text_[at_];
      } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        result += '"';
        ++at_;
      } else {
        break;
      }
    }
    ++at_;
    if (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n' && text_[at_] != '\r') {
      refuse_line(name_, line_, "expected ',' after a quoted field");
    }
    return result;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

CsvTable::CsvTable(std::string_view text, std::string name, const std::vector<std::string_view>& known)
    : name_(std::move(name)) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark
  Records records(text, name_);
  int line = 1;
  std::string names;
  for (const std::string_view one : known) names += (names.empty() ? "" : ", ") + std::string(one);
  if (!records.next(columns_, line))
    refuse_line(name_, 1, "the file is empty; expected a header line with columns of " + names);
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string& column = columns_[i];
    const std::string quoted = fmt::format("'{}'", terminal_text(column));
    if (std::ranges::find(known, column) == known.end()) {
      refuse_line(name_, line, "unknown column " + quoted + "; the columns are " + names);
    }
    if (std::find(columns_.begin(), columns_.begin() + static_cast<std::ptrdiff_t>(i), column) !=
        columns_.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse_line(name_, line, "duplicate column " + quoted);
    }
  }
  CsvRow row;
  row.table_ = this;
  while (records.next(row.fields_, row.line_)) {
    if (row.fields_.size() != columns_.size()) {
      row.fail("expected " + std::to_string(columns_.size()) + " fields, got " + std::to_string(row.fields_.size()));
    }
    rows_.push_back(row);
  }
  if (rows_.empty()) refuse_line(name_, line, "the file has no rows after its header");
}

std::optional<size_t> CsvTable::place_of(std::string_view column) const {
  const auto found = std::ranges::find(columns_, column);
  return found == columns_.end() ? std::nullopt : std::optional(static_cast<size_t>(found - columns_.begin()));
}

void CsvRow::fail(const std::string& why) const { refuse_line(table_->name_, line_, why); }

std::string_view CsvRow::text_or_empty(std::string_view column) const {
  const auto place = table_->place_of(column);
  return place ? std::string_view(fields_[*place]) : std::string_view();
}

const std::string& CsvRow::text(std::string_view column) const {
  if (!has(column)) fail("has no " + std::string(column));
  return fields_[*table_->place_of(column)];
}

double CsvRow::amount(std::string_view column) const {
  const std::string& field = text(column);
  const auto value = parse_number<double>(field);
  if (!value || !std::isfinite(*value) || *value <= 0) {
    fail(std::string(column) + " is '" + terminal_text(field) + "', expected a number > 0");
  }
  return *value;
}

int64_t CsvRow::count(std::string_view column) const {
  const double value = amount(column);
  if (value != std::floor(value) || value > kMostExact) {
    fail(std::string(column) + " is '" + terminal_text(text(column)) + "', expected an integer");
  }
  return static_cast<int64_t>(value);
}

}  // namespace shadowgraph
