#include <algorithm>
#include <map>

#include "core/calls/functional_call.h"
#include "profiler/cost/elementwise_table.h"
#include "profiler/cost/flop_table.h"
#include "profiler/cost/operand_reader.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/operand_shapes.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {
namespace {

struct TargetFormulas {
  bool known = false;
  bool free = false;                         // no work whatever the shapes: operands need not be read
  std::shared_ptr<const OperatorCosts> own;  // given by the user: comes before the tables
  const FlopRow* flop = nullptr;
  ElementwiseFormula elementwise;
};

// A functional call of an operator that writes (core/calls/functional_call.h) takes the same arguments and works as
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

bool Flops::is_uncovered(NodeId node) const {
  return std::binary_search(uncovered_nodes_.begin(), uncovered_nodes_.end(), node);
}

}  // namespace shadowgraph
