// Finds other forms of an operator by name and schema. No list of pairs is needed: libtorch's naming is regular, and
// the few exceptions are rows of the operator table.
#include "ir/operators/operator_forms.h"

#include <ATen/core/enum_tag.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <array>
#include <utility>

#include "ir/operators/known_target.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {
namespace {

constexpr std::string_view kFunctionalSuffix = "_functional";

bool same_target(const Target& a, const Target& b) {
  return a.kind() == b.kind() && a.name() == b.name() && function_schema(a) == function_schema(b);
}

// Returns all overloads, or the given one. The dispatcher looks up exact names; libtorch's JIT lists the overloads.
std::vector<c10::OperatorHandle> operators_named(std::string_view name) {
  std::vector<c10::OperatorHandle> found;
  const std::string all(without_overload(name));
  for (const auto& op : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(all))) {
    const auto handle = c10::Dispatcher::singleton().findSchema(op->schema().operator_name());
    if (handle && matches_operator(name, full_name(handle->schema()))) found.push_back(*handle);
  }
  return found;
}

bool is_among(const std::vector<uint16_t>& positions, size_t position) {
  return std::find(positions.begin(), positions.end(), position) != positions.end();
}

// Returns whether a result only returns a written argument: add_ returns self.
bool is_result_of_write(const OperatorFacts& facts, size_t result) {
  return std::any_of(facts.aliases.begin(), facts.aliases.end(), [&](const OperatorFacts::Alias& alias) {
    return alias.result == result && is_among(facts.written, alias.argument);
  });
}

const c10::Type& required(const c10::Type& type) {
  return type.kind() == c10::TypeKind::OptionalType ? *static_cast<const c10::OptionalType&>(type).getElementType()
                                                    : type;
}

// Batch norm's statistics are optional in one overload and not in the other.
bool same_type(const c10::Argument& a, const c10::Argument& b) {
  return required(*a.real_type()) == required(*b.real_type());
}

// Returns whether an argument is a factory option, which an `out=` tensor implies.
bool describes_result(const std::string& name) {
  constexpr std::array<std::string_view, 4> kOptions = {"dtype", "layout", "device", "pin_memory"};
  return std::find(kOptions.begin(), kOptions.end(), name) != kOptions.end();
}

// Returns the arguments of `candidate`, by position in `schema` without its `out=` arguments, or kOfResult; empty if
// they do not match.
std::optional<std::vector<uint16_t>> match_arguments(const c10::FunctionSchema& schema,
                                                     const c10::FunctionSchema& candidate) {
  std::vector<uint16_t> given;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (!schema.arguments()[i].is_out()) given.push_back(static_cast<uint16_t>(i));
  }
  std::vector<uint16_t> taken;
  size_t next = 0;
  for (const c10::Argument& formal : candidate.arguments()) {
    const c10::Argument* mine = next < given.size() ? &schema.arguments()[given[next]] : nullptr;
    if (describes_result(formal.name()) && (mine == nullptr || mine->name() != formal.name())) {
      taken.push_back(FreshForm::kOfResult);
    } else if (mine != nullptr && same_type(*mine, formal)) {
      taken.push_back(given[next++]);
    } else {
      return std::nullopt;
    }
  }
  if (next != given.size()) return std::nullopt;
  return taken;
}

// Returns whether the return types of `candidate` match those of `form`, which is otherwise complete.
bool gives(const FunctionalForm& form, const c10::FunctionSchema& schema, const c10::FunctionSchema& candidate) {
  const auto& returns = candidate.returns();
  if (returns.size() != form.fresh.size() + form.written.size()) return false;
  for (size_t r = 0; r < returns.size(); ++r) {
    const size_t w = r - form.fresh.size();
    const c10::Argument& wanted =
        r < form.fresh.size() ? schema.returns()[form.fresh[r]] : schema.arguments()[form.written[w]];
    if (!same_type(returns[r], wanted)) return false;
  }
  return true;
}

// A functional form takes the same arguments without the `out=` ones. It returns the new results, followed by the final
// contents of the original's written arguments:
//
//     _native_batch_norm_legit(x, w, b, mean!, var!, ..) -> (y, m, v)
//     _native_batch_norm_legit_functional(x, w, b, mean, var, ..) -> (y, m, v, mean, var)
std::optional<FunctionalForm> match_functional(const Target& original, const c10::OperatorHandle& op) {
  auto arguments = match_arguments(function_schema(original), op.schema());
  if (!arguments || is_among(*arguments, FreshForm::kOfResult)) return std::nullopt;
  FunctionalForm form{.target = Target(TargetKind::kOperator, op.schema()), .arguments = std::move(*arguments)};
  const OperatorFacts& facts = original.facts();
  const OperatorFacts& functional = form.target.facts();
  // It must be functional itself; a view may replace an operator that writes geometry (t_ and t).
  if (!functional.written.empty() || functional.unknown) return std::nullopt;
  if (!functional.aliases.empty() && !functional.is_view) return std::nullopt;
  form.written = facts.written;
  // In all functional forms of libtorch, results for `out=` arguments come first.
  std::stable_partition(form.written.begin(), form.written.end(),
                        [&](uint16_t position) { return original.signature().arguments[position].out; });
  for (size_t r = 0; r < original.signature().returns.size(); ++r) {
    if (!is_result_of_write(facts, r)) form.fresh.push_back(static_cast<uint16_t>(r));
  }
  if (!gives(form, function_schema(original), op.schema())) return std::nullopt;
  return form;
}

