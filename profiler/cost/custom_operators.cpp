#include <map>
#include <optional>

#include "profiler/cost/operand_reader.h"
#include "profiler/cost/scratch_rules.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/operand_shapes.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {
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

}  // namespace shadowgraph
