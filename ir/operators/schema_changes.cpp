// Add rows for each libtorch version whose schemas differ in more than added arguments (listed by
// scripts/compatibility.py --schemas OLD NEW).
#include "ir/operators/schema_changes.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {
namespace {

// Two names of one operator with the same schema, the newer one first.
struct Renamed {
  std::string_view now, before;
};
constexpr Renamed kOperators[] = {
    {"aten::linalg_cholesky", "aten::cholesky"},          // 2.14
    {"aten::linalg_cholesky.out", "aten::cholesky.out"},  // 2.14
};

struct RenamedArgument {
  std::string_view op, now, before;
};
constexpr RenamedArgument kArguments[] = {
    {"aten::_cdist_backward", "grad_output", "grad"},      // 2.14
    {"aten::_cdist_backward.out", "grad_output", "grad"},  // 2.14
    {"aten::_pdist_backward", "grad_output", "grad"},      // 2.14
    {"aten::_pdist_backward.out", "grad_output", "grad"},  // 2.14
};

struct Removed {
  std::string_view op, why;
};
constexpr Removed kRemoved[] = {
    {"aten::qr", "removed in libtorch 2.14; use torch.linalg.qr and capture the program again"},
    {"aten::qr.Q", "removed in libtorch 2.14; use torch.linalg.qr and capture the program again"},
};

bool same_aliases(const c10::Argument& a, const c10::Argument& b) {
  const c10::AliasInfo *x = a.alias_info(), *y = b.alias_info();
  return x == nullptr || y == nullptr ? x == y : *x == *y;
}

const c10::Argument* find_argument(const c10::FunctionSchema& schema, std::string_view op, std::string_view name) {
  const auto position = schema.argumentIndexWithName(name);
  if (position) return &schema.arguments()[static_cast<size_t>(*position)];
  for (const RenamedArgument& row : kArguments) {
    if (row.op != op || (row.now != name && row.before != name)) continue;
    const auto other = schema.argumentIndexWithName(row.now == name ? row.before : row.now);
    if (other) return &schema.arguments()[static_cast<size_t>(*other)];
  }
  return nullptr;
}

// Returns whether a call that uses the defaults of `from` is a valid call of `to`.
bool is_compatible(const c10::FunctionSchema& to, const c10::FunctionSchema& from, std::string_view op) {
  if (to.is_vararg() || from.is_vararg() || to.returns().size() != from.returns().size()) return false;
  for (size_t i = 0; i < to.returns().size(); ++i) {
    if (*to.returns()[i].type() != *from.returns()[i].type() || !same_aliases(to.returns()[i], from.returns()[i])) {
      return false;
    }
  }
  for (const c10::Argument& argument : from.arguments()) {
    const c10::Argument* here = find_argument(to, op, argument.name());
    if (here == nullptr && !argument.default_value()) return false;
    if (here == nullptr) continue;
    const bool typed = *here->type() == *argument.type() || argument.type()->isSubtypeOf(*here->type()) ||
                       here->type()->isSubtypeOf(*argument.type());
    if (!typed || !same_aliases(*here, argument)) return false;
  }
  return std::all_of(to.arguments().begin(), to.arguments().end(), [&](const c10::Argument& argument) {
    const c10::Argument* there = find_argument(from, op, argument.name());
    // A changed default would change the call.
    if (there == nullptr) return argument.default_value().has_value();
    return !there->default_value() ||
           (argument.default_value() && *argument.default_value() == *there->default_value());
  });
}

}  // namespace

std::string_view operator_in_this_libtorch(std::string_view name) {
  for (const Renamed& row : kOperators) {
    const std::string_view other = row.now == name ? row.before : row.before == name ? row.now : std::string_view();
    if (!other.empty() && find_operator(other)) return other;
  }
  return {};
}

std::optional<Target> in_this_libtorch(const Target& target) {
  if (target.kind() != TargetKind::kOperator || find_operator(target)) return std::nullopt;
  std::string_view name = target.name();
  if (!find_operator(name)) name = operator_in_this_libtorch(name);
  const auto here = name.empty() ? std::nullopt : find_operator(name);
  if (!here || !is_compatible(here->schema(), function_schema(target), name)) return std::nullopt;
  return Target(TargetKind::kOperator, here->schema());
}

std::string_view argument_in_this_libtorch(const Target& target, std::string_view name) {
  if (target.kind() != TargetKind::kOperator) return name;
  for (const RenamedArgument& row : kArguments) {
    if (row.op != target.name() || (row.now != name && row.before != name)) continue;
    const std::string_view other = row.now == name ? row.before : row.now;
    if (function_schema(target).argumentIndexWithName(other)) return other;
  }
  return name;
}

std::string_view why_removed(std::string_view name) {
  const auto* row =
      std::find_if(std::begin(kRemoved), std::end(kRemoved), [&](const Removed& r) { return r.op == name; });
  return row == std::end(kRemoved) ? std::string_view() : row->why;
}

}  // namespace shadowgraph
