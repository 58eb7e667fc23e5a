// Tests that nodes record the line of the user's C++ code. Only this file is compiled with debug information
// (tests/CMakeLists.txt).
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <filesystem>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

std::string at_line(int line) { return "cpp_source_test.cpp:" + std::to_string(line); }

// Returns "file:line" (file name only) of the first node that calls `op`.
std::string source_of(const Graph& graph, std::string_view op) {
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).name() != op) continue;
    return std::filesystem::path(graph.text_or_empty(graph.node(node).source)).filename();
  }
  ADD_FAILURE() << "no " << op;
  return {};
}

int line_of_helper = 0;
inline __attribute__((always_inline)) at::Tensor inlined(const at::Tensor& x) {
  line_of_helper = __LINE__ + 1;
  return x.sigmoid();
}

TEST(CppSources, AreTheLinesOfTheUsersCalls) {
  Capture session({.mode = {.device = at::kCUDA}, .cpp_sources = true});
  torch::nn::Sequential net(torch::nn::Linear(8, 4));
  session.name_module(*net);
  const at::Tensor x = at::empty({2, 8});
  const int line = __LINE__ + 1;
  const at::Tensor y = net->forward(x);  // Linear::forward, inside libtorch, calls the operator
  const at::Tensor z = inlined(y).relu().sum();
  z.backward();
  const Graph graph = session.finish({z});
  EXPECT_EQ(source_of(graph, "aten::addmm"), at_line(line));
  EXPECT_EQ(source_of(graph, "aten::relu"), at_line(line + 1));
  EXPECT_EQ(source_of(graph, "aten::sum"), at_line(line + 1));
  EXPECT_EQ(source_of(graph, "aten::sigmoid"), at_line(line_of_helper));
}

TEST(CppSources, ComeOnRequestAlone) {
  Capture session({.mode = {.device = at::kCUDA}});
  const at::Tensor x = at::empty({2, 8}).relu();
  EXPECT_EQ(source_of(session.finish({x}), "aten::relu"), "");
}

TEST(CppSources, OfATrainingStepNameTheOptimizersLine) {
  FakeTensorMode mode({.device = at::kCUDA});
  torch::nn::Linear net(4, 4);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const int line = __LINE__ + 2;
  const Graph graph =
      capture_training_step(*net, {at::empty({2, 4})}, [](const Tensors& outputs) { return outputs[0].sum(); }, sgd,
                            {.cpp_sources = true})
          .graph;
  EXPECT_EQ(source_of(graph, "aten::sum"), at_line(line));
}

TEST(CppSources, OfAHostReadAreInItsError) {
  Capture session({.mode = {.device = at::kCUDA}, .cpp_sources = true});
  const at::Tensor x = at::empty({2}).sum();
  const int line = __LINE__ + 2;
  try {
    (void)x.item<float>();
    FAIL() << "data was read";
  } catch (const DataDependentError& error) {
    EXPECT_NE(std::string(error.what()).find(at_line(line)), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace shadowgraph
