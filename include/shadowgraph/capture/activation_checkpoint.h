// Activation checkpointing for C++ programs: recomputes a function's activations in backward instead of saving them.
//
//     at::Tensor y = shadowgraph::checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//     Tensors ys = shadowgraph::checkpoint([&](const Tensors& in) { return two_outputs(in[0], in[1]); }, {a, b});
//
// The tensors that autograd would save are dropped. When backward needs the first of them, the function is recomputed
// from its inputs up to the last saved tensor. Gradients are bitwise equal to those without checkpointing. Supported:
//
//   - `torch::autograd::grad`, retain_graph, double backward (each backward recomputes the function);
//   - inputs that require no gradient, captured tensors, several outputs;
//   - in-place operators inside, and nested checkpoints.
//
// Inputs are saved. Tensors captured by the function must not be modified before backward, since recompute would see
// the modified values. The function object is kept until its last saved tensor is freed.
//
// Recompute restores the random state of the CPU and of the inputs' CUDA devices (unless preserve_random_state is
// false) and autocast. It does not restore other state that the function modifies: running statistics of batch norm are
// updated twice, as with Python's checkpoint. The pass `checkpoint` avoids that. Recompute may run on another thread:
// the backward of CUDA tensors runs on a thread of the autograd engine. A capture records a region of kind checkpoint,
// with recompute as part of backward: shadowgraph/graph/analysis.h.
//
// Corresponds to torch.utils.checkpoint with use_reentrant=False, which the C++ frontend lacks. Throws Error if the
// autograd engine is Python's: use Python's checkpoint there. Costs the recompute and about 20 us a call.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

struct CheckpointOptions {
  std::string name = "checkpoint";    // of the region in a capture
  bool preserve_random_state = true;  // draw the same random numbers in recompute; saves the state of each generator
  bool early_stop = true;             // end recompute, by an exception, once the last saved tensor is available
};

using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Undefined inputs are passed on. Propagates exceptions of the function; throws Error as described above. Backward
// throws Error if recompute saves fewer tensors than the first run, or tensors of another dtype, size or device;
// without early_stop, also if it saves more. Throws libtorch's error if an input was modified in place.
std::vector<at::Tensor> checkpoint_tensors(CheckpointedFunction function, std::vector<at::Tensor> inputs,
                                           const CheckpointOptions& options = {});

// Reports an activation checkpoint implemented elsewhere (torch.utils.checkpoint) to the current capture, if any. Call
// enter and leave around every run of the function; the first run is forward. For use on one thread.
class ExternalCheckpoint {
 public:
  explicit ExternalCheckpoint(std::string name) : name_(std::move(name)) {}
  void enter();
  void leave() noexcept;
  // Reports a tensor needed by backward that recompute has produced.
  static void keep(const at::Tensor& tensor);

 private:
  std::string name_;
  uint32_t session_ = 0;  // the capture that recorded the first run; 0: none
  uint32_t recorded_as_ = 0;
  bool has_run_ = false;
  enum class RunKind : uint8_t { kUnrecorded, kForward, kRecomputation };
  std::vector<RunKind> under_way_;
};

namespace internal {

// Convert a tensor, or a vector or tuple of tensors, to a vector and back.
inline std::vector<at::Tensor> to_tensors(at::Tensor result) { return {std::move(result)}; }
inline std::vector<at::Tensor> to_tensors(std::vector<at::Tensor> result) { return result; }
template <class... T>
std::vector<at::Tensor> to_tensors(const std::tuple<T...>& result) {
  return std::apply([](const auto&... elements) { return std::vector<at::Tensor>{elements...}; }, result);
}
template <class Result>
Result from_tensors(std::vector<at::Tensor> tensors) {
  if constexpr (std::same_as<Result, at::Tensor>) {
    return std::move(tensors[0]);
  } else if constexpr (std::same_as<Result, std::vector<at::Tensor>>) {
    return tensors;
  } else {
    return [&]<size_t... I>(std::index_sequence<I...>) { return Result{tensors[I]...}; }
    (std::make_index_sequence<std::tuple_size_v<Result>>());
  }
}

}  // namespace internal

// function(inputs) returns a tensor, a vector of tensors or a std::tuple of tensors.
template <class F>
requires std::invocable < F&, const std::vector<at::Tensor>
& > auto checkpoint(F function, std::vector<at::Tensor> inputs, const CheckpointOptions& options = {}) {
  using Result = std::invoke_result_t<F&, const std::vector<at::Tensor>&>;
  return internal::from_tensors<std::decay_t<Result>>(checkpoint_tensors(
      [function = std::move(function)](const std::vector<at::Tensor>& in) mutable {
        return internal::to_tensors(function(in));
      },
      std::move(inputs), options));
}

// Calls function(first, more...).
template <class F, std::same_as<at::Tensor>... More>
requires std::invocable<F&, const at::Tensor&, const More&...>
auto checkpoint(const CheckpointOptions& options, F function, const at::Tensor& first, const More&... more) {
  using Result = std::invoke_result_t<F&, const at::Tensor&, const More&...>;
  return internal::from_tensors<std::decay_t<Result>>(checkpoint_tensors(
      [function = std::move(function)](const std::vector<at::Tensor>& in) mutable {
        return [&]<size_t... I>(std::index_sequence<I...>) { return internal::to_tensors(function(in[I]...)); }
        (std::make_index_sequence<1 + sizeof...(More)>());
      },
      {first, more...}, options));
}
template <class F, std::same_as<at::Tensor>... More>
requires std::invocable<F&, const at::Tensor&, const More&...>
auto checkpoint(F function, const at::Tensor& first, const More&... more) {
  return checkpoint(CheckpointOptions(), std::move(function), first, more...);
}

}  // namespace shadowgraph
