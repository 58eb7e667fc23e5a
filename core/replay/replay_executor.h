// A graph, or a slice of it, as something to run: prepared once, run many times.
//
//     ReplayExecutor executor(std::move(graph));
//     at::Tensor y = executor.run({weight, bias, x})[0];                      by position: executor.input_names()
//     ReplayResult step = executor.run(Bindings().module(net).bind("x", x));  by name, gradients included
//
// It is an Interpreter (core/replay/interpreter.h, which tells what a run is) that owns its graph and knows what it takes.
// Every error is a ReplayError that names the node and what to do: a missing tensor, one of another dtype, shape, stride or
// device, an operator or device that this process lacks. Costs about 30 ns a node above calling the operators boxed.
#pragma once

#include "core/replay/interpreter.h"

namespace shadowgraph {

class ReplayExecutor {
 public:
  // Throws Error for a value of options.only that the graph does not have. Linear.
  explicit ReplayExecutor(Graph graph, InterpreterOptions options = {});

  // Parameters, buffers and inputs in program order: what run takes by position.
  const std::vector<std::string>& input_names() const { return input_names_; }
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs) {
    return interpreter_.run(Bindings().in_order(std::move(inputs))).outputs;
  }
  ReplayResult run(const Bindings& bindings) { return interpreter_.run(bindings); }

  const Graph& graph() const { return graph_; }

 private:
  const Graph graph_;
  std::vector<std::string> input_names_;
  Interpreter interpreter_;
};

}  // namespace shadowgraph
