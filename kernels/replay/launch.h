// Calls kernels, and tries them against what they replace. Internal to kernels/replay.
#pragma once

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "shadowgraph/kernels/kernel.h"
#include "shadowgraph/kernels/program.h"

namespace shadowgraph {

// Below so many elements, threads cost more than they save; eager's grain.
constexpr int64_t kElementsOfAThread = 32768;

// Says whether strides are those that at::empty gives, also where they do not matter.
inline bool are_default_strides(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (strides[d] != expected) return false;
    expected *= std::max<int64_t>(sizes[d], 1);
  }
  return true;
}

// `data`: the first element of each operand. Returns false if an index is out of range.
inline bool launch(const KernelBackend& backend, KernelFunction function, const KernelPlan& plan,
                   std::span<void* const> data, std::span<const int64_t> scalars) {
  if (plan.range <= 0) return true;
  return backend.launch(function, {.data = data,
                                   .sizes = plan.sizes,
                                   .strides = plan.strides,
                                   .scalars = scalars,
                                   .range = plan.range,
                                   .row_work = plan.row_work});
}

// Uses two ways to do one thing in turn until it is known which is faster. Internal to kernels/replay.

// Thread-safe.
class Trial {
 public:
  enum class Way : uint8_t { kUnknown, kKernel, kOriginal };

  Trial(KernelCache& cache, KernelRef kernel, std::string subject, const KernelMeasureOptions& options);

  // kUnknown while it is measured.
  Way verdict() const { return verdict_.load(std::memory_order_acquire); }
  // Returns the way for the next call while the verdict is not known; its time goes to took().
  Way next();
  void took(Way way, int64_t nanoseconds);
  int64_t now() const;
  // Returns the best time so far; 0 if nothing is known.
  int64_t best(Way way) const;

 private:
  KernelCache& cache_;
  const KernelRef kernel_;
  const std::string subject_;
  const KernelMeasureOptions& options_;
  std::atomic<Way> verdict_ = Way::kUnknown;
  mutable std::mutex mutex_;
  int64_t turns_ = 0;
  int64_t kernel_samples_ = 0;
  int64_t original_samples_ = 0;
  int64_t kernel_best_ = 0;
  int64_t original_best_ = 0;
};

// Keeps trials by kernel and subject, one for all calls that are alike. Trials live as long as this object.
class Trials {
 public:
  Trials(KernelCache& cache, KernelMeasureOptions options) : cache_(cache), options_(std::move(options)) {}
  // `original` is what the kernel stands for, `work` the elements of a call. The kernel must be ready.
  Trial& of(const KernelRef& kernel, const std::string& original, int64_t work);
  bool enabled() const { return options_.enabled; }

 private:
  KernelCache& cache_;
  const KernelMeasureOptions options_;
  std::mutex mutex_;
  std::map<std::pair<const Kernel*, std::string>, std::unique_ptr<Trial>> trials_;
};

}  // namespace shadowgraph
