// Keys of a rank graph's metadata, and notes of its placeholders and outputs, that describe the sharding.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/calls/calls_on_fakes.h"
#include "passes/rewrite/node_emitter.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/layout.h"
#include "shadowgraph/shard/rules.h"

namespace shadowgraph {

constexpr const char* kMeshKey = "sharding.mesh";
constexpr const char* kRankKey = "sharding.rank";
constexpr const char* kLayoutNote = "layout";
constexpr const char* kSizesNote = "whole_sizes";  // "8,16;scalar"

// Writes the graph of one rank. Each appended node is called on fake tensors of local sizes, to infer the geometry and
// storages of its results. Internal to sharding/apply.
class LocalProgram {
 public:
  // `read` and `made` must outlive the program; `made` is empty.
  LocalProgram(const Graph& read, Graph& made);

  GraphRebuild rebuild;
  NodeEmitter emitter;

  // Sets the phase, region, modes and source of nodes appended from here on.
  void stand_for(NodeId read);
  // Sets a note on all nodes appended from here on; "" clears it.
  void set_redistribution(std::string note) { redistribution_ = std::move(note); }
  NodeId append(TargetId target, std::span<const Argument> arguments);

  // Returns the operator's results on its operands' fake tensors. Rethrows exceptions of the operator.
  torch::jit::Stack call(NodeId node);
  // Adds a tensor result of `node`, in the storage of the fake tensor. If that storage is new, it becomes the
  // counterpart of `like`'s storage, unless that has one.
  ValueId new_value(NodeId node, const at::Tensor& fake, ValueId like = {});
  const at::Tensor& tensor(ValueId made) const { return tensors_[made]; }
  // Returns the counterpart of a storage of the read graph; invalid without one.
  StorageId self_of(StorageId read) const { return counterparts_[read]; }
  // Declares that the contents of `read` are in `made`, replacing its previous counterpart.
  void join(StorageId read, StorageId made) { counterparts_[read] = made; }

  // The same for a node with one result, which is set.
  ValueId new_result(NodeId node, const at::Tensor& fake, ValueId like = {});
  // Calls a node with one result on its operands' fake tensors and adds that result.
  ValueId only_result(NodeId node);
  ValueId call_for_one(const char* name, std::initializer_list<Argument> arguments);

  // Nodes of a redistribution: each has one new result or is a view.
  ValueId view(ValueId source, std::span<const int64_t> sizes);  // itself if it has these sizes
  ValueId permute(ValueId source, std::span<const int64_t> order);
  ValueId contiguous_clone(ValueId source);
  ValueId contiguous(ValueId source);  // `source` if it is contiguous
  // Appends a collective of _c10d_functional with a result of these sizes, and its wait. It is not run on fake tensors:
  // this process may have different groups of the same names.
  ValueId collective(const char* name, std::initializer_list<Argument> arguments, std::span<const int64_t> sizes);

 private:
  const Graph& read_;
  Graph& made_;
  FakeCallRunner calls_;
  BelowAutograd below_;
  NodeId model_;
  std::string redistribution_;
  IdMap<ValueId, at::Tensor> tensors_;
  IdMap<StorageId, StorageId> counterparts_;  // by storage of the read graph
  std::unordered_map<const c10::StorageImpl*, StorageId> storages_;
};

// Indexing into a shard of a vocabulary: local indices start at 0, and some belong to other devices.
//
//     rank 1 of 2, 8 words: [5, 2, 7]  ->  [1, 0, 3], others [false, true, false]
struct LocalIndices {
  ValueId indices;
  ValueId others;  // true for indices of other devices, or `ignored`
};
// Replaces indices of other devices by `instead`.
LocalIndices local_indices(LocalProgram& program, ValueId indices, const ShardingRules::Lookup& lookup, int64_t instead,
                           std::optional<int64_t> ignored);

// Returns arguments of aten::masked_fill.Scalar that set the rows of `tensor`, [indices..., d], to zero where `others`
// is true.
std::vector<Argument> rows_of(LocalProgram& program, ValueId tensor, ValueId others);
ValueId zero_rows(LocalProgram& program, ValueId tensor, ValueId others);

class Redistributor {
 public:
  // All arguments must outlive it.
  Redistributor(LocalProgram& program, Graph& made, const DeviceMesh& mesh, int64_t rank)
      : program_(program), made_(made), mesh_(mesh), rank_(rank) {}

  // Returns the local tensor after the steps. `source` is the local tensor before them; `sizes` are those of the whole
  // tensor, whose layout is `from`. Returns `source` if no step has an effect (axes of one device).
  ValueId redistribute(ValueId source, std::span<const int64_t> sizes, const Layout& from, const Redistribution& way);

 private:
  ValueId step(ValueId source, std::span<const int64_t> sizes, const Layout& before, const RedistributionStep& step);
  ValueId slice(ValueId source, std::span<const int64_t> sizes, const Layout& after, size_t axis);
  ValueId all_gather(ValueId source, std::span<const int64_t> sizes, const Layout& before, size_t axis);
  ValueId all_reduce(ValueId source, PartialOp op, size_t axis);
  ValueId reduce_scatter(ValueId source, std::span<const int64_t> sizes, PartialOp op, const Layout& after,
                         size_t axis);
  ValueId all_to_all(ValueId source, std::span<const int64_t> sizes, const Layout& before,
                     const RedistributionStep& step);
  // Moves the factor at `position` to the front of memory. `factors`: the split dimensions, in the order of the result.
  ValueId to_front(ValueId source, std::span<const int64_t> factors, size_t position);
  // Moves the first factor back to `position`. `factors` are those of the result.
  ValueId from_front(ValueId source, std::span<const int64_t> factors, size_t position);
  // Returns the sum over an axis, divided for a mean.
  ValueId finished(ValueId reduced, PartialOp op, size_t axis);
  // Returns the name of the axis' group and describes the group before its first use.
  Argument group(size_t axis);

  LocalProgram& program_;
  Graph& made_;
  const DeviceMesh& mesh_;
  int64_t rank_;
  std::set<size_t> described_;
};

}  // namespace shadowgraph
