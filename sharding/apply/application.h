// Applies a plan in one walk over the program (shadowgraph/sharding/apply.h). Every value gets its new self, a local
// tensor, and that tensor's layout. An operand that is wanted in another layout gets a copy, made there and kept for
// later uses.
//
// A copy is right as long as nothing writes to what it was made of. A value that lives in a copy (the copy itself or a
// view of it) therefore remembers the version of the storage that was copied. A node that reads one at a later version
// is refused, and so is a node that writes to one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/apply.h"
#include "sharding/apply/local_program.h"
#include "sharding/apply/redistribute.h"

namespace shadowgraph {

class Application {
 public:
  Application(const Graph& graph, const ShardingPlan& plan, int64_t rank, const ApplyOptions& options);

  Graph run();

 private:
  struct LocalValue {
    ValueId made;
    Layout layout;
    // For a value that lives in a copy: the version of its storage that was copied.
    std::optional<uint32_t> copied_at;
  };
  struct Copy {
    uint32_t version = 0;
    PhaseId phase;
    Layout layout;
    ValueId made;
  };
  // An operand as a node takes it.
  struct Taken {
    ValueId made;
    std::optional<uint32_t> copied_at;
  };

  [[noreturn]] void fail(NodeId node, const std::string& what) const;
  void check_mesh() const;
  bool is_tensor(ValueId value) const { return read_.value(value).kind == ValueKind::kTensor; }
  std::vector<ValueId> operands_of(NodeId node) const;
  std::vector<ValueId> results_of(NodeId node) const;
  const NodeLayouts& layouts_of(NodeId node, size_t operands, size_t results) const;
  static std::string text_of(std::span<const Layout> layouts);
  std::vector<int64_t> local_sizes_of(NodeId node, ValueId value, const Layout& layout) const;
  uint32_t version_of(ValueId value) const { return versions_[read_.value(value).storage.index]; }
  bool is_written_later(StorageId storage) const { return effects_.final_version(storage) != versions_[storage.index]; }

  // ---- Placeholders and aliases (placeholders.cpp)
  void placeholder(NodeId node);
  bool same_place_in_read(ValueId a, ValueId b) const;
  Argument local_constant(NodeId node, const Argument& constant, const Layout& layout, bool whole);
  // An alias has no operator that would say what it is of a local tensor. It is the same part of the local tensor as of
  // the whole one, or looks at everything that its source looks at.
  void alias(NodeId node);

  // ---- Operands (operands.cpp)
  // Returns `value` in the layout that is wanted; makes a copy if there is none yet.
  Taken take(NodeId node, ValueId value, const Layout& wanted, bool written, bool geometry_only);
  void check_fresh(NodeId node, ValueId value, const LocalValue& local) const;
  std::string text_of_value(ValueId value) const;
  ValueId redistributed(NodeId node, ValueId value, const LocalValue& local, const Layout& wanted);
  // Says for each operand whether the node writes to it.
  std::vector<bool> written_operands(NodeId node) const;

  // ---- Operators (calls.cpp)
  void call(NodeId node);
  void check_random(NodeId node, const NodeLayouts& layouts) const;
  // Makes operands contiguous where a view needs that. A copy is contiguous where the tensor itself was not, and an
  // operator's local result may have other strides than the whole one. A view that the whole tensor allowed may then
  // need one more copy, and strides that it names are others.
  void make_viewable(NodeId node, std::span<const ValueId> operands, std::vector<Taken>& taken,
                     const NodeLayouts& layouts);
  // Says whether a view by strides is the same as a view by sizes alone.
  bool is_reshape(ValueId source, ValueId result) const;
  // Checks that strides and offsets given as numbers still mean the memory that was recorded.
  void check_strided(NodeId node, std::span<const ValueId> operands, std::span<const Taken> taken) const;
  // Makes a call whose indices are into a dimension that is cut. Indices of other devices become ones that count for
  // nothing (lookup.h).
  NodeId look_up(NodeId node, const ShardingRules::Lookup& lookup, std::vector<Taken> taken);
  NodeId copy_call(NodeId node, std::span<const Taken> taken);
  const ShardingRules& rules() const { return options_.rules != nullptr ? *options_.rules : *rules_; }
  void place_results(NodeId node, NodeId made, std::span<const ValueId> operands, std::span<const ValueId> results,
                     std::span<const Taken> taken, const NodeLayouts& layouts);
  Argument place(NodeId node, NodeId made, const Argument& recorded, const c10::IValue& actual,
                 std::span<const ValueId> operands, std::span<const Taken> taken, const NodeLayouts& layouts,
                 size_t& next);

  // ---- The end (apply.cpp)
  // Prepares for sg::output and sg::gradient, which come last: what they need is made before the first of them.
  void prepare_ends(NodeId first);
  void end(NodeId node);
  void finish();

  Graph read_;  // a copy: the rules add lists of local sizes to it
  const ShardingPlan& plan_;
  int64_t rank_;
  const ApplyOptions& options_;
  std::optional<ShardingRules> rules_;
  Interconnect interconnect_;
  std::optional<RedistributionPlanner> planner_;
  Effects effects_;
  Graph made_;
  LocalProgram program_;
  Redistributor redistributor_;
  std::vector<uint32_t> versions_;  // by storage that is read, at this point of the walk
  IdMap<ValueId, LocalValue> values_;
  IdMap<ValueId, std::vector<Copy>> copies_;
  IdMap<StorageId, ValueId> first_in_;  // the placeholder that stands for the storage
  IdMap<NodeId, std::vector<Taken>> ends_;
  bool ends_begun_ = false;
  std::optional<at::DimVector> strides_;               // which the node under way names
  std::vector<std::pair<size_t, Argument>> replaced_;  // arguments of the node under way, by position
};

}  // namespace shadowgraph
