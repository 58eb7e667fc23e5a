// The graph of one rank while it is written: nodes appended, each called on fake tensors of local sizes, which say what
// its results look like and where they live. Internal to sharding/apply.
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

#include "passes/rewrite/graph_rebuild.h"
#include "passes/rewrite/node_call.h"
#include "passes/rewrite/node_emitter.h"
#include "shadowgraph/fake.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

class LocalProgram {
 public:
  // Both must outlive it; `made` is empty.
  LocalProgram(const Graph& read, Graph& made);

  GraphRebuild rebuild;
  NodeEmitter emitter;

  // Nodes appended from here on have the phase, region, modes and source of this one.
  void stand_for(NodeId read);
  // Said of every node that is appended until it is cleared ("").
  void set_redistribution(std::string note) { redistribution_ = std::move(note); }
  NodeId append(TargetId target, std::span<const Argument> arguments);

  // The operator's results on the fakes of its operands. Throws what it throws.
  torch::jit::Stack call(NodeId node);
  // A tensor result of `node`, in the storage that the fake is on. A storage that is new here is the new self of
  // `like`'s, if that has none yet.
  ValueId new_value(NodeId node, const at::Tensor& fake, ValueId like = {});
  const at::Tensor& tensor(ValueId made) const { return tensors_[made]; }
  // The new self of a storage that is read; invalid if there is none.
  StorageId self_of(StorageId read) const { return selves_[read]; }
  // What is in `read` lies in `made`, which has another self.
  void join(StorageId read, StorageId made) { selves_[read] = made; }

  // The result of a node that has one, called on its operands' fakes.
  ValueId only_result(NodeId node);
  // A node with one result.
  ValueId call_for_one(const char* name, std::initializer_list<Argument> arguments);

  // ---- Nodes of a redistribution: one fresh result each, or a view
  ValueId view(ValueId source, std::span<const int64_t> sizes);  // itself if it has these sizes
  ValueId permute(ValueId source, std::span<const int64_t> order);
  ValueId select(ValueId source, int64_t dim, int64_t index);
  ValueId slice(ValueId source, int64_t dim, int64_t begin, int64_t end);
  ValueId contiguous_clone(ValueId source);
  ValueId contiguous(ValueId source);  // itself if it is
  ValueId divided(ValueId source, int64_t by);
  // A collective of _c10d_functional, whose result has these sizes, and the wait for it. Not called on fakes: this
  // process may have groups of these names that are others.
  ValueId collective(const char* name, std::initializer_list<Argument> arguments, std::span<const int64_t> sizes);

 private:
  const Graph& read_;
  Graph& made_;
  NodeCalls calls_;
  FakeTensorMode mode_;
  c10::AutoGradMode grad_mode_{c10::GradMode::is_enabled()};  // restores it
  BelowAutograd below_;
  NodeId model_;
  std::string redistribution_;
  IdMap<ValueId, at::Tensor> tensors_;
  IdMap<StorageId, StorageId> selves_;  // by storage that is read
  std::unordered_map<const c10::StorageImpl*, StorageId> storages_;
};

}  // namespace shadowgraph
