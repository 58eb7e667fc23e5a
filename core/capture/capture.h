// One call from a module to its graph.
//
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA});
//     auto net = std::make_shared<Net>();
//     torch::optim::SGD sgd(net->parameters(), 0.1);
//     auto step = shadowgraph::capture_training_step(
//         *net, {at::empty({8, 3, 32, 32})}, [](const auto& outputs) { return outputs[0].sum(); }, sgd,
//         {.device = at::kCUDA});
//     // step.graph, step.seconds
#pragma once

#include <functional>

#include "core/capture/capture_session.h"

namespace torch::optim {
class Optimizer;
}

namespace shadowgraph {

using Tensors = std::vector<at::Tensor>;
using ForwardFunction = std::function<Tensors(const Tensors& inputs)>;
// Reduces the outputs to a scalar.
using LossFunction = std::function<at::Tensor(const Tensors& outputs)>;

struct Capture {
  Graph graph;
  double seconds = 0;  // wall time of the capture alone; not part of the graph, which stays the same from run to run
};

struct ProgramToCapture {
  const torch::nn::Module* module = nullptr;  // may be null
  // What belongs to the program besides the module's own, by name.
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  Tensors inputs;
  std::vector<std::string> input_names;  // parallel to inputs; missing ones are called input0, input1, ...
  ForwardFunction forward;
  LossFunction loss;                             // training: required
  torch::optim::Optimizer* optimizer = nullptr;  // training: may be null, then there is no optimizer phase
  // Training steps run before the recorded one, so that optimizer state exists: 0 gives the first step, 1 steady state.
  int warmup_steps = 0;
};

// Forward alone, in the caller's grad mode. Whatever the program throws passes through with all state restored.
Capture capture_forward(const ProgramToCapture& program, const CaptureOptions& options = {});

// zero_grad, forward, loss, backward, optimizer step. Throws Error if the loss is not a scalar that requires grad, and
// RealTensorError if the module has real parameters: they would receive fake gradients; make the module inside a
// FakeTensorMode.
Capture capture_training_step(const ProgramToCapture& program, const CaptureOptions& options = {});

// Calls module.forward with the inputs as separate arguments, up to eight, or with all of them as one vector.
template <class Module>
Tensors call_forward(Module& module, const Tensors& inputs) {
  const auto as_list = [](auto&& result) -> Tensors {
    using Result = std::decay_t<decltype(result)>;
    if constexpr (std::is_convertible_v<Result, Tensors>) {
      return result;
    } else if constexpr (std::is_convertible_v<Result, at::Tensor>) {
      return {result};
    } else {
      return std::apply([](auto&&... elements) { return Tensors{elements...}; }, result);
    }
  };
  std::optional<Tensors> result;
  const auto attempt = [&]<size_t... I>(std::index_sequence<I...>) {
    if constexpr (requires { module.forward(inputs[I]...); }) {
      if (!result && inputs.size() == sizeof...(I)) result = as_list(module.forward(inputs[I]...));
    }
  };
  attempt(std::make_index_sequence<1>());
  attempt(std::make_index_sequence<2>());
  attempt(std::make_index_sequence<3>());
  attempt(std::make_index_sequence<4>());
  attempt(std::make_index_sequence<5>());
  attempt(std::make_index_sequence<6>());
  attempt(std::make_index_sequence<7>());
  attempt(std::make_index_sequence<8>());
  if constexpr (requires { module.forward(inputs); }) {
    if (!result) result = as_list(module.forward(inputs));
  }
  if (!result) throw Error("the module's forward does not take " + std::to_string(inputs.size()) + " tensors");
  return *result;
}

template <class Module>
Capture capture_forward(Module& module, const Tensors& inputs, const CaptureOptions& options = {}) {
  return capture_forward(
      ProgramToCapture{
          .module = &module, .inputs = inputs, .forward = [&](const Tensors& in) { return call_forward(module, in); }},
      options);
}

template <class Module>
Capture capture_training_step(Module& module, const Tensors& inputs, const LossFunction& loss,
                              torch::optim::Optimizer& optimizer, const CaptureOptions& options = {}) {
  return capture_training_step(ProgramToCapture{.module = &module,
                                                .inputs = inputs,
                                                .forward = [&](const Tensors& in) { return call_forward(module, in); },
                                                .loss = loss,
                                                .optimizer = &optimizer},
                               options);
}

}  // namespace shadowgraph
