#include "shadowgraph/profile.h"

namespace shadowgraph {

SavedBytes SavedBytes::of(const Graph& graph) {
  SavedBytes saved;
  IdMap<StorageId, uint8_t> seen;
  for (NodeId node : graph.nodes()) {
    for (const SavedTensor& tensor : graph.saved(node)) {
      const StorageId id = graph.value(tensor.value).storage;
      if (!id.valid() || seen[id] != 0) continue;
      seen[id] = 1;
      const Storage& storage = graph.storage(id);
      ++saved.storages;
      saved.all += storage.bytes;
      if (!existed_before(graph, storage)) saved.activations += storage.bytes;
    }
  }
  return saved;
}

}  // namespace shadowgraph
