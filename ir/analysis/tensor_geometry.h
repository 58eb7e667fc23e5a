// Holds a tensor's geometry as a value of its own, and the ways in which two tensors of a graph are alike.
//
//     same_type               dtype, sizes, strides, device, layout        "f32[2,3]{3,1} cpu", as hash_of_type hashes it
//     same_type_and_offset    and the offset                               a view of the one is a view of the other
//     same_place              and the storage                              one tensor under two names
//
// StridedView (shadowgraph/analysis/aliases.h), and same_geometry and same_elements of it, are about memory alone, whatever the
// dtype means.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <cstdint>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// By value, where a StridedView or a TensorMeta would dangle: for graphs that change meanwhile.
struct TensorGeometry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::DimVector sizes;    // elements
  c10::DimVector strides;  // elements
  int64_t offset = 0;      // elements
  c10::Device device = c10::Device(c10::DeviceType::CPU);

  static TensorGeometry of(const Graph& graph, ValueId value);
  int64_t itemsize() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
  int64_t numel() const;
};

// False for values that are no tensors.
bool same_type(const Graph& graph, ValueId a, ValueId b);
bool same_type_and_offset(const Graph& graph, ValueId a, ValueId b);
bool same_place(const Graph& graph, ValueId a, ValueId b);

}  // namespace shadowgraph
