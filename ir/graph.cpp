// Nodes, values and storages are records in arenas; lists (arguments, sizes, uses, frees) are runs in pools.
//
//     Node     target, region, phase, previous/next          program order: a doubly linked list, with labels
//     Value    dims (a run of ints_), storage, first_use     uses: a doubly linked list through uses_
//     Storage  born, freed_after, place_in_frees             values in it: a list through siblings_
#include "shadowgraph/graph/graph.h"

#include <c10/core/Contiguity.h>
#include <c10/util/accumulate.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

#include "ir/graph_editor.h"
#include "ir/text/words.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"
#include "support/text.h"

namespace shadowgraph {

namespace {

// Distances between the order labels of appended nodes, and from a node to one that is inserted after it. Leaves room
// for many insertions at one place, and for 2^32 appended nodes, before relabeling.
constexpr uint64_t kAppendGap = uint64_t{1} << 32;
constexpr uint64_t kInsertGap = uint64_t{1} << 16;

// Bounds check for the verifier, which runs it before reading anything: an invalid graph may hold any index.
template <class T>
bool holds(const Arena<T>& arena, Run run) {
  return run.size == 0 || uint64_t{run.offset} + run.size <= arena.size();
}

// The first letter of a key distinguishes user functions, operators and built-ins with the same schema text.
constexpr char kKindLetters[] = {'o', 'b', 'f'};

std::string target_key(TargetKind kind, const std::string& schema_text) {
  return kKindLetters[static_cast<size_t>(kind)] + schema_text;
}

// With their keys. Parsed once, since every graph has them, including a moved-from one.
const std::vector<std::pair<std::string, Target>>& builtin_targets() {
  // Never freed: graphs in static storage may outlive it otherwise.
  static const auto* targets = [] {
    auto* made = new std::vector<std::pair<std::string, Target>>;
    for (uint32_t i = 0; i < kBuiltinCount; ++i) {
      Target target(TargetKind::kBuiltin, builtin_schema(static_cast<Builtin>(i)));
      made->emplace_back(target_key(TargetKind::kBuiltin, target.schema_text()), std::move(target));
    }
    return made;
  }();
  return *targets;
}

}  // namespace

// The ids of phases, built-in targets and the root region are API constants, so every graph starts with them, in this
// order.
Graph::Graph() {
  for (const char* phase : {"forward", "backward", "optimizer", "init"}) phases_.emplace_back(phase);
  for (const auto& [key, target] : builtin_targets()) {
    target_ids_.emplace(key, TargetId(static_cast<uint32_t>(targets_.size())));
    targets_.push_back(target);
  }
  Region root;
  root.name = intern("");
  root.class_name = root.name;
  add_region(root);
}

Graph::~Graph() = default;

Graph::Graph(Graph&& other) noexcept : Graph() { swap(other); }

Graph& Graph::operator=(Graph&& other) noexcept {
  Graph taken(std::move(other));
  swap(taken);
  return *this;
}

void Graph::swap(Graph& other) noexcept {
  TORCH_INTERNAL_ASSERT(insertion_points_.empty() && other.insertion_points_.empty(),
                        "a graph was moved while it had an InsertionPoint");
  std::swap(static_cast<GraphTables&>(*this), static_cast<GraphTables&>(other));
  std::swap(metadata, other.metadata);
  std::swap(guards, other.guards);
  std::swap(place_, other.place_);
  *place_ = this;
  *other.place_ = &other;
}

// Interned, so that a name costs 4 bytes per node however often it occurs. Texts are never removed: messages may still
// refer to an erased node's source.
StringId Graph::intern(std::string_view text) {
  auto [entry, added] = string_ids_.try_emplace(std::string(text), StringId(static_cast<uint32_t>(strings_.size())));
  if (added) strings_.emplace_back(text);
  return entry->second;
}

// There are only a handful of phases, so a linear search is faster than a map.
PhaseId Graph::intern_phase(std::string_view name) {
  for (uint32_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i] == name) return PhaseId(i);
  }
  phases_.emplace_back(name);
  return PhaseId(static_cast<uint32_t>(phases_.size() - 1));
}

