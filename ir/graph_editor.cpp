// Edits of uses and arguments. Results that alias an argument move with it, so each edit first determines everything
// that moves and whether it may.
#include "ir/graph_editor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "ir/operators/operator_facts.h"
#include "ir/records.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {

// Results that move from one storage to another because they alias something that moves. When %1 is replaced by a
// tensor elsewhere, its views follow:
//
//     %2 = aten::t(%1) @s1        uses of %1 become uses of %5 @s3        %2 = aten::t(%5) @s3
struct Graph::Editor::Rehoming {
  StorageId from;
  StorageId to;
  int64_t shift = 0;               // added to offsets
  c10::Device device = c10::kCPU;  // of `to`
  std::vector<ValueId> values;
  std::unordered_set<ValueId> moved;  // `values`, and what the edit replaces
  std::vector<NodeId> users;          // whose results still have to be visited
};

// Finds the argument with a use, since uses record the user, not the position. The values of a list usually have
// successive uses, so that the place in a long list needs no search.
Argument* Graph::Editor::argument_of(std::span<Argument> arguments, uint32_t use) {
  if (!arguments.empty() && arguments[0].kind == ArgumentKind::kValue && use >= arguments[0].ref.use) {
    const size_t at = use - arguments[0].ref.use;
    if (at < arguments.size() && arguments[at].kind == ArgumentKind::kValue && arguments[at].ref.use == use) {
      return &arguments[at];
    }
  }
  for (Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue && argument.ref.use == use) return &argument;
    if (argument.kind != ArgumentKind::kList) continue;
    if (Argument* found = argument_of(graph_.arguments_.view(argument.run), use)) return found;
  }
  return nullptr;
}

// Finds results, in the old storage, of operators that alias one of their moved operands there. Those results move,
// too, and so do views of them. Uses a worklist, since chains of views may be as long as the program.
void Graph::Editor::follow_aliases(Rehoming& rehoming) {
  while (!rehoming.users.empty()) {
    const NodeId n = rehoming.users.back();
    rehoming.users.pop_back();
    const auto arguments = graph_.arguments(n);
    const auto any_moved = [&](std::span<const Argument> among) {
      bool found = false;
      graph_.for_each_value(among, [&](ValueId v) { found = found || rehoming.moved.contains(v); });
      return found;
    };
    bool concerned = false;
    graph_.for_each_output(n, [&](ValueId v) { concerned = concerned || graph_.value(v).storage == rehoming.from; });
    if (!concerned) continue;
    const OperatorFacts& facts = graph_.facts(n);
    const auto results = graph_.results(n);
    for (size_t r = 0; r < results.size(); ++r) {
      bool known = false;
      bool moves = false;
      for (const OperatorFacts::Alias& alias : facts.aliases) {
        if (alias.result != r || alias.argument >= arguments.size()) continue;
        known = true;
        moves = moves || any_moved(arguments.subspan(alias.argument, 1));
      }
      // The schema of a user-defined function may not declare aliases.
      if (!known) {
        // The storage decides instead: it comes from the moved operand unless another operand shares it.
        bool other = false;
        graph_.for_each_value(arguments, [&](ValueId v) {
          other = other || (!rehoming.moved.contains(v) && graph_.value(v).storage == rehoming.from);
        });
        moves = !other && any_moved(arguments);
      }
      if (!moves) continue;
      graph_.for_each_value(results.subspan(r, 1), [&](ValueId v) {
        if (graph_.value(v).storage != rehoming.from || !rehoming.moved.insert(v).second) return;
        rehoming.values.push_back(v);
        graph_.for_each_use(v, [&](NodeId user) { rehoming.users.push_back(user); });
      });
    }
  }
}

