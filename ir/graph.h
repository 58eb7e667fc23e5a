// The graph: one SSA record of a program run, on which every analysis, pass, picture and export works.
//
// A Graph owns its nodes, values, storages and regions in arenas; everything is named by typed ids (ir/ids.h). Program
// order is a doubly linked list of nodes, so inserting, moving and erasing are O(1). Ids are stable under edits and are
// renumbered only when printed. Uses of a value are kept in order of creation.
//
//     Graph graph;
//     NodeId x = graph.append(target_of(Builtin::kInput), {graph.string_argument("x")});
//     ValueId v = graph.add_tensor_result(x, {.dtype = at::kFloat, .sizes = {2, 3}, .strides = {3, 1}, .storage = s});
//
// Creation functions check nothing beyond bounds; ir/verifier.h states and checks every invariant.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/arena.h"
#include "ir/error.h"
#include "ir/ids.h"
#include "ir/target.h"
#include "ir/types.h"

namespace shadowgraph {

// How to describe a new tensor value.
struct TensorSpec {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::span<const int64_t> sizes;    // elements
  std::span<const int64_t> strides;  // elements, same length as sizes
  StorageId storage;
  int64_t offset = 0;  // elements
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  c10::Layout layout = c10::Layout::Strided;
  bool requires_grad = false;
};

// What the path that the program took depended on: a size, rank or host value that the program asked for.
struct PathDependency {
  enum class Kind : uint8_t { kRank, kSize, kSizes, kHostValue };
  Kind kind = Kind::kRank;
  ValueId value;
  int64_t dimension = -1;  // kSize
  std::string observed;    // "3", "[2, 3]"
  friend bool operator==(const PathDependency&, const PathDependency&) = default;
};

class Graph {
 public:
  Graph();
  Graph(Graph&&) noexcept = default;
  Graph& operator=(Graph&&) noexcept = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // ---- Free-form facts about the capture, printed at the head: model, device, mode, ...
  std::map<std::string, std::string> metadata;
  std::vector<PathDependency> dependencies;

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
  TargetId intern_operator(const c10::OperatorHandle& op);
  const Target& target(TargetId id) const { return targets_[id.index]; }
  const Target& target(NodeId id) const { return targets_[node(id).target.index]; }
  uint32_t target_count() const { return static_cast<uint32_t>(targets_.size()); }

  ConstantId add_constant(at::Tensor tensor);
  const at::Tensor& constant(ConstantId id) const { return constants_[id.index]; }
  uint32_t constant_count() const { return static_cast<uint32_t>(constants_.size()); }

  // ---- Reading
  const Node& node(NodeId id) const { return nodes_[id.index]; }
  const Value& value(ValueId id) const { return values_[id.index]; }
  const Storage& storage(StorageId id) const { return storages_[id.index]; }
  const Region& region(RegionId id) const { return regions_[id.index]; }
  Node& node(NodeId id) { return nodes_[id.index]; }
  Value& value(ValueId id) { return values_[id.index]; }
  Storage& storage(StorageId id) { return storages_[id.index]; }
  Region& region(RegionId id) { return regions_[id.index]; }
  // Upper bounds of the ids in use, for sizing IdMaps; erased nodes leave holes.
  uint32_t node_capacity() const { return nodes_.size(); }
  uint32_t value_capacity() const { return values_.size(); }
  uint32_t storage_count() const { return storages_.size(); }
  uint32_t region_count() const { return regions_.size(); }
  uint32_t node_count() const { return live_nodes_; }
  bool is_erased(NodeId id) const { return !node(id).target.valid(); }

  NodeId first() const { return first_; }
  NodeId last() const { return last_; }
  // Program order: `for (NodeId n : graph.nodes())`. The current node may be erased while walking.
  class NodeRange;
  NodeRange nodes() const;

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
  // Inserts before `position`, or at the end if that is invalid.
  NodeId insert_before(NodeId position, TargetId target, std::span<const Argument> arguments);
  // A new value produced by `node`; it must then be placed by set_results (or add_tensor_result does both).
  ValueId new_tensor(NodeId producer, const TensorSpec& spec);
  ValueId new_scalar(NodeId producer, ValueKind kind);
  void set_results(NodeId id, std::span<const Argument> results);
  ValueId add_tensor_result(NodeId id, const TensorSpec& spec);
  void set_saved(NodeId id, std::span<const SavedTensor> saved) { node(id).saved = saved_.push_run(saved); }
  void set_frees(NodeId id, std::span<const StorageId> frees);

  StorageId add_storage(const Storage& storage) { return StorageId(storages_.push(storage)); }
  RegionId add_region(const Region& region) { return RegionId(regions_.push(region)); }
  static constexpr RegionId kRootRegion{0};
  void set_region_arguments(RegionId id, std::span<const Argument> arguments) {
    region(id).arguments = arguments_.push_run(arguments);
  }

  // ---- Edits
  // Throws GraphEditError while an output is used. Storages that died after the node then die after the one before it.
  void erase(NodeId id);
  void move_before(NodeId id, NodeId position);
  // Every argument, and every tensor saved as one, that is `of` becomes `with`; linear in the arguments of its users.
  void replace_all_uses(ValueId of, ValueId with);

  // Replaces all that `spec` says of a tensor value: for passes that find other shapes for the same program.
  void set_geometry(ValueId id, const TensorSpec& spec);

  // Heap bytes held, tensor constants not counted.
  size_t allocated_bytes() const;

 private:
  void link_before(NodeId id, NodeId position);
  void unlink(NodeId id);
  void enter_uses(NodeId id, std::span<Argument> arguments);
  void drop_uses(std::span<const Argument> arguments);
  void append_use(uint32_t use, ValueId value);
  bool has_entered_uses(std::span<const Argument> arguments) const;
  Run copy_list(Run list);
  void redirect_uses(std::span<Argument> arguments, ValueId of, ValueId with);

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
  NodeId first_;
  NodeId last_;
  uint32_t live_nodes_ = 0;

  std::vector<std::string> strings_;
  std::unordered_map<std::string, StringId> string_ids_;
  std::vector<std::string> phases_;
  std::vector<Target> targets_;
  std::unordered_map<std::string, TargetId> target_ids_;  // by schema text
  std::vector<at::Tensor> constants_;
};

class Graph::NodeRange {
 public:
  class Iterator {
   public:
    using value_type = NodeId;
    using difference_type = std::ptrdiff_t;
    using iterator_category = std::forward_iterator_tag;
    using pointer = const NodeId*;
    using reference = NodeId;
    Iterator() = default;
    Iterator(const Graph* graph, NodeId at) : graph_(graph), at_(at), next_(after(at)) {}
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
    NodeId after(NodeId id) const { return id.valid() ? graph_->node(id).next : NodeId(); }
    const Graph* graph_ = nullptr;
    NodeId at_;
    NodeId next_;
  };
  explicit NodeRange(const Graph& graph) : graph_(&graph) {}
  Iterator begin() const { return {graph_, graph_->first()}; }
  Iterator end() const { return {graph_, NodeId()}; }

 private:
  const Graph* graph_;
};

inline Graph::NodeRange Graph::nodes() const { return NodeRange(*this); }

inline std::span<const int64_t> Graph::sizes(ValueId id) const {
  const Value& v = value(id);
  return ints_.view({v.dims, v.rank});
}
inline std::span<const int64_t> Graph::strides(ValueId id) const {
  const Value& v = value(id);
  return ints_.view({v.dims + v.rank, v.rank});
}

}  // namespace shadowgraph
