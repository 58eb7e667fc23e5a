// What a graph says of itself at its head: which model it is, how it was run, and what its maker wanted noted.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/ids.h"
#include "shadowgraph/graph/target.h"
#include "shadowgraph/graph/types.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class ProgramMode : uint8_t { kInfer, kTrain };
// Which training step was recorded: the first one makes the optimizer's state, the steady one finds it.
enum class TrainingStep : uint8_t { kFirst, kSteady };

constexpr auto enum_names(ProgramMode) { return names_in_order<ProgramMode>("infer", "train"); }
constexpr auto enum_names(TrainingStep) { return names_in_order<TrainingStep>("first", "steady"); }

// Printed as `meta "key" = "text"`, a line each in the order of keys; the fields under their own names.
struct Metadata {
  std::optional<std::string> model;
  std::optional<ProgramMode> mode;
  std::optional<TrainingStep> step;
  std::optional<c10::Device> device;     // where the program was meant to run
  std::optional<c10::ScalarType> dtype;  // of parameters
  std::optional<std::string> optimizer;  // "adamw"
  std::optional<int64_t> batch;
  std::optional<int64_t> seq;
  std::map<std::string, std::string> other;  // anything else; a field's name as a key here is no line of its own

  // All of it, sorted by key.
  std::vector<std::pair<std::string, std::string>> lines() const;
  // The text of one line. Throws Error if the key is a field's and the text says no such thing: a device "gpu".
  void set(const std::string& key, std::string text);
  // Whether there is a line with this key.
  bool has(const std::string& key) const;

  friend bool operator==(const Metadata&, const Metadata&) = default;
};

// The nodes of a graph in program order: `for (NodeId n : graph.nodes())`, or against it: graph.nodes_reversed(). The
// current node may be erased, or moved, while walking; a node inserted right behind it is not visited.
//
// A list is followed link by link, and a processor cannot fetch a node before it has read the one before. Most nodes
// lie in the arena in program order, so the walk asks for the memory a few nodes ahead. One of a million nodes then
// costs 7 ns, not 41 (docs/figures.md#graphs-edits-and-passes).

template <bool kForward>
class NodeWalk {
 public:
  class Iterator {
   public:
    using value_type = NodeId;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::forward_iterator_tag;
    using pointer = const NodeId*;
    using reference = NodeId;
    Iterator() = default;
    Iterator(const Arena<Node>* nodes, NodeId at) : nodes_(nodes), at_(at), next_(after(at)) {}
    NodeId operator*() const { return at_; }
    Iterator& operator++() {
      at_ = next_;
      next_ = after(at_);
      return *this;
    }
    Iterator operator++(int) {
      Iterator old = *this;
      ++*this;
      return old;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.at_ == b.at_; }

   private:
    static constexpr uint32_t kAhead = 16;
    NodeId after(NodeId id) const {
      if (!id.valid()) return {};
      // Below 0 it wraps around to what is beyond the end.
      const uint32_t soon = kForward ? id.index + kAhead : id.index - kAhead;
      if (soon < nodes_->size()) __builtin_prefetch(&(*nodes_)[soon]);
      const Node& node = (*nodes_)[id.index];
      return kForward ? node.next : node.previous;
    }
    const Arena<Node>* nodes_ = nullptr;
    NodeId at_;
    NodeId next_;
  };
  NodeWalk(const Arena<Node>& nodes, NodeId start) : nodes_(&nodes), start_(start) {}
  Iterator begin() const { return {nodes_, start_}; }
  Iterator end() const { return {nodes_, NodeId()}; }

 private:
  const Arena<Node>* nodes_;
  NodeId start_;
};

using NodeRange = NodeWalk<true>;
using ReverseNodeRange = NodeWalk<false>;

}  // namespace shadowgraph

// The graph: one SSA record of a program run, on which every analysis, pass, picture and export works.
//
// A Graph owns its nodes, values, storages and regions in arenas; everything is named by typed ids
// (shadowgraph/graph/ids.h). Program order is a doubly linked list of nodes with ordered labels, so inserting, erasing
// and "which comes first" are O(1). Ids are stable under edits and are renumbered only when printed. Uses of a value
// are kept in order of creation.
//
//     Graph graph;
//     NodeId x = graph.append(target_of(Builtin::kInput), {graph.string_argument("x")});
//     ValueId v = graph.add_tensor_result(x, {.dtype = at::kFloat, .sizes = {2, 3}, .strides = {3, 1}, .storage = s});
//
// Creation functions check nothing beyond bounds; shadowgraph/graph/verify.h states and checks every invariant. Edits
// keep them: a graph that verifies does so after each, or the edit throws GraphError and has changed nothing. What an
// edit cannot know is whether the program still computes the same: see shadowgraph/graph/analysis.h. New nodes go in
// through an InsertionPoint (shadowgraph/graph/edit.h).
//
// core/ records graphs, passes/ edits them, and every other room reads them. A look-up by id is constant, a walk costs
// its nodes, and an edit costs what it changes. Nodes, values and storages are some 250 bytes a node together.

