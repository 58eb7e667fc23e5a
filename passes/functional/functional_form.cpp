#include "passes/functional/functional_form.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <algorithm>
#include <array>
#include <utility>

namespace shadowgraph {
namespace {

// Functional forms that the rules of naming do not find.
struct NamedPair {
  const char* writes;
  const char* functional;
};
constexpr std::array<NamedPair, 3> kPairs = {{
    {"aten::normal_", "aten::normal_functional"},
    {"aten::bernoulli_.float", "aten::bernoulli.p"},
    {"aten::native_batch_norm", "aten::_native_batch_norm_legit_functional"},
}};

std::string qualified(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
}

std::vector<c10::OperatorHandle> overloads_of(const std::string& name) {
  std::vector<c10::OperatorHandle> found;
  for (const auto& op : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(name))) {
    if (auto handle = c10::Dispatcher::singleton().findSchema(op->schema().operator_name())) found.push_back(*handle);
  }
  return found;
}

bool contains(const std::vector<uint16_t>& positions, size_t position) {
  return std::find(positions.begin(), positions.end(), position) != positions.end();
}

bool is_result_of_write(const OperatorFacts& facts, size_t result) {
  return std::any_of(facts.aliases.begin(), facts.aliases.end(), [&](const OperatorFacts::Alias& alias) {
    return alias.result == result && contains(facts.written, alias.argument);
  });
}

const c10::Type& without_optional(const c10::Type& type) {
  return type.kind() == c10::TypeKind::OptionalType ? *static_cast<const c10::OptionalType&>(type).getElementType()
                                                    : type;
}

// Whether `candidate` is the functional form of an operator with this schema and these facts.
std::optional<FunctionalForm> match(const c10::FunctionSchema& schema, const OperatorFacts& facts,
                                    const c10::OperatorHandle& candidate) {
  Target target(TargetKind::kOperator, candidate.schema());
  const OperatorFacts other = facts_of(target);
  if (!other.written.empty() || other.unknown) return std::nullopt;
  FunctionalForm form{.target = std::move(target)};
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (!schema.arguments()[i].is_out()) form.arguments.push_back(static_cast<uint16_t>(i));
  }
  const auto& taken = candidate.schema().arguments();
  if (taken.size() != form.arguments.size()) return std::nullopt;
  for (size_t i = 0; i < taken.size(); ++i) {
    const c10::Argument& mine = schema.arguments()[form.arguments[i]];
    // Batch norm's statistics are optional in one overload and not in the other.
    if (without_optional(*mine.real_type()) != without_optional(*taken[i].real_type())) return std::nullopt;
  }
  form.written = facts.written;
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    if (!is_result_of_write(facts, r)) form.fresh.push_back(static_cast<uint16_t>(r));
  }
  const auto& returns = candidate.schema().returns();
  if (returns.size() != form.fresh.size() + form.written.size()) return std::nullopt;
  for (size_t r = 0; r < returns.size(); ++r) {
    const c10::Type& wanted =
        r < form.fresh.size() ? *schema.returns()[form.fresh[r]].real_type()
                              : without_optional(*schema.arguments()[form.written[r - form.fresh.size()]].real_type());
    if (without_optional(*returns[r].real_type()) != wanted) return std::nullopt;
  }
  form.pointwise = candidate.hasTag(at::Tag::pointwise);
  form.random = other.random;
  form.is_view = other.is_view;
  if (!other.aliases.empty() && !other.is_view) return std::nullopt;
  return form;
}

}  // namespace

std::optional<FunctionalForm> functional_form_of(const Target& target) {
  if (target.kind() != TargetKind::kOperator) return std::nullopt;
  const OperatorFacts facts = facts_of(target);
  if (facts.written.empty() || facts.unknown) return std::nullopt;
  const c10::FunctionSchema& schema = target.schema();
  const std::string& name = schema.name();
  for (const NamedPair& pair : kPairs) {
    if (target.name() != pair.writes) continue;
    for (const c10::OperatorHandle& op :
         overloads_of(std::string(pair.functional).substr(0, std::string_view(pair.functional).find('.')))) {
      if (qualified(op.schema()) != pair.functional) continue;
      if (auto form = match(schema, facts, op)) return form;
    }
  }
  std::vector<std::string> names;
  if (facts.is_out_variant) names.push_back(name);
  if (name.ends_with('_') && !name.ends_with("__")) names.push_back(name.substr(0, name.size() - 1));
  names.push_back(name + "_functional");
  std::optional<FunctionalForm> best;
  for (const std::string& candidate : names) {
    for (const c10::OperatorHandle& op : overloads_of(candidate)) {
      auto form = match(schema, facts, op);
      if (!form) continue;
      // The overload of the same name, if several take the same arguments.
      if (op.schema().overload_name() == schema.overload_name()) return form;
      if (!best) best = std::move(form);
    }
  }
  return best;
}

std::optional<Target> in_place_form_of(const Target& target) {
  if (target.kind() != TargetKind::kOperator) return std::nullopt;
  const auto is_form = [&](const c10::OperatorHandle& op) {
    const Target writes(TargetKind::kOperator, op.schema());
    const auto form = functional_form_of(writes);
    return form && !form->is_view && form->target.name() == target.name() &&
           form->arguments.size() == op.schema().arguments().size();
  };
  for (const NamedPair& pair : kPairs) {
    if (target.name() != pair.functional) continue;
    const std::string_view writes = pair.writes;
    for (const c10::OperatorHandle& op : overloads_of(std::string(writes.substr(0, writes.find('.'))))) {
      if (qualified(op.schema()) == writes && is_form(op)) return Target(TargetKind::kOperator, op.schema());
    }
  }
  std::optional<Target> best;
  std::vector<std::string> names{target.schema().name() + "_"};
  constexpr std::string_view kFunctional = "_functional";
  if (const std::string& name = target.schema().name(); name.ends_with(kFunctional)) {
    names.push_back(name.substr(0, name.size() - kFunctional.size()));
  }
  for (const std::string& name : names) {
    for (const c10::OperatorHandle& op : overloads_of(name)) {
      if (!is_form(op)) continue;
      if (op.schema().overload_name() == target.schema().overload_name()) {
        return Target(TargetKind::kOperator, op.schema());
      }
      if (!best) best.emplace(TargetKind::kOperator, op.schema());
    }
  }
  return best;
}

}  // namespace shadowgraph
