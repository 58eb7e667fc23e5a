#include <limits>

#include "shadowgraph/profile.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

// Returns, by place in program order, where backward next begins; kNever after the last of it.
std::vector<uint32_t> next_backward(const Graph& graph) {
  std::vector<uint32_t> next;
  next.reserve(graph.node_count());
  for (const NodeId node : graph.nodes()) {
    const auto at = static_cast<uint32_t>(next.size());
    next.push_back(graph.node(node).phase == Graph::kBackward ? at : kNever);
  }
  uint32_t following = kNever;
  for (size_t at = next.size(); at-- > 0;) next[at] = following = std::min(following, next[at]);
  return next;
}

}  // namespace

SavedBytes SavedBytes::of(const Graph& graph) {
  const auto order = program_order(graph);
  const std::vector<uint32_t> backward = next_backward(graph);
  const bool has_backward = !backward.empty() && backward[0] != kNever;
  struct Change {
    int64_t all = 0, activations = 0, storages = 0;
  };
  std::vector<Change> changes(graph.node_count() + 1);
  IdMap<StorageId, uint8_t> seen;
  for (const NodeId node : graph.nodes()) {
    for (const SavedTensor& tensor : graph.saved(node)) {
      const StorageId id = graph.value(tensor.value).storage;
      if (!id.valid() || seen[id] != 0) continue;
      seen[id] = 1;
      const Storage& storage = graph.storage(id);
      const bool freed = has_backward && storage.freed_after.valid() && !graph.is_erased(storage.freed_after);
      // FSDP2 gives gathered parameters back while autograd keeps tensors that look at them.
      if (freed && order[storage.freed_after] < backward[order[node]]) continue;
      const Change change{storage.bytes, existed_before(graph, storage) ? 0 : storage.bytes, 1};
      Change& from = changes[order[node]];
      from = {from.all + change.all, from.activations + change.activations, from.storages + change.storages};
      if (!freed) continue;
      Change& until = changes[std::max(order[storage.freed_after], order[node]) + 1];
      until = {until.all - change.all, until.activations - change.activations, until.storages - change.storages};
    }
  }
  SavedBytes saved;
  Change now;
  for (const Change& change : changes) {
    now = {now.all + change.all, now.activations + change.activations, now.storages + change.storages};
    saved.all = std::max(saved.all, now.all);
    saved.activations = std::max(saved.activations, now.activations);
    saved.storages = std::max(saved.storages, now.storages);
  }
  return saved;
}

}  // namespace shadowgraph
