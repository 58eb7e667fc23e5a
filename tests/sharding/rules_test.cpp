// Sharding rules: their text, the strategies derived from them, and the local calls of one device.
#include "shadowgraph/shard/rules.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "ir/operators/operator_name.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "sharding/rules/factor_analysis.h"
#include "sharding/rules/rule_text.h"

namespace shadowgraph {

namespace {

// Returns the last node of the graph.
NodeId last_of(const Graph& graph) { return graph.last(); }

std::string words(std::span<const Placement> placements) {
  std::string text;
  for (const Placement& placement : placements) text += (text.empty() ? "" : " ") + to_string(placement);
  return text;
}

// Lists strategies as "m 4: S(0) R -> S(0)", one per line, without the replicated one.
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

// 0.5 + 0.5 is 1, but both parts are 0 as integers: partial sums and averages do not pass conversions that round.
TEST(ShardingRules, PartsOfASumAreNotConvertedToWhatRoundsThem) {
  const auto conversion = [](const std::string& from, const std::string& to) {
    const Graph graph = graph_of(
        "operator aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
        "bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor\n"
        "s0 = 64 cpu input\ns1 = 64 cpu temporary\n"
        "%0 = sg::input(name=\"a\") : " +
        from + "[8] @s0\n%1 = aten::_to_copy(self=%0, dtype=" + to + ") : " + to + "[8] @s1\n");
    return listing(ShardingRules().strategies(graph, last_of(graph)));
  };
  EXPECT_NE(conversion("f32", "f64").find("P(sum) -> P(sum)"), std::string::npos);
  EXPECT_NE(conversion("f32", "f64").find("P(avg) -> P(avg)"), std::string::npos);
  EXPECT_NE(conversion("i32", "i64").find("P(sum) -> P(sum)"), std::string::npos);
  for (const auto& [from, to] : {std::pair("f32", "i64"), std::pair("f64", "f32"), std::pair("f32", "bf16")}) {
    EXPECT_EQ(conversion(from, to).find("P(sum)"), std::string::npos) << from << " to " << to;
    EXPECT_EQ(conversion(from, to).find("P(avg)"), std::string::npos) << from << " to " << to;
  }
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

// A graph with one call, whose arguments are given in text form.
const std::string kView =
    "operator aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)\n"
    "s0 = 1152 cpu input\n"
    "%0 = sg::input(name=\"a\") : f32[4,6,12] @s0\n";

// [4, 6, 12] as [24, 12] and back: the second dimension of the former is part of the first dimension of the latter.
TEST(ShardingRules, ViewsTakeDimensionsApart) {
  const Graph graph = graph_of(kView + "%1 = aten::view(self=%0, size=[24, 3, 4]) : f32[24,3,4] @s0\n");
  const std::string text = listing(ShardingRules().strategies(graph, graph.last()));
  EXPECT_TRUE(
      text.starts_with("f0 4: S(0) -> S(0)\n"
                       "f1 6: S(1) -> S(0,4)\n"
                       "f2 3: S(2) -> S(1)\n"
                       "f3 4: S(2,3) -> S(2)\n"
                       "sum 0: P(sum) -> P(sum)\n"))
      << text;
}

TEST(ShardingRules, WhatShapesHaveNotInCommonIsWhole) {
  const Graph graph = graph_of(kView + "%1 = aten::view(self=%0, size=[6, 4, 12]) : f32[6,4,12] @s0\n");
  const std::string text = listing(ShardingRules().strategies(graph, graph.last()));
  EXPECT_TRUE(text.starts_with("f0 2: S(0) -> S(0)\nf1 12: S(2) -> S(2)\nsum 0")) << text;
}

std::vector<Layout> layouts(std::initializer_list<const char*> texts) {
  std::vector<Layout> all;
  for (const char* text : texts) all.push_back(Layout::parse(text));
  return all;
}

TEST(ShardingRules, SizesAreMadeLocal) {
  Graph graph = graph_of(kView + "%1 = aten::view(self=%0, size=[24, -1]) : f32[24,12] @s0\n");
  const DeviceMesh mesh = DeviceMesh::parse("2x3");
  const std::vector<Argument> arguments =
      ShardingRules().local_arguments(graph, graph.last(), layouts({"S(0),S(1)"}), layouts({"S(0),S(0,4)"}), mesh);
  const std::span<const int64_t> size = graph.ints(arguments[1]);
  EXPECT_EQ(std::vector<int64_t>(size.begin(), size.end()), (std::vector<int64_t>{4, 12}));
}

TEST(ShardingRules, WhatIsNoStrategyHasNoLocalCall) {
  Graph graph = graph_of(kMm);
  const ShardingRules rules;
  const auto message = [&](const char* mesh, std::vector<Layout> operands, std::vector<Layout> results) -> std::string {
    try {
      rules.local_arguments(graph, graph.last(), operands, results, DeviceMesh::parse(mesh));
    } catch (const Error& error) {
      const std::string what = error.what();
      return what.substr(what.rfind(": ") + 2);
    }
    return "";
  };
  EXPECT_EQ(message("2", layouts({"S(0)", "R"}), layouts({"S(0)"})), "");
  EXPECT_EQ(message("2x2", layouts({"S(0),S(1)", "R,S(0)"}), layouts({"S(0),P(sum)"})), "");
  EXPECT_EQ(message("2", layouts({"S(0)", "R"}), layouts({"R"})), "no strategy for axis x has these placements");
  EXPECT_EQ(message("2", layouts({"S(1)", "S(0)"}), layouts({"P(max)"})),
            "no strategy for axis x has these placements");
  EXPECT_EQ(message("3", layouts({"S(0)", "R"}), layouts({"S(0)"})), "no strategy for axis x has these placements");
  EXPECT_EQ(message("4x2", layouts({"S(0),S(0)", "R,R"}), layouts({"S(0),S(0)"})), "a size is not divisible");
  EXPECT_EQ(message("2", layouts({"S(0)"}), layouts({"S(0)"})), "expected layouts of 2 operands and 1 results");
  EXPECT_EQ(message("2", layouts({"S(0),R", "R,R"}), layouts({"S(0),R"})),
            "a layout must have one placement per mesh axis");
}

// Fused QKV projection as in GPT-2: [batch * sequence, 3 * heads * width].
const std::string kFused =
    "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
    "operator aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)\n"
    "operator aten::split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]\n"
    "s0 = 768 cpu input\ns1 = 2304 cpu input\ns2 = 4608 cpu temporary\n"
    "%0 = sg::input(name=\"x\") : f32[4,6,8] @s0\n"
    "%1 = sg::input(name=\"w\") : f32[8,48] @s1\n"
    "%2 = aten::view(self=%0, size=[24, 8]) : f32[24,8] @s0\n"
    "%3 = aten::mm(self=%2, mat2=%1) : f32[24,48] @s2\n"
    "%4 = aten::view(self=%3, size=[4, 6, 48]) : f32[4,6,48] @s2\n"
    "[%5, %6, %7] = aten::split.Tensor(self=%4, split_size=16, dim=2) : [f32[4,6,16]{288,48,1} @s2, "
    "f32[4,6,16]{288,48,1} @s2+16, f32[4,6,16]{288,48,1} @s2+32]\n"
    "%8 = aten::view(self=%5, size=[4, 6, 2, 8]) : f32[4,6,2,8]{288,48,8,1} @s2\n";

TEST(FactorAnalysis, SplitsFlowAlongTheGraph) {
  const Graph graph = graph_of(kFused);
  const ShardingRules rules;
  const FactorAnalysis analysis = FactorAnalysis::run(graph, rules);
  NodeId mm;
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).name() == "aten::mm") mm = node;
  }
  // Rows are (4 6) and columns (3 2 8), like the weight's second dimension.
  EXPECT_EQ(listing(rules.strategies(graph, mm, analysis)),
            "m 24: S(0) R -> S(0)\n"
            "k 8: S(1) S(0) -> P(sum)\n"
            "n 48: R S(1) -> S(1)\n"
            "m/4 6: S(0,4) R -> S(0,4)\n"
            "n/3 16: R S(1,3) -> S(1,3)\n"
            "n/6 8: R S(1,6) -> S(1,6)\n");
  const ValueId weight = graph.arguments(mm)[1].ref.value;
  const std::span<const int64_t> splits = analysis.splits(weight, 1);
  EXPECT_EQ(std::vector<int64_t>(splits.begin(), splits.end()), (std::vector<int64_t>{3, 6}));
}

