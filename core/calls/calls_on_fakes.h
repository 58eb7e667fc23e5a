// Fake tensors of a graph's values: dtype, sizes, strides, offset and pretended device as recorded, and no data.
//
//     at::Tensor x = fake_of(graph, value);            // alone, on a storage of its own
//     FakeValues fakes(graph);
//     fakes.of(a); fakes.of(b);                        // share one storage if the values do
//
// Nothing is allocated. A fake tensor may be used in or outside a FakeTensorMode and may outlive the graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <c10/core/Storage.h>

#include <optional>
#include <unordered_map>

#include "core/calls/node_calls.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// A fresh fake tensor. Throws Error if the value is no strided tensor.
at::Tensor fake_of(const Graph& graph, ValueId value);

// Storage without data, as fake tensors have it; it can be resized.
c10::Storage fake_storage(int64_t bytes);
// A fake tensor of this geometry (elements) on `storage`.
at::Tensor fake_on(const c10::Storage& storage, c10::ScalarType dtype, std::span<const int64_t> sizes,
                   std::span<const int64_t> strides, int64_t offset, c10::Device device);

// Costs what it is asked for, not what the graph holds: one for each node of a large graph is fine.
class FakeValues {
 public:
  explicit FakeValues(const Graph& graph) : graph_(graph) {}
  // The same value gives the same fake tensor. Throws as fake_of does.
  const at::Tensor& of(ValueId value);
  const c10::Storage& of(StorageId storage);

 private:
  const Graph& graph_;
  std::unordered_map<ValueId, at::Tensor> tensors_;
  std::unordered_map<StorageId, c10::Storage> storages_;
};

// Calls nodes of a graph again on fake tensors, under the conditions in which the capture met them. Passes and sharding
// reach core by this.
//
//     CallsOnFakes calls(graph);
//     torch::jit::Stack stack;
//     calls.push_arguments(node, [&](ValueId v) -> const at::Tensor& { return tensors[v]; }, stack);
//     calls.call(node, device_of_result, stack);       // stack now holds the results, as many as the schema returns
//
// A FakeTensorMode is active on this thread while it lives; the grad mode is put back at its end. A graph was recorded
// below autograd, so the caller switches that off (BelowAutograd).

// A device with an index, which a tensor always has: "cuda" is the current one.
c10::Device indexed(c10::Device device);

class CallsOnFakes {
 public:
  // `graph` must outlive this; nodes and targets may be added meanwhile.
  explicit CallsOnFakes(const Graph& graph, const FakeTensorOptions& options = {});

  // Sizes that depend on data: those given, and those that the guards of `captured` tell.
  void give_sizes(const Graph& captured, const NamedDataSizes& given);
  // Reads of the host are answered as the guards of `captured` tell.
  void give_answers(const Graph& captured);
  // Gives `tensor` its contents where a guard says that the capture took the value for a mask of ones.
  void fill_if_assumed(const Graph& captured, ValueId value, const at::Tensor& tensor) const;

  void push_arguments(NodeId node, NodeCalls::TensorOf tensor_of, torch::jit::Stack& stack) {
    calls_.push_arguments(node, tensor_of, stack);
  }
  // Factories that named no device put their results on `device`, since the record has none of theirs. Operands whose
  // geometry the operator may change are called as tensors of their own, so that `tensor_of` keeps what it gave.
  void call(NodeId node, std::optional<c10::Device> device, torch::jit::Stack& stack);

  FakeTensorMode& mode() { return mode_; }

 private:
  const Graph& graph_;
  NodeCalls calls_;
  FakeTensorMode mode_;
  c10::AutoGradMode grad_mode_;  // restores it
};

}  // namespace shadowgraph
