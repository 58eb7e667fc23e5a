// Keeps a call made ready: programs, where its operands come from, what its results are. Internal to kernels/replay.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/kernels/backend.h"
#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph {

// One kernel takes so many operands and numbers at most.
constexpr size_t kMostOperands = 32;

class Trial;

struct PreparedCall {
  struct Part {
    KernelPlan plan;
    KernelRef kernel;
    std::vector<uint32_t> inputs;   // positions on the stack
    std::vector<uint32_t> outputs;  // of `fresh`
  };
  struct Fresh {
    c10::ScalarType dtype;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    bool contiguous = false;
  };
  std::vector<Part> parts;  // empty: not supported, and `problem` says why
  std::vector<Fresh> fresh;
  // Says for each result: a fresh tensor, -1 - the position on the stack, or nothing.
  static constexpr int kUndefined = -1000;
  std::vector<int> results;
  std::string problem;
  const KernelBackend* backend = nullptr;  // of the cache that the call was prepared with
  // Bits of the arguments whose value decides.
  uint64_t decisive = 0;

  mutable std::atomic<Trial*> trial = nullptr;  // once somebody measures it

  // Elements that it goes over.
  int64_t work() const;
  // Returns kReady if all kernels are ready, kFailed if one cannot be had.
  Kernel::State state() const;
};

std::shared_ptr<const PreparedCall> prepare_call(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                                                 const KernelOptions& options, KernelCache& cache);

// Appends the call's results to `results`; all kernels must be ready. Returns false if an index is out of range: then
// there are no results, and the original says what is wrong.
bool run_call(const PreparedCall& call, std::span<const c10::IValue> arguments, torch::jit::Stack& results);

}  // namespace shadowgraph
