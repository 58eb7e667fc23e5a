#include "ir/analysis/tensor_geometry.h"

#include <algorithm>

namespace shadowgraph {

TensorGeometry TensorGeometry::of(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return {value.dtype, c10::DimVector(graph.sizes(id)), c10::DimVector(graph.strides(id)), value.offset,
          value.device()};
}

int64_t TensorGeometry::numel() const {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

// Strides count, too: kernels choose by them, and a pass that swaps values of other strides changes bits.
bool same_type(const Graph& graph, ValueId a, ValueId b) {
  const Value& x = graph.value(a);
  const Value& y = graph.value(b);
  return x.kind == ValueKind::kTensor && y.kind == ValueKind::kTensor && x.dtype == y.dtype && x.layout == y.layout &&
         x.device() == y.device() && std::ranges::equal(graph.sizes(a), graph.sizes(b)) &&
         std::ranges::equal(graph.strides(a), graph.strides(b));
}

bool same_type_and_offset(const Graph& graph, ValueId a, ValueId b) {
  return graph.value(a).offset == graph.value(b).offset && same_type(graph, a, b);
}

bool same_place(const Graph& graph, ValueId a, ValueId b) {
  return graph.value(a).storage == graph.value(b).storage && same_type_and_offset(graph, a, b);
}

}  // namespace shadowgraph