// Views that move keep their geometry and must fit into the new storage. Checked before anything moves.
void Graph::Editor::check_extents(const Rehoming& rehoming) const {
  for (ValueId v : rehoming.values) {
    const Value& moved = graph_.value(v);
    const auto extent = extent_of(graph_.sizes(v), graph_.strides(v));
    if (!extent || *extent == 0 || moved.layout != c10::Layout::Strided) continue;
    const int64_t offset = moved.offset + rehoming.shift;
    const auto item = static_cast<int64_t>(c10::elementSize(moved.dtype));
    if (offset < 0 || (offset + *extent) * item > graph_.storage(rehoming.to).bytes) {
      throw GraphError(fmt::format(
          "cannot replace: a view of the replaced value would extend outside the {} bytes of the new storage:{}",
          graph_.storage(rehoming.to).bytes, describe(moved.producer)));
    }
  }
}

// Moves the values, then updates the lifetime of the new storage and the saved tensors.
void Graph::Editor::rehome(const Rehoming& rehoming) {
  for (ValueId v : rehoming.values) {
    graph_.set_storage(v, rehoming.to, graph_.value(v).offset + rehoming.shift);
    graph_.values_[v.index].device_type = rehoming.device.type();
    graph_.values_[v.index].device_index = rehoming.device.index();
  }
  // Extended to the last of its new users, which is determined first, since a storage may get very many.
  NodeId last;
  const auto see = [&](NodeId n) {
    if (!last.valid() || graph_.is_before(last, n)) last = n;
  };
  for (ValueId v : rehoming.values) {
    see(graph_.value(v).producer);
    graph_.for_each_use(v, see);
  }
  if (last.valid()) graph_.extend_lifetime(rehoming.to, last);
  for (ValueId v : rehoming.values) {
    repair_saved(graph_.value(v).producer);
    graph_.for_each_use(v, [&](NodeId user) { repair_saved(user); });
  }
}

uint32_t Graph::replace_all_uses_with(ValueId of, ValueId with) { return Editor(*this).redirect(of, with, nullptr); }

uint32_t Graph::replace_uses_if(ValueId of, ValueId with, const UseFilter& filter) {
  return Editor(*this).redirect(of, with, &filter);
}

