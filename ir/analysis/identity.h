// Holds a tensor's geometry as a value of its own, and the ways in which two tensors of a graph are alike.
//
//     same_type               dtype, sizes, strides, device, layout        "f32[2,3]{3,1} cpu", as hash_of_type hashes it
//     same_type_and_offset    and the offset                               a view of the one is a view of the other
//     same_place              and the storage                              one tensor under two names
//
// StridedView (shadowgraph/graph/analysis.h), and same_geometry and same_elements of it, are about memory alone, whatever the
// dtype means.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"

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

// What must be known of a tensor before another may take its place: who else can see it, and whether it changes.
//
//     %1 = aten::relu(self=%0) : ... @s1
//     %2 = aten::relu(self=%0) : ... @s2        equal contents, so %2 could be %1, but for:
//          aten::add_.Tensor(self=%2, ...)      a write (never_written), which would reach %1 too
//          aten::t_(self=%2)                    a change of the tensor object (object_changes), likewise
//          sg::output(values=[%1, %2])          both seen from outside (escapes), where they are two tensors
//
// A value is geometry; the tensor *object* that had it may get another one in place (t_, resize_, set_, set_data). The
// old value then has no later uses, but a value that was merged with it would.

class Identity {
 public:
  // Linear. As if the nodes marked in `without` (by index) were not there.
  static Identity of(const Graph& graph, const Effects& effects, const std::vector<bool>& without = {});

  // Says whether somebody outside the graph may hold a storage when the graph ends. A placeholder has it, sg::output or
  // sg::gradient mentions it, something unknown was given it, or it outlives the graph.
  bool escapes(StorageId storage) const { return escapes_[storage.index]; }
  void set_escapes(StorageId storage) { escapes_[storage.index] = true; }
  // Whether the tensor object that has this value is given another geometry or storage, before or after it has it.
  bool object_changes(ValueId value) const { return object_changes_[objects_[value.index]]; }
  // Lazy conjugates, lazy negatives and what shares a storage with them: equal geometry does not mean equal elements.
  bool has_lazy_views(StorageId storage) const { return lazy_[storage.index]; }

 private:
  std::vector<bool> escapes_;
  std::vector<uint32_t> objects_;  // by value: the first value of the same tensor object
  std::vector<bool> object_changes_;
  std::vector<bool> lazy_;
};

// A storage that the program's user still has when the graph ends: placeholders, gradients, optimizer state.
bool outlives(const Graph& graph, StorageId storage);

// The operator's only result, if that is one tensor.
ValueId only_result(const Graph& graph, NodeId node);

}  // namespace shadowgraph
