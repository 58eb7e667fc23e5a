// Edits of what dies where, and of what autograd keeps; and how both change when nodes are erased.
#include <algorithm>
#include <bit>
#include <vector>

#include "ir/graph_editor.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// ---- Saved tensors --------------------------------------------------------------------------------------------------

// saved_elsewhere_ lists who saves a value that it neither takes nor makes. Only such savers keep a value from being
// erased without showing among its uses.
void Graph::Editor::forget_saved_elsewhere(NodeId id) {
  if (graph_.saved_elsewhere_.empty()) return;
  for (const SavedTensor& saved : graph_.saved(id)) {
    const auto entry = graph_.saved_elsewhere_.find(saved.value);
    if (entry == graph_.saved_elsewhere_.end()) continue;
    std::erase(entry->second, id);
    if (entry->second.empty()) graph_.saved_elsewhere_.erase(entry);
  }
}

// Notes which of the saved tensors are neither arguments nor results of the node. Autograd seldom saves such (an input
// of a composite), so the side table stays small.
void Graph::set_saved(NodeId id, std::span<const SavedTensor> saved) {
  Editor(*this).forget_saved_elsewhere(id);
  nodes_[id.index].saved = saved_.push_run(saved);
  for (const SavedTensor& tensor : saved) {
    // The two usual cases first.
    const auto arguments = this->arguments(id);
    if (tensor.role == SavedRole::kArgument && tensor.index < arguments.size() &&
        Editor(*this).mentions(arguments.subspan(tensor.index, 1), tensor.value)) {
      continue;
    }
    if (tensor.value.index < values_.size() && value(tensor.value).producer == id) continue;
    if (Editor(*this).mentions(arguments, tensor.value)) continue;
    saved_elsewhere_[tensor.value].push_back(id);
  }
}

// Repairs the list of saved tensors after a node's arguments changed, or the storages of its arguments or results. What
// was saved as an argument or result is still one: the same value, or one in the same storage. Otherwise the first
// tensor of that argument or result takes its place; without one the entry goes.
void Graph::Editor::repair_saved(NodeId id) {
  if (graph_.node(id).saved.size == 0) return;
  std::vector<SavedTensor> repaired;
  bool changed = false;
  for (SavedTensor saved : graph_.saved(id)) {
    ValueId own;
    bool good = saved.role == SavedRole::kInternal;
    const auto see = [&](ValueId v) {
      const StorageId storage = graph_.value(v).storage;
      good = good || v == saved.value || (storage.valid() && storage == graph_.value(saved.value).storage);
      if (!own.valid() && graph_.value(v).kind == ValueKind::kTensor) own = v;
    };
    if (saved.role == SavedRole::kArgument && saved.index < graph_.arguments(id).size()) {
      graph_.for_each_value(graph_.arguments(id).subspan(saved.index, 1), see);
    } else if (saved.role == SavedRole::kResult) {
      uint32_t flat = 0;
      graph_.for_each_output(id, [&](ValueId v) {
        if (flat++ == saved.index) see(v);
      });
    }
    if (!good) {
      changed = true;
      if (!own.valid()) continue;
      saved.value = own;
    }
    repaired.push_back(saved);
  }
  if (changed) graph_.set_saved(id, repaired);
}

// ---- Deaths ---------------------------------------------------------------------------------------------------------

