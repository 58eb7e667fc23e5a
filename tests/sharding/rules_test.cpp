// Sharding rules: their text, what strategies follow from them, and one device's calls.
#include "shadowgraph/sharding/rules.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "ir/operators/operator_name.h"
#include "profiler/embedded_files.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"
#include "sharding/rules/rule_text.h"

namespace shadowgraph {

std::span<const EmbeddedFile> sharding_rule_files();

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
  EXPECT_EQ(place("my::op: a (b c -> b a"), "1:16");
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

// A line for an operator that does not exist, or that has other tensors or arguments, would never be heard of.
TEST(ShardingRules, BuiltInLinesFitTheSchemasOfTheirOperators) {
  std::map<std::string, std::vector<const c10::FunctionSchema*>> schemas;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle) continue;
    const c10::FunctionSchema& schema = handle->schema();
    schemas[schema.name()].push_back(&schema);
    if (!schema.overload_name().empty()) schemas[full_name(schema)].push_back(&schema);
  }
  const auto is_tensor = [](const c10::Argument& argument) {
    return argument.type()->str().starts_with("Tensor") || argument.type()->str().starts_with("Optional[Tensor") ||
           argument.type()->str().starts_with("List[Tensor") ||
           argument.type()->str().starts_with("List[Optional[Tensor");
  };
  size_t lines = 0;
  for (const EmbeddedFile& file : sharding_rule_files()) {
    for (const RuleText& rule : parse_rules(file.text, file.name)) {
      ++lines;
      ASSERT_TRUE(schemas.contains(rule.name)) << rule.name;
      bool fits = false;
      std::set<std::string> unknown;
      for (const c10::FunctionSchema* schema : schemas[rule.name]) {
        size_t tensors = 0;
        std::set<std::string> names;
        for (const c10::Argument& argument : schema->arguments()) {
          names.insert(argument.name());
          if (is_tensor(argument) && !argument.is_out()) ++tensors;
        }
        bool all = rule.builder.empty() ? rule.operands.size() <= tensors : true;
        all = all && (!rule.builder.empty() || rule.results.size() == schema->returns().size());
        const auto known = [&](const std::string& name) {
          if (name.empty() || names.contains(name)) return;
          all = false;
        };
        known(rule.condition.argument);
        for (const std::vector<TensorPattern>* patterns : {&rule.operands, &rule.results}) {
          for (const TensorPattern& pattern : *patterns) {
            for (const std::string& name : pattern.of) known(name);
            for (const DimPattern& dim : pattern.dims) {
              known(dim.anchor);
              known(dim.length);
            }
          }
        }
        for (const RuleClause& clause : rule.clauses) {
          known(clause.condition.argument);
          known(clause.argument);
        }
        fits = fits || all;
      }
      EXPECT_TRUE(fits) << rule.name << ": " << rule.text;
      for (const RuleClause& clause : rule.clauses) {
        const bool of_arguments = clause.kind == RuleClause::Kind::kLinear ||
                                  clause.kind == RuleClause::Kind::kMonotone ||
                                  clause.kind == RuleClause::Kind::kAntitone;
        if (!of_arguments) continue;
        for (const std::vector<std::string>& group : clause.groups) {
          for (const std::string& name : group) {
            bool found = false;
            for (const c10::FunctionSchema* schema : schemas[rule.name]) {
              found = found || schema->argumentIndexWithName(name).has_value();
            }
            EXPECT_TRUE(found) << rule.name << " has no argument " << name;
          }
        }
      }
    }
  }
  EXPECT_GT(lines, 250U);
}

}  // namespace
}  // namespace shadowgraph
