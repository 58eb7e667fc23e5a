// The graph: an SSA record of a program run that analyses, passes and exporters work on.
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

namespace at {
class Tensor;
}

namespace SHADOWGRAPH_API shadowgraph {

class InsertionPoint;
class WeakGraph;

enum class ProgramMode : uint8_t { kInfer, kTrain };
// The recorded training step: the first one creates optimizer state, a steady one finds it initialized.
enum class TrainingStep : uint8_t { kFirst, kSteady };

constexpr auto enum_names(ProgramMode) { return names_in_order<ProgramMode>("infer", "train"); }
constexpr auto enum_names(TrainingStep) { return names_in_order<TrainingStep>("first", "steady"); }

// Metadata of a graph. Printed as lines `meta "key" = "text"`, sorted by key; fields are printed under their names.
struct Metadata {
  std::optional<std::string> model;
  std::optional<ProgramMode> mode;
  std::optional<TrainingStep> step;
  std::optional<c10::Device> device;     // intended device of the program
  std::optional<c10::ScalarType> dtype;  // of the parameters
  std::optional<std::string> optimizer;  // "adamw"
  std::optional<int64_t> batch;
  std::optional<int64_t> seq;
  std::map<std::string, std::string> other;  // any other keys; those equal to a field's name are not printed

  std::vector<std::pair<std::string, std::string>> lines() const;
  // Sets a line. Throws Error if `key` is a field and `text` is not a valid value of it, such as device "gpu".
  void set(const std::string& key, std::string text);
  bool has(const std::string& key) const;

  friend bool operator==(const Metadata&, const Metadata&) = default;
};

// Iteration in program order, `for (NodeId n : graph.nodes())`, or in reverse, graph.nodes_reversed(). The current node
// may be erased or moved during the loop; a node inserted directly after it is not visited.
//
// In a linked list, the processor cannot prefetch the next node. Most nodes are stored in program order, so the
// iterator prefetches a few indices ahead: 7 ns instead of 41 per node in a graph of a million nodes.
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
      // Wraps around below 0 to an index out of range.
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

// A size, rank or host value that the program read and that its control flow may depend on.
struct Guard {
  enum class Kind : uint8_t { kRank, kSize, kSizes, kHostValue };
  Kind kind = Kind::kRank;
  ValueId value;
  int64_t dimension = -1;  // kSize
  std::string observed;    // "3", "[2, 3]"
  friend bool operator==(const Guard&, const Guard&) = default;
};
constexpr auto enum_names(Guard::Kind) { return names_in_order<Guard::Kind>("rank", "size", "sizes", "host_value"); }

// The tables of a graph. Copying the arenas preserves all ids.
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
  Arena<uint64_t> order_;     // by node: increasing labels along the list, with gaps
  Arena<Siblings> siblings_;  // by value: list of values in the same storage
  std::vector<ValueId> first_in_storage_;
  Arena<Note> notes_;
  std::vector<uint32_t> first_note_;  // by node, up to the last one with notes
  // Values saved by nodes that neither read nor produce them, with those nodes.
  std::unordered_map<ValueId, std::vector<NodeId>> saved_elsewhere_;
  std::unordered_map<NodeId, uint32_t> frees_room_;  // capacity of lists in frees_ that edits have grown
  // Recently used sizes and strides: most values have the dims of an earlier one and share its run in ints_.
  struct RecentDims {
    uint32_t offset = 0;
    uint32_t rank = 0;  // 0: unused entry
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

// A Graph owns its nodes, values, storages and regions in arenas; all are identified by typed ids
// (shadowgraph/graph/ids.h). Program order is a doubly linked list of nodes with ordered labels, so inserting, erasing
// and comparing positions are O(1). Ids are stable under edits; canonical numbers are assigned when printing.
//
//     Graph graph;
//     NodeId x = graph.append(target_of(Builtin::kInput), {graph.string_argument("x")});
//     ValueId v = graph.add_tensor_result(x, {.dtype = at::kFloat, .sizes = {2, 3}, .strides = {3, 1}, .storage = s});
//
// Functions that build a graph check bounds only; shadowgraph/graph/verify.h defines and checks all invariants. Edits
// preserve the invariants, or throw GraphError and leave the graph unchanged. They do not check that the program still
// computes the same result: see shadowgraph/graph/analysis.h. Insert nodes with an InsertionPoint.
//
// Access is O(1), and an edit costs as much as it changes. Memory is some 250 bytes a node.
class Graph : GraphTables {
 public:
  Graph();
  ~Graph();
  // The moved-from graph is empty and usable. There must be no InsertionPoint in it.
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;
  Graph(const Graph&) = delete;  // use clone() of shadowgraph/graph/edit.h
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
  // Returns an operator of this process by its full name, "aten::add.Tensor". Throws Error if there is none.
  TargetId intern_operator(std::string_view name);
  const Target& target(TargetId id) const { return targets_[id.index]; }
  const Target& target(NodeId id) const { return targets_[node(id).target.index]; }
  // Effects of a target on its arguments; cached in the target.
  const OperatorFacts& facts(TargetId id) const { return target(id).facts(); }
  const OperatorFacts& facts(NodeId id) const { return target(id).facts(); }
  uint32_t target_count() const { return static_cast<uint32_t>(targets_.size()); }

