// Sharding rules: their text, what strategies follow from them, and one device's calls.
#include "shadowgraph/sharding/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph {
namespace {

// The last node of a graph given as text.
NodeId last_of(const Graph& graph) { return graph.last(); }

std::string words(std::span<const Placement> placements) {
  std::string text;
  for (const Placement& placement : placements) text += (text.empty() ? "" : " ") + to_string(placement);
  return text;
}

// "m 4: S(0) R -> S(0)", a line each, without the replicated one.
std::string listing(const NodeStrategies& strategies) {
  std::string text;
  for (const AxisStrategy& strategy : strategies.axis) {
    if (strategy.name.empty()) continue;
    text += fmt::format("{} {}: {} -> {}\n", strategy.name, strategy.extent, words(strategy.operands),
                        words(strategy.results));
  }
  return text;
}

Graph graph_of(const std::string& nodes) { return parse("shadowgraph 1 libtorch 2.13.0\n" + nodes); }

const std::string kMm =
    "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
    "s0 = 96 cpu input\ns1 = 192 cpu input\ns2 = 128 cpu temporary\n"
    "%0 = sg::input(name=\"a\") : f32[4,6] @s0\n"
    "%1 = sg::input(name=\"b\") : f32[6,8] @s1\n"
    "%2 = aten::mm(self=%0, mat2=%1) : f32[4,8] @s2\n";

TEST(ShardingRules, AFactorIsCutWhereverItIs) {
  const Graph graph = graph_of(kMm);
  const NodeStrategies strategies = ShardingRules().strategies(graph, last_of(graph));
  EXPECT_EQ(strategies.source, RuleSource::kRule);
  EXPECT_EQ(listing(strategies),
            "m 4: S(0) R -> S(0)\n"
            "k 6: S(1) S(0) -> P(sum)\n"
            "n 8: R S(1) -> S(1)\n"
            "sum 0: P(sum) R -> P(sum)\n"
            "sum 0: R P(sum) -> P(sum)\n"
            "avg 0: P(avg) R -> P(avg)\n"
            "avg 0: R P(avg) -> P(avg)\n");
}

TEST(ShardingRules, UsersRulesReplaceBuiltInOnes) {
  const Graph graph = graph_of(kMm);
  ShardingRules rules;
  rules.add("# only the rows\naten::mm: m k, k n -> m n; k n whole\n");
  EXPECT_EQ(listing(rules.strategies(graph, last_of(graph))), "m 4: S(0) R -> S(0)\n");
  EXPECT_NE(listing(ShardingRules().strategies(graph, last_of(graph))), "m 4: S(0) R -> S(0)\n");
}

TEST(ShardingRules, TextThatIsNoRuleIsRefusedWithItsPlace) {
  ShardingRules rules;
  const auto place = [&](const char* text) -> std::string {
    try {
      rules.add(text);
    } catch (const ParseError& error) {
      return fmt::format("{}:{}", error.line(), error.column());
    }
    return "accepted";
  };
  EXPECT_EQ(place("my::op: a b -> b a"), "accepted");
  EXPECT_EQ(place("\nmm: a b -> b a"), "2:1");
  EXPECT_EQ(place("my::op: a (b c -> b a"), "1:15");
  EXPECT_EQ(place("my::op: a b -> b a; b sideways"), "1:31");
  EXPECT_EQ(place("my::op: a b -> b a; b whole x"), "1:30");
  EXPECT_EQ(place("my::op: no_such_class"), "1:8");
  EXPECT_EQ(place("my::op: [a b -> a b"), "1:14");
}

TEST(ShardingRules, ARuleThatDoesNotFitIsNamed) {
  const Graph graph = graph_of(kMm);
  ShardingRules rules;
  rules.add("aten::mm: m k j, k n -> m n");
  try {
    rules.strategies(graph, last_of(graph));
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("aten::mm: m k j, k n -> m n"), what.npos) << what;
    EXPECT_NE(what.find("%2 = aten::mm"), what.npos) << what;
  }
}

}  // namespace
}  // namespace shadowgraph
