// How graphs grow: nodes in program order, the values that they make, uses and storages, and the links between them.
// Records are only appended; what changes are the lists that lead to them.
#include <algorithm>
#include <utility>

#include "ir/graph_editor.h"
#include "shadowgraph/edit/insertion_point.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {

namespace {

// The distance between the labels of nodes appended one after another, and from a node to one that is inserted behind
// it. Many can be inserted at one place, and 2^32 nodes appended, before labels have to move.
constexpr uint64_t kAppendGap = uint64_t{1} << 32;
constexpr uint64_t kInsertGap = uint64_t{1} << 16;

}  // namespace

// The use of a list element is noted in the element itself, so two nodes must not share one.
Run Graph::Editor::own_arguments(std::span<const Argument> arguments) {
  const Run run = graph_.arguments_.push_run(arguments);
  for (uint32_t i = 0; i < run.size; ++i) {
    const Argument argument = graph_.arguments_.view(run)[i];
    if (argument.kind == ArgumentKind::kList && has_entered_uses(graph_.list(argument))) {
      graph_.arguments_.view(run)[i].run = copy_list(argument.run);
    }
  }
  return run;
}

// Appends the record first and links it then: the new node's id is its place in the arena, whatever its place in the
// program.
NodeId Graph::insert_before(NodeId position, TargetId target, std::span<const Argument> arguments) {
  Node node;
  node.target = target;
  node.region = kRootRegion;
  node.phase = kForward;
  node.arguments = Editor(*this).own_arguments(arguments);
  const NodeId id(nodes_.push(node));
  order_.push(0);
  Editor(*this).link_before(id, position);
  Editor(*this).enter_uses(id, arguments_.view(node.arguments));
  ++live_nodes_;
  return id;
}

// Where these sizes and strides lie in ints_. What lies there is never written again: others may share it.
// Blocks of a model repeat the same few shapes, so a small cache of recent ones saves most of the memory. A miss costs
// a copy in the pool, never a wrong answer: what is found is compared in full.
uint32_t Graph::Editor::intern_dims(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  const auto rank = static_cast<uint32_t>(sizes.size());
  uint64_t hash = rank;
  for (const int64_t size : sizes) hash = (hash ^ static_cast<uint64_t>(size)) * 0x9e3779b97f4a7c15U;
  for (const int64_t stride : strides) hash = (hash ^ static_cast<uint64_t>(stride)) * 0x9e3779b97f4a7c15U;
  RecentDims& recent = graph_.recent_dims_[(hash >> 32) % graph_.recent_dims_.size()];
  if (recent.rank == rank) {
    const auto known = graph_.ints_.view({recent.offset, 2 * rank});
    if (std::equal(sizes.begin(), sizes.end(), known.begin()) &&
        std::equal(strides.begin(), strides.end(), known.begin() + rank)) {
      return recent.offset;
    }
  }
  const Run dims = graph_.ints_.push_run(2 * rank);
  const auto pool = graph_.ints_.view(dims);
  std::copy(sizes.begin(), sizes.end(), pool.begin());
  std::copy(strides.begin(), strides.end(), pool.begin() + rank);
  // Rank 0 has nothing to share; its offset would only push a useful entry out.
  if (rank != 0) recent = {dims.offset, rank};
  return dims.offset;
}

ValueId Graph::new_tensor(NodeId producer, const TensorMeta& spec) {
  const auto rank = static_cast<uint32_t>(spec.sizes.size());
  Value value;
  value.dtype = spec.dtype;
  value.layout = spec.layout;
  value.device_type = spec.device.type();
  value.device_index = spec.device.index();
  value.requires_grad = spec.requires_grad;
  value.rank = static_cast<uint16_t>(rank);
  value.dims = Editor(*this).intern_dims(spec.sizes, spec.strides);
  value.storage = spec.storage;
  value.offset = spec.offset;
  value.producer = producer;
  // siblings_ runs parallel to values_, so every value gets an entry, also one without a storage.
  const ValueId id(values_.push(value));
  siblings_.push({});
  Editor(*this).join_storage(id);
  return id;
}

// Writes new dims rather than changing the old ones: other values may share those (intern_dims).
void Graph::set_geometry(ValueId id, const TensorMeta& spec) {
  Value& changed = values_[id.index];
  changed.rank = static_cast<uint16_t>(spec.sizes.size());
  changed.dims = Editor(*this).intern_dims(spec.sizes, spec.strides);
  changed.dtype = spec.dtype;
  changed.layout = spec.layout;
  changed.device_type = spec.device.type();
  changed.device_index = spec.device.index();
  changed.requires_grad = spec.requires_grad;
  set_storage(id, spec.storage, spec.offset);
}

