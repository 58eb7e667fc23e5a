// Rewriting by rules, and partitions: text in, text out, and graphs that verify.
#include <gtest/gtest.h>

#include "shadowgraph/passes/simplify.h"
#include "shadowgraph/passes/structure.h"
#include "tests/ir/samples.h"
#include "tests/passes/random_graph.h"

namespace shadowgraph {
namespace {

const char* const kGraph =
    "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
    "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
    "operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n"
    "operator aten::relu_(Tensor(a!) self) -> Tensor(a!)\n"
    "s0 = 24 cpu input\ns1 = 48 cpu parameter\ns2 = 16 cpu parameter\ns3 = 32 cpu activation\ns4 = 32 cpu activation\n"
    "r1 = module \"fc\" \"Linear\" call 0 in r0\n"
    "%0 = sg::input(name=\"x\") : f32[2,3] @s0\n%1 = sg::parameter(name=\"w\") : f32[4,3] @s1\n"
    "%2 = sg::parameter(name=\"b\") : f32[4] @s2\n"
    "%3 = aten::t(self=%1) : f32[3,4]{1,3} @s1 | r1\n"
    "%4 = aten::mm(self=%0, mat2=%3) : f32[2,4] @s3 | r1\n"
    "%5 = aten::add.Tensor(self=%4, other=%2) : f32[2,4] @s4 | r1 free(s3) \"net.cpp:3\"\n"
    "%6 = aten::relu_(self=%5) : f32[2,4] @s4\n"
    "sg::output(values=[%6])\n";

const char* const kRule =
    "# what a compiler would write\nrule addmm\n"
    "%p = aten::mm(self=%x, mat2=%w)\n%y = aten::add.Tensor(self=%p, other=%b)\nreturn %y\n=>\n"
    "%y = aten::addmm(self=%b, mat1=%x, mat2=%w)\nreturn %y\n";

TEST(Rewrite, ReplacesWhatMatches) {
  Graph graph = samples::graph_of(kGraph);
  const RewriteResult result = rewrite(graph, parse_rules(kRule));
  EXPECT_EQ(result.replaced, 1);
  EXPECT_EQ(result.refused, 0);
  EXPECT_NO_THROW(verify(graph)) << to_text(graph);
  const auto calls = nodes_calling(graph, "aten::addmm");
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(to_text(graph, calls[0]),
            "n4: %4 = aten::addmm(self=%2, mat1=%0, mat2=%3) : f32[2,4] @s3 | r1 \"net.cpp:3\"");
  EXPECT_EQ(graph.node_count(), 7U);
  EXPECT_EQ(rewrite(graph, parse_rules(kRule)).replaced, 0);
}

TEST(Rewrite, LeavesAMatchAloneWhoseReplacementDoesNotFit) {
  Graph graph = samples::graph_of(kGraph);
  const std::string before = to_text(graph);
  const RewriteResult other_shape =
      rewrite(graph, parse_rules("rule wrong\n%p = aten::mm(self=%x, mat2=%w)\nreturn %p\n=>\n%p = "
                                 "aten::mul.Tensor(self=%x, other=%x)\nreturn %p\n"));
  EXPECT_EQ(other_shape.replaced, 0);
  EXPECT_EQ(other_shape.refused, 1);
  ASSERT_EQ(other_shape.reasons.size(), 1U);
  EXPECT_NE(other_shape.reasons[0].find("f32[2,3] where f32[2,4]"), std::string::npos) << other_shape.reasons[0];
  EXPECT_EQ(to_text(graph), before);
  const RewriteResult impossible = rewrite(
      graph,
      parse_rules(
          "rule wrong\n%p = aten::mm(self=%x, mat2=%w)\nreturn %p\n=>\n%p = aten::mm(self=%w, mat2=%w)\nreturn %p\n"));
  EXPECT_EQ(impossible.refused, 1);
  EXPECT_EQ(to_text(graph), before);
}

TEST(Rewrite, RemovesIdentitiesAndFollowsEarlierReplacements) {
  Graph graph = samples::graph_of(
      "operator aten::t(Tensor(a) self) -> Tensor(a)\noperator aten::relu(Tensor self) -> Tensor\n"
      "s0 = 16 cpu input\ns1 = 16 cpu temporary\n%0 = sg::input(name=\"x\") : f32[2,2] @s0\n"
      "%1 = aten::t(self=%0) : f32[2,2]{1,2} @s0\n%2 = aten::t(self=%1) : f32[2,2] @s0\n"
      "%3 = aten::t(self=%2) : f32[2,2]{1,2} @s0\n%4 = aten::t(self=%3) : f32[2,2] @s0\n"
      "%5 = aten::relu(self=%4) : f32[2,2] @s1\nsg::output(values=[%5])\n");
  const auto rules = parse_rules("rule tt\n%a = aten::t(self=%x)\n%b = aten::t(self=%a)\nreturn %b\n=>\nreturn %x\n");
  EXPECT_EQ(rewrite(graph, rules).replaced, 2);
  EXPECT_NO_THROW(verify(graph));
  EXPECT_EQ(graph.node_count(), 3U);
}

// A match whose first result is used before its second is computed: the replacement must be placed before that use.
struct Placing {
  RewriteResult result;
  std::string text;  // the rewritten graph, one operator per line
};
Placing place(const std::string& nodes, const std::string& rule) {
  Graph graph = samples::graph_of(
      "operator aten::relu(Tensor self) -> Tensor\noperator aten::neg(Tensor self) -> Tensor\n"
      "operator aten::exp(Tensor self) -> Tensor\n"
      "operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor\n"
      "operator aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\n"
      "s0 = 16 cpu input\ns1 = 16 cpu temporary\ns2 = 16 cpu temporary\ns3 = 16 cpu temporary\n"
      "s4 = 16 cpu temporary\ns5 = 16 cpu input\ns6 = 16 cpu temporary\n"
      "%0 = sg::input(name=\"x\") : f32[2,2] @s0\n%1 = sg::input(name=\"z\") : f32[2,2] @s5\n" +
      nodes);
  Placing placing{.result = rewrite(graph, parse_rules(rule))};
  const auto found = violations(graph);
  EXPECT_TRUE(found.empty()) << found[0].message << to_text(graph);
  for (NodeId n : graph.nodes()) placing.text += graph.target(n).name() + "\n";
  return placing;
}
const char* const kTwo =
    "rule two\n%a = aten::relu(self=%x)\n%b = aten::mul.Tensor(self=%x, other=%w)\nreturn %a, %b\n=>\n"
    "%b = aten::mul.Tensor(self=%w, other=%x)\n%a = aten::relu(self=%x)\nreturn %a, %b\n";

TEST(Rewrite, GoesToTheFirstUseIfItsOperandsAreMadeByThen) {
  const Placing placing = place(
      "%2 = aten::relu(self=%0) : f32[2,2] @s1\n"
      "%3 = aten::exp(self=%2) : f32[2,2] @s2\n"  // uses a result before the last matched node
      "%4 = aten::mul.Tensor(self=%0, other=%1) : f32[2,2] @s3\n"
      "sg::output(values=[%3, %4])\n",
      kTwo);
  EXPECT_EQ(placing.result.replaced, 1);
  EXPECT_EQ(placing.result.moved, 0);
  EXPECT_EQ(placing.text, "sg::input\nsg::input\naten::mul.Tensor\naten::relu\naten::exp\nsg::output\n");
}

TEST(Rewrite, UsersWaitForOperandsThatAreMadeLater) {
  const Placing placing = place(
      "%2 = aten::relu(self=%0) : f32[2,2] @s1\n"
      "%3 = aten::exp(self=%2) : f32[2,2] @s2 | free(s1)\n"
      "%4 = aten::neg(self=%1) : f32[2,2] @s4\n"
      "%5 = aten::mul.Tensor(self=%0, other=%4) : f32[2,2] @s3\n"
      "sg::output(values=[%3, %5])\n",
      kTwo);
  EXPECT_EQ(placing.result.replaced, 1);
  EXPECT_EQ(placing.result.moved, 1);
  EXPECT_EQ(placing.text, "sg::input\nsg::input\naten::neg\naten::mul.Tensor\naten::relu\naten::exp\nsg::output\n");
}

TEST(Rewrite, RefusesWhereNoPlaceIsAndSaysWhy) {
  // Conflict over a value: exp uses one result and feeds the other.
  const Placing value = place(
      "%2 = aten::relu(self=%0) : f32[2,2] @s1\n"
      "%3 = aten::exp(self=%2) : f32[2,2] @s2\n"
      "%4 = aten::mul.Tensor(self=%0, other=%3) : f32[2,2] @s3\n"
      "sg::output(values=[%2, %4])\n",
      kTwo);
  EXPECT_EQ(value.result.replaced, 0);
  EXPECT_EQ(value.result.refused, 1);
  ASSERT_EQ(value.result.reasons.size(), 1U);
  EXPECT_NE(value.result.reasons[0].find("aten::exp"), std::string::npos) << value.result.reasons[0];
  // Conflict over an effect: one node reads x before it is written, the other after.
  const Placing effect = place(
      "%2 = aten::relu(self=%0) : f32[2,2] @s1\n"
      "%3 = aten::add_.Tensor(self=%0, other=%1) : f32[2,2] @s0\n"
      "%4 = aten::mul.Tensor(self=%0, other=%1) : f32[2,2] @s3\n"
      "sg::output(values=[%2, %4])\n",
      kTwo);
  EXPECT_EQ(effect.result.replaced, 0);
  EXPECT_EQ(effect.result.refused, 1);
  EXPECT_NE(effect.result.reasons[0].find("aten::add_"), std::string::npos) << effect.result.reasons[0];
}

// Two matches whose insertion points depend on each other's nodes.
TEST(Rewrite, NeighborsAreReplacedInRounds) {
  const Placing placing = place(
      "%2 = aten::relu(self=%0) : f32[2,2] @s1\n"
      "%3 = aten::relu(self=%2) : f32[2,2] @s2\n"
      "%4 = aten::exp(self=%3) : f32[2,2] @s4\n"
      "%5 = aten::mul.Tensor(self=%0, other=%1) : f32[2,2] @s3\n"
      "%6 = aten::mul.Tensor(self=%2, other=%1) : f32[2,2] @s6\n"
      "sg::output(values=[%4, %6, %5])\n",
      kTwo);
  EXPECT_EQ(placing.result.replaced, 2);
  EXPECT_EQ(placing.result.refused, 0);
}

TEST(Rewrite, FiltersAndConstants) {
  Graph graph = samples::graph_of(kGraph);
  auto rules = parse_rules(
      "rule scale\n%y = aten::add.Tensor(self=%a, other=%b, alpha=$s)\nreturn %y\n=>\n"
      "%y = aten::add.Tensor(self=%b, other=%a, alpha=$s)\nreturn %y\n");
  rules[0].filter = [](const Graph&, const Match& m) { return m.argument("$s").i == 2; };
  EXPECT_EQ(rewrite(graph, rules).replaced, 0);
  rules[0].filter = nullptr;
  EXPECT_EQ(rewrite(graph, rules).replaced, 1);
  EXPECT_NO_THROW(verify(graph));
}

TEST(Rewrite, RulesThatMakeNoSense) {
  const std::string head = "rule r\n%y = aten::relu(self=%x)\nreturn %y\n";
  for (const std::string& text :
       {std::string("%y = aten::relu(self=%x)\n"), head, head + "=>\nreturn %y\n", head + "=>\nreturn %z\n",
        head + "=>\n%y = aten::relu(self=_)\nreturn %y\n", head + "=>\nreturn %x, %x\n", head + "=>\n=>\nreturn %x\n",
        head + "=>\n%y = aten::leaky_relu(self=%x, negative_slope=$s)\nreturn %y\n", head + "rule s\n"}) {
    EXPECT_THROW(parse_rules(text), ParseError) << text;
  }
}

TEST(Rewrite, RandomGraphsVerifyAfterwards) {
  const auto rules = parse_rules(
      "rule tt\n%a = aten::t(self=%x)\n%b = aten::t(self=%a)\nreturn %b\n=>\nreturn %x\n"
      "rule add\n%a = aten::relu(self=%x)\n%b = aten::relu(self=%a)\nreturn %b\n=>\n%b = aten::relu(self=%x)\nreturn "
      "%b\n"
      "rule swap\n%a = aten::add.Tensor(self=%x, other=%y)\nreturn %a\n=>\n%a = aten::add.Tensor(self=%y, "
      "other=%x)\nreturn %a\n"
      "rule in_place\n%a = aten::add_.Tensor(self=%x, other=%y)\nreturn %a\n=>\n%a = aten::add_.Tensor(self=%x, "
      "other=%y)\nreturn %a\n");
  int64_t replaced = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Graph graph = random_graph(random, 60);
    const std::string before = to_text(graph);
    const RewriteResult result = rewrite(graph, rules);
    replaced += result.replaced;
    const auto found = violations(graph);
    ASSERT_TRUE(found.empty()) << found[0].message << "\nbefore:\n" << before << "after:\n" << to_text(graph);
    samples::expect_round_trip(graph);
  }
  EXPECT_GT(replaced, 200);
}

TEST(Partition, SplitAndJoin) {
  Graph graph = samples::graph_of(kGraph);
  PartOf parts(-1);
  parts[NodeId(3)] = parts[NodeId(4)] = 0;
  parts[NodeId(5)] = parts[NodeId(6)] = 1;
  const PartitionedGraph cut = split(graph, parts);
  ASSERT_EQ(cut.parts.size(), 2U);
  EXPECT_NO_THROW(verify(cut.parent)) << to_text(cut.parent);
  EXPECT_EQ(cut.parts[0].schema, "part::p0(Tensor x0, Tensor x1) -> Tensor");
  for (const auto& part : cut.parts) EXPECT_NO_THROW(verify(part.graph)) << to_text(part.graph);
  const Graph joined = join(cut);
  EXPECT_NO_THROW(verify(joined)) << to_text(joined);
  EXPECT_EQ(joined.node_count(), graph.node_count());
  // A path from one part through another and back.
  parts[NodeId(4)] = 1;
  parts[NodeId(5)] = 0;
  EXPECT_THROW(split(graph, parts), GraphError);
}

// For any set of supported nodes, the proposed parts can be split off and inlined again.
TEST(Partition, ProposalsCanBeSplit) {
  size_t parts_found = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Graph graph = random_graph(random, 60);
    IdMap<NodeId, char> supported(0);
    for (NodeId n : graph.nodes()) supported[n] = random() % 4 != 0;
    const PartOf parts = propose_partition(graph, [&](NodeId n) { return supported[n] != 0; });
    const PartitionedGraph cut = split(graph, parts);
    parts_found += cut.parts.size();
    const auto found = violations(cut.parent);
    ASSERT_TRUE(found.empty()) << found[0].message << "\n" << to_text(graph) << to_text(cut.parent);
    for (const auto& part : cut.parts) EXPECT_NO_THROW(verify(part.graph)) << to_text(part.graph);
    const Graph joined = join(cut);
    const auto after = violations(joined);
    ASSERT_TRUE(after.empty()) << after[0].message << "\n" << to_text(graph) << to_text(cut.parent);
    EXPECT_EQ(joined.node_count(), graph.node_count());
  }
  EXPECT_GT(parts_found, 60U);
}

