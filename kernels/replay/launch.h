// Launches kernels, and measures them against the operators that they replace. Internal to kernels/replay.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/text/tensor_bytes.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/kernels/kernel.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

// Minimum number of elements per thread, as in eager.
constexpr int64_t kElementsOfAThread = 32768;

struct ResultGeometry {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
  bool strides_of_empty = false;  // strides equal at::empty's, even in dimensions where they do not matter

  static ResultGeometry of(const Graph& graph, ValueId v) {
    return {.dtype = graph.value(v).dtype,
            .sizes = {graph.sizes(v).begin(), graph.sizes(v).end()},
            .strides = {graph.strides(v).begin(), graph.strides(v).end()},
            .strides_of_empty = has_contiguous_strides(graph.sizes(v), graph.strides(v))};
  }
  at::Tensor allocate(c10::Device device) const {
    if (!device.is_cpu()) return at::empty_strided(sizes, strides, at::TensorOptions(dtype).device(device));
    return strides_of_empty ? at::Tensor(at::detail::empty_cpu(sizes, dtype))
                            : at::Tensor(at::detail::empty_strided_cpu(sizes, strides, dtype));
  }
};

// `data`: the first element of each operand. Returns false if an index is out of range.
inline bool launch(const KernelBackend& backend, KernelFunction function, const LoweredKernel& plan,
                   std::span<void* const> data, std::span<const int64_t> scalars) {
  if (plan.range <= 0) return true;
  return backend.launch(function, {.data = data,
                                   .sizes = plan.sizes,
                                   .strides = plan.strides,
                                   .scalars = scalars,
                                   .range = plan.range,
                                   .row_work = plan.row_work});
}

// Alternates between two implementations until it is known which is faster. Thread-safe.
class Trial {
 public:
  enum class Implementation : uint8_t { kUnknown, kKernel, kOriginal };
  friend constexpr auto enum_names(Implementation) {
    return names_in_order<Implementation>("unknown", "kernel", "original");
  }

  Trial(KernelCache& cache, KernelRef kernel, std::string subject, const KernelMeasureOptions& options);

  // kUnknown while measuring.
  Implementation verdict() const { return verdict_.load(std::memory_order_acquire); }
  // Returns the implementation for the next call while measuring; report its time to took().
  Implementation next();
  void took(Implementation implementation, int64_t nanoseconds);
  int64_t now() const;
  // Returns the best time so far; 0 if there is none.
  int64_t best(Implementation implementation) const;

 private:
  KernelCache& cache_;
  const KernelRef kernel_;
  const std::string subject_;
  const KernelMeasureOptions& options_;
  std::atomic<Implementation> verdict_ = Implementation::kUnknown;
  mutable std::mutex mutex_;
  int64_t turns_ = 0, kernel_samples_ = 0, original_samples_ = 0, kernel_best_ = 0, original_best_ = 0;
};

// Trials by kernel and subject, shared by all equivalent calls. They live as long as this object.
class Trials {
 public:
  Trials(KernelCache& cache, KernelMeasureOptions options) : cache_(cache), options_(std::move(options)) {}
  // `original`: the replaced operator; `work`: the elements of a call. The kernel must be ready.
  Trial& of(const KernelRef& kernel, const std::string& original, int64_t work);
  bool enabled() const { return options_.enabled; }

 private:
  KernelCache& cache_;
  const KernelMeasureOptions options_;
  std::mutex mutex_;
  std::map<std::pair<const Kernel*, std::string>, std::unique_ptr<Trial>> trials_;
};

}  // namespace shadowgraph
