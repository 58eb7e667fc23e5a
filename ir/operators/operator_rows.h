// Rows of a table that speak of several operators, and the row for one of them.
//
//     constexpr Row kRows[] = {{"add sub rsub", scaled_sum}, {"pow", power}, {"sg_random::set_state", nothing}};
//     const OperatorRows<Row> index(kRows);
//     index.find("aten::add.Tensor")      // the first row: of all overloads of aten::add without a row of their own
//
// Names stand between spaces or line breaks. Those of aten go without "aten::", all others with their namespace.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ir/operators/operator_name.h"

namespace shadowgraph {

// Calls visit(std::string_view) for each name, as it is written.
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

// "add.Tensor" -> "aten::add.Tensor", "sg_random::set_state" as it is.
inline std::string full_name(std::string_view written) {
  return (written.find("::") == written.npos ? "aten::" : "") + std::string(written);
}

// Row has `names`. The rows must outlive the index.
template <class Row>
class OperatorRows {
 public:
  explicit OperatorRows(std::span<const Row> rows) {
    for (const Row& row : rows) {
      for_each_name(row.names, [&](std::string_view name) { by_name_.emplace(name, &row); });
    }
  }

  // The row of "aten::add.Tensor", or that of all overloads; nullptr if there is none.
  const Row* find(std::string_view name) const {
    constexpr std::string_view kAten = "aten::";
    if (name.starts_with(kAten)) {
      name.remove_prefix(kAten.size());
    } else if (name.find("::") == name.npos) {
      return nullptr;  // a function without namespace is none of aten's
    }
    const auto found = find_by_operator(by_name_, name);
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<std::string_view, const Row*> by_name_;
};

}  // namespace shadowgraph
