// Numbers nodes, values, storages, constants and regions as the text shows them: in the order in which a reader meets
// them. Ids of the graph have gaps after edits, and depend on the order of edits; numbers do not. So equal graphs print
// equal text. One walk.
#include <unordered_map>

#include "shadowgraph/text.h"

namespace shadowgraph {

// Numbers things in the order in which they are first met. Ids out of range are skipped: broken graphs are numbered,
// too, for messages.
template <class I>
void Numbering::number(std::vector<uint32_t>& numbers, std::vector<I>& order, I id) {
  if (id.index >= numbers.size() || numbers[id.index] != kNone) return;
  numbers[id.index] = static_cast<uint32_t>(order.size());
  order.push_back(id);
}

bool Numbering::number_arguments(const Graph& graph, std::span<const Argument> arguments, int depth) {
  for (const Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kConstant) {
      number(constants_, constant_order_, argument.constant);
    } else if (argument.kind == ArgumentKind::kList && graph.in_bounds(argument)) {
      if (depth >= kMaxListDepth || !number_arguments(graph, graph.list(argument), depth + 1)) return false;
    }
  }
  return true;
}

// Values and their storages are numbered where they are made, so that numbers rise along the program.
bool Numbering::number_results(const Graph& graph, NodeId node, std::span<const Argument> results, int depth) {
  for (const Argument& result : results) {
    if (result.kind == ArgumentKind::kValue && result.ref.value.index < values_.size()) {
      number(values_, value_order_, result.ref.value);
      const StorageId storage = graph.value(result.ref.value).storage;
      if (storage.index < storages_.size() && !first_nodes_[storage.index].valid()) first_nodes_[storage.index] = node;
      number(storages_, storage_order_, storage);
    } else if (result.kind == ArgumentKind::kList && graph.in_bounds(result)) {
      if (depth >= kMaxListDepth || !number_results(graph, node, graph.list(result), depth + 1)) return false;
    }
  }
  return true;
}

Numbering Numbering::of(const Graph& graph) {
  Numbering result;
  result.nodes_.assign(graph.node_capacity(), kNone);
  result.values_.assign(graph.value_capacity(), kNone);
  result.storages_.assign(graph.storage_count(), kNone);
  result.constants_.assign(graph.constant_count(), kNone);
  result.name_copies_.assign(graph.target_count(), 1);
  result.first_nodes_.assign(graph.storage_count(), NodeId());
  result.node_order_.reserve(graph.node_count());
  result.value_order_.reserve(graph.value_capacity());

  std::vector<bool> target_seen(graph.target_count());
  for (uint32_t i = 0; i < kBuiltinCount; ++i) target_seen[i] = true;
  const auto see_target = [&](TargetId id) {
    if (id.index >= target_seen.size() || target_seen[id.index]) return;
    target_seen[id.index] = true;
    result.target_order_.push_back(id);
  };

  // Stops at a node that is met twice: a list of a broken graph may be a circle.
  for (NodeId n = graph.first(); n.index < graph.node_capacity() && result.of(n) == kNone; n = graph.node(n).next) {
    number(result.nodes_, result.node_order_, n);
    if (!graph.in_bounds(graph.node(n))) continue;
    see_target(graph.node(n).target);
    result.number_arguments(graph, graph.arguments(n), 0);
    result.number_results(graph, n, graph.results(n), 0);
    for (StorageId storage : graph.frees(n)) number(result.storages_, result.storage_order_, storage);
  }
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    if (!graph.in_bounds(graph.region(RegionId(i)))) continue;
    see_target(graph.region(RegionId(i)).target);
    result.number_arguments(graph, graph.region_arguments(RegionId(i)), 0);
  }
  // A storage may be allocated by a node and not (yet) seen through a value. It is kept, or the memory timeline would
  // lose it.
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    if (result.of(graph.storage(StorageId(i)).born) != kNone) {
      number(result.storages_, result.storage_order_, StorageId(i));
    }
  }
  std::unordered_map<std::string_view, uint32_t> names;
  for (uint32_t i = 0; i < kBuiltinCount; ++i) names[graph.target(TargetId(i)).name()] = 1;
  for (TargetId id : result.target_order_) result.name_copies_[id.index] = ++names[graph.target(id).name()];
  return result;
}

}  // namespace shadowgraph