TEST(FactorAnalysis, PartialOnlyWhereSomethingCanBe) {
  const Graph graph = graph_of(kFused);
  const ShardingRules rules;
  const FactorAnalysis analysis = FactorAnalysis::run(graph, rules);
  for (const NodeId node : graph.nodes()) {
    const bool partial = listing(rules.strategies(graph, node, analysis)).find("P(sum) ->") != std::string::npos;
    const std::string line = to_text(graph, node);
    EXPECT_EQ(partial, line.starts_with("n4") || line.starts_with("n5") || line.starts_with("n6")) << line;
  }
}

TEST(ShardingRules, OperatorsOfUsersHaveRules) {
  const std::string graph_text =
      "operator mylib::scale_rows(Tensor self, Tensor by, int groups) -> Tensor\n"
      "s0 = 96 cpu input\ns1 = 16 cpu input\ns2 = 96 cpu temporary\n"
      "%0 = sg::input(name=\"a\") : f32[4,6] @s0\n"
      "%1 = sg::input(name=\"b\") : f32[4] @s1\n"
      "%2 = mylib::scale_rows(self=%0, by=%1, groups=3) : f32[4,6] @s2\n";
  const Graph unknown = graph_of(graph_text);
  EXPECT_EQ(ShardingRules().strategies(unknown, unknown.last()).source, RuleSource::kReplicated);
  register_sharding_rule("mylib::scale_rows: r (g c), r -> r (g c); g = groups; linear self | by");
  Graph graph = graph_of(graph_text);
  const ShardingRules rules;
  EXPECT_EQ(listing(rules.strategies(graph, graph.last())).substr(0, 80),
            "g 3: S(1) R -> S(1)\nr 4: S(0) S(0) -> S(0)\nc 2: S(1,3) R -> S(1,3)\nsum 0: P(sum)");
  const std::vector<Argument> arguments =
      rules.local_arguments(graph, graph.last(), layouts({"S(1)", "R"}), layouts({"S(1)"}), DeviceMesh::parse("3"));
  EXPECT_EQ(arguments[2].i, 1);
  EXPECT_THROW(register_sharding_rule("mylib::scale_rows: r, r -> r (c"), ParseError);
}

// A rule for an operator that does not exist, or with a different signature, would otherwise go unnoticed.
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