  ConstantId add_constant(at::Tensor tensor);
  // Shares the tensor of a constant of another graph.
  ConstantId share_constant(const Graph& other, ConstantId id);
  const at::Tensor& constant(ConstantId id) const;
  // Without libtorch: `storage` is invalid; std::nullopt for an undefined tensor. The spans refer to the tensor.
  std::optional<TensorMeta> constant_meta(ConstantId id) const;
  uint32_t constant_count() const;

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
  // Returns whether `a` precedes `b` in program order; neither may be erased. O(1).
  bool is_before(NodeId a, NodeId b) const { return order_[a.index] < order_[b.index]; }

  NodeId first() const { return first_; }
  NodeId last() const { return last_; }
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
  // Same as at::Tensor::is_contiguous(): ignores strides of dimensions of size 1, and those of empty tensors.
  bool is_contiguous(ValueId id) const;
  // Returns the attributes from which an equal value can be created; meaningless for scalars.
  TensorMeta meta(ValueId id) const;
  // numel * element size: the bytes of the tensor, not of its storage.
  int64_t logical_bytes(ValueId id) const;

  // Calls f(ValueId) for every value in `arguments`, including lists and repeated values, in order.
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
  // Calls f(NodeId user) for every use of `value` in order of creation; a node that reads it twice is visited twice.
  template <class F>
  void for_each_use(ValueId id, F&& f) const {
    for (uint32_t u = value(id).first_use; u != Argument::kNoUse; u = uses_[u].next) f(uses_[u].user);
  }
  bool has_uses(ValueId id) const { return value(id).first_use != Argument::kNoUse; }
  // Returns the nodes that read `value`, without duplicates, in program order.
  std::vector<NodeId> users_of(ValueId id) const;
  // Returns whether a node that neither reads nor produces the value has it in its saved tensors.
  bool is_saved_elsewhere(ValueId id) const { return saved_elsewhere_.contains(id); }
  // Calls f(ValueId) for the values of the storage, latest first, including those of erased nodes.
  template <class F>
  void for_each_value_in(StorageId id, F&& f) const {
    if (id.index >= first_in_storage_.size()) return;
    for (ValueId v = first_in_storage_[id.index]; v.valid(); v = siblings_[v.index].next) f(v);
  }
  const Use& use(uint32_t index) const { return uses_[index]; }
  uint32_t use_capacity() const { return uses_.size(); }
  // For the verifier: return whether the runs of a record are within this graph's pools.
  bool in_bounds(const Node& node) const;
  bool in_bounds(const Region& region) const;
  bool in_bounds(const Value& value) const { return uint64_t{value.dims} + 2 * value.rank <= ints_.size(); }
  bool in_bounds(const Argument& argument) const;

  // Returns the argument called `name` in the schema, or nullptr if there is none.
  const Argument* find_argument(NodeId id, std::string_view name) const;

  // ---- Notes: key/value annotations of nodes by passes and users, printed and compared. "" removes a note.
  void set_note(NodeId id, std::string_view key, std::string_view value);
  // Returns "" if there is no such note.
  std::string_view note(NodeId id, std::string_view key) const;
  bool has_notes(NodeId id) const { return first_note(id) != kNoNote; }
  // Calls f(key, value), sorted by key.
  template <class F>
  void for_each_note(NodeId id, F&& f) const {
    for (uint32_t i = first_note(id); i != kNoNote; i = notes_[i].next) f(text(notes_[i].key), text(notes_[i].value));
  }

  Argument string_argument(std::string_view text) { return Argument::of_string(intern(text)); }
  Argument int_list(std::span<const int64_t> ints) {
    return Argument::of_run(ArgumentKind::kIntList, ints_.push_run(ints));
  }
  Argument complex_argument(double real, double imaginary);
  Argument make_list(std::span<const Argument> elements) {
    return Argument::of_run(ArgumentKind::kList, arguments_.push_run(elements));
  }

