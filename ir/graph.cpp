// Built on a small core: nodes, values and storages are records in arenas, and all lists (arguments, sizes, uses,
// frees) are runs in pools.
//
//     Node     target, region, phase, previous/next          program order: a doubly linked list, with labels
//     Value    dims (a run of ints_), storage, first_use     uses: a doubly linked list through uses_
//     Storage  born, freed_after, place_in_frees             values in it: a list through siblings_
#include "shadowgraph/graph.h"

#include <c10/core/Contiguity.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "ir/graph_editor.h"
#include "ir/operators/operator_facts.h"
#include "shadowgraph/edit/insertion_point.h"
#include "shadowgraph/graph/libtorch.h"

namespace shadowgraph {

std::string_view to_string(StorageKind kind) {
  static constexpr std::string_view kNames[] = {"parameter",  "buffer",   "input",           "constant",
                                                "activation", "gradient", "optimizer_state", "temporary"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view to_string(RegionKind kind) {
  static constexpr std::string_view kNames[] = {"root", "module", "composite", "checkpoint", "scope"};
  return kNames[static_cast<size_t>(kind)];
}

namespace {

// The first letter of a key keeps a user's function apart from an operator or built-in of the same schema text.
constexpr char kKindLetters[] = {'o', 'b', 'f'};

std::string target_key(TargetKind kind, const std::string& schema_text) {
  return kKindLetters[static_cast<size_t>(kind)] + schema_text;
}

struct BuiltinTarget {
  Target target;
  std::string key;
};

// Parsed once: every graph has them, also one that was moved from.
const std::vector<BuiltinTarget>& builtin_targets() {
  // The list is never freed: graphs in static storage may outlive it otherwise.
  static const auto* targets = [] {
    auto* made = new std::vector<BuiltinTarget>;
    for (uint32_t i = 0; i < kBuiltinCount; ++i) {
      Target target(TargetKind::kBuiltin, builtin_schema(static_cast<Builtin>(i)));
      std::string key = target_key(TargetKind::kBuiltin, target.schema_text());
      made->push_back({std::move(target), std::move(key)});
    }
    return made;
  }();
  return *targets;
}

}  // namespace

// The ids of phases, built-in targets and the root region are constants of the API, so every graph begins with them, in
// this order.
Graph::Graph() {
  for (const char* phase : {"forward", "backward", "optimizer", "init"}) phases_.emplace_back(phase);
  for (const BuiltinTarget& builtin : builtin_targets()) {
    target_ids_.emplace(builtin.key, TargetId(static_cast<uint32_t>(targets_.size())));
    targets_.push_back(builtin.target);
  }
  Region root;
  root.name = intern("");
  root.class_name = root.name;
  add_region(root);
}

Graph::~Graph() = default;

// A graph that was moved from is an empty one, not a broken one: it may be filled again.
Graph::Graph(Graph&& other) noexcept : Graph() { swap(other); }

Graph& Graph::operator=(Graph&& other) noexcept {
  Graph taken(std::move(other));
  swap(taken);
  return *this;
}

// Swaps member by member, since an InsertionPoint holds the graph's address. A member that is added to Graph must be
// added here and in ir/edit/clone.cpp, but for place_, which no two graphs have in common.
void Graph::swap(Graph& other) noexcept {
  TORCH_INTERNAL_ASSERT(insertion_points_.empty() && other.insertion_points_.empty(),
                        "a graph was moved while an InsertionPoint stood in it");
  const auto both = [&](auto member) { std::swap(this->*member, other.*member); };
  both(&Graph::metadata);
  both(&Graph::guards);
  both(&Graph::nodes_);
  both(&Graph::values_);
  both(&Graph::storages_);
  both(&Graph::regions_);
  both(&Graph::arguments_);
  both(&Graph::ints_);
  both(&Graph::floats_);
  both(&Graph::uses_);
  both(&Graph::saved_);
  both(&Graph::frees_);
  both(&Graph::order_);
  both(&Graph::siblings_);
  both(&Graph::first_in_storage_);
  both(&Graph::notes_);
  both(&Graph::first_note_);
  both(&Graph::saved_elsewhere_);
  both(&Graph::frees_room_);
  both(&Graph::recent_dims_);
  both(&Graph::first_);
  both(&Graph::last_);
  both(&Graph::live_nodes_);
  both(&Graph::strings_);
  both(&Graph::string_ids_);
  both(&Graph::phases_);
  both(&Graph::targets_);
  both(&Graph::target_ids_);
  both(&Graph::constants_);
  both(&Graph::place_);
  *place_ = this;
  *other.place_ = &other;
}

// Text is interned so that a name costs 4 bytes a node however often it occurs. Texts are never dropped: an erased
// node's source may still be asked for in a message.
StringId Graph::intern(std::string_view text) {
  auto [entry, added] = string_ids_.try_emplace(std::string(text), StringId(static_cast<uint32_t>(strings_.size())));
  if (added) strings_.emplace_back(text);
  return entry->second;
}

// There are a handful of phases, so that a search beats a map.
PhaseId Graph::intern_phase(std::string_view name) {
  for (uint32_t i = 0; i < phases_.size(); ++i) {
    if (phases_[i] == name) return PhaseId(i);
  }
  phases_.emplace_back(name);
  return PhaseId(static_cast<uint32_t>(phases_.size() - 1));
}

// The key is the schema's text, not the name: overloads differ in it, and so does an operator whose schema changed
// between versions of libtorch.
TargetId Graph::intern_target(Target target) {
  const TargetId next(static_cast<uint32_t>(targets_.size()));
  auto [entry, added] = target_ids_.try_emplace(target_key(target.kind(), target.schema_text()), next);
  if (added) targets_.push_back(std::move(target));
  return entry->second;
}

ConstantId Graph::share_constant(const Graph& other, ConstantId id) { return add_constant(other.constant(id)); }

const at::Tensor& Graph::constant(ConstantId id) const { return constants_[id.index]; }

uint32_t Graph::constant_count() const { return static_cast<uint32_t>(constants_.size()); }

int64_t Graph::numel(ValueId id) const {
  int64_t count = 1;
  for (int64_t size : sizes(id)) count *= size;
  return count;
}

// Asks c10's own rule, so that sizes of 0 and 1 are judged as libtorch judges them.
bool Graph::is_contiguous(ValueId id) const {
  const std::span<const int64_t> dims = sizes(id);
  const std::span<const int64_t> steps = strides(id);
  return c10::_compute_contiguous(c10::IntArrayRef(dims.data(), dims.size()),
                                  c10::IntArrayRef(steps.data(), steps.size()), numel(id));
}

int64_t Graph::logical_bytes(ValueId id) const {
  const Value& v = value(id);
  return v.kind == ValueKind::kTensor ? numel(id) * static_cast<int64_t>(c10::elementSize(v.dtype)) : 0;
}

// Searches by name. Schemas have few arguments; a caller that asks for many nodes keeps the position instead.
const Argument* Graph::find_argument(NodeId id, std::string_view name) const {
  const auto& formal = target(id).signature().arguments;
  const auto actual = arguments(id);
  for (size_t i = 0; i < formal.size() && i < actual.size(); ++i) {
    if (formal[i].name == name) return &actual[i];
  }
  return nullptr;
}

Argument Graph::complex_argument(double real, double imaginary) {
  const double parts[] = {real, imaginary};
  return Argument::of_run(ArgumentKind::kComplex, floats_.push_run(std::span<const double>(parts)));
}

// ---- Notes ----------------------------------------------------------------------------------------------------------

// A node's notes are a list sorted by key, so that two graphs with the same notes print alike. Most graphs have none,
// hence a side table that grows when the first one comes.
void Graph::set_note(NodeId id, std::string_view key, std::string_view value) {
  if (first_note(id) == kNoNote && value.empty()) return;
  if (id.index >= first_note_.size()) first_note_.resize(nodes_.size(), kNoNote);
  uint32_t* link = &first_note_[id.index];
  // `link` points at the index to change, in the table or in the note before, so that the first note needs no special
  // case.
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

// Counts what the arenas hold; texts and maps are left out, since they do not grow with the nodes.
size_t Graph::allocated_bytes() const {
  return nodes_.allocated_bytes() + values_.allocated_bytes() + storages_.allocated_bytes() +
         regions_.allocated_bytes() + arguments_.allocated_bytes() + ints_.allocated_bytes() +
         floats_.allocated_bytes() + uses_.allocated_bytes() + saved_.allocated_bytes() + frees_.allocated_bytes() +
         order_.allocated_bytes() + siblings_.allocated_bytes() + notes_.allocated_bytes() +
         first_in_storage_.capacity() * sizeof(ValueId) + first_note_.capacity() * sizeof(uint32_t);
}

namespace {

// The verifier asks these before it reads anything: a graph built from noise may hold any number as an index.
template <class T>
bool holds(const Arena<T>& arena, Run run) {
  return run.size == 0 || uint64_t{run.offset} + run.size <= arena.size();
}

}  // namespace

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

}  // namespace shadowgraph
