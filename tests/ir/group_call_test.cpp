// Outlining groups of nodes into calls, and extracting parts of graphs.
#include <gtest/gtest.h>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "tests/ir/samples.h"
#include "tests/passes/random_graph.h"

namespace shadowgraph {
namespace {

const char* const kCallHead =
    "operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor\n"
    "operator aten::relu(Tensor self) -> Tensor\n"
    "operator aten::relu_(Tensor(a!) self) -> Tensor(a!)\n"
    "operator aten::t(Tensor(a) self) -> Tensor(a)\n"
    "operator aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor\n"
    "operator aten::_local_scalar_dense(Tensor self) -> Scalar\n"
    "s0 = 16 cpu input\ns1 = 16 cpu activation\ns2 = 16 cpu activation\ns3 = 16 cpu temporary\n"
    "s4 = 16 cpu temporary\n"
    "r1 = module \"a\" \"A\" call 0 in r0\nr2 = module \"a.b\" \"B\" call 0 in r1\nr3 = module \"a.c\" \"C\" call 0 in "
    "r1\n"
    "%0 = sg::input(name=\"x\") : f32[2,2] @s0\n";

Graph graph_of(const std::string& nodes) { return samples::graph_of(kCallHead + nodes); }

const std::string kCallChain =
    "%1 = aten::mul.Tensor(self=%0, other=%0) : f32[2,2] @s1 | r2 saved(self)\n"
    "%2 = aten::relu(self=%1) : f32[2,2] @s2 | r3 saved(result[0]) free(s1)\n"
    "%3 = aten::t(self=%2) : f32[2,2]{1,2} @s2\n"
    "%4 = aten::relu(self=%3) : f32[2,2]{1,2} @s3 | backward of n2\n";

TEST(IrGroupCall, ReplacesAndInlinesAgain) {
  Graph graph = graph_of(kCallChain);
  const std::vector<NodeId> nodes{NodeId(1), NodeId(2)};
  const Subgraph body = extract(graph, nodes);
  EXPECT_EQ(schema_of(graph, nodes, "my::f"), "my::f(Tensor x0) -> Tensor");
  const NodeId call = replace_by_call(graph, {.nodes = nodes, .schema = "my::f(Tensor x, float p=0.5) -> Tensor"});
  EXPECT_NO_THROW(verify(graph)) << to_text(graph);
  EXPECT_EQ(to_text(graph, call), "n1: %1 = my::f(x=%0) : f32[2,2] @s1 | r1 saved(x, result[0])");
  EXPECT_EQ(graph.storage_count(), 5U);
  EXPECT_EQ(graph.node(NodeId(4)).forward, call);
  samples::expect_round_trip(graph);
  inline_call(graph, call, body.graph);
  EXPECT_NO_THROW(verify(graph)) << to_text(graph);
  EXPECT_EQ(graph.node_count(), 5U);
  EXPECT_EQ(nodes_calling(graph, "aten::mul").size(), 1U);
}

// Inlined results take over the lifetimes of the call's results: unused ones are freed at the call itself.
TEST(IrGroupCall, WhatAnInlinedBodyMakesTakesTheCallsPlace) {
  Graph graph = graph_of(kCallChain);
  const std::vector<NodeId> nodes{NodeId(1), NodeId(2)};
  const Subgraph body = extract(graph, nodes);
  const NodeId call = replace_by_call(graph, {.nodes = nodes, .schema = "my::f(Tensor x) -> Tensor"});
  inline_call(graph, call, body.graph);
  const auto storage_of = [](const Graph& of) {
    return of.storage(of.value(of.results(nodes_calling(of, "aten::relu").at(0))[0].ref.value).storage);
  };
  EXPECT_EQ(storage_of(graph).kind, StorageKind::kActivation);
  Graph unread = samples::graph_of("operator my::f(Tensor x) -> Tensor\n" + std::string(kCallHead) +
                                   "%1 = my::f(x=%0) : f32[2,2] @s3 | free(s3)\n");
  inline_call(unread, NodeId(1), body.graph);
  EXPECT_NO_THROW(verify(unread)) << to_text(unread);
  EXPECT_EQ(storage_of(unread).kind, StorageKind::kTemporary);
  EXPECT_EQ(storage_of(unread).freed_after, nodes_calling(unread, "aten::relu").at(0)) << to_text(unread);
}

// A collective makes its group a collective: the schema names a process group, and the order of collectives is kept.
TEST(IrGroupCall, CollectivesShowInTheSchema) {
  Graph graph =
      samples::graph_of("operator c10d::barrier_like(Tensor x) -> Tensor\n" + std::string(kCallHead) +
                        "%1 = c10d::barrier_like(x=%0) : f32[2,2] @s1\n%2 = aten::relu(self=%1) : f32[2,2] @s2\n"
                        "%3 = c10d::barrier_like(x=%0) : f32[2,2] @s3\nsg::output(values=[%2, %3])\n");
  const std::vector<NodeId> nodes{NodeId(1), NodeId(2)};
  EXPECT_EQ(schema_of(graph, nodes, "my::f"), "my::f(Tensor x0, *, str group_name=\"\") -> Tensor");
  EXPECT_THROW(replace_by_call(graph, {.nodes = nodes, .schema = "my::f(Tensor x) -> Tensor"}), GraphError);
  const NodeId call = replace_by_call(graph, {.nodes = nodes, .schema = schema_of(graph, nodes, "my::f")});
  const Effects effects = Effects::of(graph);
  EXPECT_TRUE(effects.collective(call));
  EXPECT_EQ(effects.final_version(effects.collectives()), 2U);
  const Dependences dependences = Dependences::of(graph, effects);
  const auto after = dependences.after(call);
  EXPECT_NE(std::find(after.begin(), after.end(), NodeId(3)), after.end()) << to_text(graph);
  samples::expect_round_trip(graph);
}

void expect_refused(Graph& graph, const GroupCall& group, const std::string& why) {
  const std::string before = to_text(graph);
  try {
    replace_by_call(graph, group);
    ADD_FAILURE() << "not refused: " << why;
  } catch (const GraphError& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
  EXPECT_EQ(to_text(graph), before);
}

TEST(IrGroupCall, Refusals) {
  Graph graph = graph_of(kCallChain);
  const auto n = [](std::initializer_list<uint32_t> ids) {
    std::vector<NodeId> nodes;
    for (const uint32_t id : ids) nodes.emplace_back(id);
    return nodes;
  };
  expect_refused(graph, {.nodes = {}, .schema = "my::f() -> ()"}, "the group is empty");
  expect_refused(graph, {.nodes = n({0}), .schema = "my::f() -> Tensor"}, "this node is not a call");
  expect_refused(graph, {.nodes = n({1, 1}), .schema = "my::f(Tensor x) -> Tensor"}, "listed twice");
  expect_refused(graph, {.nodes = n({1, 3}), .schema = "my::f(Tensor x, Tensor y) -> (Tensor, Tensor)"},
                 "shares a storage");
  expect_refused(graph, {.nodes = n({1, 4}), .schema = "my::f(Tensor x, Tensor y) -> Tensor"},
                 "depend on one another in a cycle");
  expect_refused(graph, {.nodes = n({1, 2}), .schema = "my::f() -> Tensor"}, "the nodes read 1 values");
  expect_refused(graph, {.nodes = n({1, 2}), .schema = "my::f(Tensor x, Tensor y) -> Tensor"},
                 "argument 'y' has no value");
  expect_refused(graph, {.nodes = n({1, 2}), .schema = "my::f(Tensor x) -> (Tensor, Tensor)"},
                 "the nodes produce 1 values");
  expect_refused(graph, {.nodes = n({1, 2}), .schema = "my::f(Tensor(a) x) -> Tensor(a)"}, "does not share");
  expect_refused(
      graph, {.nodes = n({2}), .schema = "my::f(Tensor x) -> Tensor", .arguments = {Argument::of_value(ValueId(0))}},
      "a value that is not among the arguments");
  expect_refused(graph, {.nodes = n({1, 2, 3}), .schema = "my::f(Tensor x) -> Tensor", .outputs = {ValueId(2)}},
                 "not returned");
  EXPECT_THROW(replace_by_call(graph, {.nodes = n({1}), .schema = "no schema"}), ParseError);
}

TEST(IrGroupCall, EffectsMustBeInTheSchema) {
  Graph graph = graph_of(
      "%1 = aten::relu_(self=%0) : f32[2,2] @s0\n%2 = aten::relu(self=%1) : f32[2,2] @s1\n"
      "%3 = aten::bernoulli(self=%2) : f32[2,2] @s2\n%4 = aten::_local_scalar_dense(self=%3) : float\n");
  const std::vector<NodeId> writes{NodeId(1), NodeId(2)};
  expect_refused(graph, {.nodes = writes, .schema = "my::f(Tensor x) -> Tensor"}, "not mark with (a!)");
  const std::vector<NodeId> random{NodeId(3)};
  expect_refused(graph, {.nodes = random, .schema = "my::f(Tensor x) -> Tensor"}, "draws random numbers");
  const std::vector<NodeId> host{NodeId(3), NodeId(4)};
  expect_refused(graph, {.nodes = host, .schema = "my::f(Tensor x) -> ()"}, "copies data to the host");
}

// Outlines random connected groups, checks each written schema, and inlines everything again.
TEST(IrGroupCall, RandomGroups) {
  int done = 0;
  int circles = 0;
  for (uint32_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Graph graph = random_graph(random, 40);
    std::vector<NodeId> nodes;
    NodeId n(3 + random() % 36);
    for (int i = 0; i < 5 && n.valid(); ++i, n = graph.node(n).next) {
      if (n != graph.last() && random() % 3 != 0) nodes.push_back(n);
    }
    if (nodes.empty()) continue;
    const Subgraph body = extract(graph, nodes);
    const std::string text = to_text(graph);
    const std::string schema = schema_of(graph, nodes, "my::f");
    NodeId call;
    try {
      call = replace_by_call(graph, {.nodes = nodes, .schema = schema});
    } catch (const GraphError& error) {
      EXPECT_NE(std::string(error.what()).find("depend on one another in a cycle"), std::string::npos)
          << schema << error.what();
      EXPECT_EQ(to_text(graph), text);
      ++circles;
      continue;
    }
    auto found = violations(graph);
    ASSERT_TRUE(found.empty()) << schema << found[0].message << "\nbefore:\n" << text << "after:\n" << to_text(graph);
    inline_call(graph, call, body.graph);
    found = violations(graph);
    ASSERT_TRUE(found.empty()) << found[0].message << "\nbefore:\n" << text << "after:\n" << to_text(graph);
    ++done;
  }
  EXPECT_GT(done, 30);
  EXPECT_GT(circles, 0);
}

}  // namespace
}  // namespace shadowgraph
