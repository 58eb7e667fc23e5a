#include "passes/checkpoint/storage_lives.h"

#include <algorithm>
#include <vector>

#include "ir/records.h"

namespace shadowgraph {

void end_lives(Graph& graph, const StorageChanges& changes) {
  const auto is_copy = [&](NodeId n) { return changes.copies[n] != 0; };
  // Last uses of everything, in one walk.
  std::vector<NodeId> last_use(graph.storage_count());
  std::vector<bool> read_by_copy(graph.storage_count(), false);
  for (const NodeId n : graph.nodes()) {
    const auto touch = [&](ValueId v) {
      const StorageId s = graph.value(v).storage;
      if (!s.valid()) return;
      last_use[s.index] = n;
      if (is_copy(n)) read_by_copy[s.index] = true;
    };
    graph.for_each_input(n, touch);
    graph.for_each_output(n, touch);
  }
  // By node the first storage that dies there, by storage the next one.
  std::vector<StorageId> first_death(graph.node_capacity());
  std::vector<StorageId> next_death(graph.storage_count());
  std::vector<bool> moved(graph.storage_count(), false);
  for (uint32_t i = graph.storage_count(); i-- > 0;) {
    const StorageId s(i);
    const Storage& storage = graph.storage(s);
    if (!last_use[i].valid()) continue;
    const bool has_death = storage.freed_after.valid() && !graph.is_erased(storage.freed_after);
    const bool is_new =
        storage.born.valid() && !graph.is_erased(storage.born) && (is_copy(storage.born) || changes.made[s] != 0);
    const bool later = has_death && read_by_copy[i] && graph.is_before(storage.freed_after, last_use[i]);
    const bool earlier = has_death && changes.touched[s] != 0 && graph.is_before(last_use[i], storage.freed_after) &&
                         graph.node(storage.freed_after).phase != Graph::kForward;
    if ((!is_new || storage.freed_after == last_use[i]) && !later && !earlier) continue;
    moved[i] = true;
    const TargetId user = graph.node(last_use[i]).target;
    if (user == target_of(Builtin::kOutput) || user == target_of(Builtin::kGradient)) continue;  // never
    next_death[i] = first_death[last_use[i].index];
    first_death[last_use[i].index] = s;
  }
  struct Frees {
    NodeId node;
    size_t begin = 0;
  };
  std::vector<Frees> changed;
  std::vector<StorageId> storages;
  for (const NodeId n : graph.nodes()) {
    const auto frees = graph.frees(n);
    const bool loses = std::any_of(frees.begin(), frees.end(), [&](StorageId s) { return moved[s.index]; });
    if (!first_death[n.index].valid() && !loses) continue;
    changed.push_back({n, storages.size()});
    for (const StorageId s : frees) {
      if (!moved[s.index]) storages.push_back(s);
    }
    for (StorageId s = first_death[n.index]; s.valid(); s = next_death[s.index]) storages.push_back(s);
  }
  // A storage leaves one list before it enters another.
  for (const Frees& frees : changed) graph.set_frees(frees.node, {});
  for (size_t i = 0; i < changed.size(); ++i) {
    const size_t end = i + 1 < changed.size() ? changed[i + 1].begin : storages.size();
    graph.set_frees(changed[i].node, {storages.data() + changed[i].begin, end - changed[i].begin});
  }
}

}  // namespace shadowgraph