// Keyed by the schema's text, not the name: overloads differ in it, and so do versions of an operator whose schema
// changed between libtorch releases.
TargetId Graph::intern_target(Target target) {
  const TargetId next(static_cast<uint32_t>(targets_.size()));
  auto [entry, added] = target_ids_.try_emplace(target_key(target.kind(), target.schema_text()), next);
  if (added) targets_.push_back(std::move(target));
  return entry->second;
}

ConstantId Graph::share_constant(const Graph& other, ConstantId id) { return add_constant(other.constant(id)); }

const at::Tensor& Graph::constant(ConstantId id) const { return constants_[id.index]; }

uint32_t Graph::constant_count() const { return static_cast<uint32_t>(constants_.size()); }

int64_t Graph::numel(ValueId id) const { return c10::multiply_integers(sizes(id)); }

// Uses c10's rule, so that sizes of 0 and 1 are treated as in libtorch.
bool Graph::is_contiguous(ValueId id) const {
  const std::span<const int64_t> dims = sizes(id);
  const std::span<const int64_t> steps = strides(id);
  return c10::_compute_contiguous(c10::IntArrayRef(dims.data(), dims.size()),
                                  c10::IntArrayRef(steps.data(), steps.size()), numel(id));
}

TensorMeta Graph::meta(ValueId id) const {
  const Value& v = value(id);
  return {.dtype = v.dtype,
          .sizes = sizes(id),
          .strides = strides(id),
          .storage = v.storage,
          .offset = v.offset,
          .device = v.device(),
          .layout = v.layout,
          .requires_grad = v.requires_grad};
}

int64_t Graph::logical_bytes(ValueId id) const {
  const Value& v = value(id);
  return v.kind == ValueKind::kTensor ? numel(id) * static_cast<int64_t>(c10::elementSize(v.dtype)) : 0;
}

// Searches by name. Schemas have few arguments; callers that query many nodes cache the position instead.
const Argument* Graph::find_argument(NodeId id, std::string_view name) const {
  const auto position = target(id).signature().position_of(name);
  return position && *position < arguments(id).size() ? &arguments(id)[*position] : nullptr;
}

Argument Graph::complex_argument(double real, double imaginary) {
  const double parts[] = {real, imaginary};
  return Argument::of_run(ArgumentKind::kComplex, floats_.push_run(std::span<const double>(parts)));
}

// A node's notes are a list sorted by key, so that two graphs with the same notes print alike. Most graphs have none,
// hence a side table that is created with the first note.
void Graph::set_note(NodeId id, std::string_view key, std::string_view value) {
  if (first_note(id) == kNoNote && value.empty()) return;
  if (id.index >= first_note_.size()) first_note_.resize(nodes_.size(), kNoNote);
  uint32_t* link = &first_note_[id.index];
  // `link` points at the index to change, in the table or in the preceding note, so that the first note needs no
  // special case.
  while (*link != kNoNote && text(notes_[*link].key) < key) link = &notes_[*link].next;
  const bool found = *link != kNoNote && text(notes_[*link].key) == key;
  if (value.empty()) {
    if (found) *link = notes_[*link].next;
  } else if (found) {
    notes_[*link].value = intern(value);
  } else {
    *link = notes_.push({.key = intern(key), .value = intern(value), .next = *link});
  }
}

std::string_view Graph::note(NodeId id, std::string_view key) const {
  for (uint32_t i = first_note(id); i != kNoNote; i = notes_[i].next) {
    if (text(notes_[i].key) == key) return text(notes_[i].value);
  }
  return {};
}

// Texts and maps are ignored, since they do not grow with the nodes.
size_t Graph::allocated_bytes() const {
  return nodes_.allocated_bytes() + values_.allocated_bytes() + storages_.allocated_bytes() +
         regions_.allocated_bytes() + arguments_.allocated_bytes() + ints_.allocated_bytes() +
         floats_.allocated_bytes() + uses_.allocated_bytes() + saved_.allocated_bytes() + frees_.allocated_bytes() +
         order_.allocated_bytes() + siblings_.allocated_bytes() + notes_.allocated_bytes() +
         first_in_storage_.capacity() * sizeof(ValueId) + first_note_.capacity() * sizeof(uint32_t);
}

