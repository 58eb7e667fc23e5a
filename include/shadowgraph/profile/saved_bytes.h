// Bytes that autograd keeps between forward and backward, by storage: the most at once. A step of several micro-batches
// keeps those of one after another.
//
//   all          every storage that a saved-tensor hook sees, once, whole, from there until it is freed
//   activations  the part that the step itself made: without parameters, buffers, inputs and constants, which exist
//   anyway
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct SavedBytes {
  int64_t all = 0;
  int64_t activations = 0;
  int64_t storages = 0;  // how many

  static SavedBytes of(const Graph& graph);
  friend bool operator==(const SavedBytes&, const SavedBytes&) = default;
};

}  // namespace shadowgraph