// A fresh form allocates the `out=` results and writes the other arguments that the original writes.
std::optional<FreshForm> match_fresh(const Target& original, const c10::OperatorHandle& op) {
  const auto& schema = function_schema(original);
  const auto& returns = op.schema().returns();
  auto arguments = match_arguments(schema, op.schema());
  if (!arguments || returns.size() != schema.returns().size()) return std::nullopt;
  for (size_t i = 0; i < arguments->size(); ++i) {
    const bool was_written = (*arguments)[i] != FreshForm::kOfResult && is_written(schema.arguments()[(*arguments)[i]]);
    if (is_written(op.schema().arguments()[i]) != was_written) return std::nullopt;
  }
  for (size_t r = 0; r < returns.size(); ++r) {
    if (!same_type(returns[r], schema.returns()[r])) return std::nullopt;
  }
  return FreshForm{op, std::move(*arguments)};
}

// Searches `names` for operators accepted by match(op). Prefers the one with the overload name of `target`, then the
// fewest arguments, then the first.
template <class Form, class Match>
std::optional<Form> best_form(const Target& target, const std::vector<std::string>& names, Match&& match) {
  std::optional<Form> best;
  size_t fewest = 0;
  for (const std::string& name : names) {
    for (const c10::OperatorHandle& op : operators_named(name)) {
      std::optional<Form> form = match(op);
      if (!form) continue;
      if (op.schema().overload_name() == target.signature().overload || !overload_of(name).empty()) return form;
      const size_t taken = op.schema().arguments().size();
      if (best && taken >= fewest) continue;
      best = std::move(form);
      fewest = taken;
    }
  }
  return best;
}

// The `out=` operators that PyTorch generates call the functional form and copy its first results. Other arguments
// annotated as written stay unchanged (aten::_fused_adamw.out and its moments).
bool is_generated_out(const Target& target) {
  const auto op = find_operator(target);
  if (!op || !op->hasTag(at::Tag::generated)) return false;
  const auto& arguments = target.signature().arguments;
  const auto& written = target.facts().written;
  return target.facts().is_out_variant &&
         std::any_of(written.begin(), written.end(), [&](uint16_t position) { return !arguments[position].out; });
}

// Tries the most specific names first: table rows, then the name without `out=`, without the underscore, with the
// suffix.
std::optional<FunctionalForm> find_functional_form(const Target& target) {
  const OperatorFacts& facts = target.facts();
  if (target.kind() != TargetKind::kOperator || facts.written.empty() || facts.unknown) return std::nullopt;
  if (is_generated_out(target)) return std::nullopt;
  std::vector<std::string> names;
  if (const OperatorRow row = operator_row(target.name()); !row.functional.empty()) names.emplace_back(row.functional);
  const std::string& name = target.signature().name;
  if (facts.is_out_variant) names.push_back(name);
  if (is_in_place_name(name)) names.emplace_back(without_underscore(name));
  names.push_back(name + std::string(kFunctionalSuffix));
  return best_form<FunctionalForm>(target, names,
                                   [&](const c10::OperatorHandle& op) { return match_functional(target, op); });
}

// An in-place form is found backwards: its functional form must be this operator.
std::optional<InPlaceForm> find_in_place_form(const Target& target) {
  if (target.kind() != TargetKind::kOperator) return std::nullopt;
  std::vector<std::string> names;
  for (const OperatorRow& row : operator_table()) {
    if (row.functional != target.name()) continue;
    for_each_name(row.names, [&](std::string_view each) { names.push_back(full_name(each)); });
  }
  const std::string& name = target.signature().name;
  names.push_back(name + "_");
  if (name.ends_with(kFunctionalSuffix)) names.push_back(name.substr(0, name.size() - kFunctionalSuffix.size()));
  const auto is_form = [&](const c10::OperatorHandle& op) -> std::optional<InPlaceForm> {
    Target writes(TargetKind::kOperator, op.schema());
    const auto form = find_functional_form(writes);
    if (!form || form->target.facts().is_view || form->target.name() != target.name()) return std::nullopt;
    if (form->arguments.size() != op.schema().arguments().size()) return std::nullopt;
    return InPlaceForm{std::move(writes)};
  };
  return best_form<InPlaceForm>(target, names, is_form);
}

std::optional<FreshForm> find_fresh_form(const Target& target) {
  if (target.kind() != TargetKind::kOperator || !target.facts().is_out_variant) return std::nullopt;
  return best_form<FreshForm>(target, {target.signature().name},
                              [&](const c10::OperatorHandle& op) { return match_fresh(target, op); });
}

}  // namespace

bool operator==(const FunctionalForm& a, const FunctionalForm& b) { return same_target(a.target, b.target); }
bool operator==(const InPlaceForm& a, const InPlaceForm& b) { return same_target(a.target, b.target); }
bool operator==(const FreshForm& a, const FreshForm& b) { return a.op == b.op; }

const FunctionalForm* functional_form(const Target& target) {
  return KnownTarget::of(target).functional.get([&] { return find_functional_form(target); });
}
const Target* in_place_form(const Target& target) {
  const InPlaceForm* form = KnownTarget::of(target).in_place.get([&] { return find_in_place_form(target); });
  return form != nullptr ? &form->target : nullptr;
}
const FreshForm* fresh_form(const Target& target) {
  return KnownTarget::of(target).fresh.get([&] { return find_fresh_form(target); });
}

}  // namespace shadowgraph