bool Graph::in_bounds(const Node& node) const {
  return holds(arguments_, node.arguments) && holds(arguments_, node.results) && holds(saved_, node.saved) &&
         holds(frees_, node.frees);
}

bool Graph::in_bounds(const Region& region) const { return holds(arguments_, region.arguments); }

bool Graph::in_bounds(const Argument& argument) const {
  switch (argument.kind) {
    case ArgumentKind::kIntList:
      return holds(ints_, argument.run);
    case ArgumentKind::kList:
      return holds(arguments_, argument.run);
    case ArgumentKind::kComplex:
      return argument.run.size == 2 && holds(floats_, argument.run);
    case ArgumentKind::kValue:
      return argument.ref.value.index < values_.size();
    case ArgumentKind::kString:
    case ArgumentKind::kOpaque:
      return argument.string.index < strings_.size();
    case ArgumentKind::kConstant:
      return argument.constant.index < constants_.size();
    default:
      return true;
  }
}

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

// Appends the record first and links it afterwards: the node's id is its position in the arena, regardless of program
// order.
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

// Returns the position of these sizes and strides in ints_, which is never overwritten, since others may share it.
// Blocks of a model repeat a few shapes, so a small cache of recent ones saves most of the memory. A miss only costs
// another copy in the pool; hits are compared in full.
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
  // Rank 0 has nothing to share and would evict a useful entry.
  if (rank != 0) recent = {dims.offset, rank};
  return dims.offset;
}

ValueId Graph::new_tensor(NodeId producer, const TensorMeta& spec) {
  const ValueId id = new_scalar(producer, ValueKind::kTensor);
  set_geometry(id, spec);
  return id;
}

// Adds new dims instead of changing the old ones, which other values may share (intern_dims).
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

// Gives a value unshared dims. Only needed by code that writes sizes in place: instances of a SymbolicGraph keep the
// addresses.
void Graph::unshare_dims(ValueId id) {
  const Run own = ints_.push_run(2U * value(id).rank);
  const auto shared = ints_.view({value(id).dims, own.size});
  std::copy(shared.begin(), shared.end(), ints_.view(own).begin());
  values_[id.index].dims = own.offset;
}

ValueId Graph::new_scalar(NodeId producer, ValueKind kind) {
  Value value;
  value.kind = kind;
  value.producer = producer;
  siblings_.push({});  // parallel to values_, so every value gets an entry, even without a storage
  return ValueId(values_.push(value));
}

// Maintains the list of values in each storage, on which every edit of aliases relies.
void Graph::set_storage(ValueId id, StorageId storage, int64_t offset) {
  values_[id.index].offset = offset;
  if (value(id).storage == storage) return;
  Editor(*this).leave_storage(id);
  values_[id.index].storage = storage;
  Editor(*this).join_storage(id);
}

// Inserts the value at the front of its storage's list; constant time, the order does not matter.
void Graph::Editor::join_storage(ValueId id) {
  const StorageId storage = graph_.value(id).storage;
  if (storage.index >= graph_.storages_.size()) return;  // none, or an invalid graph
  if (storage.index >= graph_.first_in_storage_.size()) graph_.first_in_storage_.resize(graph_.storages_.size());
  ValueId& first = graph_.first_in_storage_[storage.index];
  graph_.siblings_[id.index] = {.previous = {}, .next = first};
  if (first.valid()) graph_.siblings_[first.index].previous = id;
  first = id;
}

// A value that is not first and has no previous one is in no list, which may occur in an invalid graph.
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

// Appends the results to the pool and leaves the old run unused; a node's results change seldom.
void Graph::set_results(NodeId id, std::span<const Argument> results) {
  nodes_[id.index].results = arguments_.push_run(results);
}

// For builders that add results one by one. Quadratic in a node's results, which are few.
ValueId Graph::add_tensor_result(NodeId id, const TensorMeta& spec) {
  const ValueId value = new_tensor(id, spec);
  std::vector<Argument> results(this->results(id).begin(), this->results(id).end());
  results.push_back(Argument::of_value(value));
  set_results(id, results);
  return value;
}