// Gives a value dims of its own. Only code that writes sizes in place needs this: instances of a SymbolicGraph keep the
// addresses.
void Graph::own_dims(ValueId id) {
  const Run own = ints_.push_run(2U * value(id).rank);
  const auto shared = ints_.view({value(id).dims, own.size});
  std::copy(shared.begin(), shared.end(), ints_.view(own).begin());
  values_[id.index].dims = own.offset;
}

ValueId Graph::new_scalar(NodeId producer, ValueKind kind) {
  Value value;
  value.kind = kind;
  value.producer = producer;
  siblings_.push({});
  return ValueId(values_.push(value));
}

// Keeps the list of values in a storage right, which every edit of aliases relies on.
void Graph::set_storage(ValueId id, StorageId storage, int64_t offset) {
  values_[id.index].offset = offset;
  if (value(id).storage == storage) return;
  Editor(*this).leave_storage(id);
  values_[id.index].storage = storage;
  Editor(*this).join_storage(id);
}

// Puts the value in front of its storage's list: constant time, and nobody relies on the order.
void Graph::Editor::join_storage(ValueId id) {
  const StorageId storage = graph_.value(id).storage;
  if (storage.index >= graph_.storages_.size()) return;  // none, or a broken graph
  if (storage.index >= graph_.first_in_storage_.size()) graph_.first_in_storage_.resize(graph_.storages_.size());
  ValueId& first = graph_.first_in_storage_[storage.index];
  graph_.siblings_[id.index] = {.previous = {}, .next = first};
  if (first.valid()) graph_.siblings_[first.index].previous = id;
  first = id;
}

// A value that is not first and has no previous one was never in a list: a graph read from noise may have such values.
void Graph::Editor::leave_storage(ValueId id) {
  const StorageId storage = graph_.value(id).storage;
  if (storage.index >= graph_.first_in_storage_.size()) return;
  const Siblings around = graph_.siblings_[id.index];
  if (around.next.valid()) graph_.siblings_[around.next.index].previous = around.previous;
  if (around.previous.valid()) {
    graph_.siblings_[around.previous.index].next = around.next;
  } else if (graph_.first_in_storage_[storage.index] == id) {
    graph_.first_in_storage_[storage.index] = around.next;
  }
}

// Writes the results anew at the end of the pool. The old run stays there unused; a node's results change seldom.
void Graph::set_results(NodeId id, std::span<const Argument> results) {
  nodes_[id.index].results = arguments_.push_run(results);
}

// Serves builders that find results one by one. Quadratic in a node's results, which are few.
ValueId Graph::add_tensor_result(NodeId id, const TensorMeta& spec) {
  const ValueId value = new_tensor(id, spec);
  std::vector<Argument> results(this->results(id).begin(), this->results(id).end());
  results.push_back(Argument::of_value(value));
  set_results(id, results);
  return value;
}

// Keeps both directions: the node lists what dies after it, and the storage knows the node and its place in that list.
// So a death is dropped in constant time (drop_free).
void Graph::set_frees(NodeId id, std::span<const StorageId> frees) {
  for (StorageId storage_id : this->frees(id)) storages_[storage_id.index].freed_after = NodeId();
  nodes_[id.index].frees = frees_.push_run(frees);
  // The new run has no room behind it (add_frees).
  if (!frees_room_.empty()) frees_room_.erase(id);
  for (uint32_t i = 0; i < frees.size(); ++i) {
    storages_[frees[i].index].freed_after = id;
    storages_[frees[i].index].place_in_frees = i;
  }
}

// ---- Links

// Order is kept twice: as links, for walks, and as labels that rise along the program, for is_before() in constant
// time. A new node gets a label between those of its neighbours.
void Graph::Editor::link_before(NodeId id, NodeId position) {
  const NodeId previous = position.valid() ? graph_.node(position).previous : graph_.last_;
  const auto room = [&] {
    const uint64_t end = position.valid() ? graph_.order_[position.index] : UINT64_MAX;
    return end - (previous.valid() ? graph_.order_[previous.index] : 0);
  };
  // Two labels side by side leave none between them; make_room_at spreads them.
  if (room() < 2) make_room_at(previous.valid() ? previous : position);
  const uint64_t low = previous.valid() ? graph_.order_[previous.index] : 0;
  // Appends leave wide gaps, as nothing is known of what comes between; inserts take the middle if the gap is small.
  graph_.order_[id.index] = low + std::min(position.valid() ? kInsertGap : kAppendGap, room() / 2);
  graph_.nodes_[id.index].previous = previous;
  graph_.nodes_[id.index].next = position;
  (previous.valid() ? graph_.nodes_[previous.index].next : graph_.first_) = id;
  (position.valid() ? graph_.nodes_[position.index].previous : graph_.last_) = id;
}