// Appends in place where there is room. A node may inherit the deaths of many that are erased after it, one at a time,
// so a copy each time would be quadratic. frees_room_ says how long the run may get.
void Graph::Editor::add_frees(NodeId id, std::span<const StorageId> storages) {
  if (storages.empty()) return;
  Run& run = graph_.nodes_[id.index].frees;
  const auto room = graph_.frees_room_.find(id);
  const uint32_t capacity = room == graph_.frees_room_.end() ? run.size : room->second;
  const uint32_t size = run.size + static_cast<uint32_t>(storages.size());
  if (size > capacity) {
    const uint32_t larger = std::bit_ceil(size);
    const Run grown = graph_.frees_.push_run(larger);
    std::copy_n(graph_.frees_.view(run).begin(), run.size, graph_.frees_.view(grown).begin());
    run.offset = grown.offset;
    graph_.frees_room_[id] = larger;
  }
  const uint32_t old_size = run.size;
  run.size = size;
  std::copy(storages.begin(), storages.end(), graph_.frees_.view(run).begin() + old_size);
  for (uint32_t i = old_size; i < size; ++i) {
    Storage& freed = graph_.storages_[graph_.frees_.view(run)[i].index];
    freed.freed_after = id;
    freed.place_in_frees = i;
  }
}

// A storage must die once. Edits that move a death drop it here first and add it elsewhere.
void Graph::Editor::drop_free(StorageId id) {
  const NodeId freed = graph_.storage(id).freed_after;
  graph_.storages_[id.index].freed_after = NodeId();
  if (!freed.valid() || graph_.is_erased(freed)) return;
  Run& run = graph_.nodes_[freed.index].frees;
  const auto list = graph_.frees_.view(run);
  const uint32_t place = graph_.storage(id).place_in_frees;
  TORCH_INTERNAL_ASSERT(place < run.size && list[place] == id, "a storage is not where it is listed as freed");
  // Short lists keep their order; in one of a hundred thousand, the last takes the place.
  const uint32_t moved_from = run.size <= 64 ? place + 1 : run.size - 1;
  uint32_t to = place;
  for (uint32_t i = moved_from; i < run.size; ++i, ++to) {
    list[to] = list[i];
    graph_.storages_[list[to].index].place_in_frees = to;
  }
  --run.size;
}

// A storage that died before `user` would be read after its death; its death moves to `user`. Nodes at the end free
// nothing: what they hold lives on with the caller.
void Graph::extend_life(StorageId id, NodeId user) {
  const NodeId freed = storage(id).freed_after;
  if (!freed.valid() || is_erased(freed) || !is_before(freed, user)) return;
  Editor(*this).drop_free(id);
  if (Editor::rank_of(node(user).target) != Editor::kEndRank) Editor(*this).add_frees(user, std::span(&id, 1));
}

// Nodes that are to be erased together. Few are looked through; of many there is a bit for each id between theirs.
class Graph::Editor::DoomedNodes {
 public:
  explicit DoomedNodes(std::span<const NodeId> nodes) : nodes_(nodes) {
    if (nodes.size() <= kFew) return;
    const auto [least, most] = std::minmax_element(nodes.begin(), nodes.end());
    least_ = least->index;
    bits_.resize(most->index - least_ + 1);
    for (NodeId n : nodes) bits_[n.index - least_] = true;
  }
  bool contains(NodeId n) const {
    if (nodes_.size() <= kFew) return std::find(nodes_.begin(), nodes_.end(), n) != nodes_.end();
    return n.index >= least_ && n.index - least_ < bits_.size() && bits_[n.index - least_];
  }

 private:
  static constexpr size_t kFew = 16;
  std::span<const NodeId> nodes_;
  uint32_t least_ = 0;
  std::vector<bool> bits_;
};

// ---- Erasing --------------------------------------------------------------------------------------------------------

// A result that another node saves for backward is needed, though nobody uses it.
bool Graph::can_erase(NodeId id) const {
  bool needed = false;
  for_each_output(id, [&](ValueId v) { needed = needed || has_uses(v) || is_saved_elsewhere(v); });
  return !needed;
}

// Erasing hands on what the node had to do with lives: storages that it allocated, and storages that died after it.
void Graph::erase(NodeId id) {
  if (!can_erase(id)) {
    throw GraphEditError(
        "cannot erase a node with a result that is still used, or saved by another node; replace its "
        "uses first:" +
        Editor(*this).describe(id));
  }
  Editor(*this).drop_uses(arguments(id));
  Editor(*this).hand_births_on(id, nullptr);
  Editor(*this).remove(id);
}

