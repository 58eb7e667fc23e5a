// Compares tensors of a graph, and TensorGeometry, a tensor's geometry as an independent value.
//
//     same_type               dtype, sizes, strides, device, layout        "f32[2,3]{3,1} cpu"; see hash_of_type
//     same_type_and_offset    and the offset                               a view of one is a view of the other
//     same_place              and the storage                              the same tensor under two names
//
// StridedView (shadowgraph/graph/analysis.h) with same_geometry and same_elements compares memory only, regardless of
// the dtype.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>
#include <c10/util/accumulate.h>

#include <cstdint>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Holds copies, where a StridedView or a TensorMeta would dangle when the graph changes.
struct TensorGeometry {
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::DimVector sizes;    // elements
  c10::DimVector strides;  // elements
  int64_t offset = 0;      // elements
  c10::Device device = c10::Device(c10::DeviceType::CPU);

  static TensorGeometry of(const Graph& graph, ValueId value);
  int64_t itemsize() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
  int64_t numel() const { return c10::multiply_integers(sizes); }
};

// All return false for values that are not tensors.
bool same_type(const Graph& graph, ValueId a, ValueId b);
bool same_type_and_offset(const Graph& graph, ValueId a, ValueId b);
bool same_place(const Graph& graph, ValueId a, ValueId b);

// Facts needed before one tensor may replace another: whether it is visible outside the graph, and whether it changes.
//
//     %1 = aten::relu(self=%0) : ... @s1
//     %2 = aten::relu(self=%0) : ... @s2        equal contents, so %2 could be %1, but for:
//          aten::add_.Tensor(self=%2, ...)      a write (never_written), which would also reach %1
//          aten::t_(self=%2)                    a change of the tensor object (object_changes), likewise
//          sg::output(values=[%1, %2])          both visible outside the graph (escapes), as two distinct tensors
//
// A value is a geometry; the tensor *object* that has it may get another one in place (t_, resize_, set_, set_data).
// The old value then has no later uses, but a value that was merged with it would.

class Identity {
 public:
  // Linear in the graph. Ignores the nodes marked in `without` (by index).
  static Identity of(const Graph& graph, const Effects& effects, const std::vector<bool>& without = {});

  // Returns whether code outside the graph may hold the storage when the graph ends: it belongs to a placeholder, is an
  // operand of sg::output, sg::gradient or an unknown operator, or outlives the graph.
  bool escapes(StorageId storage) const { return escapes_[storage.index]; }
  void set_escapes(StorageId storage) { escapes_[storage.index] = true; }
  // Returns whether the tensor object with this value changes its geometry or storage in place, before or after it has
  // this value.
  bool object_changes(ValueId value) const { return object_changes_[objects_[value.index]]; }
  // Returns whether the storage has lazy conjugates or lazy negatives: equal geometry then does not imply equal
  // elements.
  bool has_lazy_views(StorageId storage) const { return lazy_[storage.index]; }

 private:
  std::vector<bool> escapes_;
  std::vector<uint32_t> objects_;  // by value: the first value of the same tensor object
  std::vector<bool> object_changes_;
  std::vector<bool> lazy_;
};

// Returns whether the storage is still alive in the program when the graph ends: placeholders, gradients, optimizer
// state.
bool outlives(const Graph& graph, StorageId storage);

// Returns the node's result if it has exactly one and that is a tensor; otherwise an invalid id.
ValueId only_result(const Graph& graph, NodeId node);

}  // namespace shadowgraph
