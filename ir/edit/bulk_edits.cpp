#include "ir/edit/bulk_edits.h"

#include <algorithm>
#include <iterator>

#include "ir/records.h"

namespace shadowgraph {

std::vector<NodeId> last_uses(const Graph& graph) {
  std::vector<NodeId> last(graph.storage_count());
  for (const NodeId node : graph.nodes()) {
    const auto touch = [&](ValueId v) {
      if (const StorageId storage = graph.value(v).storage; storage.valid()) last[storage.index] = node;
    };
    graph.for_each_input(node, touch);
    graph.for_each_output(node, touch);
  }
  return last;
}

void set_free_points(Graph& graph, const std::vector<NodeId>& free_points) {
  std::vector<std::pair<NodeId, StorageId>> by_node;
  for (uint32_t i = 0; i < free_points.size(); ++i) {
    if (free_points[i].valid()) by_node.emplace_back(free_points[i], StorageId(i));
  }
  // Stable: storages freed together keep the order of their ids, so that the text is deterministic.
  std::ranges::stable_sort(by_node, {}, &std::pair<NodeId, StorageId>::first);
  // All are removed before any is set, since a storage may be freed only once.
  for (const NodeId node : graph.nodes()) {
    if (!graph.frees(node).empty()) graph.set_frees(node, {});
  }
  std::vector<StorageId> together;
  for (size_t i = 0; i < by_node.size();) {
    const NodeId node = by_node[i].first;
    together.clear();
    for (; i < by_node.size() && by_node[i].first == node; ++i) together.push_back(by_node[i].second);
    graph.set_frees(node, together);
  }
}

void free_storages_after_last_use(Graph& graph, const std::set<StorageId>& storages) {
  const std::vector<NodeId> last = last_uses(graph);
  std::map<StorageId, NodeId> free_points;
  for (const StorageId storage : storages) free_points.emplace(storage, last[storage.index]);
  free_storages_after(graph, free_points);
}

void free_storages_after(Graph& graph, const std::map<StorageId, NodeId>& free_points) {
  std::map<NodeId, std::vector<StorageId>> changed;
  std::set<StorageId> moved;
  for (const auto& [storage, node] : free_points) {
    const NodeId before = graph.storage(storage).freed_after;
    if (before == node) continue;
    moved.insert(storage);
    if (before.valid() && !graph.is_erased(before)) changed[before];
    if (node.valid()) changed[node].push_back(storage);
  }
  // A storage leaves one list before it enters another.
  for (auto& [node, storages] : changed) {
    const auto frees = graph.frees(node);
    std::vector<StorageId> kept;
    std::ranges::copy_if(frees, std::back_inserter(kept), [&](StorageId s) { return !moved.contains(s); });
    storages.insert(storages.begin(), kept.begin(), kept.end());
    graph.set_frees(node, {});
  }
  for (const auto& [node, storages] : changed) graph.set_frees(node, storages);
}

ValueId Replacements::now(ValueId value) const {
  // Chains of replacements end, since each refers to an earlier value.
  for (ValueId next = values_[value]; next.valid(); next = values_[value]) value = next;
  return value;
}

bool Replacements::renamed(const Graph& graph, std::span<const Argument> arguments) const {
  bool found = false;
  graph.for_each_value(arguments, [&](ValueId v) { found = found || values_[v].valid(); });
  return found;
}

std::vector<Argument> Replacements::rename(Graph& graph, std::span<const Argument> arguments) const {
  std::vector<Argument> renamed(arguments.begin(), arguments.end());
  for (Argument& argument : renamed) {
    if (argument.kind == ArgumentKind::kValue) argument = Argument::of_value(now(argument.ref.value));
    if (argument.kind == ArgumentKind::kList) argument = graph.make_list(rename(graph, graph.list(argument)));
  }
  return renamed;
}

void Replacements::finish(Graph& graph) const {
  for (Guard& guard : graph.guards) guard.value = now(guard.value);
  if (values_.size() != 0) {
    for (uint32_t i = 0; i < graph.region_count(); ++i) {
      const RegionId region(i);
      if (!renamed(graph, graph.region_arguments(region))) continue;
      graph.set_region_arguments(region, rename(graph, graph.region_arguments(region)));
    }
  }
  if (nodes_.size() == 0) return;
  for (NodeId n : graph.nodes()) {
    NodeId& forward = mutable_node(graph, n).forward;
    while (forward.valid() && nodes_[forward].valid()) forward = nodes_[forward];
  }
}

namespace {

// Nodes created after the marks stay.
bool is_marked(const std::vector<bool>& marks, NodeId n) { return n.index < marks.size() && marks[n.index]; }

// Replaces saved values whose producers are erased. A value internal to the operator is dropped. An argument or result
// is looked up by its position, where an edit may have put another value.
std::vector<SavedTensor> without_erased(const Graph& graph, NodeId n, const std::vector<bool>& to_erase) {
  std::vector<SavedTensor> kept;
  for (SavedTensor saved : graph.saved(n)) {
    if (is_marked(to_erase, graph.value(saved.value).producer)) {
      if (saved.role == SavedRole::kInternal) continue;
      ValueId own;
      for_each_value_of_role(graph, n, saved, [&](ValueId v) {
        if (!own.valid() && graph.value(v).kind == ValueKind::kTensor) own = v;
      });
      if (!own.valid()) continue;
      saved.value = own;
    }
    kept.push_back(saved);
  }
  return kept;
}

}  // namespace

uint32_t erase_nodes(Graph& graph, const std::vector<bool>& to_erase) {
  std::vector<NodeId> ids;
  for (NodeId n : graph.nodes()) {
    if (is_marked(to_erase, n)) {
      ids.push_back(n);
      continue;
    }
    const auto saved = graph.saved(n);
    if (std::any_of(saved.begin(), saved.end(),
                    [&](const SavedTensor& s) { return is_marked(to_erase, graph.value(s.value).producer); })) {
      graph.set_saved(n, without_erased(graph, n, to_erase));
    }
  }
  graph.erase(ids);
  return static_cast<uint32_t>(ids.size());
}

}  // namespace shadowgraph
