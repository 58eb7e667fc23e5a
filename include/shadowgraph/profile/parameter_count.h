// How large the model is: elements and bytes of its parameters and buffers, shared ones once.
//
// Two placeholders are the same tensor if they have the same storage, offset and sizes (tied weights). Parameters that
// are different parts of one storage (flattened recurrent weights) count each. Bytes are those of the tensors, not of
// the storages, which may be padded.
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct ParameterCount {
  int64_t parameters = 0;  // elements that this process holds
  // Elements on all ranks together, where placeholders say what they are a part of (note "whole_sizes"); else the same.
  int64_t whole_parameters = 0;
  int64_t parameter_bytes = 0;
  int64_t parameter_tensors = 0;
  int64_t buffers = 0;  // elements
  int64_t buffer_bytes = 0;
  int64_t buffer_tensors = 0;

  static ParameterCount of(const Graph& graph);
  friend bool operator==(const ParameterCount&, const ParameterCount&) = default;
};

}  // namespace shadowgraph
