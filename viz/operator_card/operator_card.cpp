#include "shadowgraph/operator_card.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ir/operators/operator_name.h"
#include "shadowgraph/error.h"
#include "support/edit_distance.h"
#include "support/json.h"
#include "viz/operator_card/table_rows.h"

namespace shadowgraph {
namespace {

// Returns the name that differs least from what was asked for; "" if none is near. Names are compared as far as the
// question goes: without namespace or overload if it has none.
std::string nearest_operator(std::string_view asked, const std::vector<c10::OperatorName>& names) {
  const bool has_namespace = !namespace_of(asked).empty();
  const bool has_overload = asked.find('.') != asked.npos;
  std::string best;
  size_t best_distance = asked.size() / 3 + 1;  // a third of the letters may be wrong
  for (const c10::OperatorName& name : names) {
    const std::string full = has_overload ? toString(name) : name.name;
    const std::string_view compared = has_namespace ? std::string_view(full) : without_namespace(full);
    const size_t apart = std::max(compared.size(), asked.size()) - std::min(compared.size(), asked.size());
    if (apart > best_distance) continue;
    const size_t distance = edit_distance(asked, compared);
    // aten comes before other namespaces that have the same name, and a name before those that follow it.
    const bool as_near = distance == best_distance && !best.empty() &&
                         std::pair(!full.starts_with("aten::"), full) < std::pair(!best.starts_with("aten::"), best);
    if (distance < best_distance || as_near) {
      best = full;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace

const OperatorCard::Row& OperatorCard::row(std::string_view table) const {
  const auto found = std::ranges::find(rows, table, &Row::table);
  if (found == rows.end()) throw Error(fmt::format("there is no table '{}' of operators", table));
  return *found;
}

std::vector<OperatorCard> operator_cards(std::string_view name) {
  const std::vector<c10::OperatorName> names = c10::Dispatcher::singleton().getAllOpNames();
  std::map<std::string, c10::OperatorHandle> found;
  for (const c10::OperatorName& each : names) {
    const std::string full = toString(each);
    if (full != name && (name.find('.') != name.npos || each.name != name)) continue;
    if (const auto op = c10::Dispatcher::singleton().findSchema(each)) found.emplace(full, *op);
  }
  if (found.empty()) {
    const std::string near = nearest_operator(name.substr(0, 128), names);
    throw Error(fmt::format("there is no operator '{}'{}", name.substr(0, 128),
                            near.empty() ? "; names are such as aten::gelu and aten::add.Tensor"
                                         : fmt::format("; did you mean {}?", near)));
  }
  std::vector<OperatorCard> cards;
  for (const auto& [full, op] : found) {
    cards.push_back({.name = full, .schema = toString(op.schema()), .rows = table_rows(op)});
  }
  return cards;
}

std::string to_text(const OperatorCard& card) {
  size_t table_width = 0;
  size_t says_width = 0;
  for (const OperatorCard::Row& row : card.rows) {
    table_width = std::max(table_width, row.table.size());
    says_width = std::max(says_width, std::min<size_t>(row.says.size(), 72));
  }
  std::string text = card.schema + "\n";
  for (const OperatorCard::Row& row : card.rows) {
    std::string line =
        fmt::format("  {:<{}} {} {:<{}}", row.table, table_width, row.missing ? '-' : ' ', row.says, says_width);
    if (!row.place.empty()) line += "  " + row.place;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string to_json(std::span<const OperatorCard> cards) {
  auto list = nlohmann::json::array();
  for (const OperatorCard& card : cards) {
    auto rows = nlohmann::json::array();
    for (const OperatorCard::Row& row : card.rows) {
      rows.push_back({{"table", row.table}, {"says", row.says}, {"place", row.place}, {"missing", row.missing}});
    }
    list.push_back({{"name", card.name}, {"schema", card.schema}, {"rows", std::move(rows)}});
  }
  return json_text(list, 2);
}

}  // namespace shadowgraph
