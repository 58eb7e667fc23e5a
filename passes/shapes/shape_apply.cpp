// Writes propagated shapes into their graph.
#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "ir/records.h"
#include "shadowgraph/passes/shape_propagation.h"

namespace shadowgraph {
namespace {

bool matches(const Graph& graph, ValueId id, const at::Tensor& tensor, StorageId storage) {
  const Value& value = graph.value(id);
  return value.storage == storage && value.dtype == tensor.scalar_type() && value.offset == tensor.storage_offset() &&
         value.device() == tensor.device() && std::ranges::equal(graph.sizes(id), tensor.sizes()) &&
         std::ranges::equal(graph.strides(id), tensor.strides());
}

// Finds births and deaths of storages anew from first and last use, when aliasing has changed. A storage that was freed
// is freed after its last use now; one that lived on lives on.
void renew_lifetimes(Graph& graph) {
  const uint32_t count = graph.storage_count();
  std::vector<NodeId> born(count);
  std::vector<NodeId> last(count);
  for (const NodeId node : graph.nodes()) {
    const auto touch = [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (!storage.valid()) return;
      if (!born[storage.index].valid()) born[storage.index] = node;
      last[storage.index] = node;
    };
    graph.for_each_input(node, touch);
    graph.for_each_output(node, touch);
  }
  IdMap<NodeId, uint32_t> position;
  uint32_t next = 0;
  for (const NodeId node : graph.nodes()) position[node] = next++;
  std::vector<std::pair<NodeId, StorageId>> freed;
  for (uint32_t i = 0; i < count; ++i) {
    Storage& storage = mutable_storage(graph, StorageId(i));
    if (!born[i].valid()) {
      storage.freed_after = NodeId();
      continue;
    }
    storage.born = born[i];
    if (!storage.freed_after.valid()) continue;
    // New uses may come after the old death, where a view became a copy or the reverse.
    const bool too_early = position[storage.freed_after] < position[last[i]];
    const bool unborn = position[storage.freed_after] < position[born[i]];
    freed.emplace_back(too_early || unborn ? last[i] : storage.freed_after, StorageId(i));
  }
  std::stable_sort(freed.begin(), freed.end(),
                   [&](const auto& a, const auto& b) { return position[a.first] < position[b.first]; });
  for (const NodeId node : graph.nodes()) {
    if (!graph.frees(node).empty()) graph.set_frees(node, {});
  }
  std::vector<StorageId> group;
  for (size_t i = 0; i < freed.size();) {
    const NodeId node = freed[i].first;
    group.clear();
    for (; i < freed.size() && freed[i].first == node; ++i) group.push_back(freed[i].second);
    graph.set_frees(node, group);
  }
}

}  // namespace

// Writes only what differs, so that recorded inputs give the recorded graph, byte for byte.
bool ShapePropagation::apply(Graph& graph) const {
  bool changed = false;
  bool moved = !models_.empty();
  // Aliases that became copies need storages that the record did not have.
  for (const StorageId model : models_) graph.add_storage(graph.storage(model));
  for (uint32_t i = 0; i < tensors_.size(); ++i) {
    const ValueId id(i);
    const at::Tensor& tensor = tensors_[id];
    if (!tensor.defined() || matches(graph, id, tensor, storages_[id])) continue;
    const Value& value = graph.value(id);
    changed = true;
    moved |= value.storage != storages_[id];
    graph.set_geometry(id, {.dtype = tensor.scalar_type(),
                            .sizes = std::span(tensor.sizes().data(), tensor.sizes().size()),
                            .strides = std::span(tensor.strides().data(), tensor.strides().size()),
                            .storage = storages_[id],
                            .offset = tensor.storage_offset(),
                            .device = tensor.device(),
                            .layout = value.layout,
                            .requires_grad = value.requires_grad});
    Storage& storage = mutable_storage(graph, storages_[id]);
    storage.device_type = tensor.device().type();
    storage.device_index = tensor.device().index();
  }
  for (uint32_t i = 0; i < bytes_.size(); ++i) {
    int64_t& bytes = mutable_storage(graph, StorageId(i)).bytes;
    changed |= bytes != bytes_[i];
    bytes = bytes_[i];
  }
  if (moved) renew_lifetimes(graph);
  return changed;
}

}  // namespace shadowgraph
