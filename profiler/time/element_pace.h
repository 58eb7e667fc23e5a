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
  double again = 0;    // bytes beyond the traffic: operands that are read twice, or rows that are left alone
};

// Reads the work of a graph's calls: names are looked up once a target.
class ElementWorks {
 public:
  explicit ElementWorks(const Graph& graph) : graph_(graph) {}
  ElementWork of(NodeId node, KernelClass kind, const NodeTraffic& traffic);

 private:
  struct OfTarget {
    bool known = false;
    bool measured = false;  // PyTorch's own operators were
    bool trains = false;    // has its pace with statistics of the batch alone
    double pace = 0;        // by its name; 0: as its class says
  };
  const OfTarget& target_of(NodeId node);

  const Graph& graph_;
  IdMap<TargetId, OfTarget> targets_;
};

}  // namespace shadowgraph
