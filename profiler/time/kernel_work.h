// What a call has a kernel do, and the seconds that takes on a device.
#pragma once

#include <optional>

#include "profiler/program_costs.h"
#include "profiler/time/element_pace.h"
#include "profiler/time/gpu_kernels.h"
#include "profiler/time/kernel_classes.h"

namespace shadowgraph {

struct KernelWork {
  KernelClass kind = KernelClass::kFree;
  c10::ScalarType dtype = c10::kFloat;  // in which it computes
  double flops = 0;                     // of products, as kernels compute them
  double elementwise = 0;
  double transcendental = 0;
  double bytes = 0;      // read and written
  ElementWork elements;  // where laws of Hopper hold
  bool ragged = false;   // a convolution's channels fill no whole vectors
  std::optional<ProductShape> product;
  double blocks = 1;  // of attention: what is done for the scores, by what is counted for them
  double kernel = 1;  // of attention: the time of its kernel by FlashAttention-2's
};

struct KernelSeconds {
  double fixed = 0;
  double compute = 0;
  double memory = 0;
  double after = 0;  // what is not hidden behind the longer of the two
  double total() const;
};

KernelSeconds kernel_seconds(const DeviceSpec& spec, const KernelWork& work);

// Reads the work of a graph's calls.
class KernelWorks {
 public:
  // For times on this device.
  KernelWorks(const ProgramCosts& costs, const DeviceSpec& spec);
  KernelWork of(NodeId node);

 private:
  std::optional<ProductShape> product(NodeId node, double flops) const;
  double attention(NodeId node, bool backward) const;

  const ProgramCosts& costs_;
  const Graph& graph_;
  KernelClasses classes_;
  ElementWorks elements_;
  bool hopper_;
  bool tensor_float32_;  // of products of float32, as the graph's head says
};

}  // namespace shadowgraph
