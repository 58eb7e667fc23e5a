#include <optional>

#include "ir/analysis/module_tree.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile.h"

namespace shadowgraph {
namespace {

std::optional<StorageKind> placeholder_kind(TargetId target) {
  if (target == target_of(Builtin::kParameter)) return StorageKind::kParameter;
  if (target == target_of(Builtin::kBuffer)) return StorageKind::kBuffer;
  if (target == target_of(Builtin::kInput)) return StorageKind::kInput;
  if (target == target_of(Builtin::kConstant)) return StorageKind::kConstant;
  return std::nullopt;
}

bool born_in_graph(const Graph& graph, const Storage& storage) {
  return storage.born.valid() && storage.born.index < graph.node_capacity() && !graph.is_erased(storage.born);
}

// Marks what was there before and is read by the optimizer alone: its state, in a step that is not the first.
IdMap<StorageId, uint8_t> optimizer_state_before(const Graph& graph, const IdMap<NodeId, uint32_t>& order,
                                                 std::optional<uint32_t> last_backward) {
  IdMap<StorageId, uint8_t> state;
  if (!last_backward) return state;
  IdMap<StorageId, uint8_t> read_elsewhere;
  for (const NodeId id : graph.nodes()) {
    if (graph.is_placeholder(id)) continue;
    const bool steps = graph.node(id).phase == Graph::kOptimizer && order[id] > *last_backward;
    graph.for_each_input(id, [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (storage.valid()) (steps ? state : read_elsewhere)[storage] = 1;
    });
  }
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const NodeId born = graph.storage(id).born;
    const auto kind =
        born_in_graph(graph, graph.storage(id)) ? placeholder_kind(graph.node(born).target) : std::nullopt;
    const bool given = kind == StorageKind::kInput || kind == StorageKind::kConstant;
    if (!given || read_elsewhere[id] != 0 || placeholder_name(graph, born).starts_with("gradient.")) state[id] = 0;
  }
  return state;
}

}  // namespace

bool existed_before(const Graph& graph, const Storage& storage) {
  return !born_in_graph(graph, storage) || placeholder_kind(graph.node(storage.born).target).has_value();
}

IdMap<NodeId, uint32_t> program_order(const Graph& graph) {
  IdMap<NodeId, uint32_t> order;
  order.reserve(graph.node_capacity());
  uint32_t position = 0;
  for (NodeId node : graph.nodes()) order[node] = position++;
  return order;
}

IdMap<StorageId, StorageKind> StorageKinds::of(const Graph& graph) {
  return storage_kinds(graph, program_order(graph));
}

IdMap<StorageId, StorageKind> storage_kinds(const Graph& graph, const IdMap<NodeId, uint32_t>& order) {
  IdMap<StorageId, StorageKind> kinds(StorageKind::kTemporary);
  IdMap<StorageId, uint8_t> saved;
  IdMap<StorageId, uint8_t> gradient;
  kinds.reserve(graph.storage_count());
  NodeId first_backward;
  std::optional<uint32_t> last_backward;
  for (NodeId id : graph.nodes()) {
    if (graph.node(id).phase == Graph::kBackward) {
      if (!first_backward.valid()) first_backward = id;
      last_backward = order[id];
    }
    for (const SavedTensor& tensor : graph.saved(id)) {
      const StorageId storage = graph.value(tensor.value).storage;
      if (storage.valid()) saved[storage] = 1;
    }
    if (graph.node(id).target == target_of(Builtin::kGradient)) {
      const auto arguments = graph.arguments(id);
      if (arguments.size() == 2 && arguments[1].kind == ArgumentKind::kValue) {
        const StorageId storage = graph.value(arguments[1].ref.value).storage;
        if (storage.valid()) gradient[storage] = 1;
      }
    }
  }

  const IdMap<StorageId, uint8_t> state = optimizer_state_before(graph, order, last_backward);
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = graph.storage(id);
    StorageKind kind = storage.kind;
    const bool born = born_in_graph(graph, storage);
    const auto placeholder = born ? placeholder_kind(graph.node(storage.born).target) : std::nullopt;
    if (placeholder) {
      // A gradient that stays from step to step is there before this one.
      kind = *placeholder == StorageKind::kInput && gradient[id] != 0 ? StorageKind::kGradient
             : state[id] != 0                                         ? StorageKind::kOptimizerState
                                                                      : *placeholder;
    } else if (kind == StorageKind::kTemporary && gradient[id] != 0) {
      kind = StorageKind::kGradient;
    } else if (kind == StorageKind::kTemporary && born) {
      const PhaseId phase = graph.node(storage.born).phase;
      const bool alive_at_backward = first_backward.valid() && (!storage.freed_after.valid() ||
                                                                order[storage.freed_after] >= order[first_backward]);
      const bool is_kept = saved[id] != 0 && !first_backward.valid();
      if (phase == Graph::kOptimizer && !storage.freed_after.valid()) {
        kind = StorageKind::kOptimizerState;
      } else if (phase == Graph::kForward && (is_kept || alive_at_backward)) {
        kind = StorageKind::kActivation;
      }
    }
    kinds[id] = kind;
  }
  return kinds;
}

}  // namespace shadowgraph
