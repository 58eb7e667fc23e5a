#include <set>
#include <tuple>
#include <vector>

#include "shadowgraph/profile.h"

namespace shadowgraph {

ParameterCount ParameterCount::of(const Graph& graph) {
  ParameterCount count;
  std::set<std::tuple<StorageId, int64_t, std::vector<int64_t>>> seen;
  for (NodeId node : graph.nodes()) {
    const TargetId target = graph.node(node).target;
    const bool parameter = target == target_of(Builtin::kParameter);
    if (!parameter && target != target_of(Builtin::kBuffer)) continue;
    graph.for_each_output(node, [&](ValueId id) {
      const Value& value = graph.value(id);
      const auto sizes = graph.sizes(id);
      if (value.kind != ValueKind::kTensor) return;
      const bool fresh = !value.storage.valid() ||
                         seen.emplace(value.storage, value.offset, std::vector(sizes.begin(), sizes.end())).second;
      if (!fresh) return;
      (parameter ? count.parameters : count.buffers) += graph.numel(id);
      (parameter ? count.parameter_bytes : count.buffer_bytes) += graph.logical_bytes(id);
      ++(parameter ? count.parameter_tensors : count.buffer_tensors);
    });
  }
  return count;
}

}  // namespace shadowgraph