namespace at {
class Tensor;
}

namespace SHADOWGRAPH_API shadowgraph {

class InsertionPoint;
class WeakGraph;

// What the path that the program took depended on: a size, rank or host value that the program asked for.
struct Guard {
  enum class Kind : uint8_t { kRank, kSize, kSizes, kHostValue };
  Kind kind = Kind::kRank;
  ValueId value;
  int64_t dimension = -1;  // kSize
  std::string observed;    // "3", "[2, 3]"
  friend bool operator==(const Guard&, const Guard&) = default;
};
constexpr auto enum_names(Guard::Kind) { return names_in_order<Guard::Kind>("rank", "size", "sizes", "host_value"); }

// The records of a graph. A copy of the arenas keeps every id.
struct GraphTables {
  static constexpr uint32_t kNoNote = 0xFFFFFFFFU;
  struct Note {
    StringId key, value;
    uint32_t next = kNoNote;
  };
  struct Siblings {
    ValueId previous, next;
  };

  Arena<Node> nodes_;
  Arena<Value> values_;
  Arena<Storage> storages_;
  Arena<Region> regions_;
  Arena<Argument> arguments_;
  Arena<int64_t> ints_;
  Arena<double> floats_;
  Arena<Use> uses_;
  Arena<SavedTensor> saved_;
  Arena<StorageId> frees_;
  Arena<uint64_t> order_;     // by node: grows along the list, with gaps
  Arena<Siblings> siblings_;  // by value: others in the same storage
  std::vector<ValueId> first_in_storage_;
  Arena<Note> notes_;
  std::vector<uint32_t> first_note_;  // by node, as far as there are notes
  // Values saved by nodes that neither read nor make them, with those nodes.
  std::unordered_map<ValueId, std::vector<NodeId>> saved_elsewhere_;
  std::unordered_map<NodeId, uint32_t> frees_room_;  // of lists that grew by edits: how long they may get in place
  // Sizes and strides lately given to a value: most values look like one before, and share its place in ints_.
  struct RecentDims {
    uint32_t offset = 0;
    uint32_t rank = 0;  // 0: nothing here
  };
  std::array<RecentDims, 64> recent_dims_;
  NodeId first_;
  NodeId last_;
  uint32_t live_nodes_ = 0;

  std::vector<std::string> strings_;
  std::unordered_map<std::string, StringId> string_ids_;
  std::vector<std::string> phases_;
  std::vector<Target> targets_;
  std::unordered_map<std::string, TargetId> target_ids_;  // by kind and schema text
  std::vector<at::Tensor> constants_;
};

class Graph : GraphTables {
 public:
  Graph();
  ~Graph();
  // What was moved from is an empty graph, good for use. Not while an InsertionPoint stands in it.
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;  // shadowgraph/graph/edit.h
  Graph& operator=(const Graph&) = delete;

  Metadata metadata;
  std::vector<Guard> guards;

  // ---- Strings, phases, targets, tensor constants (interned, never removed)
  StringId intern(std::string_view text);
  const std::string& text(StringId id) const { return strings_[id.index]; }
  // "" for an id that was never set.
  std::string_view text_or_empty(StringId id) const {
    return id.index < strings_.size() ? std::string_view(strings_[id.index]) : std::string_view();
  }
  uint32_t string_count() const { return static_cast<uint32_t>(strings_.size()); }
  // Phases 0..3 are forward, backward, optimizer, init; user phases follow.
  static constexpr PhaseId kForward{0};
  static constexpr PhaseId kBackward{1};
  static constexpr PhaseId kOptimizer{2};
  static constexpr PhaseId kInit{3};
  PhaseId intern_phase(std::string_view name);
  const std::string& phase_name(PhaseId id) const { return phases_[id.index]; }
  uint32_t phase_count() const { return static_cast<uint32_t>(phases_.size()); }

