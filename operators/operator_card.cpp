// The card of one operator: what every table says of it.
#include "shadowgraph/profile/operator_card.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "core/calls/functions.h"
#include "core/fake/dispatch/operator_info.h"
#include "core/fake/mode/process_state.h"
#include "core/fake/rules/registry.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_forms.h"
#include "ir/operators/operator_name.h"
#include "kernels/compiler/operator_table.h"
#include "passes/decompose/decompositions.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "profiler/cost/scratch_rules.h"
#include "profiler/time/kernel_work.h"
#include "shadowgraph/error.h"
#include "shadowgraph/shard/rules.h"
#include "support/json.h"
#include "support/source_place.h"
#include "support/text.h"

namespace shadowgraph {

// Returns a row for each of OperatorCard::tables().
std::vector<OperatorCard::Row> table_rows(const c10::OperatorHandle& op);

// One function asks one table. What several tables have in common (places, lists of names) is at the top.

namespace {

using Row = OperatorCard::Row;

constexpr const char* kByTheProgram = "registered by the program";

struct Subject {
  const c10::OperatorHandle& op;
  const OperatorInfo& info;
  const Target& target;
  const OperatorFacts& facts;
  const std::string& name;  // "aten::add.Tensor"
};

Row present(std::string says, std::string place = {}) { return {.says = std::move(says), .place = std::move(place)}; }
Row missing(std::string says) { return {.says = std::move(says), .missing = true}; }

std::string names_of(const Subject& s, const std::vector<uint16_t>& positions) {
  std::vector<std::string_view> names;
  for (const uint16_t position : positions) names.push_back(s.target.signature().arguments.at(position).name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// ---- core

Row shape_rule(const Subject& s) {
  const WayToRun way = way_to_run(s.op);
  const auto registered_at = [](const std::string& name) { return source_place(RuleRegistry::global().place(name)); };
  switch (way.kind) {
    case WayToRun::Kind::kRule: {
      const std::string place = registered_at(s.name);
      return present(place.empty() ? kByTheProgram : "its own", place);
    }
    case WayToRun::Kind::kDecomposition:
      if (s.info.route == Route::kNone) break;
      return present("none needed: libtorch decomposes it, and its parts are run");
    case WayToRun::Kind::kOutForm: {
      const std::string form = toString(way.form->op.operator_name());
      return present(fmt::format("as {}, the results resized to what that gives", form), registered_at(form));
    }
    case WayToRun::Kind::kMeta:
      return present("none needed: libtorch's Meta kernel");
    case WayToRun::Kind::kDataDependent:
      if (way.takes_sizes) {
        const std::string& name = way.form != nullptr ? toString(way.form->op.operator_name()) : s.name;
        return present("its own, for a size that the user gives; otherwise DataDependentError", registered_at(name));
      }
      return missing("none: results depend on data, so a call is a DataDependentError");
    case WayToRun::Kind::kNone:
      break;
  }
  return missing("none: a call is a NoRuleError, unless Python has a Meta kernel");
}

Row composite_rule(const Subject& s) {
  if (s.info.composite_rule) {
    const std::string place = source_place(RuleRegistry::global().place_of_composite(s.name));
    return present(place.empty() ? kByTheProgram : "in place of its decomposition, on the devices that it is for",
                   place);
  }
  if (s.info.route == Route::kComposite) return missing("none: decomposed on all devices");
  return missing("none: libtorch does not decompose it");
}

Row fast_path(const Subject& s) {
  const std::string place = source_place(fast_path_place(s.name));
  if (place.empty()) return missing("none: calls go through the boxed fallback, with the same results");
  return present("an unboxed kernel", place);
}

Row devices(const Subject& s) {
  const auto says = [&]() -> const char* {
    switch (s.info.device_rule) {
      case DeviceRule::kCommon:
        return "all operands on one; numbers of the CPU go with any";
      case DeviceRule::kFirst:
        return "that of the first tensor; others may live anywhere";
      case DeviceRule::kFirstOrCpu:
        return "that of the first tensor; others there or on the CPU";
      case DeviceRule::kIndexedWrite:
        return "that of the first tensor and its values; indices may live anywhere";
      case DeviceRule::kPerSlot:
        return "one for each place of the lists";
      case DeviceRule::kDeviceArgument:
        return "its device argument, otherwise that of the operands or the mode";
    }
    return "";
  };
  return present(says(), "core/fake/dispatch/operator_info.cpp");
}

Row contents(const Subject& s) {
  std::vector<const char*> says;
  if (s.info.evaluable) says.push_back("computed where those of the operands are");
  if (s.info.contents_rule != ContentsRule::kNone) says.push_back("some known where those of operands are not");
  if (says.empty()) return missing("none: results have no known contents");
  return present(fmt::format("{}", fmt::join(says, "; ")), "core/fake/dispatch/operator_info.cpp");
}

// ---- ir

// Returns the place of the table's rows about an operator; "" if there is none, and all is known from the schema.
std::string place_of_facts(const Subject& s) {
  return operator_row(s.name).is_of_effects() ? std::string(kOperatorTableFile) : std::string();
}

Row writes(const Subject& s) {
  if (s.facts.unknown) return missing("not known: taken to read and write all it is given");
  if (s.facts.written.empty()) return present("nothing", place_of_facts(s));
  std::string says = names_of(s, s.facts.written);
  if (s.facts.write_condition >= 0) {
    says += ", if " + s.target.signature().arguments.at(static_cast<size_t>(s.facts.write_condition)).name;
  }
  if (!s.facts.overwritten.empty()) says += fmt::format("; as a whole: {}", names_of(s, s.facts.overwritten));
  return present(std::move(says), place_of_facts(s));
}

Row aliases(const Subject& s) {
  if (s.facts.unknown) return missing("not known: results may be any of its arguments");
  if (s.facts.aliases.empty()) return present("none: results are fresh", place_of_facts(s));
  std::vector<std::string> says;
  for (const OperatorFacts::Alias& alias : s.facts.aliases) {
    says.push_back(fmt::format("result {} {} {}", alias.result, alias.always ? "of" : "maybe of",
                               s.target.signature().arguments.at(alias.argument).name));
  }
  return present(fmt::format("{}{}", fmt::join(says, ", "), s.facts.is_view ? "; a view" : ""), place_of_facts(s));
}

Row effects(const Subject& s) {
  const OperatorFacts& f = s.facts;
  const std::pair<bool, const char*> kinds[] = {
      {f.pointwise, "pointwise"},
      {f.draws, "draws random numbers and nothing else"},
      {f.random && !f.draws, "random"},
      {f.fills, "fills"},
      {f.uninitialised, "leaves memory as found"},
      {f.geometry_only, "reads geometry alone"},
      {f.host_read, "read by the host"},
      {f.collective, "collective"},
      {f.resizes, "resizes"},
      {f.takes_storage, "takes a storage"},
      {f.changes_objects, "changes tensor objects"},
      {f.conjugates, "conjugates"},
      {f.negates, "negates"},
      {f.unknown, "unknown"},
  };
  std::vector<const char*> says;
  for (const auto& [holds, kind] : kinds) {
    if (holds) says.push_back(kind);
  }
  return present(says.empty() ? "none" : fmt::format("{}", fmt::join(says, ", ")), place_of_facts(s));
}

Row functional_form_row(const Subject& s) {
  if (s.facts.written.empty()) return present("itself");
  if (const FunctionalForm* form = functional_form(s.target)) {
    return present(form->target.name(), operator_row(s.name).functional.empty() ? "" : std::string(kOperatorTableFile));
  }
  if (functional_call_of(s.target)) return missing("none: `functionalize` calls it on copies of what it writes");
  return missing("none: `functionalize` leaves it");
}

Row in_place_form_row(const Subject& s) {
  if (!s.facts.written.empty()) return present("itself");
  const Target* form = in_place_form(s.target);
  return form != nullptr ? present(form->name()) : missing("none: `reinplace` leaves it");
}

// ---- passes and kernels

Row decomposition(const Subject& s) {
  const ExpansionTable& table = decompositions::all();
  if (!table.has(s.name)) return missing("none: the pass `decompose` leaves it");
  return present("into more basic operators, by the pass `decompose`", source_place(table.place(s.name)));
}

Row kernel(const Subject& s) {
  const KernelRow* row = find_kernel_row(s.name);
  if (row == nullptr) return missing(fmt::format("none, for {}: libtorch's runs", why_no_kernel(s.target)));
  const char* kind = row->reduced != nullptr ? "reduces rows" : "element by element";
  return present(fmt::format("{}{}", kind, row->inexact ? ", within some ulps of eager" : ""), source_place(row->file));
}

// ---- profiler

// A user's costs come before the tables (shadowgraph/profile/register_operator.h).
bool has_cost(const Subject& s, CostRule OperatorCosts::*rule) {
  const auto own = registered_costs(s.target);
  return own != nullptr && static_cast<bool>((*own).*rule);
}

Row flops(const Subject& s) {
  if (has_cost(s, &OperatorCosts::flops)) return present(kByTheProgram);
  if (const FlopRow* row = find_flop_row(s.name)) {
    return present(fmt::format("{}{}", row->formula, row->counted_by_pytorch ? "" : "; not in PyTorch's flop_registry"),
                   source_place(row->file));
  }
  if (s.facts.collective) return missing("none: a collective counts as none");
  if (ElementwiseFormula::of(s.target).coverage == ElementwiseCoverage::kNone) {
    return missing("no FLOP formula: counted as uncovered");
  }
  return missing("none: only elementwise work is counted");
}

Row elementwise_work(const Subject& s) {
  if (has_cost(s, &OperatorCosts::flops)) return present("among the FLOPs registered by the program");
  const ElementwiseFormula formula = ElementwiseFormula::of(s.target);
  switch (formula.coverage) {
    case ElementwiseCoverage::kRow: {
      const ElementwiseWork each = formula.row->each;
      const std::string says = each == ElementwiseWork() ? "nothing to count"
                                                         : fmt::format("{} FLOPs and {} transcendental an element",
                                                                       each.flops, each.transcendental);
      return present(says, source_place(formula.row->file));
    }
    case ElementwiseCoverage::kFree:
      return present(s.facts.is_view ? "nothing to count: a view" : "nothing to count");
    case ElementwiseCoverage::kPointwiseTag:
      return present("1 FLOP an element of the result, by PyTorch's tag");
    case ElementwiseCoverage::kNone:
      break;
  }
  if (s.facts.collective) return missing("none: a collective counts as none");
  return missing("none: counted as uncovered");
}

Row scratch(const Subject& s, c10::DeviceType device) {
  if (has_cost(s, &OperatorCosts::scratch)) return present(kByTheProgram);
  const OperatorFacts& f = s.facts;
  if (f.is_view || f.fills || f.uninitialised || f.collective) return present("none taken, whatever the operands are");
  if (const ScratchRow* row = find_scratch_row(s.target, device)) {
    return present(std::string(row->reason), source_place(row->file));
  }
  if (f.pointwise) return present("none taken, but for operands that are converted");
  return missing("not known: calls are listed, and count as none");
}

Row time_class(const Subject& s) {
  const TargetKernelClass known = kernel_class(s.target);
  std::string says(to_string(known.kind));
  if (known.convolution) says += "; operands say which";
  if (known.kind == KernelClass::kOther) return missing(says + ": timed as kernels of no class");
  return present(std::move(says), source_place(known.file));
}

// ---- sharding and viz

Row sharding_rule(const Subject& s) {
  const ShardingRules rules;  // those of the program, too
  const ShardingRules::OfOperator known = rules.of_operator(s.target);
  if (known.source == RuleSource::kReplicated) return missing("none: replicated, and counted as without a rule");
  const char* kind = known.source == RuleSource::kClass ? "class " : "";
  return present(fmt::format("{}{}", kind, fmt::join(known.lines, " || ")), known.place);
}

Row category(const Subject& s) {
  const OperatorCategory known = category_of(s.target);
  const CategoryStyle& style = style_of(known);
  if (known == OperatorCategory::kOther) return missing(fmt::format("{}: drawn in {}", style.name, style.fill));
  return present(fmt::format("{}, {}", style.name, style.fill), "operators/operator_category.cpp");
}

// ---- All of them

struct Table {
  std::string_view name;
  Row (*ask)(const Subject& subject);
};
constexpr Table kTables[] = {
    {"shape rule", &shape_rule},
    {"composite rule", &composite_rule},
    {"fast path", &fast_path},
    {"devices", &devices},
    {"known contents", &contents},
    {"writes", &writes},
    {"aliases", &aliases},
    {"effects", &effects},
    {"functional form", &functional_form_row},
    {"in-place form", &in_place_form_row},
    {"decomposition", &decomposition},
    {"kernel", &kernel},
    {"FLOPs", &flops},
    {"elementwise work", &elementwise_work},
    {"scratch on a CPU", [](const Subject& s) { return scratch(s, c10::kCPU); }},
    {"scratch on CUDA", [](const Subject& s) { return scratch(s, c10::kCUDA); }},
    {"time class", &time_class},
    {"sharding rule", &sharding_rule},
    {"category", &category},
};

}  // namespace

std::span<const std::string_view> OperatorCard::tables() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, std::size(kTables)> names;
    std::ranges::transform(kTables, names.begin(), &Table::name);
    return names;
  }();
  return kNames;
}

std::vector<Row> table_rows(const c10::OperatorHandle& op) {
  install_process_state();  // registers the fast paths
  OperatorInfo info = OperatorInfo::of(op);
  if (info.name == "aten::get_gradients") info.route = Route::kNone;  // its kernel is in libtorch_python alone
  const Subject subject{op, info, info.target, info.target.facts(), info.name};
  std::vector<Row> rows;
  for (const Table& table : kTables) {
    rows.push_back(table.ask(subject));
    rows.back().table = table.name;
  }
  return rows;
}

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
  std::vector<c10::OperatorName> names = c10::Dispatcher::singleton().getAllOpNames();
  std::erase_if(names, [](const c10::OperatorName& each) {  // those of torch in Python, which other processes lack
    const auto op = c10::Dispatcher::singleton().findSchema(each);
    return op && op->debug().find(".py:") != std::string::npos;
  });
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
