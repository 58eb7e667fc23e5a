// Parts of an operator's name, and name matching in tables.
//
//     aten::add_.Tensor     namespace aten, name add_, overload Tensor; the default overload is written "aten::mm"
//
// In tables, "aten::add" matches every overload, "aten::add.Tensor" only that one and takes precedence, and
// "aten::add." only the default overload.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shadowgraph {

// "aten::add.Tensor" -> "aten::add".
constexpr std::string_view without_overload(std::string_view name) { return name.substr(0, name.find('.')); }

// "aten::add.Tensor" -> "Tensor"; "" for the default overload.
constexpr std::string_view overload_of(std::string_view name) {
  const size_t dot = name.find('.');
  return dot == name.npos ? std::string_view() : name.substr(dot + 1);
}

// "aten::add.Tensor" -> "aten"; "" if there is none.
constexpr std::string_view namespace_of(std::string_view name) {
  const size_t colons = name.find("::");
  return colons == name.npos ? std::string_view() : name.substr(0, colons);
}

// "aten::add.Tensor" -> "add.Tensor".
constexpr std::string_view without_namespace(std::string_view name) {
  const size_t colons = name.find("::");
  return colons == name.npos ? name : name.substr(colons + 2);
}

// "aten::add.Tensor" -> "add".
constexpr std::string_view short_name(std::string_view name) { return without_overload(without_namespace(name)); }

// Returns whether a name without overload is an in-place operator's, whose plain form lacks the underscore:
// "aten::add_", but not "aten::__iand__".
constexpr bool is_in_place_name(std::string_view name) {
  return name.size() > 1 && name.ends_with('_') && !name.ends_with("__");
}

// "aten::add_" -> "aten::add"; other names are returned unchanged.
constexpr std::string_view without_underscore(std::string_view name) {
  return is_in_place_name(name) ? name.substr(0, name.size() - 1) : name;
}

// Returns whether `row`, a name in a table, matches the operator `name`, which includes its overload.
constexpr bool matches_operator(std::string_view row, std::string_view name) {
  if (row.ends_with('.')) return row.substr(0, row.size() - 1) == name;
  return row == name || (row.find('.') == row.npos && row == without_overload(name));
}

// Returns the entry for an operator in `rows` (a map by name): that of its overload, else of all overloads, else
// rows.end().
template <class Map>
auto find_by_operator(Map& rows, std::string_view name) {
  using Key = typename Map::key_type;
  const auto own = rows.find(Key(name));
  return own != rows.end() ? own : rows.find(Key(without_overload(name)));
}

// Lookup of table rows by operator name. A row may have several names.
//
//     constexpr Row kRows[] = {{"add sub rsub", scaled_sum}, {"pow", power}, {"sg_random::set_state", nothing}};
//     const OperatorRows<Row> index(kRows);
//     index.find("aten::add.Tensor")      // the first row: applies to all overloads of aten::add without a row
//
// Names are separated by spaces or line breaks. Those of aten omit "aten::"; all others include their namespace. "add."
// is the default overload only.

// Calls visit(std::string_view) for each name as written.
template <class Visit>
void for_each_name(std::string_view names, Visit&& visit) {
  constexpr std::string_view kBetween = " \n";
  while (true) {
    names.remove_prefix(std::min(names.find_first_not_of(kBetween), names.size()));
    if (names.empty()) return;
    const size_t end = std::min(names.find_first_of(kBetween), names.size());
    visit(names.substr(0, end));
    names.remove_prefix(end);
  }
}

// "add.Tensor" -> "aten::add.Tensor"; "sg_random::set_state" is returned unchanged.
inline std::string full_name(std::string_view written) {
  return (written.find("::") == written.npos ? "aten::" : "") + std::string(written);
}

// Row must have a member `names`. The rows must outlive the index.
template <class Row>
class OperatorRows {
 public:
  explicit OperatorRows(std::span<const Row> rows) {
    for (const Row& row : rows) {
      for_each_name(row.names, [&](std::string_view name) {
        auto& rows = name.find('.') == name.npos ? of_all_ : of_one_;
        rows[name.ends_with('.') ? name.substr(0, name.size() - 1) : name].push_back(&row);
      });
    }
  }

  // Returns the row of "aten::add.Tensor", else that of all overloads, else nullptr.
  const Row* find(std::string_view name) const {
    const Row* first = nullptr;
    for_each(name, [&](const Row& row) { first = first != nullptr ? first : &row; });
    return first;
  }

  // Calls f(row) for the rows of this overload, then for those of all overloads.
  template <class F>
  void for_each(std::string_view name, F&& f) const {
    constexpr std::string_view kAten = "aten::";
    if (name.starts_with(kAten)) {
      name.remove_prefix(kAten.size());
    } else if (name.find("::") == name.npos) {
      return;  // not an ATen operator: no namespace
    }
    const auto visit = [&](const auto& rows, std::string_view key) {
      const auto found = rows.find(key);
      if (found == rows.end()) return;
      for (const Row* row : found->second) f(*row);
    };
    visit(of_one_, name);
    visit(of_all_, without_overload(name));
  }

 private:
  std::unordered_map<std::string_view, std::vector<const Row*>> of_one_, of_all_;  // by name
};

}  // namespace shadowgraph
