// Fake tensors for a graph's values: the recorded dtype, sizes, strides, offset and simulated device, without data.
//
//     at::Tensor x = fake_of(graph, value);            // on a separate storage
//     FakeValues fakes(graph);
//     fakes.of(a); fakes.of(b);                        // share one storage if the values do
//
// Nothing is allocated. A fake tensor may be used inside or outside a FakeTensorMode and may outlive the graph.
#pragma once

#include <c10/core/GradMode.h>

#include "core/calls/node_calls.h"
#include "shadowgraph/capture/fake.h"

namespace shadowgraph {

// Returns a new fake tensor. Throws Error if the value is not a strided tensor.
at::Tensor fake_of(const Graph& graph, ValueId value);

// Returns the bytes that eager allocates for the storage of a fake tensor: none for a ZeroTensor.
int64_t allocated_bytes(const at::Tensor& fake);

// Returns a resizable storage without data.
c10::Storage fake_storage(int64_t bytes);
// Returns a fake tensor with this geometry (in elements) on `storage`.
at::Tensor fake_on(const c10::Storage& storage, c10::ScalarType dtype, std::span<const int64_t> sizes,
                   std::span<const int64_t> strides, int64_t offset, c10::Device device);

// Costs only what is requested, so creating one per node of a large graph is fine.
class FakeValues {
 public:
  explicit FakeValues(const Graph& graph) : graph_(graph) {}
  // Returns the same fake tensor for the same value. Throws as fake_of does.
  const at::Tensor& of(ValueId value);
  const c10::Storage& of(StorageId storage);

 private:
  const Graph& graph_;
  std::unordered_map<ValueId, at::Tensor> tensors_;
  std::unordered_map<StorageId, c10::Storage> storages_;
};

// Runs nodes of a graph on fake tensors under the conditions of the capture, for passes and sharding.
//
//     FakeCallRunner calls(graph);
//     torch::jit::Stack stack;
//     calls.push_arguments(node, [&](ValueId v) -> const at::Tensor& { return tensors[v]; }, stack);
//     calls.call(node, device_of_result, stack);       // stack now holds the results of the schema
//
// A FakeTensorMode is active on this thread for its lifetime; the grad mode is restored at its end. Graphs are recorded
// below autograd, so the caller must disable it (BelowAutograd).

// Adds the current device's index to a device without one.
c10::Device indexed(c10::Device device);

class FakeCallRunner {
 public:
  // `graph` must outlive this; nodes and targets may be added meanwhile.
  explicit FakeCallRunner(const Graph& graph, const FakeTensorOptions& options = {});

  // Provides data-dependent sizes: those given, and those recorded in the guards of `captured`.
  void add_sizes(const Graph& captured, const NamedDataSizes& given);
  // Provides the values of host reads recorded in the guards of `captured`.
  void add_host_reads(const Graph& captured);
  // Fills `tensor` with ones if a guard of `captured` assumed that for the value (a mask).
  void fill_assumed_mask(const Graph& captured, ValueId value, const at::Tensor& tensor) const;

  void push_arguments(NodeId node, NodeCalls::TensorOf tensor_of, torch::jit::Stack& stack) {
    calls_.push_arguments(node, tensor_of, stack);
  }
  // Factories without a device argument allocate on `device`. Operands whose geometry the operator may change are
  // copied shallowly, so that the tensors of `tensor_of` are unchanged.
  void call(NodeId node, std::optional<c10::Device> device, torch::jit::Stack& stack);

  FakeTensorMode& mode() { return mode_; }

 private:
  const Graph& graph_;
  NodeCalls calls_;
  FakeTensorMode mode_;
  c10::AutoGradMode grad_mode_;  // restores it
};

}  // namespace shadowgraph
