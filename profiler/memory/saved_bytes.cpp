#include "shadowgraph/profile.h"

namespace shadowgraph {

SavedBytes SavedBytes::of(const Graph& graph) {
  SavedBytes saved;
  IdMap<StorageId, uint8_t> seen;
  bool has_backward = false;
  for (NodeId node : graph.nodes()) has_backward = has_backward || graph.node(node).phase == Graph::kBackward;
  for (NodeId node : graph.nodes()) {
    for (const SavedTensor& tensor : graph.saved(node)) {
      const StorageId id = graph.value(tensor.value).storage;
      if (!id.valid() || seen[id] != 0) continue;
      seen[id] = 1;
      const Storage& storage = graph.storage(id);
      // FSDP2 gives gathered parameters back while autograd keeps tensors that look at them.
      const bool given_back = has_backward && storage.freed_after.valid() && !graph.is_erased(storage.freed_after) &&
                              graph.node(storage.freed_after).phase == Graph::kForward;
      if (given_back) continue;
      ++saved.storages;
      saved.all += storage.bytes;
      if (!existed_before(graph, storage)) saved.activations += storage.bytes;
    }
  }
  return saved;
}

}  // namespace shadowgraph
