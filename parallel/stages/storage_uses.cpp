#include "parallel/stages/storage_uses.h"

#include <algorithm>

namespace shadowgraph {

StorageUses::StorageUses(const ProgramCosts& costs, const StageAssignment& assignment) {
  const Graph& graph = costs.graph();
  for (const NodeId n : costs.nodes) {
    if (assignment.stages_of(n).empty()) continue;
    const auto seen = [&](ValueId v) {
      if (graph.value(v).storage.valid()) note(costs, assignment, n, graph.value(v).storage);
    };
    graph.for_each_input(n, seen);
    graph.for_each_output(n, seen);
    // What dies here was held until here, whoever looked at it last.
    for (const StorageId s : graph.frees(n)) {
      const auto& uses = uses_[s];
      const auto here = [&](const StageUse& use) {
        return std::ranges::binary_search(assignment.stages_of(n), use.stage);
      };
      if (std::ranges::any_of(uses, here)) note(costs, assignment, n, s);
    }
  }
}

void StorageUses::note(const ProgramCosts& costs, const StageAssignment& assignment, NodeId node, StorageId storage) {
  auto& uses = uses_[storage];
  const auto piece = static_cast<size_t>(assignment.piece(node));
  for (const int32_t stage : assignment.stages_of(node)) {
    auto at = std::ranges::lower_bound(uses, stage, {}, &StageUse::stage);
    if (at == uses.end() || at->stage != stage) at = uses.insert(at, {.stage = stage});
    at->last[piece] = costs.order[node];
  }
}

}  // namespace shadowgraph