  TargetId intern_target(Target target);
  // An operator of this process by its full name, "aten::add.Tensor". Throws Error if there is none of that name.
  TargetId intern_operator(std::string_view name);
  const Target& target(TargetId id) const { return targets_[id.index]; }
  const Target& target(NodeId id) const { return targets_[node(id).target.index]; }
  // What a target does to its arguments, cached with it.
  const OperatorFacts& facts(TargetId id) const { return target(id).facts(); }
  const OperatorFacts& facts(NodeId id) const { return target(id).facts(); }
  uint32_t target_count() const { return static_cast<uint32_t>(targets_.size()); }

  ConstantId add_constant(at::Tensor tensor);
  // The same tensor as one of another graph.
  ConstantId share_constant(const Graph& other, ConstantId id);
  const at::Tensor& constant(ConstantId id) const;
  // What is known of it without libtorch: no storage of this graph; empty for an undefined tensor. Sizes and strides
  // lie in the tensor.
  std::optional<TensorMeta> constant_meta(ConstantId id) const;
  uint32_t constant_count() const;

  // ---- Reading
  const Node& node(NodeId id) const { return nodes_[id.index]; }
  const Value& value(ValueId id) const { return values_[id.index]; }
  const Storage& storage(StorageId id) const { return storages_[id.index]; }
  const Region& region(RegionId id) const { return regions_[id.index]; }
  // Upper bounds of the ids in use; erased nodes leave holes.
  uint32_t node_capacity() const { return nodes_.size(); }
  uint32_t value_capacity() const { return values_.size(); }
  uint32_t storage_count() const { return storages_.size(); }
  uint32_t region_count() const { return regions_.size(); }
  uint32_t node_count() const { return live_nodes_; }
  bool is_erased(NodeId id) const { return !node(id).target.valid(); }
  // sg::parameter, sg::buffer, sg::input, sg::constant
  bool is_placeholder(NodeId id) const { return shadowgraph::is_placeholder(node(id).target); }
  // Whether `a` comes before `b` in program order; neither erased. O(1).
  bool is_before(NodeId a, NodeId b) const { return order_[a.index] < order_[b.index]; }

  NodeId first() const { return first_; }
  NodeId last() const { return last_; }
  // Program order: `for (NodeId n : graph.nodes())`, and the same from the end. The current node may be erased.
  NodeRange nodes() const { return {nodes_, first_}; }
  ReverseNodeRange nodes_reversed() const { return {nodes_, last_}; }

  std::span<const Argument> arguments(NodeId id) const { return arguments_.view(node(id).arguments); }
  std::span<const Argument> results(NodeId id) const { return arguments_.view(node(id).results); }
  std::span<const SavedTensor> saved(NodeId id) const { return saved_.view(node(id).saved); }
  std::span<const StorageId> frees(NodeId id) const { return frees_.view(node(id).frees); }
  std::span<const Argument> list(const Argument& list) const { return arguments_.view(list.run); }
  std::span<const int64_t> ints(const Argument& list) const { return ints_.view(list.run); }
  std::span<const double> complex_parts(const Argument& complex) const { return floats_.view(complex.run); }
  std::span<const Argument> region_arguments(RegionId id) const { return arguments_.view(region(id).arguments); }
  std::span<const int64_t> sizes(ValueId id) const;
  std::span<const int64_t> strides(ValueId id) const;
  int64_t numel(ValueId id) const;
  // As at::Tensor::is_contiguous(): strides of dimensions of one element do not matter, nor do those of an empty
  // tensor.
  bool is_contiguous(ValueId id) const;
  // All of that, to make a value like it; of a scalar without meaning.
  TensorMeta meta(ValueId id) const;
  // numel * element size: the bytes the tensor covers, not those of its storage.
  int64_t logical_bytes(ValueId id) const;