// Maintains both directions: the node lists the storages freed after it, and the storage records the node and its
// position in that list, so that a free can be dropped in constant time (drop_free).
void Graph::set_frees(NodeId id, std::span<const StorageId> frees) {
  for (StorageId storage_id : this->frees(id)) storages_[storage_id.index].freed_after = NodeId();
  nodes_[id.index].frees = frees_.push_run(frees);
  // The new run has no spare capacity for add_frees().
  if (!frees_room_.empty()) frees_room_.erase(id);
  for (uint32_t i = 0; i < frees.size(); ++i) {
    storages_[frees[i].index].freed_after = id;
    storages_[frees[i].index].place_in_frees = i;
  }
}

// The order is stored twice: as links, for walks, and as increasing labels, for is_before() in constant time. A new
// node gets a label between those of its neighbors.
void Graph::Editor::link_before(NodeId id, NodeId position) {
  const NodeId previous = position.valid() ? graph_.node(position).previous : graph_.last_;
  const auto room = [&] {
    const uint64_t end = position.valid() ? graph_.order_[position.index] : UINT64_MAX;
    return end - (previous.valid() ? graph_.order_[previous.index] : 0);
  };
  // Adjacent labels leave no room between them; make_room_at spreads them.
  if (room() < 2) make_room_at(previous.valid() ? previous : position);
  const uint64_t low = previous.valid() ? graph_.order_[previous.index] : 0;
  // Appends leave wide gaps, since later insertions are unknown; inserts use the middle of a small gap.
  graph_.order_[id.index] = low + std::min(position.valid() ? kInsertGap : kAppendGap, room() / 2);
  graph_.nodes_[id.index].previous = previous;
  graph_.nodes_[id.index].next = position;
  (previous.valid() ? graph_.nodes_[previous.index].next : graph_.first_) = id;
  (position.valid() ? graph_.nodes_[position.index].previous : graph_.last_) = id;
}

// Spreads the labels around a node without room, over the smallest aligned range of labels whose density is below a
// limit, which decreases with the size of the range. Moves an amortized logarithmic number of labels per insertion.
// Bender, Cole, Demaine, Farach-Colton, Zito: Two Simplified Algorithms for Maintaining Order in a List (2002).
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
    // 1.4 per doubling is between 1, at which ranges never fill, and 2, at which no range is below the limit. Steps
    // below 8 would be used up by a few insertions.
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

// Insertion points are updated first: one at this node moves on to the next.
void Graph::Editor::unlink(NodeId id) {
  for (InsertionPoint* point : graph_.insertion_points_) point->leave(id);
  const Node& n = graph_.node(id);
  (n.previous.valid() ? graph_.nodes_[n.previous.index].next : graph_.first_) = n.next;
  (n.next.valid() ? graph_.nodes_[n.next.index].previous : graph_.last_) = n.previous;
}

// Creates a use for each value in the arguments, lists included, and records it in the argument itself, so that
// dropping it needs no search.
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

// Appends, so that a value's uses are in order of creation and replacing them visits users in a stable order.
void Graph::Editor::append_use(uint32_t use, ValueId id) {
  Value& v = graph_.values_[id.index];
  graph_.uses_[use].previous = v.last_use;
  (v.last_use != Argument::kNoUse ? graph_.uses_[v.last_use].next : v.first_use) = use;
  v.last_use = use;
}

// Removes uses from their values' lists in constant time each; the records remain as unused entries.
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

// Returns whether a list already belongs to a node and must be copied before another node takes it.
bool Graph::Editor::has_entered_uses(std::span<const Argument> arguments) const {
  for (const Argument& argument : arguments) {
    if (argument.kind == ArgumentKind::kValue && argument.ref.use != Argument::kNoUse) return true;
    if (argument.kind == ArgumentKind::kList && has_entered_uses(graph_.list(argument))) return true;
  }
  return false;
}

