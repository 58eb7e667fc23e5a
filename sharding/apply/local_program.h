// Writes the graph of one rank. Each node that is appended is called on fake tensors of local sizes, which say what its
// results look like and where they live. Internal to sharding/apply.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/calls/calls_on_fakes.h"
#include "passes/rewrite/graph_rebuild.h"
#include "passes/rewrite/node_emitter.h"
#include "shadowgraph/fake.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

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

}  // namespace shadowgraph