// Spreads the labels around a node whose neighbour's label leaves no room. It takes the smallest aligned range of
// labels that is thinly settled, thinner the larger it is. That makes a logarithmic number of moves per insertion,
// amortised. Bender, Cole, Demaine, Farach-Colton, Zito: Two Simplified Algorithms for Maintaining Order in a List
// (2002).
void Graph::Editor::make_room_at(NodeId id) {
  NodeId left = id;
  NodeId right = id;
  uint64_t count = 1;
  double capacity = 1;
  for (int bits = 1; bits < 64; ++bits) {
    const uint64_t begin = graph_.order_[id.index] >> bits << bits;
    const uint64_t end = begin + ((uint64_t{1} << bits) - 1);
    for (NodeId n = graph_.node(left).previous; n.valid() && graph_.order_[n.index] >= begin;
         n = graph_.node(n).previous) {
      left = n;
      ++count;
    }
    for (NodeId n = graph_.node(right).next; n.valid() && graph_.order_[n.index] <= end; n = graph_.node(n).next) {
      right = n;
      ++count;
    }
    // 1.4 per doubling lies between 1, at which ranges never fill, and 2, at which one is never thin. A step below 8
    // would be used up at once.
    capacity *= 1.4;
    const uint64_t step = (uint64_t{1} << bits) / count;
    if (static_cast<double>(count) > capacity || step < 8) continue;
    uint64_t label = begin + step / 2;
    for (NodeId n = left;; n = graph_.node(n).next, label += step) {
      graph_.order_[n.index] = label;
      if (n == right) return;
    }
  }
  TORCH_INTERNAL_ASSERT(false, "labels of more nodes than there are ids");
}

// Insertion points are told first: one that stands at this node moves on to the next.
void Graph::Editor::unlink(NodeId id) {
  for (InsertionPoint* point : graph_.insertion_points_) point->leave(id);
  const Node& n = graph_.node(id);
  (n.previous.valid() ? graph_.nodes_[n.previous.index].next : graph_.first_) = n.next;
  (n.next.valid() ? graph_.nodes_[n.next.index].previous : graph_.last_) = n.previous;
}

// Makes a use for each value that the arguments mention, lists included, and notes it in the argument itself. So
// dropping a use needs no search.
void Graph::Editor::enter_uses(NodeId id, std::span<Argument> arguments) {
  for (Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue) {
      argument.ref.use = graph_.uses_.push({.user = id, .value = argument.ref.value});
      append_use(argument.ref.use, argument.ref.value);
    } else if (argument.kind == ArgumentKind::kList) {
      enter_uses(id, graph_.arguments_.view(argument.run));
    }
  }
}

// Appends, so that uses of a value come in the order in which they were made: replacing them visits users in a stable
// order.
void Graph::Editor::append_use(uint32_t use, ValueId id) {
  Value& v = graph_.values_[id.index];
  graph_.uses_[use].previous = v.last_use;
  (v.last_use != Argument::kNoUse ? graph_.uses_[v.last_use].next : v.first_use) = use;
  v.last_use = use;
}

// Takes uses out of their values' lists in constant time each; the records stay behind as holes.
void Graph::Editor::drop_uses(std::span<const Argument> arguments) {
  for (const Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue && argument.ref.use != Argument::kNoUse) {
      const Use use = graph_.uses_[argument.ref.use];
      Value& v = graph_.values_[use.value.index];
      (use.previous != Argument::kNoUse ? graph_.uses_[use.previous].next : v.first_use) = use.next;
      (use.next != Argument::kNoUse ? graph_.uses_[use.next].previous : v.last_use) = use.previous;
    } else if (argument.kind == ArgumentKind::kList) {
      drop_uses(graph_.list(argument));
    }
  }
}

// Says whether a list belongs to a node already; such a list must be copied before another node takes it.
bool Graph::Editor::has_entered_uses(std::span<const Argument> arguments) const {
  for (const Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue && argument.ref.use != Argument::kNoUse) return true;
    if (argument.kind == ArgumentKind::kList && has_entered_uses(graph_.list(argument))) return true;
  }
  return false;
}

// Copies a list with the lists in it; strings, ints and constants are shared, as nobody writes them.
Run Graph::Editor::copy_list(Run list) {
  const Run copy = graph_.arguments_.push_run(graph_.arguments_.view(list));
  for (uint32_t i = 0; i < copy.size; ++i) {
    const Argument element = graph_.arguments_.view(copy)[i];
    if (element.kind == ArgumentKind::kList) graph_.arguments_.view(copy)[i].run = copy_list(element.run);
  }
  return copy;
}

}  // namespace shadowgraph
