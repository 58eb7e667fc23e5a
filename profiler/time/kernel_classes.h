// Finds the kernel classes of a graph's nodes: names are looked up once a target.
#pragma once

#include <memory>
#include <vector>

#include "shadowgraph/profile/kernel_class.h"

namespace shadowgraph {

class KernelClasses {
 public:
  explicit KernelClasses(const Graph& graph);
  ~KernelClasses();
  KernelClass of(NodeId node);
  // Returns what a kernel computes of the FLOPs that are counted. A grouped convolution's weight gradient is counted as
  // if there were one group (profiler/cost/flop_table.h), which nobody computes.
  int64_t computed(NodeId node, int64_t counted);

 private:
  struct Known;
  const Graph& graph_;
  std::vector<std::unique_ptr<Known>> by_target_;
};

}  // namespace shadowgraph
