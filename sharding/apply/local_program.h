// Where one rank's graph says what it is a part of: keys of its metadata, notes of its placeholders and ends.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/calls/calls_on_fakes.h"
#include "passes/rewrite/node_emitter.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/layout.h"
#include "shadowgraph/shard/rules.h"

namespace shadowgraph {

constexpr const char* kMeshKey = "sharding.mesh";
constexpr const char* kRankKey = "sharding.rank";
constexpr const char* kLayoutNote = "layout";
constexpr const char* kSizesNote = "whole_sizes";  // "8,16;scalar"

// Writes the graph of one rank. Each node that is appended is called on fake tensors of local sizes, which say what its
// results look like and where they live. Internal to sharding/apply.
class LocalProgram {
 public:
  // `read` and `made` must outlive the program; `made` is empty.
  LocalProgram(const Graph& read, Graph& made);

  GraphRebuild rebuild;
  NodeEmitter emitter;

  // Gives the nodes appended from here on the phase, region, modes and source of this one.
  void stand_for(NodeId read);
  // Sets a note for every node that is appended until it is cleared ("").
  void set_redistribution(std::string note) { redistribution_ = std::move(note); }
  NodeId append(TargetId target, std::span<const Argument> arguments);

  // Returns the operator's results on the fakes of its operands. Throws what the operator throws.
  torch::jit::Stack call(NodeId node);
  // Adds a tensor result of `node`, in the storage that the fake is on. A storage that is new here becomes the new self
  // of `like`'s storage, if that has none yet.
  ValueId new_value(NodeId node, const at::Tensor& fake, ValueId like = {});
  const at::Tensor& tensor(ValueId made) const { return tensors_[made]; }
  // Returns the new self of a storage that is read; invalid if there is none.
  StorageId self_of(StorageId read) const { return selves_[read]; }
  // Says that what is in `read` lies in `made`, even though `made` has another self.
  void join(StorageId read, StorageId made) { selves_[read] = made; }

  // Calls a node with one result on its operands' fakes and adds that result.
  ValueId only_result(NodeId node);
  // Appends a node with one result and returns that result.
  ValueId call_for_one(const char* name, std::initializer_list<Argument> arguments);

  // ---- Nodes of a redistribution: each has one fresh result or is a view
  ValueId view(ValueId source, std::span<const int64_t> sizes);  // itself if it has these sizes
  ValueId permute(ValueId source, std::span<const int64_t> order);
  ValueId select(ValueId source, int64_t dim, int64_t index);
  ValueId slice(ValueId source, int64_t dim, int64_t begin, int64_t end);
  ValueId contiguous_clone(ValueId source);
  ValueId contiguous(ValueId source);  // itself if it is
  ValueId divided(ValueId source, int64_t by);
  // Appends a collective of _c10d_functional, whose result has these sizes, and the wait for it. It is not called on
  // fakes: this process may have different groups of the same names.
  ValueId collective(const char* name, std::initializer_list<Argument> arguments, std::span<const int64_t> sizes);

 private:
  const Graph& read_;
  Graph& made_;
  CallsOnFakes calls_;
  BelowAutograd below_;
  NodeId model_;
  std::string redistribution_;
  IdMap<ValueId, at::Tensor> tensors_;
  IdMap<StorageId, StorageId> selves_;  // by storage that is read
  std::unordered_map<const c10::StorageImpl*, StorageId> storages_;
};

// Looks up by index in a part of a vocabulary: indices count from 0 there, and some of them belong to other devices.
//
//     rank 1 of 2, 8 words: [5, 2, 7]  ->  [1, 0, 3], others [false, true, false]
struct LocalIndices {
  ValueId indices;
  ValueId others;  // true where the index is another device's, or `ignored`
};
// Replaces indices of other devices by `instead`.
LocalIndices local_indices(LocalProgram& program, ValueId indices, const ShardingRules::Lookup& lookup, int64_t instead,
                           std::optional<int64_t> ignored);

// Returns arguments of aten::masked_fill.Scalar that make the rows of `tensor`, [indices..., d], zero where `others` is
// true.
std::vector<Argument> rows_of(LocalProgram& program, ValueId tensor, ValueId others);
ValueId without_rows(LocalProgram& program, ValueId tensor, ValueId others);

// Makes the nodes that bring a tensor from one layout to another. Internal to sharding/apply.
class Redistributor {
 public:
  // All arguments must outlive it.
  Redistributor(LocalProgram& program, Graph& made, const DeviceMesh& mesh, int64_t rank)
      : program_(program), made_(made), mesh_(mesh), rank_(rank) {}

  // Returns the local part of a tensor after the steps. `source` is the local part before them; `sizes` are those of
  // the whole tensor, which lies as `from`. Returns `source` itself if no step does anything (axes of one device).
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
  // Moves the factor at `position` to the front of memory. `factors` are the dimensions, split; all of them lie in the
  // resulting order.
  ValueId to_front(ValueId source, std::span<const int64_t> factors, size_t position);
  // Moves the first factor back to `position`. `factors` are those of the result.
  ValueId from_front(ValueId source, std::span<const int64_t> factors, size_t position);
  // Returns the sum over an axis, divided where the reduction is a mean.
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