  // Calls f(ValueId) for every value among `arguments`, lists included, in order, repeats included.
  template <class F>
  void for_each_value(std::span<const Argument> arguments, F&& f) const {
    for (const Argument& argument : arguments) {
      if (argument.kind == ArgumentKind::kValue) {
        f(argument.ref.value);
      } else if (argument.kind == ArgumentKind::kList) {
        for_each_value(list(argument), f);
      }
    }
  }
  template <class F>
  void for_each_input(NodeId id, F&& f) const {
    for_each_value(arguments(id), f);
  }
  template <class F>
  void for_each_output(NodeId id, F&& f) const {
    for_each_value(results(id), f);
  }
  // Calls f(NodeId user) for every use of `value`, in order of creation; a node that reads it twice comes twice.
  template <class F>
  void for_each_use(ValueId id, F&& f) const {
    for (uint32_t u = value(id).first_use; u != Argument::kNoUse; u = uses_[u].next) f(uses_[u].user);
  }
  bool has_uses(ValueId id) const { return value(id).first_use != Argument::kNoUse; }
  // The nodes that read `value`, each once, in program order.
  std::vector<NodeId> users_of(ValueId id) const;
  // Whether a node that neither reads nor makes `value` says that autograd keeps it.
  bool is_saved_elsewhere(ValueId id) const { return saved_elsewhere_.contains(id); }
  // Calls f(ValueId) for the values that share this storage, latest made first, those of erased nodes included.
  template <class F>
  void for_each_value_in(StorageId id, F&& f) const {
    if (id.index >= first_in_storage_.size()) return;
    for (ValueId v = first_in_storage_[id.index]; v.valid(); v = siblings_[v.index].next) f(v);
  }
  const Use& use(uint32_t index) const { return uses_[index]; }
  uint32_t use_capacity() const { return uses_.size(); }
  // Whether the runs of a record lie inside this graph's pools, so that the accessors above may be called: true for
  // whatever this class built. The verifier asks before it looks.
  bool in_bounds(const Node& node) const;
  bool in_bounds(const Region& region) const;
  bool in_bounds(const Value& value) const { return uint64_t{value.dims} + 2 * value.rank <= ints_.size(); }
  bool in_bounds(const Argument& argument) const;

  // The argument named `name` by the schema, or nullptr if the schema has none of that name.
  const Argument* find_argument(NodeId id, std::string_view name) const;

  // ---- Notes: what passes and users have to say of a node, by key; part of its content like everything printed
  // An empty value removes the note.
  void set_note(NodeId id, std::string_view key, std::string_view value);
  // "" if there is none of this key.
  std::string_view note(NodeId id, std::string_view key) const;
  bool has_notes(NodeId id) const { return first_note(id) != kNoNote; }
  // Calls f(key, value) in order of keys.
  template <class F>
  void for_each_note(NodeId id, F&& f) const {
    for (uint32_t i = first_note(id); i != kNoNote; i = notes_[i].next) f(text(notes_[i].key), text(notes_[i].value));
  }

  // ---- Building arguments
  Argument string_argument(std::string_view text) { return Argument::of_string(intern(text)); }
  Argument int_list(std::span<const int64_t> ints) {
    return Argument::of_run(ArgumentKind::kIntList, ints_.push_run(ints));
  }
  Argument complex_argument(double real, double imaginary);
  Argument make_list(std::span<const Argument> elements) {
    return Argument::of_run(ArgumentKind::kList, arguments_.push_run(elements));
  }

  // ---- Building nodes. `arguments` are copied, and so are lists that belong to another node; uses are entered.
  NodeId append(TargetId target, std::span<const Argument> arguments) {
    return insert_before(NodeId(), target, arguments);
  }
  NodeId append(TargetId target, std::initializer_list<Argument> arguments) {
    return append(target, std::span<const Argument>(arguments.begin(), arguments.size()));
  }
  // Inserts before `position`, or at the end if that is invalid; nothing is checked and no lifetime extended. A pass
  // wants an InsertionPoint.
  NodeId insert_before(NodeId position, TargetId target, std::span<const Argument> arguments);
  // A new value produced by `node`; it must then be placed by set_results (or add_tensor_result does both).
  ValueId new_tensor(NodeId producer, const TensorMeta& spec);
  ValueId new_scalar(NodeId producer, ValueKind kind);
  // Either, by kind.
  ValueId new_value(NodeId producer, ValueKind kind, const TensorMeta& spec) {
    return kind == ValueKind::kTensor ? new_tensor(producer, spec) : new_scalar(producer, kind);
  }
  void set_results(NodeId id, std::span<const Argument> results);
  ValueId add_tensor_result(NodeId id, const TensorMeta& spec);
  void set_saved(NodeId id, std::span<const SavedTensor> saved);
  void set_frees(NodeId id, std::span<const StorageId> frees);

  StorageId add_storage(const Storage& storage) { return StorageId(storages_.push(storage)); }
  RegionId add_region(const Region& region) { return RegionId(regions_.push(region)); }
  static constexpr RegionId kRootRegion{0};
  void set_region_arguments(RegionId id, std::span<const Argument> arguments) {
    regions_[id.index].arguments = arguments_.push_run(arguments);
  }

  // ---- Edits (graph_edits.cpp). They throw GraphError, and then nothing was changed.
  // Erases a node whose results nobody uses or, elsewhere, saves. Storages that died after it then die after the node
  // before it. To erase many, give them all: one by one from the end hands the same deaths on again and again. They may
  // use one another; those erased already are passed over.
  bool can_erase(NodeId id) const;
  void erase(NodeId id);
  void erase(std::span<const NodeId> ids);