// Replaces uses. Checks first that every user comes after the new value and that every view fits into its storage.
uint32_t Graph::Editor::redirect(ValueId of, ValueId with, const UseFilter* filter) {
  if (of == with) return 0;
  const NodeId producer = graph_.value(with).producer;
  if (graph_.is_erased(producer)) throw GraphError("cannot replace a use by a value of an erased node");
  std::vector<Argument*> found;
  std::vector<NodeId> users;
  std::vector<std::pair<NodeId, uint32_t>> uses;  // in program order
  for (uint32_t u = graph_.value(of).first_use; u != Argument::kNoUse; u = graph_.uses_[u].next) {
    uses.emplace_back(graph_.uses_[u].user, u);
  }
  std::ranges::sort(uses, [&](const auto& a, const auto& b) {
    return a.first == b.first ? a.second < b.second : graph_.is_before(a.first, b.first);
  });
  for (const auto& [user, use] : uses) {
    Argument* argument = argument_of(graph_.arguments_.view(graph_.node(user).arguments), use);
    TORCH_INTERNAL_ASSERT(argument != nullptr);
    if (filter != nullptr && !(*filter)(user, *argument)) continue;
    found.push_back(argument);
    if (!users.empty() && users.back() == user) continue;
    users.push_back(user);
    if (!graph_.is_before(producer, user)) {
      throw GraphError("cannot replace a use: the new value is not defined before its user:" + describe(user));
    }
  }
  // If the new value is in another storage, views of the old one follow it. The alias facts are those of the users
  // after the replacement, so the new value is put in place first.
  const StorageId from = graph_.value(of).storage;
  const StorageId to = graph_.value(with).storage;
  Rehoming rehoming{.from = from, .to = to, .shift = graph_.value(with).offset - graph_.value(of).offset};
  if (from.valid() && to.valid() && from != to) {
    rehoming.device = graph_.storage(to).device();
    for (Argument* argument : found) argument->ref.value = with;  // see the users' aliases after the replacement
    rehoming.moved.insert(with);
    rehoming.users = users;
    const auto undo = [&] {
      for (Argument* argument : found) argument->ref.value = of;
    };
    try {
      follow_aliases(rehoming);
      check_extents(rehoming);
    } catch (...) {
      undo();
      // On an exception the graph must be unchanged, uses included.
      throw;
    }
    undo();
  }

  for (Argument* argument : found) {
    drop_uses(std::span<const Argument>(argument, 1));
    argument->ref.value = with;
    graph_.uses_[argument->ref.use] = {.user = graph_.uses_[argument->ref.use].user, .value = with};
    append_use(argument->ref.use, with);
  }
  if (to.valid() && !users.empty()) graph_.extend_lifetime(to, users.back());
  rehome(rehoming);
  // A tensor saved as the changed argument is now the new value: autograd would have saved the operator's input.
  for (NodeId user : users) {
    bool changed = false;
    std::vector<SavedTensor> saved(graph_.saved(user).begin(), graph_.saved(user).end());
    for (SavedTensor& tensor : saved) {
      const bool by_name = tensor.role == SavedRole::kArgument && tensor.index < graph_.arguments(user).size();
      const auto read = by_name ? graph_.arguments(user).subspan(tensor.index, 1) : graph_.arguments(user);
      if (tensor.value != of || tensor.role == SavedRole::kResult || mentions(read, of)) continue;
      tensor.value = with;
      changed = true;
    }
    if (changed) graph_.set_saved(user, saved);
    repair_saved(user);
  }
  // Other nodes' saved tensors follow only if all uses do: with a filter, the old value remains in use.
  if (filter != nullptr) return static_cast<uint32_t>(found.size());
  if (const auto entry = graph_.saved_elsewhere_.find(of); entry != graph_.saved_elsewhere_.end()) {
    for (NodeId saver : std::vector<NodeId>(entry->second)) {
      std::vector<SavedTensor> saved(graph_.saved(saver).begin(), graph_.saved(saver).end());
      for (SavedTensor& tensor : saved) {
        if (tensor.value == of) tensor.value = with;
      }
      graph_.set_saved(saver, saved);
      repair_saved(saver);
    }
  }
  return static_cast<uint32_t>(found.size());
}

// The caller ensures that the results have the same meaning.
void Graph::set_call(NodeId id, TargetId target, std::span<const Argument> arguments) {
  if (target.index >= target_count()) throw GraphError("the target does not exist:" + Editor(*this).describe(id));
  const Signature& signature = this->target(target).signature();
  if (!signature.variadic_returns && signature.returns.size() != results(id).size()) {
    throw GraphError(fmt::format("{} returns {} results, but the node has {}:{}", this->target(target).name(),
                                 signature.returns.size(), results(id).size(), Editor(*this).describe(id)));
  }
  // set_arguments uses the node's facts, so the new target must be set by then.
  const TargetId old = std::exchange(nodes_[id.index].target, target);
  try {
    set_arguments(id, arguments);
  } catch (...) {
    nodes_[id.index].target = old;
    throw;
  }
}

// Rewrites the whole list, since the run in the pool may be shared.
void Graph::set_argument(NodeId id, size_t position, const Argument& argument) {
  std::vector<Argument> changed(arguments(id).begin(), arguments(id).end());
  if (position >= changed.size()) {
    throw GraphError(fmt::format("argument {} does not exist:{}", position, Editor(*this).describe(id)));
  }
  changed[position] = argument;
  set_arguments(id, changed);
}

