// Captured programs for interpreter tests, and a helper that returns error messages.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"

namespace shadowgraph {

using Tensors = std::vector<at::Tensor>;

// Captured without gradients; inputs are x, y, z.
template <class Program>
Graph captured(const Tensors& inputs, Program&& program, c10::Device device = at::kCPU) {
  const c10::NoGradGuard no_grad;
  Capture session({.mode = {.device = device}, .guards = false});
  static const std::vector<std::string> names{"x", "y", "z"};
  Tensors fakes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    fakes.push_back(session.mode().from_real(inputs[i], device));
    session.name_input(fakes[i], names[i]);
  }
  return session.finish(program(fakes));
}

// Returns the message that `run` throws, or "".
inline std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const ReplayError& error) {
    return error.what();
  }
  return "";
}

inline std::string error_of(const Graph& graph, const Bindings& bindings, InterpreterOptions options = {}) {
  return error_of([&] { Interpreter(graph, std::move(options)).run(bindings); });
}

inline NodeId node_called(const Graph& graph, const std::string& name) {
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).name() == name) return node;
  }
  return {};
}

inline ValueId result_of(const Graph& graph, const std::string& name) {
  return graph.results(node_called(graph, name))[0].ref.value;
}

#define EXPECT_CONTAINS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

inline const at::Tensor& ones23() {
  static const at::Tensor ones = at::ones({2, 3});
  return ones;
}

}  // namespace shadowgraph