  // ---- Building nodes. `arguments` are copied, as are lists that belong to another node; uses are registered.
  NodeId append(TargetId target, std::span<const Argument> arguments) {
    return insert_before(NodeId(), target, arguments);
  }
  NodeId append(TargetId target, std::initializer_list<Argument> arguments) {
    return append(target, std::span<const Argument>(arguments.begin(), arguments.size()));
  }
  // Inserts before `position` (invalid: at the end), without checks or extending lifetimes; see InsertionPoint.
  NodeId insert_before(NodeId position, TargetId target, std::span<const Argument> arguments);
  // Creates a value produced by `node`. It must then be passed to set_results (add_tensor_result does both).
  ValueId new_tensor(NodeId producer, const TensorMeta& spec);
  ValueId new_scalar(NodeId producer, ValueKind kind);
  // Creates a tensor or a scalar, depending on `kind`.
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

  // ---- Edits (graph_edits.cpp). They throw GraphError and then leave the graph unchanged.
  // Erases nodes whose results have no other uses and are not saved by other nodes. Free points move to the preceding
  // node: once, if many are erased in one call. The nodes may use one another; erased ones are ignored.
  bool can_erase(NodeId id) const;
  void erase(NodeId id);
  void erase(std::span<const NodeId> ids);

  // Move nodes to a position after the producers of their operands and before the users of their results. Free points
  // keep their position, or are delayed to the moved nodes. Costs the operands of the moved nodes and, when moving
  // towards the end, those of the nodes passed. `position` invalid: to the end.
  void move_before(NodeId id, NodeId position) { move_range_before(id, id, position); }
  void move_after(NodeId id, NodeId position) { move_range_before(id, id, node(position).next); }
  void move_range_before(NodeId first, NodeId last, NodeId position);
  void reorder(std::span<const NodeId> order);

  // Replaces `of` by `with` in the arguments of all users; returns the number of arguments changed. Aliases of `of`
  // become aliases of `with`: results of views and in-place operators move to the storage of `with`, transitively. The
  // lifetime of that storage is extended to its last use, and tensors saved as those arguments are replaced as well.
  // Does not check that `with` has the geometry that its users were recorded with. Linear in what changes.
  uint32_t replace_all_uses_with(ValueId of, ValueId with);
  // Replaces only the uses for which filter(user, argument) returns true.
  using UseFilter = std::function<bool(NodeId user, const Argument& argument)>;
  uint32_t replace_uses_if(ValueId of, ValueId with, const UseFilter& filter);
  // Sets all arguments in the order of the schema. Aliases and saved tensors are updated as by replace_all_uses_with; a
  // tensor saved as an argument that is no longer a tensor is not saved any more.
  void set_arguments(NodeId id, std::span<const Argument> arguments);
  void set_argument(NodeId id, size_t position, const Argument& argument);
  // Replaces the target and arguments of a node and keeps its results, whose number must match the target's schema.
  void set_call(NodeId id, TargetId target, std::span<const Argument> arguments);
  // Attributes other than the call. Ids must belong to this graph.
  void set_region(NodeId id, RegionId region);
  void set_phase(NodeId id, PhaseId phase);
  void set_source(NodeId id, std::string_view source);
  void set_requires_grad(ValueId id, bool requires_grad);
  void set_storage_kind(StorageId id, StorageKind kind);
  // Moves a value to another storage, without adjusting lifetimes.
  void set_storage(ValueId id, StorageId storage, int64_t offset);
  // Replaces all attributes of a tensor value, for passes that infer new shapes.
  void set_geometry(ValueId id, const TensorMeta& spec);
  // Gives the value a private copy of its sizes and strides (see intern_dims).
  void unshare_dims(ValueId id);
  // Delays the free point of a storage to `user` if it is earlier (never freed for sg::output, sg::gradient).
  void extend_lifetime(StorageId id, NodeId user);

  // Heap memory in bytes, without the data of tensor constants.
  size_t allocated_bytes() const;

 private:
  class Editor;  // ir/graph_editor.h: implements the edits
  friend Graph clone(const Graph& graph);
  friend class GraphRecords;
  friend class InsertionPoint;
  friend class WeakGraph;

  void swap(Graph& other) noexcept;
  uint32_t first_note(NodeId id) const { return id.index < first_note_.size() ? first_note_[id.index] : kNoNote; }

  std::vector<InsertionPoint*> insertion_points_;  // insertion points in this graph
  // Current address of the graph, for WeakGraph. Updated when the graph is moved, released when it is destroyed.
  std::shared_ptr<const Graph*> place_ = std::make_shared<const Graph*>(this);
};

// Returns the calls of `name` in program order: all overloads ("aten::add") or one ("aten::add.Tensor"). Linear.
std::vector<NodeId> nodes_calling(const Graph& graph, std::string_view name);

inline std::span<const int64_t> Graph::sizes(ValueId id) const {
  const Value& v = value(id);
  return ints_.view({v.dims, v.rank});
}
inline std::span<const int64_t> Graph::strides(ValueId id) const {
  const Value& v = value(id);
  return ints_.view({v.dims + v.rank, v.rank});
}

// A non-owning reference to a graph that detects its destruction and follows moves. Held by the results of analyses.
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