// New arguments may alias another storage; results that alias them then move there, with their views. As in redirect(),
// everything is checked before the first change.
void Graph::set_arguments(NodeId id, std::span<const Argument> arguments) {
  const Signature& signature = target(id).signature();
  const size_t wanted = signature.arguments.size();
  if (signature.variadic_arguments ? arguments.size() < wanted : arguments.size() != wanted) {
    throw GraphError(
        fmt::format("{} arguments are given, but {} takes {}", arguments.size(), target(id).name(), wanted));
  }
  Editor(*this).check_operands(arguments, id, "set arguments");
  // Results that must move: those that alias an argument whose storage changes.
  std::vector<Editor::Rehoming> rehomings;
  for (const OperatorFacts::Alias& alias : facts(id).aliases) {
    if (alias.argument >= arguments.size() || alias.result >= results(id).size()) continue;
    const Argument& old = this->arguments(id)[alias.argument];
    const Argument& now = arguments[alias.argument];
    const Argument& result = results(id)[alias.result];
    if (old.kind != ArgumentKind::kValue || now.kind != ArgumentKind::kValue) continue;
    const Value& source = value(now.ref.value);
    const StorageId from = value(old.ref.value).storage;
    if (!source.storage.valid() || source.storage == from) continue;
    Editor::Rehoming rehoming{.from = from,
                              .to = source.storage,
                              .shift = source.offset - value(old.ref.value).offset,
                              .device = storage(source.storage).device()};
    for_each_value(std::span(&result, 1), [&](ValueId v) {
      if (value(v).storage != from) return;
      rehoming.values.push_back(v);
      rehoming.moved.insert(v);
      for_each_use(v, [&](NodeId user) { rehoming.users.push_back(user); });
    });
    Editor(*this).follow_aliases(rehoming);
    Editor(*this).check_extents(rehoming);
    rehomings.push_back(std::move(rehoming));
  }

  // Copies both lists, since the pools that hold them may grow.
  const std::vector<Argument> kept(arguments.begin(), arguments.end());  // `arguments` may be the node's own
  const std::vector<Argument> before(this->arguments(id).begin(), this->arguments(id).end());
  Editor(*this).drop_uses(before);
  nodes_[id.index].arguments = Editor(*this).own_arguments(kept);
  Editor(*this).enter_uses(id, arguments_.view(node(id).arguments));
  for_each_input(id, [&](ValueId v) {
    if (value(v).storage.valid()) extend_lifetime(value(v).storage, id);
  });
  for (const Editor::Rehoming& rehoming : rehomings) Editor(*this).rehome(rehoming);
  // A tensor saved as a changed argument is now the new argument.
  std::vector<SavedTensor> saved;
  for (SavedTensor tensor : this->saved(id)) {
    const bool is_argument = tensor.role == SavedRole::kArgument && tensor.index < kept.size();
    const auto actual = is_argument ? this->arguments(id).subspan(tensor.index, 1) : std::span<const Argument>();
    if (is_argument && tensor.index < before.size() &&
        Editor(*this).mentions(std::span(&before[tensor.index], 1), tensor.value) &&
        !Editor(*this).mentions(actual, tensor.value)) {
      ValueId now;
      for_each_value(actual, [&](ValueId v) {
        if (!now.valid()) now = v;
      });
      if (!now.valid()) continue;
      tensor.value = now;
    }
    saved.push_back(tensor);
  }
  if (node(id).saved.size != 0) set_saved(id, saved);
  Editor(*this).repair_saved(id);
}

// saved_elsewhere_ lists the nodes that save a value that is neither their argument nor their result. Only these keep a
// value from being erased without being among its uses.
void Graph::Editor::forget_saved_elsewhere(NodeId id) {
  if (graph_.saved_elsewhere_.empty()) return;
  for (const SavedTensor& saved : graph_.saved(id)) {
    const auto entry = graph_.saved_elsewhere_.find(saved.value);
    if (entry == graph_.saved_elsewhere_.end()) continue;
    std::erase(entry->second, id);
    if (entry->second.empty()) graph_.saved_elsewhere_.erase(entry);
  }
}

