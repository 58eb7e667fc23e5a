// The card of one operator: what is registered for it in every table.
#include "shadowgraph/profile/operator_support.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

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

namespace {

using Row = OperatorSupport::Row;

constexpr const char* kByTheProgram = "registered by the program";

struct Subject {
  const c10::OperatorHandle& op;
  const OperatorInfo& info;
  const Target& target;
  const OperatorFacts& facts;
  const std::string& name;  // "aten::add.Tensor"
};

Row present(std::string says, std::string place = {}) { return {.entry = std::move(says), .place = std::move(place)}; }
Row missing(std::string says) { return {.entry = std::move(says), .missing = true}; }

std::string names_of(const Subject& s, const std::vector<uint16_t>& positions) {
  std::vector<std::string_view> names;
  for (const uint16_t position : positions) names.push_back(s.target.signature().arguments.at(position).name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Row shape_rule(const Subject& s) {
  const ExecutionRoute way = execution_route(s.op);
  const auto registered_at = [](const std::string& name) { return source_place(RuleRegistry::global().place(name)); };
  switch (way.kind) {
    case ExecutionRoute::Kind::kRule: {
      const std::string place = registered_at(s.name);
      return present(place.empty() ? kByTheProgram : "registered", place);
    }
    case ExecutionRoute::Kind::kDecomposition:
      if (s.info.route == Route::kNone) break;
      return present("none needed: libtorch decomposes it into operators with rules");
    case ExecutionRoute::Kind::kOutForm: {
      const std::string form = toString(way.form->op.operator_name());
      return present(fmt::format("as {}, with results resized accordingly", form), registered_at(form));
    }
    case ExecutionRoute::Kind::kMeta:
      return present("none needed: libtorch's Meta kernel");
    case ExecutionRoute::Kind::kDataDependent:
      if (way.takes_sizes) {
        const std::string& name = way.form != nullptr ? toString(way.form->op.operator_name()) : s.name;
        return present("registered, for a user-defined size; otherwise DataDependentError", registered_at(name));
      }
      return missing("none: results are data-dependent; calls throw DataDependentError");
    case ExecutionRoute::Kind::kNone:
      break;
  }
  return missing("none: calls throw NoRuleError, unless a Meta kernel is registered in Python");
}

Row composite_rule(const Subject& s) {
  if (s.info.composite_rule) {
    const std::string place = source_place(RuleRegistry::global().place_of_composite(s.name));
    return present(place.empty() ? kByTheProgram : "replaces its decomposition on supported devices", place);
  }
  if (s.info.route == Route::kComposite) return missing("none: decomposed on all devices");
  return missing("none: libtorch does not decompose it");
}

Row fast_path(const Subject& s) {
  const std::string place = source_place(fast_path_location(s.name));
  if (place.empty()) return missing("none: calls go through the boxed fallback, with the same results");
  return present("an unboxed kernel", place);
}

Row devices(const Subject& s) {
  static constexpr const char* kByRule[] = {
      "all operands on one device, except 0-dim CPU tensors",
      "the device of the first tensor; others may be on any device",
      "the device of the first tensor; others may also be on the CPU",
      "the device of the first tensor and the values; indices may be on any device",
      "one device per list element",
      "its device argument, otherwise the device of the operands or the mode",
  };
  return present(kByRule[static_cast<size_t>(s.info.device_rule)], "core/fake/dispatch/operator_info.cpp");
}

Row contents(const Subject& s) {
  std::vector<const char*> says;
  if (s.info.evaluable) says.push_back("computed if those of the operands are known");
  if (s.info.contents_rule != ContentsRule::kNone) says.push_back("partly known even if those of the operands are not");
  if (says.empty()) return missing("none: results have no known contents");
  return present(fmt::format("{}", fmt::join(says, "; ")), "core/fake/dispatch/operator_info.cpp");
}

// Returns the source location of the operator's table rows; "" if there are none and all facts follow from the schema.
std::string place_of_facts(const Subject& s) {
  return operator_row(s.name).describes_effects() ? std::string(kOperatorTableFile) : std::string();
}

Row writes(const Subject& s) {
  if (s.facts.unknown) return missing("unknown: assumed to read and write all its arguments");
  if (s.facts.written.empty()) return present("nothing", place_of_facts(s));
  std::string says = names_of(s, s.facts.written);
  if (s.facts.write_condition >= 0) {
    says += ", if " + s.target.signature().arguments.at(static_cast<size_t>(s.facts.write_condition)).name;
  }
  if (!s.facts.overwritten.empty()) says += fmt::format("; overwritten: {}", names_of(s, s.facts.overwritten));
  return present(std::move(says), place_of_facts(s));
}

Row aliases(const Subject& s) {
  if (s.facts.unknown) return missing("unknown: results may alias any argument");
  if (s.facts.aliases.empty()) return present("none: results are newly allocated", place_of_facts(s));
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
      {f.draws, "only draws random numbers"},
      {f.random && !f.draws, "random"},
      {f.fills, "fills"},
      {f.uninitialized, "returns uninitialized memory"},
      {f.geometry_only, "reads only the geometry"},
      {f.host_read, "copied to the host"},
      {f.collective, "collective"},
      {f.resizes, "resizes"},
      {f.takes_storage, "takes over a storage"},
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
  if (functional_call_of(s.target)) return missing("none: `functionalize` calls it on copies of the written tensors");
  return missing("none: unchanged by `functionalize`");
}

Row in_place_form_row(const Subject& s) {
  if (!s.facts.written.empty()) return present("itself");
  const Target* form = in_place_form(s.target);
  return form != nullptr ? present(form->name()) : missing("none: unchanged by `reinplace`");
}

Row decomposition(const Subject& s) {
  const ExpansionTable& table = decompositions::all();
  if (!table.has(s.name)) return missing("none: unchanged by the pass `decompose`");
  return present("into more basic operators, by the pass `decompose`", source_place(table.place(s.name)));
}

Row kernel(const Subject& s) {
  const KernelRow* row = find_kernel_row(s.name);
  if (row == nullptr) return missing(fmt::format("none ({}): libtorch's kernel runs", why_no_kernel(s.target)));
  const char* kind = row->reduced != nullptr ? "row reduction" : "pointwise";
  return present(fmt::format("{}{}", kind, row->inexact ? ", within a few ulps of eager" : ""),
                 source_place(row->file));
}

// Costs registered by users take precedence over the tables (shadowgraph/profile/register_operator.h).
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
  if (s.facts.collective) return missing("none: collectives count as 0");
  if (ElementwiseFormula::of(s.target).coverage == ElementwiseCoverage::kNone) {
    return missing("no FLOP formula: counted as uncovered");
  }
  return missing("none: only elementwise work is counted");
}

Row elementwise_work(const Subject& s) {
  if (has_cost(s, &OperatorCosts::flops)) return present("included in the FLOPs registered by the program");
  const ElementwiseFormula formula = ElementwiseFormula::of(s.target);
  switch (formula.coverage) {
    case ElementwiseCoverage::kRow: {
      const ElementwiseWork each = formula.row->each;
      const std::string says =
          each == ElementwiseWork()
              ? "nothing to count"
              : fmt::format("{} FLOPs and {} transcendental functions per element", each.flops, each.transcendental);
      return present(says, source_place(formula.row->file));
    }
    case ElementwiseCoverage::kFree:
      return present(s.facts.is_view ? "nothing to count: a view" : "nothing to count");
    case ElementwiseCoverage::kPointwiseTag:
      return present("1 FLOP per element of the result, from PyTorch's `pointwise` tag");
    case ElementwiseCoverage::kNone:
      break;
  }
  if (s.facts.collective) return missing("none: collectives count as 0");
  return missing("none: counted as uncovered");
}

Row scratch(const Subject& s, c10::DeviceType device) {
  if (has_cost(s, &OperatorCosts::scratch)) return present(kByTheProgram);
  const OperatorFacts& f = s.facts;
  if (f.is_view || f.fills || f.uninitialized || f.collective) return present("none, for any operands");
  if (const ScratchRow* row = find_scratch_row(s.target, device)) {
    return present(std::string(row->reason), source_place(row->file));
  }
  if (f.pointwise) return present("none, except for type conversions of operands");
  return missing("unknown: calls are listed, and count as 0");
}

Row time_class(const Subject& s) {
  const TargetKernelClass known = kernel_class(s.target);
  std::string says(to_string(known.kind));
  if (known.convolution) says += "; depends on the operands";
  if (known.kind == KernelClass::kOther) return missing(says + ": timed without a kernel class");
  return present(std::move(says), source_place(known.file));
}

Row sharding_rule(const Subject& s) {
  const ShardingRules rules;  // including those registered by the program
  const ShardingRules::OfOperator known = rules.of_operator(s.target);
  if (known.source == RuleSource::kReplicated) return missing("none: replicated, and counted as missing a rule");
  const char* kind = known.source == RuleSource::kClass ? "class " : "";
  return present(fmt::format("{}{}", kind, fmt::join(known.lines, " || ")), known.place);
}

Row category(const Subject& s) {
  const OperatorCategory known = category_of(s.target);
  const CategoryStyle& style = style_of(known);
  if (known == OperatorCategory::kOther) return missing(fmt::format("{}: drawn in {}", style.name, style.fill));
  return present(fmt::format("{}, {}", style.name, style.fill), "operators/operator_category.cpp");
}

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

std::vector<Row> table_rows(const c10::OperatorHandle& op) {
  install_process_state();  // registers the fast paths
  OperatorInfo info = OperatorInfo::of(op);
  if (info.name == "aten::get_gradients") info.route = Route::kNone;  // its kernel is only in libtorch_python
  const Subject subject{op, info, info.target, info.target.facts(), info.name};
  std::vector<Row> rows;
  for (const Table& table : kTables) {
    rows.push_back(table.ask(subject));
    rows.back().table = table.name;
  }
  return rows;
}

// Returns the name with the smallest edit distance to `asked`; "" if none is close. Namespaces and overloads are only
// compared if `asked` has them.
std::string nearest_operator(std::string_view asked, const std::vector<c10::OperatorName>& names) {
  const bool has_namespace = !namespace_of(asked).empty();
  const bool has_overload = asked.find('.') != asked.npos;
  std::string best;
  size_t best_distance = asked.size() / 3 + 1;  // up to a third of the letters may differ
  for (const c10::OperatorName& name : names) {
    const std::string full = has_overload ? toString(name) : name.name;
    const std::string_view compared = has_namespace ? std::string_view(full) : without_namespace(full);
    const size_t apart = std::max(compared.size(), asked.size()) - std::min(compared.size(), asked.size());
    if (apart > best_distance) continue;
    const size_t distance = edit_distance(asked, compared);
    // Prefers aten to other namespaces with the same name, then alphabetical order.
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

std::span<const std::string_view> OperatorSupport::tables() {
  static constexpr auto kNames = [] {
    std::array<std::string_view, std::size(kTables)> names;
    std::ranges::transform(kTables, names.begin(), &Table::name);
    return names;
  }();
  return kNames;
}

const OperatorSupport::Row& OperatorSupport::row(std::string_view table) const {
  const auto found = std::ranges::find(rows, table, &Row::table);
  if (found == rows.end()) throw Error(fmt::format("unknown operator table '{}'", table));
  return *found;
}

std::vector<OperatorSupport> operator_support(std::string_view name) {
  std::vector<c10::OperatorName> names = c10::Dispatcher::singleton().getAllOpNames();
  // Python-only operators of torch, which other processes lack
  std::erase_if(names, [](const c10::OperatorName& each) {
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
    throw Error(fmt::format("unknown operator '{}'{}", name.substr(0, 128),
                            near.empty() ? "; use names such as aten::gelu and aten::add.Tensor"
                                         : fmt::format("; did you mean {}?", near)));
  }
  std::vector<OperatorSupport> cards;
  for (const auto& [full, op] : found) {
    cards.push_back({.name = full, .schema = toString(op.schema()), .rows = table_rows(op)});
  }
  return cards;
}

std::string to_text(const OperatorSupport& card) {
  size_t table_width = 0;
  size_t says_width = 0;
  for (const OperatorSupport::Row& row : card.rows) {
    table_width = std::max(table_width, row.table.size());
    says_width = std::max(says_width, std::min<size_t>(row.entry.size(), 72));
  }
  std::string text = card.schema + "\n";
  for (const OperatorSupport::Row& row : card.rows) {
    std::string line =
        fmt::format("  {:<{}} {} {:<{}}", row.table, table_width, row.missing ? '-' : ' ', row.entry, says_width);
    if (!row.place.empty()) line += "  " + row.place;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string to_json(std::span<const OperatorSupport> cards) {
  auto list = nlohmann::json::array();
  for (const OperatorSupport& card : cards) {
    auto rows = nlohmann::json::array();
    for (const OperatorSupport::Row& row : card.rows) {
      rows.push_back({{"table", row.table}, {"entry", row.entry}, {"place", row.place}, {"missing", row.missing}});
    }
    list.push_back({{"name", card.name}, {"schema", card.schema}, {"rows", std::move(rows)}});
  }
  return json_text(list, 2);
}

}  // namespace shadowgraph