// Erases nodes that use one another, which one by one would depend on the order. Everything is checked before the first
// one goes.
void Graph::erase(std::span<const NodeId> ids) {
  std::vector<NodeId> doomed;
  for (NodeId n : ids) {
    if (!is_erased(n)) doomed.push_back(n);
  }
  const auto comes_first = [&](NodeId a, NodeId b) { return is_before(a, b); };
  if (!std::is_sorted(doomed.begin(), doomed.end(), comes_first)) {
    std::sort(doomed.begin(), doomed.end(), comes_first);
  }
  doomed.erase(std::unique(doomed.begin(), doomed.end()), doomed.end());
  const Editor::DoomedNodes all(doomed);
  for (NodeId n : doomed) {
    bool needed = false;
    for_each_output(n, [&](ValueId v) {
      for_each_use(v, [&](NodeId user) { needed = needed || !all.contains(user); });
      if (const auto savers = saved_elsewhere_.find(v); savers != saved_elsewhere_.end()) {
        for (NodeId saver : savers->second) needed = needed || !all.contains(saver);
      }
    });
    if (needed) {
      throw GraphEditError("cannot erase a node with a result that is used, or saved, by a node that stays:" +
                           Editor(*this).describe(n));
    }
  }
  // Uses go first, then births, then nodes: handing a birth on looks for the first node left that makes a value in the
  // storage.
  for (NodeId n : doomed) Editor(*this).drop_uses(arguments(n));
  for (NodeId n : doomed) Editor(*this).hand_births_on(n, &all);
  // In program order, so that deaths go to a node that stays at once.
  for (NodeId n : doomed) Editor(*this).remove(n);
}

// What is left to do when the uses it made are gone, and its births handed on.
// An erased node keeps its id and its record; an invalid target says that it is gone. Ids that others hold therefore
// never come to mean another node.
void Graph::Editor::remove(NodeId id) {
  forget_saved_elsewhere(id);
  hand_deaths_on(id, graph_.node(id).previous.valid() ? graph_.node(id).previous : graph_.node(id).next);
  if (id.index < graph_.first_note_.size()) graph_.first_note_[id.index] = kNoNote;
  unlink(id);
  graph_.nodes_[id.index].target = TargetId();
  --graph_.live_nodes_;
}

// Lets the first other node that makes a value in a storage have allocated it. An in-place chain loses its first node
// this way: empty, add_ without the empty. Without an heir the storage is gone, and nothing frees it.
void Graph::Editor::hand_births_on(NodeId id, const DoomedNodes* doomed) {
  graph_.for_each_output(id, [&](ValueId v) {
    const StorageId s = graph_.value(v).storage;
    if (!s.valid() || graph_.storage(s).born != id) return;
    NodeId heir;
    graph_.for_each_value_in(s, [&](ValueId other) {
      const NodeId producer = graph_.value(other).producer;
      if (producer == id || graph_.is_erased(producer) || (doomed != nullptr && doomed->contains(producer))) return;
      if (!heir.valid() || graph_.is_before(producer, heir)) heir = producer;
    });
    if (heir.valid()) {
      graph_.storages_[s.index].born = heir;
    } else {
      drop_free(s);
    }
  });
}

// Deaths go to a neighbour, so that live bytes change by what the node itself held and by nothing else. Storages that
// the node allocated itself are gone and have no death.
void Graph::Editor::hand_deaths_on(NodeId id, NodeId heir) {
  if (graph_.node(id).frees.size == 0) return;
  std::vector<StorageId> freed;
  for (StorageId s : graph_.frees(id)) {
    if (graph_.storage(s).born != id) freed.push_back(s);
  }
  graph_.set_frees(id, {});
  if (heir.valid()) add_frees(heir, freed);
}

}  // namespace shadowgraph
