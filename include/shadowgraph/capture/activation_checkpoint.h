// Activation checkpoint for C++ programs: what a function would keep for backward is computed again there.
//
//     at::Tensor y = shadowgraph::checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//     Tensors ys = shadowgraph::checkpoint([&](const Tensors& in) { return two_outputs(in[0], in[1]); }, {a, b});
//
// The function runs as it stands, under autograd; only the tensors that autograd would save are not kept. When backward
// asks for the first of them the function runs again, with the inputs, and hands them over. That run ends as soon as
// the last one is there. So gradients are those without checkpoint, bit for bit. All of these work:
//
//   - `torch::autograd::grad`, retain_graph, double backward (each backward runs the function again);
//   - inputs that need no gradient, tensors that the function captures, several outputs;
//   - in-place operators inside, and checkpoints within checkpoints.
//
// The inputs are kept. A tensor that the function captures must not be written to before backward: the function would
// see what it is then. The function lives until the last of its saved tensors dies.
//
// The second run finds the random state of the CPU and of the inputs' CUDA devices as it was (unless
// preserve_random_state is false), and autocast. It does not find what the function changes outside: running statistics
// of a batch norm are updated twice, as they are with Python's checkpoint. Nothing here can know better; the pass
// `checkpoint` does. It may not find the thread: backward of CUDA tensors runs on a thread of the engine's. In a
// capture this is a region of kind checkpoint, and the second run is part of backward: shadowgraph/graph/analysis.h.
//
// The idea is torch.utils.checkpoint's with use_reentrant=False; the C++ frontend has none. A program whose autograd
// engine is Python's cannot use it (Error): use Python's own there. Costs the second run and about 20 us a
// call (bench/checkpoint).
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
  bool preserve_random_state = true;  // draw the same random numbers again; one state of a generator is kept for it
  bool early_stop = true;             // leave the second run by an exception when the last saved tensor is there
};

using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// Undefined inputs are handed on as such. Throws what the function throws; Error as said above. Backward
// throws Error if the second run saves fewer tensors than the first, or others in dtype, sizes or device;
// without early_stop also for more. It throws libtorch's error about in-place changes if an input was written to since.
std::vector<at::Tensor> checkpoint_tensors(CheckpointedFunction function, std::vector<at::Tensor> inputs,
                                           const CheckpointOptions& options = {});

// Tells the capture under way, if there is one, of a checkpoint that somebody else carries out
// (torch.utils.checkpoint). Every run of the function is entered and left, and the first is forward's. For use on one
// thread.
class CheckpointRuns {
 public:
  explicit CheckpointRuns(std::string name) : name_(std::move(name)) {}
  void enter();
  void leave() noexcept;
  // A later run has made a tensor that backward waits for.
  static void keep(const at::Tensor& tensor);

 private:
  std::string name_;
  uint32_t session_ = 0;  // of the capture that saw the first run; 0: none
  uint32_t recorded_as_ = 0;
  bool has_run_ = false;
  enum class Told : uint8_t { kNothing, kFirst, kAgain };
  std::vector<Told> under_way_;
};

namespace internal {

// A tensor, a vector or a tuple of tensors as a vector, and back.
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

// function(inputs): gives a tensor, a vector of tensors or a std::tuple of them.
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

// function(first, more...), with options before the function.
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