// Finds a way out of the nodes and back into them, which forbids running them at one point. One walk over the stretch between the first and the last: a node is tainted if it depends on one of them, directly or not.
std::optional<NodeId> way_back_into(const Graph& graph, const Dependences& dependences, std::span<const NodeId> nodes) {
  if (nodes.empty()) return std::nullopt;
  const auto earlier = [&](NodeId a, NodeId b) { return graph.is_before(a, b); };
  const NodeId first = *std::min_element(nodes.begin(), nodes.end(), earlier);
  const NodeId last = *std::max_element(nodes.begin(), nodes.end(), earlier);
  enum : char { kFree, kInside, kTainted };
  std::unordered_map<NodeId, char> states;
  for (NodeId n : nodes) states[n] = kInside;
  const auto state = [&](NodeId n) {
    const auto found = states.find(n);
    return found == states.end() ? static_cast<char>(kFree) : found->second;
  };
  for (NodeId n = first;; n = graph.node(n).next) {
    const bool tainted = std::any_of(dependences.before(n).begin(), dependences.before(n).end(),
                                     [&](NodeId b) { return state(b) == kTainted; });
    const bool reached = std::any_of(dependences.before(n).begin(), dependences.before(n).end(),
                                     [&](NodeId b) { return state(b) == kInside; });
    if (state(n) == kInside) {
      if (tainted) return n;
    } else if (tainted || reached) {
      states[n] = kTainted;
    }
    if (n == last) return std::nullopt;
  }
}

