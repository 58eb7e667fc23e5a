// Fake tensors of a graph's values: dtype, sizes, strides, offset and pretended device as recorded, and no data.
//
//     at::Tensor x = fake_of(graph, value);            // alone, on a storage of its own
//     FakeValues fakes(graph);
//     fakes.of(a); fakes.of(b);                        // share one storage if the values do
//
// Nothing is allocated. A fake tensor may be used in or outside a FakeTensorMode and may outlive the graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <unordered_map>

#include "shadowgraph/graph.h"

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

}  // namespace shadowgraph
