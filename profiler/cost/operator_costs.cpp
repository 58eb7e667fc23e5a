#include "shadowgraph/profile/operator_costs.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "core/calls/functions.h"
#include "ir/operators/operator_name.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "profiler/cost/operand_reader.h"
#include "profiler/cost/scratch_rules.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/profile.h"

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

struct TargetFormulas {
  bool known = false;
  bool free = false;                         // no work whatever the shapes: operands need not be read
  std::shared_ptr<const OperatorCosts> own;  // given by the user: comes before the tables
  const FlopRow* flop = nullptr;
  ElementwiseFormula elementwise;
};

// A functional call of an operator that writes (core/calls/functions.h) takes the same arguments and works as
// much.
TargetFormulas formulas_of(const Target& called) {
  const std::optional<Target> op = operator_of_functional_call(called);
  const Target& target = op ? *op : called;
  TargetFormulas formulas{.known = true, .own = registered_costs(target)};
  if (formulas.own && !formulas.own->flops) formulas.own = nullptr;
  if (formulas.own) return formulas;
  if (target.facts().collective) {
    formulas.free = true;  // its sums are nothing beside the time of sending (shadowgraph/profile/communication.h)
    return formulas;
  }
  formulas.flop = find_flop_row(target.name());
  formulas.elementwise = ElementwiseFormula::of(target);
  formulas.free = formulas.flop == nullptr &&
                  (formulas.elementwise.coverage == ElementwiseCoverage::kFree ||
                   (formulas.elementwise.row != nullptr && formulas.elementwise.row->each == ElementwiseWork()));
  return formulas;
}

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

CustomOperators CustomOperators::of(const Graph& graph) {
  CustomOperators own;
  struct Known {
    bool asked = false;
    std::shared_ptr<const OperatorCosts> costs;
  };
  IdMap<TargetId, Known> known;
  std::map<std::string, CustomOperatorFigures> figures;
  OperandReader reader(graph);
  for (const NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    Known& entry = known[target];
    if (!entry.asked) entry = {.asked = true, .costs = registered_costs(graph.target(target))};
    if (!entry.costs) continue;
    const OperandShapes call = reader.read(node);
    const auto flops = evaluate(entry.costs->flops, call);
    const auto bytes = evaluate(entry.costs->bytes, call);
    const auto scratch = evaluate(entry.costs->scratch, call);
    CustomOperatorFigures& row = figures[graph.target(target).name()];
    ++row.calls;
    row.flops = saturating_add(row.flops, flops.value_or(0));
    row.bytes = saturating_add(row.bytes, bytes.value_or(0));
    row.scratch = std::max(row.scratch, scratch.value_or(0));
    const bool unknown =
        (entry.costs->flops && !flops) || (entry.costs->bytes && !bytes) || (entry.costs->scratch && !scratch);
    if (unknown) ++row.unknown;
    if (scratch.value_or(0) > 0) {
      own.scratch_.push_back({node, *scratch, device_of_call(graph, node).value_or(c10::Device(c10::kCPU))});
    }
  }
  for (auto& [op, row] : figures) {
    row.op = op;
    own.by_operator_.push_back(std::move(row));
  }
  return own;
}

NodeFlops& NodeFlops::operator+=(const NodeFlops& other) {
  matmul = saturating_add(matmul, other.matmul);
  elementwise = saturating_add(elementwise, other.elementwise);
  transcendental = saturating_add(transcendental, other.transcendental);
  beyond_pytorch = saturating_add(beyond_pytorch, other.beyond_pytorch);
  return *this;
}

Flops Flops::of(const Graph& graph) {
  Flops flops;
  flops.by_node_.reserve(graph.node_capacity());
  IdMap<TargetId, TargetFormulas> formulas;
  std::map<std::string, int64_t> uncovered;
  OperandReader reader(graph);
  for (NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    TargetFormulas& formula = formulas[target];
    if (!formula.known) formula = formulas_of(graph.target(target));
    if (formula.free) continue;
    const OperandShapes call = reader.read(node);
    NodeFlops count;
    bool covered = true;
    if (formula.own) {
      const auto own = evaluate(formula.own->flops, call);
      covered = own.has_value();
      count.matmul = count.beyond_pytorch = own.value_or(0);
    } else if (formula.flop != nullptr) {
      const auto matmul = formula.flop->rule(call);
      covered = matmul.has_value();
      count.matmul = matmul.value_or(0);
      if (!formula.flop->counted_by_pytorch) count.beyond_pytorch = count.matmul;
    }
    if (!formula.own) {
      const auto work = formula.elementwise.evaluate(call);
      covered = covered && work.has_value();
      count.elementwise = work.value_or(ElementwiseWork()).flops;
      count.transcendental = work.value_or(ElementwiseWork()).transcendental;
    }
    if (!covered) {
      ++uncovered[graph.target(target).name()];
      flops.uncovered_nodes_.push_back(node);
    }
    flops.by_node_[node] = count;
    flops.by_phase_[graph.node(node).phase] += count;
  }
  for (auto& [op, count] : uncovered) flops.uncovered_.push_back({op, count});
  std::sort(flops.uncovered_nodes_.begin(), flops.uncovered_nodes_.end());
  return flops;
}

NodeFlops Flops::total() const {
  NodeFlops sum;
  for (uint32_t i = 0; i < by_phase_.size(); ++i) sum += by_phase_[PhaseId(i)];
  return sum;
}

bool Flops::is_uncovered(NodeId node) const {
  return std::binary_search(uncovered_nodes_.begin(), uncovered_nodes_.end(), node);
}

}  // namespace shadowgraph
