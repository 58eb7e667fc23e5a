#include <unordered_set>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/profile.h"

namespace shadowgraph {

void GroupFigures::add_disjoint(const GroupFigures& other) {
  forward_nodes += other.forward_nodes;
  backward_nodes += other.backward_nodes;
  incremental += other.incremental;
  output += other.output;
  temporary += other.temporary;
  backward += other.backward;
  forward_flops += other.forward_flops;
  backward_flops += other.backward_flops;
}

std::vector<GroupFigures> group_figures(const Graph& graph, const IdMap<StorageId, StorageKind>& kinds,
                                        const Flops& flops, const IdMap<NodeId, uint32_t>& group_of,
                                        uint32_t group_count, std::span<const uint32_t> parents) {
  std::vector<GroupFigures> groups(group_count);
  IdMap<StorageId, uint8_t> saved;
  std::unordered_set<uint64_t> parameters_seen;  // group and storage

  for (NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    const uint32_t group = group_of[id];
    for (const SavedTensor& tensor : graph.saved(id)) {
      const StorageId storage = graph.value(tensor.value).storage;
      if (!storage.valid() || saved[storage] != 0) continue;
      saved[storage] = 1;
      if (group < group_count && !existed_before(graph, graph.storage(storage))) {
        groups[group].incremental += graph.storage(storage).bytes;
      }
    }
    if (group >= group_count || graph.target(node.target).kind() == TargetKind::kBuiltin) continue;
    if (node.phase == Graph::kForward) {
      ++groups[group].forward_nodes;
      groups[group].forward_flops += flops.of(id);
      graph.for_each_input(id, [&](ValueId value) {
        const StorageId storage = graph.value(value).storage;
        if (!storage.valid() || kinds[storage] != StorageKind::kParameter) return;
        uint32_t at = group;
        while (at < group_count && parameters_seen.insert(uint64_t{at} << 32 | storage.index).second) {
          groups[at].parameters += graph.storage(storage).bytes;
          if (parents.empty()) break;
          at = parents[at];
        }
      });
    } else if (node.phase == Graph::kBackward) {
      ++groups[group].backward_nodes;
      groups[group].backward_flops += flops.of(id);
    }
  }

  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const Storage& storage = graph.storage(StorageId(i));
    if (existed_before(graph, storage)) continue;
    const uint32_t group = group_of[storage.born];
    if (group >= group_count) continue;
    const PhaseId phase = graph.node(storage.born).phase;
    if (phase == Graph::kForward) {
      (saved[StorageId(i)] != 0 ? groups[group].output : groups[group].temporary) += storage.bytes;
    } else if (phase == Graph::kBackward) {
      groups[group].backward += storage.bytes;
    }
  }
  return groups;
}

}  // namespace shadowgraph
