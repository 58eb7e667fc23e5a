// Checks that a rewritten graph computes what the program does, by running both on the same real tensors.
#pragma once

#include <gtest/gtest.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph {

using Program = std::function<Tensors(const Tensors& inputs)>;

inline Tensors clones(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor));
  }
  return copies;
}

// Captures forward without gradients, on fakes of the inputs.
inline Graph capture_on(const Program& program, const Tensors& inputs,
                        c10::Device device = c10::Device(c10::DeviceType::CPU)) {
  const c10::NoGradGuard no_grad;
  FakeTensorMode mode({.device = device});
  Tensors fakes;
  for (const at::Tensor& input : inputs) fakes.push_back(mode.from_real(input, device));
  return capture_forward(ProgramToCapture{.inputs = fakes, .forward = program}).graph;
}

inline void expect_close(const at::Tensor& expected, const at::Tensor& actual, double tolerance, bool bitwise,
                         const std::string& what) {
  ASSERT_EQ(expected.defined(), actual.defined()) << what;
  if (!expected.defined()) return;
  EXPECT_EQ(expected.scalar_type(), actual.scalar_type()) << what;
  EXPECT_EQ(expected.sizes(), actual.sizes()) << what;
  EXPECT_EQ(expected.strides(), actual.strides()) << what;
  if (expected.sizes() != actual.sizes()) return;
  if (bitwise) {
    EXPECT_TRUE(at::equal(expected, actual)) << what;
  } else {
    EXPECT_TRUE(at::allclose(expected, actual, tolerance, tolerance, /*equal_nan=*/true))
        << what << ": off by " << (expected - actual).abs().max().item<double>();
  }
}

// `graph` was captured from `program` and rewritten. Compares outputs, and the inputs that the program writes.
inline void expect_same_values(const Graph& graph, const Program& program, const Tensors& inputs,
                               double tolerance = 1e-5, bool bitwise = false) {
  verify(graph);
  const c10::NoGradGuard no_grad;
  const Tensors eager_inputs = clones(inputs);
  const Tensors eager = program(eager_inputs);
  const Tensors replay_inputs = clones(inputs);
  Interpreter interpreter(graph, {.device = c10::Device(c10::DeviceType::CPU), .check_results = true});
  Bindings bindings;
  for (const NodeId node : graph.nodes()) {  // skips inputs that the program does not use
    if (graph.node(node).target != target_of(Builtin::kInput)) continue;
    const std::string& name = graph.text(graph.arguments(node)[0].string);
    bindings.bind(name, replay_inputs.at(std::stoul(name.substr(std::string("input").size()))));
  }
  const ReplayResult replayed = interpreter.run(bindings);
  ASSERT_EQ(eager.size(), replayed.outputs.size());
  for (size_t i = 0; i < eager.size(); ++i) {
    expect_close(eager[i], replayed.outputs[i], tolerance, bitwise, "output " + std::to_string(i));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    expect_close(eager_inputs[i], replay_inputs[i], tolerance, bitwise, "input " + std::to_string(i));
  }
}

inline int64_t calls_of(const Graph& graph, std::string_view name) {
  return static_cast<int64_t>(nodes_calling(graph, name).size());
}

}  // namespace shadowgraph
