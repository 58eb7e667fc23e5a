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
#pragma once

#include <string_view>
#include <vector>

#include "ir/analysis/tensor_geometry.h"
#include "ir/operators/operator_facts.h"
#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

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
