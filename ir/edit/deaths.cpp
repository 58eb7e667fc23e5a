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
  std::map<NodeId, std::vector<StorageId>> deaths;
  for (const NodeId node : graph.nodes()) {
    const auto frees = graph.frees(node);
    const std::vector<StorageId> all(frees.begin(), frees.end());
    std::vector<StorageId> kept;
    std::ranges::copy_if(all, std::back_inserter(kept), [&](StorageId s) { return !storages.contains(s); });
    if (kept.size() != all.size()) graph.set_frees(node, kept);
  }
  for (const auto& [storage, node] : last) deaths[node].push_back(storage);
  for (auto& [node, dying] : deaths) {
    const auto frees = graph.frees(node);
    dying.insert(dying.begin(), frees.begin(), frees.end());
    graph.set_frees(node, dying);
  }
}

}  // namespace shadowgraph
