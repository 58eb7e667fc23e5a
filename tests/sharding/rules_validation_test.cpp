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

namespace shadowgraph {
namespace {

std::string first_of(const std::vector<std::string>& lines) {
  std::string text = fmt::format("{} wrong\n", lines.size());
  for (size_t i = 0; i < lines.size() && i < 12; ++i) text += lines[i] + "\n";
  return text;
}

class TinyStep : public testing::TestWithParam<const char*> {};

TEST_P(TinyStep, EveryStrategyOfEveryCallHolds) {
  Graph graph = capture_tiny(GetParam(), {.batch = 4});
  std::set<std::string> seen;
  RuleCheck check;
  check_rules(graph, ShardingRules(), {.most_products = 12}, seen, check);
  EXPECT_TRUE(check.wrong.empty()) << first_of(check.wrong);
  EXPECT_GT(check.strategies, 300);
  EXPECT_GT(check.products, 300);
  for (const auto& [name, count] : check.silent) ADD_FAILURE() << name << " did not run " << count << " times";
  RecordProperty("strategies", static_cast<int>(check.strategies));
  fmt::print("{}: {} calls, {} strategies, {} products\n", GetParam(), check.calls, check.strategies, check.products);
}

INSTANTIATE_TEST_SUITE_P(Zoo, TinyStep, testing::Values("gpt2", "llama3_8b", "bert_base", "resnet18"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shadowgraph
