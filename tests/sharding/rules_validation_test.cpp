// Validates every rule against real tensors: sample calls, and the calls of whole training steps.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <memory>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/shard/shard.h"
#include "tests/passes/model_captures.h"
#include "tests/sharding/rule_check.h"
#include "tests/sharding/rule_samples.h"

namespace shadowgraph {
namespace {

std::string first_of(const std::vector<std::string>& lines) {
  std::string text = fmt::format("{} wrong\n", lines.size());
  for (size_t i = 0; i < lines.size() && i < 12; ++i) text += lines[i] + "\n";
  return text;
}

Graph capture_of(const RuleSample& sample) {
  Capture session({.mode = {.device = c10::kCPU}});
  sample.run();
  return session.finish({});
}

class Samples : public testing::TestWithParam<RuleSample> {};

TEST_P(Samples, EveryStrategyHolds) {
  Graph graph = capture_of(GetParam());
  for (const auto& [name, count] : RuleCoverage::of(graph).without_a_rule) fmt::print("without a rule: {}\n", name);
  std::set<std::string> seen;
  RuleCheck check;
  check_rules(graph, ShardingRules(), {}, seen, check);
  EXPECT_TRUE(check.wrong.empty()) << first_of(check.wrong);
  for (const auto& [name, why] : check.silent) ADD_FAILURE() << name << " did not run: " << why;
  fmt::print("{}: {} calls, {} strategies, {} products\n", GetParam().name, check.calls, check.strategies,
             check.products);
}

INSTANTIATE_TEST_SUITE_P(All, Samples, testing::ValuesIn(rule_samples().begin(), rule_samples().end()),
                         [](const auto& info) { return std::string(info.param.name); });

class TinyStep : public testing::TestWithParam<const char*> {};

TEST_P(TinyStep, EveryStrategyOfEveryCallHolds) {
  Graph graph = capture_tiny(GetParam(), {.batch = 4});
  std::set<std::string> seen;
  RuleCheck check;
  check_rules(graph, ShardingRules(), {.most_products = 8}, seen, check);
  EXPECT_TRUE(check.wrong.empty()) << first_of(check.wrong);
  EXPECT_GT(check.strategies, 300);
  EXPECT_GT(check.products, 300);
  for (const auto& [name, why] : check.silent) ADD_FAILURE() << name << " did not run: " << why;
  RecordProperty("strategies", static_cast<int>(check.strategies));
  fmt::print("{}: {} calls, {} strategies, {} products\n", GetParam(), check.calls, check.strategies, check.products);
}

class TinyStepOnAGpu : public testing::TestWithParam<std::string> {};

TEST_P(TinyStepOnAGpu, EveryLocalCallHasTheSizesThatItsStrategySays) {
  Graph graph = capture_tiny(GetParam(), {.batch = 4, .device = c10::kCUDA});
  const FakeTensorMode mode({.device = c10::kCUDA});
  std::set<std::string> seen;
  RuleCheck check;
  check_rule_shapes(graph, ShardingRules(), {2, 4}, seen, check);
  EXPECT_TRUE(check.wrong.empty()) << first_of(check.wrong);
  EXPECT_GT(check.strategies, 100);
}

INSTANTIATE_TEST_SUITE_P(Zoo, TinyStepOnAGpu,
                         testing::Values("gpt2", "bert_base", "llama3_8b", "resnet18", "unet", "vit_b_16", "lstm_lm"),
                         [](const auto& info) { return info.param; });

INSTANTIATE_TEST_SUITE_P(Zoo, TinyStep, testing::Values("gpt2", "llama3_8b", "bert_base", "resnet18"),
                         [](const auto& info) { return std::string(info.param); });

// The same samples on a simulated GPU, which has other kernels.
class SamplesOnAGpu : public testing::TestWithParam<RuleSample> {};

TEST_P(SamplesOnAGpu, EveryLocalCallHasTheSizesThatItsStrategySays) {
  const FakeTensorMode mode({.device = c10::kCUDA});
  Graph graph = [] {
    Capture session;
    GetParam().run();
    return session.finish({});
  }();
  for (const auto& [name, count] : RuleCoverage::of(graph).without_a_rule) {
    EXPECT_EQ(name.find("attention"), std::string::npos) << name;
    EXPECT_EQ(name.find("grouped_mm"), std::string::npos) << name;
  }
  std::set<std::string> seen;
  RuleCheck check;
  check_rule_shapes(graph, ShardingRules(), {2, 3}, seen, check);
  EXPECT_TRUE(check.wrong.empty()) << first_of(check.wrong);
  EXPECT_GT(check.strategies, 10);
}

INSTANTIATE_TEST_SUITE_P(All, SamplesOnAGpu, testing::ValuesIn(rule_samples().begin(), rule_samples().end()),
                         [](const auto& info) { return std::string(info.param.name); });

// Lists valid placements that are not offered: SHADOWGRAPH_MISSING_STRATEGIES=file sharding_tests
// --gtest_filter='*Missing*'
TEST(MissingStrategies, AreListed) {
  const char* path = std::getenv("SHADOWGRAPH_MISSING_STRATEGIES");
  if (path == nullptr) GTEST_SKIP() << "on request";
  RuleCheck check;
  std::set<std::string> seen;
  for (const RuleSample& sample : rule_samples()) {
    Graph graph = capture_of(sample);
    check_rules(graph, ShardingRules(), {.devices = {}, .meshes = {}, .missing = true}, seen, check);
  }
  std::string text;
  for (const auto& [name, placements] : check.missing) {
    text += name + "\n";
    for (const std::string& line : placements) text += "    " + line + "\n";
  }
  write_file(path, text);
}

// Rules that claim too much are detected, each in a different way.
TEST(RuleCheck, FindsRulesThatAreWrong) {
  struct Wrong {
    const char* rule;
    void (*call)();
  };
  const auto real = [](at::IntArrayRef sizes) { return at::empty(sizes, at::kDouble); };
  static const auto kReal = real;
  const Wrong wrongs[] = {
      {"aten::mm: m k, k n -> m n; k max",
       [] {
         at::mm(kReal({4, 6}), kReal({6, 12}));
       }},
      {"aten::mm: m k, k n -> m n; linear self mat2",
       [] {
         at::mm(kReal({4, 6}), kReal({6, 12}));
       }},
      {"aten::addmm: {m n}, m k, k n -> m n",
       [] {
         at::addmm(kReal({12}), kReal({4, 6}), kReal({6, 12}));
       }},
      {"aten::_softmax: *a -> *a",
       [] {
         at::_softmax(kReal({4, 6}), 1, false);
       }},
      {"aten::cumsum: *a -> *a",
       [] {
         at::cumsum(kReal({4, 6}), 0);
       }},
      {"aten::relu: pointwise; linear self",
       [] {
         at::relu(kReal({4, 6}));
       }},
      {"aten::neg: pointwise; monotone self",
       [] {
         at::neg(kReal({4, 6}));
       }},
      {"aten::exp: pointwise; linear self",
       [] {
         at::exp(kReal({4, 6}));
       }},
      {"aten::sum: reduction avg",
       [] {
         at::sum(kReal({4, 6}), {1});
       }},
      {"aten::mean: reduction sum",
       [] {
         at::mean(kReal({4, 6}), {1});
       }},
      {"aten::amax: reduction min",
       [] {
         at::amax(kReal({4, 6}), {1});
       }},
      {"aten::add.Scalar: pointwise; linear self",
       [] {
         at::add(kReal({4, 6}), 3);
       }},
      {"aten::flip: *b -> *b",
       [] {
         at::flip(kReal({4, 6}), {1});
       }},
      {"aten::transpose.int: a b -> a b",
       [] {
         at::transpose(kReal({6, 6}), 0, 1);
       }},
      {"aten::expand: *b -> *a *b",
       [] {
         kReal({6}).expand({4, 6});
       }},
      {"aten::native_batch_norm: n c *x, c, c, c, c -> n c *x, c, c",
       [] {
         at::native_batch_norm(kReal({4, 6, 2}), kReal({6}), kReal({6}), {}, {}, true, 0.1, 1e-5);
       }},
      {"aten::embedding: v d, *i -> *i d",
       [] {
         at::embedding(kReal({4, 6}), at::empty({4, 6}, at::kLong));
       }},
      {"aten::index_add: *a _@dim *b, i, *a i@dim *b -> *a _ *b",
       [] {
         at::index_add(kReal({4, 6}), 1, at::empty({4}, at::kLong), kReal({4, 4}));
       }},
      {"aten::convolution: n ci *_, co ci *_, co -> n co *_",
       [] {
         const std::vector<int64_t> one{1};
         at::convolution(kReal({4, 6, 5}), kReal({12, 6, 3}), kReal({12}), one, one, one, false,
                         std::vector<int64_t>{0}, 1);
       }},
  };
  for (const Wrong& wrong : wrongs) {
    Graph graph = capture_of({.name = wrong.rule, .run = wrong.call});
    ShardingRules rules;
    rules.add(wrong.rule);
    std::set<std::string> seen;
    RuleCheck check;
    try {
      check_rules(graph, rules, {.meshes = {}}, seen, check);
    } catch (const Error&) {
      continue;  // the shapes do not fit
    }
    EXPECT_FALSE(check.wrong.empty()) << wrong.rule;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Whole steps: how many nodes have a rule

class Coverage : public testing::TestWithParam<std::string> {};

RuleCoverage coverage_of(const std::string& name, bool adamw, bool tiny, c10::DeviceType device) {
  Graph graph = [&] {
    const FakeTensorMode mode({.device = device});
    const models::BuiltModel model = models::build(name, {.tiny = tiny});
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (adamw) {
      optimizer = std::make_unique<torch::optim::AdamW>(model.module->parameters());
    } else {
      optimizer =
          std::make_unique<torch::optim::SGD>(model.module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    }
    return capture_training_step(models::program_of(model, optimizer.get())).graph;
  }();
  return RuleCoverage::of(graph);
}

TEST_P(Coverage, NodesOfATrainingStepHaveRules) {
  for (const bool adamw : {true, false}) {
    for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
      const RuleCoverage coverage = coverage_of(GetParam(), adamw, /*tiny=*/!adamw, device);
      EXPECT_GE(coverage.share(), 0.99) << device;
      EXPECT_EQ(
          coverage.nodes, coverage.by_rule + coverage.by_class + [&] {
            int64_t without = 0;
            for (const auto& [name, count] : coverage.without_a_rule) without += count;
            return without;
          }());
      for (const auto& [name, count] : coverage.without_a_rule) {
        fmt::print("{} on {}: {} of {} nodes without a rule: {}\n", GetParam(), c10::DeviceTypeName(device), count,
                   coverage.nodes, name);
      }
    }
  }
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const models::ModelInfo& model : models::available()) names.push_back(model.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Zoo, Coverage, testing::ValuesIn(model_names()), [](const auto& info) { return info.param; });

TEST(RuleCoverage, OperatorsWithoutARuleAreCounted) {
  const Graph graph = capture_of({.name = "", .run = [] {
                                    const at::Tensor a = at::empty({4, 4}, at::kDouble);
                                    at::linalg_cholesky_ex(a);
                                    at::linalg_cholesky_ex(a);
                                  }});
  const RuleCoverage coverage = RuleCoverage::of(graph);
  EXPECT_EQ(coverage.without_a_rule.at("aten::linalg_cholesky_ex"), 2);
  EXPECT_LT(coverage.share(), 1);
  EXPECT_EQ(RuleCoverage().share(), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Mean losses

TEST(MeanLosses, AreSumsThatAreDivided) {
  const auto capture = [] {
    const FakeTensorMode mode({.device = c10::kCPU});
    const at::Tensor x = at::empty({6, 5}, at::kDouble).requires_grad_();
    const at::Tensor target = at::empty({6}, at::kLong);
    const at::Tensor weight = at::empty({5}, at::kDouble);
    Capture session;
    session.name_parameter(x, "x");
    session.name_input(target, "target");
    session.name_input(weight, "weight");
    const at::Tensor loss = at::nll_loss(x, target, weight, at::Reduction::Mean, 1);
    loss.backward();
    return session.finish({loss});
  };
  const Graph whole = capture();
  Graph split = capture();
  EXPECT_EQ(split_mean_losses(split), 1);
  EXPECT_EQ(split_mean_losses(split), 0);
  verify(split);
  // Two of the targets are ignored, and class weights differ.
  const at::Tensor x = at::arange(30, at::kDouble).reshape({6, 5}).sin().requires_grad_();
  const at::Tensor target = at::tensor({0, 1, 2, 3, 1, 4}, at::kLong);
  const at::Tensor weight = at::tensor({1.0, 2.0, 3.0, 4.0, 5.0}, at::kDouble);
  const auto run = [&](const Graph& graph) {
    return Interpreter(graph).run(Bindings().bind("x", x).bind("target", target).bind("weight", weight));
  };
  const ReplayResult expected = run(whole);
  const ReplayResult actual = run(split);
  EXPECT_TRUE(at::allclose(expected.outputs[0], actual.outputs[0], 1e-15, 0));
  EXPECT_TRUE(at::equal(expected.gradients.at("x"), actual.gradients.at("x")));
  // Sharding by rows and by classes becomes possible.
  const auto cuts = [](const Graph& graph) {
    for (const NodeId node : graph.nodes()) {
      if (graph.target(node).name() == "aten::nll_loss_forward")
        return ShardingRules().strategies(graph, node).axis.size();
    }
    return size_t{0};
  };
  EXPECT_EQ(cuts(whole), 1U);
  EXPECT_EQ(cuts(split), 3U);
}

}  // namespace
}  // namespace shadowgraph
