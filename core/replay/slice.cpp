#include "core/replay/slice.h"

#include <algorithm>

#include "shadowgraph/error.h"

namespace shadowgraph {

std::vector<NodeId> slice_for(const Graph& graph, const Effects& effects, std::span<const ValueId> values) {
  std::vector<bool> needed_value(graph.value_capacity());
  std::vector<bool> needed_storage(graph.storage_count() + effects.pseudo_storage_count());
  const auto need = [&](ValueId value) {
    needed_value[value.index] = true;
    const StorageId storage = graph.value(value).storage;
    if (storage.valid()) needed_storage[storage.index] = true;
  };
  for (const ValueId value : values) {
    if (!value.valid() || value.index >= graph.value_capacity() || !graph.value(value).producer.valid() ||
        graph.is_erased(graph.value(value).producer)) {
      throw Error("the graph has no value %" + std::to_string(value.index) + " (id, not printed number) to slice for");
    }
    need(value);
  }

  std::vector<NodeId> nodes;
  // The walk goes backwards: a storage becomes needed at its last reader, so that writes after it are not part of the
  // slice.
  for (NodeId node = graph.last(); node.valid(); node = graph.node(node).previous) {
    const TargetId target = graph.node(node).target;
    if (target == target_of(Builtin::kOutput) || target == target_of(Builtin::kGradient)) continue;
    bool needed = false;
    graph.for_each_output(node, [&](ValueId value) { needed |= needed_value[value.index]; });
    for (const StorageWrite& write : effects.writes(node)) needed |= needed_storage[write.storage.index];
    if (!needed) continue;
    nodes.push_back(node);
    graph.for_each_input(node, need);
    for (const StorageVersion& read : effects.reads(node)) needed_storage[read.storage.index] = true;
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

}  // namespace shadowgraph