  // Moves nodes to where their operands are made already and their results not yet used. Deaths stay where they are in
  // the program, or wait for the moved nodes. Costs the moved nodes' operands; when moving towards the end, those of
  // the nodes passed. `position` invalid: to the end.
  void move_before(NodeId id, NodeId position) { move_range_before(id, id, position); }
  void move_after(NodeId id, NodeId position) { move_range_before(id, id, node(position).next); }
  // The nodes from `first` to `last`, which keep their order.
  void move_range_before(NodeId first, NodeId last, NodeId position);
  // All nodes, in a new order. Linear.
  void reorder(std::span<const NodeId> order);

  // `with` takes the place of `of` in the arguments of all users; the number of arguments changed. What aliases the one
  // then aliases the other: results of views and in-place operators move to the storage of `with`, and theirs in turn.
  // That storage lives on until its last use, and tensors saved as those arguments are saved as the new ones. Whether
  // `with` has the geometry that its users were recorded with is the caller's business. Linear in what changes.
  uint32_t replace_all_uses_with(ValueId of, ValueId with);
  // Only where filter(user, argument) says so.
  using UseFilter = std::function<bool(NodeId user, const Argument& argument)>;
  uint32_t replace_uses_if(ValueId of, ValueId with, const UseFilter& filter);
  // As many as the schema has. As for replaced uses; what was saved as an argument that is now no tensor is not saved.
  void set_arguments(NodeId id, std::span<const Argument> arguments);
  void set_argument(NodeId id, size_t position, const Argument& argument);
  // Another call in a node's place, with the same results: their number must fit the target's schema.
  void set_call(NodeId id, TargetId target, std::span<const Argument> arguments);
  // What is said of a node beside its call. Ids must be of this graph.
  void set_region(NodeId id, RegionId region);
  void set_phase(NodeId id, PhaseId phase);
  void set_source(NodeId id, std::string_view source);
  void set_requires_grad(ValueId id, bool requires_grad);
  void set_storage_kind(StorageId id, StorageKind kind);
  // Where a value lives, which nothing else may change; lifetimes are left alone.
  void set_storage(ValueId id, StorageId storage, int64_t offset);
  // Replaces all that `spec` says of a tensor value: for passes that find other shapes for the same program.
  void set_geometry(ValueId id, const TensorMeta& spec);
  // From here on no other value shares the memory of this one's sizes and strides (see intern_dims).
  void own_dims(ValueId id);
  // A storage that died before `user` then dies after it (never, if that is sg::output or sg::gradient).
  void extend_life(StorageId id, NodeId user);

  // Heap bytes held, tensor constants not counted.
  size_t allocated_bytes() const;

 private:
  class Editor;  // ir/graph_editor.h: how edits are carried out
  friend Graph clone(const Graph& graph);
  friend class GraphRecords;
  friend class InsertionPoint;
  friend class WeakGraph;

  void swap(Graph& other) noexcept;
  uint32_t first_note(NodeId id) const { return id.index < first_note_.size() ? first_note_[id.index] : kNoNote; }

  std::vector<InsertionPoint*> insertion_points_;  // that stand in this graph
  // Where this graph is, for those that name it without keeping it (shadowgraph/graph/graph.h). It goes along when
  // the graph is moved, and dies with it.
  std::shared_ptr<const Graph*> place_ = std::make_shared<const Graph*>(this);
};

// The nodes that call `name`, in program order: all its overloads, "aten::add", or one, "aten::add.Tensor". One walk.
std::vector<NodeId> nodes_calling(const Graph& graph, std::string_view name);

inline std::span<const int64_t> Graph::sizes(ValueId id) const {
  const Value& v = value(id);
  return ints_.view({v.dims, v.rank});
}
inline std::span<const int64_t> Graph::strides(ValueId id) const {
  const Value& v = value(id);
  return ints_.view({v.dims + v.rank, v.rank});
}

// Names a graph without keeping it: what is worked out of a graph holds this, and finds out when the graph is gone.
//
//     const WeakGraph weak(graph);
//     weak.get("profile");      // the graph, also after it was moved; throws Error once it is destroyed
//
// A graph may have a million nodes, so nothing that reads it copies it, and most graphs are plain values that nobody
// shares. So each graph owns a token that says where it is. Asking costs a look at that token.

class Graph;

class WeakGraph {
 public:
  WeakGraph() = default;
  explicit WeakGraph(const Graph& graph);

  // Throws Error: "the graph of this `owner` is gone; ...".
  const Graph& get(const char* owner) const;

 private:
  std::weak_ptr<const Graph*> place_;
};

}  // namespace shadowgraph
