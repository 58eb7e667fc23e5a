#include "ir/edit/deaths.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <vector>

namespace shadowgraph {

void die_at_last_use(Graph& graph, const std::set<StorageId>& storages) {
  std::map<StorageId, NodeId> last;
  for (const NodeId node : graph.nodes()) {
    const auto touch = [&](ValueId v) {
      const StorageId storage = graph.value(v).storage;
      if (storages.contains(storage)) last[storage] = node;
    };
    graph.for_each_input(node, touch);
    graph.for_each_output(node, touch);
  }
  // One that nobody touches any more dies nowhere.
  for (const StorageId storage : storages) last.try_emplace(storage);
  die_at(graph, last);
}

void die_at(Graph& graph, const std::map<StorageId, NodeId>& deaths) {
  std::map<NodeId, std::vector<StorageId>> changed;
  std::set<StorageId> moved;
  for (const auto& [storage, node] : deaths) {
    const NodeId before = graph.storage(storage).freed_after;
    if (before == node) continue;
    moved.insert(storage);
    if (before.valid() && !graph.is_erased(before)) changed[before];
    if (node.valid()) changed[node].push_back(storage);
  }
  // A storage leaves one list before it enters another.
  for (auto& [node, dying] : changed) {
    const auto frees = graph.frees(node);
    std::vector<StorageId> kept;
    std::ranges::copy_if(frees, std::back_inserter(kept), [&](StorageId s) { return !moved.contains(s); });
    dying.insert(dying.begin(), kept.begin(), kept.end());
    graph.set_frees(node, {});
  }
  for (const auto& [node, dying] : changed) graph.set_frees(node, dying);
}

}  // namespace shadowgraph
