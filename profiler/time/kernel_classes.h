// Finds the kernel classes of operators and of a graph's nodes: names are looked up once a target.
#pragma once

#include <memory>
#include <vector>

#include "shadowgraph/profile/kernel_class.h"

namespace shadowgraph {

// Says what an operator's name and facts tell of its class. A node's operands say the rest for pointwise operators and
// convolutions.
struct TargetKernelClass {
  KernelClass kind = KernelClass::kOther;
  bool convolution = false;  // its operands say which
  bool backward = false;
  const char* file = __builtin_FILE();  // that says so
};
TargetKernelClass kernel_class(const Target& called);

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
