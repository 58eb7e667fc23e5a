#include <mutex>
#include <unordered_map>

#include "core/calls/functional_call.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/operand_shapes.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {
namespace {

struct Registered {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const OperatorCosts>> by_name;

  static Registered& global() {
    static auto* registered = new Registered;
    return *registered;
  }
  std::shared_ptr<const OperatorCosts> find(const std::string& name) {
    const std::lock_guard lock(mutex);
    const auto found = find_by_operator(by_name, name);
    return found == by_name.end() ? nullptr : found->second;
  }
};

}  // namespace

void register_operator(const std::string& operator_name, OperatorCosts costs) {
  const size_t colons = operator_name.find("::");
  if (colons == std::string::npos || colons == 0 || colons + 2 == operator_name.size()) {
    throw Error("register_operator: '" + operator_name +
                "' is no operator's name; it has the form space::name.overload");
  }
  Registered& registered = Registered::global();
  const std::lock_guard lock(registered.mutex);
  const bool added =
      registered.by_name.emplace(operator_name, std::make_shared<const OperatorCosts>(std::move(costs))).second;
  if (!added) {
    throw Error(
        "register_operator: " + operator_name +
        " has been registered before, and two answers may differ. Register it once, with its shape rule and all "
        "its costs; a shape rule alone can be replaced with register_rule");
  }
}

std::shared_ptr<const OperatorCosts> registered_costs(const Target& called) {
  if (called.kind() == TargetKind::kBuiltin) return nullptr;
  const std::optional<Target> op = operator_of_functional_call(called);
  return Registered::global().find((op ? *op : called).name());
}

std::optional<int64_t> evaluate(const CostRule& rule, const OperandShapes& call) {
  if (!rule) return std::nullopt;
  try {
    const auto answer = rule(call);
    return answer && *answer >= 0 ? answer : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace shadowgraph