// With merge=all, no two of the proposed parts could be merged.
TEST(Partition, NoTwoPartsCouldBeOne) {
  size_t pairs = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Graph graph = random_graph(random, 60);
    const uint32_t share = 2 + seed % 4;
    IdMap<NodeId, char> supported(0);
    for (NodeId n : graph.nodes()) supported[n] = random() % share != 0;
    const PartOf part_of = propose_partition(graph, [&](NodeId n) { return supported[n] != 0; });
    std::map<int32_t, std::vector<NodeId>> parts;
    for (NodeId n : graph.nodes()) {
      if (part_of[n] >= 0) parts[part_of[n]].push_back(n);
    }
    const Dependences dependences = Dependences::of(graph);
    for (const auto& [a, first] : parts) {
      EXPECT_FALSE(way_back_into(graph, dependences, first)) << to_text(graph);
      for (const auto& [b, second] : parts) {
        if (a >= b) continue;
        std::vector<NodeId> both = first;
        both.insert(both.end(), second.begin(), second.end());
        EXPECT_TRUE(way_back_into(graph, dependences, both)) << a << " and " << b << "\n" << to_text(graph);
        ++pairs;
      }
    }
  }
  EXPECT_GT(pairs, 100U);
}

TEST(Partition, PassNotesTheParts) {
  Graph graph = samples::graph_of(kGraph);
  const PartitionOptions options{.operators = "aten::mm+aten::add", .min_nodes = 2};
  EXPECT_TRUE(partition(graph, options).changed);
  EXPECT_EQ(graph.note(NodeId(4), "part"), "0");
  EXPECT_EQ(graph.note(NodeId(5), "part"), "0");
  EXPECT_EQ(graph.note(NodeId(3), "part"), "");
  EXPECT_FALSE(partition(graph, options).changed);
}

}  // namespace
}  // namespace shadowgraph