// Records which saved tensors are neither arguments nor results of the node. Autograd seldom saves such tensors (an
// input of a composite), so the side table stays small.
void Graph::set_saved(NodeId id, std::span<const SavedTensor> saved) {
  Editor(*this).forget_saved_elsewhere(id);
  nodes_[id.index].saved = saved_.push_run(saved);
  for (const SavedTensor& tensor : saved) {
    // The two common cases first.
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

// Updates the list of saved tensors after the node's arguments, or the storages of its arguments or results, have
// changed. A saved argument or result remains one: the same value, or one in the same storage. Otherwise the first
// tensor of that argument or result replaces it; without one the entry is removed.
void Graph::Editor::repair_saved(NodeId id) {
  if (graph_.node(id).saved.size == 0) return;
  std::vector<SavedTensor> repaired;
  bool changed = false;
  for (SavedTensor saved : graph_.saved(id)) {
    ValueId own;
    bool good = saved.role == SavedRole::kInternal;
    for_each_value_of_role(graph_, id, saved, [&](ValueId v) {
      const StorageId storage = graph_.value(v).storage;
      good = good || v == saved.value || (storage.valid() && storage == graph_.value(saved.value).storage);
      if (!own.valid() && graph_.value(v).kind == ValueKind::kTensor) own = v;
    });
    if (!good) {
      changed = true;
      if (!own.valid()) continue;
      saved.value = own;
    }
    repaired.push_back(saved);
  }
  if (changed) graph_.set_saved(id, repaired);
}

// Appends in place if there is room. A node may inherit the frees of many nodes that are erased after it, one at a
// time, and a copy each time would be quadratic. frees_room_ is the capacity of the run.
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

// A storage must be freed only once. Edits that move a free drop it here first and add it elsewhere.
void Graph::Editor::drop_free(StorageId id) {
  const NodeId freed = graph_.storage(id).freed_after;
  graph_.storages_[id.index].freed_after = NodeId();
  if (!freed.valid() || graph_.is_erased(freed)) return;
  Run& run = graph_.nodes_[freed.index].frees;
  const auto list = graph_.frees_.view(run);
  const uint32_t place = graph_.storage(id).place_in_frees;
  TORCH_INTERNAL_ASSERT(place < run.size && list[place] == id,
                        "a storage is not in the list of frees that it refers to");
  // Short lists keep their order; in long ones the last element fills the gap.
  const uint32_t moved_from = run.size <= 64 ? place + 1 : run.size - 1;
  uint32_t to = place;
  for (uint32_t i = moved_from; i < run.size; ++i, ++to) {
    list[to] = list[i];
    graph_.storages_[list[to].index].place_in_frees = to;
  }
  --run.size;
}

// If the storage would be freed before `user`, moves the free to `user`. End nodes free nothing: what they hold stays
// alive in the caller.
void Graph::extend_lifetime(StorageId id, NodeId user) {
  const NodeId freed = storage(id).freed_after;
  if (!freed.valid() || is_erased(freed) || !is_before(freed, user)) return;
  Editor(*this).drop_free(id);
  if (Editor::rank_of(node(user).target) != Editor::kEndRank) Editor(*this).add_frees(user, std::span(&id, 1));
}

// Nodes to be erased together: a short list, or a bit for each id in their range if there are many.
class Graph::Editor::NodesToErase {
 public:
  explicit NodesToErase(std::span<const NodeId> nodes) : nodes_(nodes) {
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

// A result that another node saves for backward is needed even without uses.
bool Graph::can_erase(NodeId id) const {
  bool needed = false;
  for_each_output(id, [&](ValueId v) { needed = needed || has_uses(v) || is_saved_elsewhere(v); });
  return !needed;
}

// Erasing a node moves its allocations and frees to other nodes.
void Graph::erase(NodeId id) {
  if (!can_erase(id)) {
    throw GraphError(
        "cannot erase a node with a result that is still used, or saved by another node; replace its "
        "uses first:" +
        Editor(*this).describe(id));
  }
  Editor(*this).drop_uses(arguments(id));
  Editor(*this).transfer_allocations(id, nullptr);
  Editor(*this).remove(id);
}

// Erases nodes that use one another, where erasing one by one would depend on the order. Everything is checked before
// the first one is erased.
void Graph::erase(std::span<const NodeId> ids) {
  std::vector<NodeId> to_erase;
  for (NodeId n : ids) {
    if (!is_erased(n)) to_erase.push_back(n);
  }
  const auto comes_first = [&](NodeId a, NodeId b) { return is_before(a, b); };
  if (!std::is_sorted(to_erase.begin(), to_erase.end(), comes_first)) {
    std::sort(to_erase.begin(), to_erase.end(), comes_first);
  }
  to_erase.erase(std::unique(to_erase.begin(), to_erase.end()), to_erase.end());
  const Editor::NodesToErase all(to_erase);
  for (NodeId n : to_erase) {
    bool needed = false;
    for_each_output(n, [&](ValueId v) {
      for_each_use(v, [&](NodeId user) { needed = needed || !all.contains(user); });
      if (const auto savers = saved_elsewhere_.find(v); savers != saved_elsewhere_.end()) {
        for (NodeId saver : savers->second) needed = needed || !all.contains(saver);
      }
    });
    if (needed) {
      throw GraphError("cannot erase a node with a result that is used, or saved, by a remaining node:" +
                       Editor(*this).describe(n));
    }
  }
  // Uses are dropped first, then allocations moved, then nodes removed: moving an allocation looks for the first
  // remaining node with a value in the storage.
  for (NodeId n : to_erase) Editor(*this).drop_uses(arguments(n));
  for (NodeId n : to_erase) Editor(*this).transfer_allocations(n, &all);
  // In program order, so that each free moves directly to a remaining node.
  for (NodeId n : to_erase) Editor(*this).remove(n);
}

// Removes a node whose uses are dropped and whose allocations were moved. An erased node keeps its id and record, with
// an invalid target, so an id never comes to denote another node.
void Graph::Editor::remove(NodeId id) {
  forget_saved_elsewhere(id);
  transfer_frees(id, graph_.node(id).previous.valid() ? graph_.node(id).previous : graph_.node(id).next);
  if (id.index < graph_.first_note_.size()) graph_.first_note_[id.index] = kNoNote;
  unlink(id);
  graph_.nodes_[id.index].target = TargetId();
  --graph_.live_nodes_;
}

// Makes the first other node with a value in a storage its allocating node. For example, an in-place chain may lose its
// first node: empty, add_ without the empty. Without another node the storage is unused and never freed.
void Graph::Editor::transfer_allocations(NodeId id, const NodesToErase* to_erase) {
  graph_.for_each_output(id, [&](ValueId v) {
    const StorageId s = graph_.value(v).storage;
    if (!s.valid() || graph_.storage(s).born != id) return;
    NodeId successor;
    graph_.for_each_value_in(s, [&](ValueId other) {
      const NodeId producer = graph_.value(other).producer;
      if (producer == id || graph_.is_erased(producer) || (to_erase != nullptr && to_erase->contains(producer))) return;
      if (!successor.valid() || graph_.is_before(producer, successor)) successor = producer;
    });
    if (successor.valid()) {
      graph_.storages_[s.index].born = successor;
    } else {
      drop_free(s);
    }
  });
}

// Moves the frees to a neighbor, so that live bytes change only by what the node itself allocated. Storages that the
// node allocated no longer exist and need no free.
void Graph::Editor::transfer_frees(NodeId id, NodeId successor) {
  if (graph_.node(id).frees.size == 0) return;
  std::vector<StorageId> freed;
  for (StorageId s : graph_.frees(id)) {
    if (graph_.storage(s).born != id) freed.push_back(s);
  }
  graph_.set_frees(id, {});
  if (successor.valid()) add_frees(successor, freed);
}

}  // namespace shadowgraph
