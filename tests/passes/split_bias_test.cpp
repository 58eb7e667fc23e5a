// Splits every operator that adds a bias and compares with eager. Operands have distinct shapes; covers alpha and beta,
// broadcast biases, groups, strides, dilations and transposed convolutions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <limits>

#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/passes/pass.h"
#include "tests/passes/model_captures.h"
#include "tests/passes/replay_check.h"

namespace shadowgraph {
namespace {

struct Case {
  std::string name;
  Program program;
  Tensors inputs;
  std::string gone;  // the operator that must be split
  bool bitwise = false;
};

void check(const Case& test) {
  SCOPED_TRACE(test.name);
  Graph graph = capture_on(test.program, test.inputs);
  const int64_t before = calls_of(graph, test.gone);
  ASSERT_GT(before, 0) << to_text(graph);
  EXPECT_EQ(split_bias(graph).split, before);
  expect_same_values(graph, test.program, test.inputs, 1e-4, test.bitwise);
  EXPECT_EQ(split_bias(graph).split, 0) << "a second run must not split anything";
}

at::Tensor numbers(at::IntArrayRef sizes) { return at::randn(sizes); }
at::Tensor integers(at::IntArrayRef sizes) { return at::randint(-9, 9, sizes, at::kLong); }

TEST(SplitBias, MatrixProductsWithAlphaAndBeta) {
  at::manual_seed(11);
  const std::vector<std::pair<at::Scalar, at::Scalar>> factors = {{1, 1}, {2, 1}, {1, 3}, {0.5, -2.0}, {0, 1}, {0, 2}};
  for (const auto& [beta, alpha] : factors) {
    const auto b = beta;
    const auto a = alpha;
    const std::string scale = " beta " + c10::str(b) + " alpha " + c10::str(a);
    for (const auto& bias : {numbers({3, 5}), numbers({5}), numbers({1, 5}), numbers({3, 1}), numbers({})}) {
      check({"addmm" + scale,
             [=](const Tensors& in) { return Tensors{at::addmm(in[0], in[1], in[2], b, a)}; },
             {bias, numbers({3, 7}), numbers({7, 5})},
             "aten::addmm"});
      check({"addbmm" + scale,
             [=](const Tensors& in) { return Tensors{at::addbmm(in[0], in[1], in[2], b, a)}; },
             {bias, numbers({4, 3, 7}), numbers({4, 7, 5})},
             "aten::addbmm"});
      check({"baddbmm" + scale,
             [=](const Tensors& in) { return Tensors{at::baddbmm(in[0], in[1], in[2], b, a)}; },
             {bias, numbers({4, 3, 7}), numbers({4, 7, 5})},
             "aten::baddbmm"});
      if (!bias.sizes().equals({5}) && bias.dim() == 2) continue;
      check({"addmv" + scale,
             [=](const Tensors& in) { return Tensors{at::addmv(in[0], in[1], in[2], b, a)}; },
             {bias, numbers({5, 7}), numbers({7})},
             "aten::addmv"});
    }
    check({"addr" + scale,
           [=](const Tensors& in) { return Tensors{at::addr(in[0], in[1], in[2], b, a)}; },
           {numbers({3, 5}), numbers({3}), numbers({5})},
           "aten::addr"});
    check({"addmm_" + scale,
           [=](const Tensors& in) {
             at::Tensor x = in[0];
             return Tensors{x.addmm_(in[1], in[2], b, a)};
           },
           {numbers({3, 5}), numbers({3, 7}), numbers({7, 5})},
           "aten::addmm_"});
    check({"baddbmm_" + scale,
           [=](const Tensors& in) {
             at::Tensor x = in[0];
             return Tensors{x.baddbmm_(in[1], in[2], b, a), x.transpose(0, 1).relu()};
           },
           {numbers({4, 3, 5}), numbers({4, 3, 7}), numbers({4, 7, 5})},
           "aten::baddbmm_"});
  }
}

TEST(SplitBias, IntegersAreBitwiseEqual) {
  at::manual_seed(12);
  for (const auto& [b, a] : std::vector<std::pair<int, int>>{{1, 1}, {2, 3}, {0, 2}, {-4, 1}}) {
    const int beta = b;
    const int alpha = a;
    check({"addmm",
           [=](const Tensors& in) { return Tensors{at::addmm(in[0], in[1], in[2], beta, alpha)}; },
           {integers({5}), integers({3, 7}), integers({7, 5})},
           "aten::addmm",
           true});
    check({"addbmm",
           [=](const Tensors& in) { return Tensors{at::addbmm(in[0], in[1], in[2], beta, alpha)}; },
           {integers({3, 5}), integers({4, 3, 7}), integers({4, 7, 5})},
           "aten::addbmm",
           true});
    check({"baddbmm",
           [=](const Tensors& in) { return Tensors{at::baddbmm(in[0], in[1], in[2], beta, alpha)}; },
           {integers({4, 3, 5}), integers({4, 3, 7}), integers({4, 7, 5})},
           "aten::baddbmm",
           true});
  }
}

TEST(SplitBias, ABetaOfZeroDoesNotReadTheBias) {
  const at::Tensor nan = at::full({3, 5}, std::numeric_limits<double>::quiet_NaN());
  const Tensors inputs{nan, numbers({3, 7}), numbers({7, 5})};
  const Program program = [](const Tensors& in) { return Tensors{at::addmm(in[0], in[1], in[2], 0, 1)}; };
  Graph graph = capture_on(program, inputs);
  EXPECT_EQ(split_bias(graph).split, 1);
  EXPECT_EQ(calls_of(graph, "aten::add"), 0);
  Interpreter interpreter(graph);
  EXPECT_FALSE(interpreter.run(Bindings().in_order(inputs)).outputs[0].isnan().any().item<bool>());
}

TEST(SplitBias, Convolutions) {
  at::manual_seed(13);
  const auto conv = [](std::vector<int64_t> stride, std::vector<int64_t> padding, std::vector<int64_t> dilation,
                       bool transposed, std::vector<int64_t> output_padding, int64_t groups) -> Program {
    return [=](const Tensors& in) {
      return Tensors{
          at::convolution(in[0], in[1], in[2], stride, padding, dilation, transposed, output_padding, groups)};
    };
  };
  const std::string op = "aten::convolution";
  std::vector<Case> cases = {
      {"1d", conv({2}, {1}, {1}, false, {0}, 1), {numbers({2, 6, 11}), numbers({4, 6, 3}), numbers({4})}, op},
      {"2d",
       conv({1, 2}, {1, 0}, {1, 1}, false, {0, 0}, 1),
       {numbers({2, 6, 9, 11}), numbers({4, 6, 3, 2}), numbers({4})},
       op},
      {"2d grouped and dilated",
       conv({1, 1}, {2, 2}, {2, 3}, false, {0, 0}, 3),
       {numbers({2, 6, 9, 11}), numbers({9, 2, 3, 3}), numbers({9})},
       op},
      {"depthwise",
       conv({1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 6),
       {numbers({2, 6, 9, 11}), numbers({6, 1, 3, 3}), numbers({6})},
       op},
      {"3d",
       conv({1, 2, 1}, {1, 1, 0}, {1, 1, 1}, false, {0, 0, 0}, 1),
       {numbers({2, 3, 5, 7, 6}), numbers({4, 3, 3, 3, 2}), numbers({4})},
       op},
      {"transposed 1d", conv({3}, {1}, {1}, true, {2}, 1), {numbers({2, 6, 11}), numbers({6, 5, 3}), numbers({5})}, op},
      {"transposed 2d grouped",
       conv({2, 1}, {1, 1}, {1, 2}, true, {1, 0}, 2),
       {numbers({2, 6, 5, 7}), numbers({6, 4, 3, 3}), numbers({8})},
       op},
      {"transposed 3d",
       conv({2, 1, 1}, {0, 1, 0}, {1, 1, 1}, true, {1, 0, 0}, 1),
       {numbers({2, 3, 4, 5, 6}), numbers({3, 4, 2, 3, 2}), numbers({4})},
       op},
      {"channels last",
       conv({1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1),
       {numbers({2, 6, 9, 11}).contiguous(at::MemoryFormat::ChannelsLast), numbers({4, 6, 3, 3}), numbers({4})},
       op},
  };
  for (const Case& test : cases) check(test);
}

TEST(SplitBias, LinearLayersAndWhatHasNoBias) {
  const Tensors inputs{numbers({2, 3, 7}), numbers({5, 7}), numbers({5})};
  const Program linear = [](const Tensors& in) { return Tensors{at::linear(in[0].flatten(0, 1), in[1], in[2])}; };
  check({"linear", linear, inputs, "aten::addmm"});
  Graph without = capture_on([](const Tensors& in) { return Tensors{at::linear(in[0], in[1])}; }, inputs);
  const std::string before = to_text(without);
  EXPECT_EQ(split_bias(without).split, 0);
  EXPECT_EQ(to_text(without), before);
}

// The backward of a training step is unchanged: saved tensors, backward nodes and the geometry of gradients.
TEST(SplitBias, ATrainingStepKeepsItsBackward) {
  for (const char* name : {"resnet18", "bert_base", "gpt2"}) {
    Graph graph = capture_tiny(name, {.train = true, .batch = 3});
    const auto backward_of = [](const Graph& g) {
      std::vector<std::string> lines;
      for (const NodeId node : g.nodes()) {
        if (g.node(node).phase != Graph::kBackward) continue;
        std::string line = g.target(node).name();
        g.for_each_output(node, [&](ValueId value) { line += " " + type_text(g, value); });
        lines.push_back(line);
      }
      return lines;
    };
    const auto before = backward_of(graph);
    const int64_t addmms = calls_of(graph, "aten::addmm");
    const Pass* pass = find_pass("split-bias");
    ASSERT_NE(pass, nullptr);
    EXPECT_EQ(pass->run(graph, {}).changed, addmms > 0);
    verify(graph);
    EXPECT_EQ(calls_of(graph, "aten::addmm"), 0);
    EXPECT_EQ(backward_of(graph), before);
  }
}

}  // namespace
}  // namespace shadowgraph
