// Every rule against real tensors: sample calls, and the calls of whole training steps.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <fstream>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture.h"
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
  CaptureSession session({.mode = {.device = c10::kCPU}});
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
  fmt::print("{}: {} calls, {} strategies, {} products\n", GetParam().name, check.calls, check.strategies, check.products);
}

INSTANTIATE_TEST_SUITE_P(All, Samples, testing::ValuesIn(rule_samples().begin(), rule_samples().end()),
                         [](const auto& info) { return std::string(info.param.name); });

class TinyStep : public testing::TestWithParam<const char*> {};

TEST_P(TinyStep, EveryStrategyOfEveryCallHolds) {
  Graph graph = capture_tiny(GetParam(), {.batch = 4});
  std::set<std::string> seen;
  RuleCheck check;
  check_rules(graph, ShardingRules(), {.most_products = 12}, seen, check);
  EXPECT_TRUE(check.wrong.empty()) << first_of(check.wrong);
  EXPECT_GT(check.strategies, 300);
  EXPECT_GT(check.products, 300);
  for (const auto& [name, why] : check.silent) ADD_FAILURE() << name << " did not run: " << why;
  RecordProperty("strategies", static_cast<int>(check.strategies));
  fmt::print("{}: {} calls, {} strategies, {} products\n", GetParam(), check.calls, check.strategies, check.products);
}

INSTANTIATE_TEST_SUITE_P(Zoo, TinyStep, testing::Values("gpt2", "llama3_8b", "bert_base", "resnet18"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shadowgraph