// Copies a list with its nested lists; strings, ints and constants are shared, since they are immutable.
Run Graph::Editor::copy_list(Run list) {
  const Run copy = graph_.arguments_.push_run(graph_.arguments_.view(list));
  for (uint32_t i = 0; i < copy.size; ++i) {
    const Argument element = graph_.arguments_.view(copy)[i];
    if (element.kind == ArgumentKind::kList) graph_.arguments_.view(copy)[i].run = copy_list(element.run);
  }
  return copy;
}

// Large blocks request huge pages, so that walking a large graph causes fewer TLB misses.
void* allocate_arena_block(size_t bytes) {
  // The huge page size of x86; elsewhere it only affects speed.
  constexpr size_t kLargePage = size_t{1} << 21;
  const bool large = bytes >= 2 * kLargePage;
  // std::aligned_alloc requires a multiple of the alignment.
  void* block =
      large ? std::aligned_alloc(kLargePage, (bytes + kLargePage - 1) / kLargePage * kLargePage) : std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  // Only advice: failure is harmless.
  if (large) madvise(block, bytes, MADV_HUGEPAGE);
#endif
  return block;
}

// The graph owns a pointer to itself, which is updated when it moves and expires with the graph.
WeakGraph::WeakGraph(const Graph& graph) : place_(graph.place_) {}

const Graph& WeakGraph::get(const char* owner) const {
  if (const auto place = place_.lock()) return **place;
  throw Error(std::string("the graph of this ") + owner + " was destroyed; keep it alive while the " + owner +
              " is in use");
}

namespace {

std::string word_of(const std::string& text) { return text; }
std::string word_of(NamedEnum auto value) { return std::string(to_string(value)); }
std::string word_of(c10::ScalarType dtype) { return std::string(dtype_word(dtype)); }
std::string word_of(int64_t number) { return std::to_string(number); }
std::string word_of(c10::Device device) { return device_text(device); }

bool read(std::string_view text, std::optional<std::string>& field) {
  field = std::string(text);
  return true;
}
template <NamedEnum E>
bool read(std::string_view text, std::optional<E>& field) {
  return (field = find_named<E>(text)).has_value();
}
bool read(std::string_view text, std::optional<c10::ScalarType>& field) {
  return (field = parse_dtype(text)).has_value();
}
bool read(std::string_view text, std::optional<int64_t>& field) {
  return (field = parse_number<int64_t>(text)).has_value();
}
bool read(std::string_view text, std::optional<c10::Device>& field) { return (field = parse_device(text)).has_value(); }

// Calls visit(name, field, description of accepted text), in order of names.
template <class Of, class Visit>
void each_field(Of& metadata, Visit&& visit) {
  visit("batch", metadata.batch, "a number");
  visit("device", metadata.device, "a device such as cuda:0");
  visit("dtype", metadata.dtype, "a dtype such as f32");
  visit("mode", metadata.mode, "infer or train");
  visit("model", metadata.model, "a name");
  visit("optimizer", metadata.optimizer, "a name");
  visit("seq", metadata.seq, "a number");
  visit("step", metadata.step, "first or steady");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Metadata::lines() const {
  std::map<std::string, std::string> sorted = other;
  each_field(*this, [&](const char* name, const auto& field, const char*) {
    if (field) sorted[name] = word_of(*field);
  });
  return {sorted.begin(), sorted.end()};
}

// Unknown keys are kept unchanged, so that a program's own metadata survives a round trip.
void Metadata::set(const std::string& key, std::string text) {
  bool is_field = false;
  each_field(*this, [&](const char* name, auto& field, const char* expected) {
    if (key != name) return;
    is_field = true;
    std::remove_reference_t<decltype(field)> value;
    // Accepts only text that prints back unchanged, so that nothing is lost.
    if (!read(text, value) || word_of(*value) != text) {
      throw Error("metadata \"" + key + "\": \"" + text + "\" is not " + expected);
    }
    field = std::move(value);
  });
  if (!is_field) other[key] = std::move(text);
}

bool Metadata::has(const std::string& key) const {
  bool found = other.contains(key);
  each_field(*this, [&](const char* name, const auto& field, const char*) { found = found || (key == name && field); });
  return found;
}

}  // namespace shadowgraph
