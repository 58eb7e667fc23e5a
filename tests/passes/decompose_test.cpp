// Decompositions: each row of the table against the original operator on real tensors, whole models, and the sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <set>

#include "models/registry.h"
#include "passes/decompose/decompositions.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/passes/functional.h"
#include "tests/passes/decompose_cases.h"
#include "tests/passes/model_captures.h"
#include "tests/passes/replay_check.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

TEST(Decompose, EveryFormulaGivesWhatTheOperatorGives) {
  for (const DecomposeCase& test : decompose_cases()) {
    SCOPED_TRACE(test.op);
    Graph graph = capture_on(test.program, test.inputs);
    ASSERT_GT(calls_of(graph, test.op), 0) << to_text(graph);
    const DecomposeResult result = decompose(graph, {.to = OperatorSet::named("basic")});
    EXPECT_EQ(calls_of(graph, test.op), 0) << to_text(graph) << ::testing::PrintToString(result.why);
    EXPECT_GT(result.expanded.at(test.op), 0);
    expect_same_values(graph, test.program, test.inputs, test.tolerance);
  }
}

// GPU attention kernels: captured on fake CUDA, run on the CPU.
TEST(Decompose, AttentionOfAGpu) {
  at::manual_seed(5);
  const Tensors qkv{at::randn({2, 3, 64, 16}), at::randn({2, 3, 64, 16}), at::randn({2, 3, 64, 16})};
  for (const bool masked : {true, false}) {
    const Program program = [masked](const Tensors& in) {
      at::Tensor mask;
      if (masked) mask = at::zeros({64, 64}, in[0].options()).add_(in[0].sum());
      return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2], masked ? std::optional(mask) : std::nullopt,
                                                      0.0, !masked)};
    };
    Graph graph = capture_on(program, qkv, c10::Device("cuda:0"));
    const DecomposeResult result = decompose(graph, {.to = OperatorSet::named("no-fused")});
    EXPECT_EQ(result.expanded.size(), 1U) << to_text(graph);
    EXPECT_TRUE(result.remaining.empty()) << ::testing::PrintToString(result.why);
    Interpreter interpreter(graph, {.device = c10::Device("cpu")});
    const at::Tensor replayed = interpreter.run(Bindings().in_order(qkv)).outputs[0];
    EXPECT_TRUE(at::allclose(replayed, program(qkv)[0], 1e-4, 1e-4));
  }
}

class DecomposedModel : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, DecomposedModel,
                         ::testing::Values("resnet18", "vit_b_16", "bert_base", "gpt2", "llama3_8b", "unet",
                                           "lstm_lm"));

// A training step: loss, gradients and updated parameters of the decomposed graph against the captured one.
TEST_P(DecomposedModel, TrainsAsBefore) {
  Graph graph = capture_tiny(GetParam(), {.train = true});
  const auto run = [&](const Graph& what) {
    at::manual_seed(3);
    const models::BuiltModel model = models::build(GetParam(), {.batch = 2, .tiny = true});
    Bindings bindings;
    bindings.module(*model.module);
    for (size_t i = 0; i < model.inputs.size(); ++i) bindings.bind(model.input_names[i], model.inputs[i]);
    at::manual_seed(4);
    Interpreter interpreter(what, {.check_results = true});
    ReplayResult result = interpreter.run(bindings);
    for (const auto& entry : model.module->named_parameters()) {
      result.gradients["updated " + entry.key()] = entry.value().detach().clone();
    }
    for (const auto& entry : model.module->named_buffers()) {
      result.gradients["updated " + entry.key()] = entry.value().detach().clone();
    }
    return result;
  };
  const ReplayResult expected = run(graph);
  const DecomposeResult done = decompose(graph, {.to = OperatorSet::named("basic")});
  verify(graph);
  EXPECT_FALSE(done.expanded.empty());
  EXPECT_FALSE(done.expanded.contains("aten::native_dropout")) << "random operators are not decomposed";
  const ReplayResult actual = run(graph);
  expect_close(expected.outputs.at(0), actual.outputs.at(0), 1e-4, false, "loss");
  for (const auto& [name, gradient] : expected.gradients) {
    expect_close(gradient, actual.gradients.at(name), 2e-3, false, name);
  }
  // Every row that the model uses has been decomposed.
  for (const std::string& name : decompositions::all().names()) {
    if (done.why.contains(name)) continue;
    // A row without overload name refers to one overload, not to all.
    for (const NodeId node : nodes_calling(graph, name)) EXPECT_NE(graph.target(node).name(), name);
  }
}

TEST_P(DecomposedModel, ForwardLinksAndLivesStayRight) {
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    for (const char* to : {"core-aten", "no-fused", "basic"}) {
      Graph graph = capture_tiny(GetParam(), {.train = true, .device = device});
      decompose(graph, {.to = OperatorSet::named(to)});
      verify(graph);
      for (const NodeId node : graph.nodes()) {
        const NodeId forward = graph.node(node).forward;
        EXPECT_TRUE(!forward.valid() || !graph.is_erased(forward));
      }
      const std::string once = to_text(graph);
      const Pass* pass = find_pass("decompose");
      ASSERT_NE(pass, nullptr);
      EXPECT_FALSE(pass->run(graph, {{"to", to}}).changed);
      EXPECT_EQ(to_text(graph), once);
    }
  }
}

TEST(Decompose, SetsByNameByListAndByFile) {
  EXPECT_TRUE(OperatorSet::named("core-aten").has("aten::addmm"));
  EXPECT_FALSE(OperatorSet::named("core-aten").has("aten::silu_backward"));
  EXPECT_FALSE(OperatorSet::named("no-fused").has("aten::addmm"));
  EXPECT_TRUE(OperatorSet::named("no-fused").has("aten::gelu"));
  const OperatorSet listed = OperatorSet::named("aten::mm+aten::add.Tensor");
  EXPECT_TRUE(listed.has("aten::mm"));
  EXPECT_TRUE(listed.has("aten::add.Tensor"));
  EXPECT_FALSE(listed.has("aten::add.Scalar"));
  EXPECT_TRUE(OperatorSet::named("aten::add").has("aten::add.Scalar"));
  EXPECT_THROW(OperatorSet::named("everything"), Error);
  EXPECT_THROW(OperatorSet::named("@/nowhere/at/all"), FileError);
}

TEST(Decompose, ReportsWhatRemainsAndWhy) {
  const Program program = [](const Tensors& in) {
    return Tensors{at::scaled_dot_product_attention(in[0], in[0], in[0], {}, 0.5).tan()};
  };
  Graph graph = capture_on(program, {at::randn({1, 2, 64, 16})}, c10::Device("cuda:0"));
  const PassResult result = find_pass("decompose")->run(graph, {{"to", "aten::mm"}});
  EXPECT_FALSE(result.changed);
  EXPECT_THAT(result.report, HasSubstr("_attention x 1: it has dropout, whose random numbers would differ"));
  EXPECT_THAT(result.report, HasSubstr("remains: aten::tan x 1\n"));
}

// Detects rows whose operator or signature changed in libtorch, even if no test uses them.
TEST(Decompose, EveryRowNamesAnOperator) {
  const auto names = decompositions::all().names();
  EXPECT_GT(names.size(), 80U);
  for (const std::string& name : names) {
    const size_t dot = name.find('.');
    EXPECT_TRUE(c10::Dispatcher::singleton().findSchema(
        {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)}))
        << name;
  }
}

}  // namespace
}  // namespace shadowgraph
