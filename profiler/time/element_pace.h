// What elements take in kernels that neither move whole vectors nor fill the tensor cores, however few bytes they have.
//
// Copies whose sides lie differently, casts and broadcasts go element by element. Norms over few elements, sorts, pools
// and scatters have paces of their own. The figures were measured on an H100 (bench/gpu) and hold for Hopper, by
// multiprocessor. docs/time.md has them with their errors.
#pragma once

#include "shadowgraph/graph.h"
#include "shadowgraph/profile/kernel_class.h"
#include "shadowgraph/profile/traffic.h"

namespace shadowgraph {

struct ElementWork {
  double seconds = 0;  // of one multiprocessor, if it had all elements; at the least, whatever is moved
  double more = 0;     // the same, before or after the rest: operands that are laid out anew
  double steps = 0;    // seconds of kernels that wait for one another, however many multiprocessors there are
};
ElementWork element_work(const Graph& graph, NodeId node, KernelClass kind);

// Bytes that the kernels of eager PyTorch move in a call, which may read an operand again or leave rows alone.
double moved_bytes(const Graph& graph, NodeId node, KernelClass kind, const NodeTraffic& traffic);

}  // namespace shadowgraph
