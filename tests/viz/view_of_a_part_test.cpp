// Parts of a graph: around a node, between two, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/draw/draw.h"
#include "tests/profiler/test_graph.h"
#include "tests/viz/view_samples.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A chain of relu, neg, abs, exp, in two phases: n1 n2 n3 n4, and a sum of n1 and n4.
struct Chain {
  TestGraph t;
  std::vector<TestGraph::Call> calls;
  Chain() {
    calls.push_back(t.input("x", {4}));
    for (const char* op : {"aten::relu", "aten::neg", "aten::abs", "aten::exp"}) {
      calls.push_back(t.call(op, {calls.back()}, {{4}}));
    }
    calls.push_back(t.call("aten::add.Tensor", {calls[1], calls[4], Argument::of_int(1)}, {{4}}));
    t.output({calls.back()});
  }
};

TEST(ViewModel, AroundANode) {
  const Chain chain;
  const ViewModel one = ViewModel::of(chain.t.graph, {.around = {chain.calls[3].node}, .radius = 1});
  EXPECT_THAT(labels(one), ElementsAre("neg", "abs", "exp", "relu", "add"));
  EXPECT_THAT(edges(one), ElementsAre("neg->abs f32[4]", "abs->exp f32[4]", "relu->neg ", "exp->add "));
  EXPECT_EQ(one.boxes[1].mark, ViewMark::kNamed);
  EXPECT_EQ(one.boxes[0].mark, ViewMark::kNone);
  EXPECT_TRUE(one.boxes[3].omitted && one.boxes[4].omitted);
  EXPECT_THAT(one.notes, Contains("part of the graph: 4 operators are omitted"));
  const ViewModel none = ViewModel::of(chain.t.graph, {.around = {chain.calls[1].node}, .radius = 0});
  EXPECT_THAT(labels(none), ElementsAre("relu", "2 more", "x"));
  EXPECT_TRUE(ViewModel::of(chain.t.graph, {.around = {chain.calls[3].node}, .radius = 9}).boxes.size() == 7);
}

TEST(ViewModel, PathBetweenNodes) {
  const Chain chain;
  const auto path = [&](size_t from, size_t to) {
    return ViewOptions{.path = PathEnds{{chain.calls[from].node}, {chain.calls[to].node}}};
  };
  EXPECT_THAT(labels(ViewModel::of(chain.t.graph, path(2, 4))), ElementsAre("neg", "abs", "exp", "relu", "add"));
  // Both paths from relu to add are included.
  EXPECT_THAT(labels(ViewModel::of(chain.t.graph, path(1, 5))),
              ElementsAre("relu", "neg", "abs", "exp", "add", "x", "output"));
  try {
    ViewModel::of(chain.t.graph, path(4, 2));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("no path of tensors leads from n4 (aten::exp) to n2 (aten::neg); one leads in the other direction"));
  }
}

TEST(ViewModel, APartShowsItsPhasesAndWhatIsAskedFor) {
  TestGraph t;
  const auto x = t.input("x", {4, 2});
  const auto transposed = t.view("aten::t", {x}, x.value(), {2, 4});
  const auto y = t.call("aten::relu", {transposed}, {{2, 4}});
  t.phase = Graph::kBackward;
  const auto g = t.call("aten::neg", {y}, {{2, 4}}, y.node);
  t.output({g});
  EXPECT_THAT(labels(ViewModel::of(t.graph, {.around = {transposed.node}, .radius = 1})),
              ElementsAre("x|f32[4,2]", "t", "relu", "neg"));
  EXPECT_THROW(ViewModel::of(t.graph, {.phases = {"backward"}, .around = {y.node}}), Error);
  EXPECT_THROW(ViewModel::of(t.graph, {.around = {NodeId(99)}}), Error);
}

TEST(ViewModel, FoldsAroundWhatIsNamed) {
  const Encoder encoder(6);
  const auto third = nodes_named(encoder.t.graph, "encoder.layer.2.fc");
  ASSERT_EQ(third.size(), 2U);  // t and addmm
  const ViewModel model = ViewModel::of(encoder.t.graph, {.around = third, .radius = 99});
  EXPECT_THAT(titles(model), ElementsAre("encoder.layer", "{0..1} x2", "2", "fc", "{3..5} x3"));
}

TEST(NodesNamed, WhatReadersCallThem) {
  const Encoder encoder(2);
  const Graph& graph = encoder.t.graph;
  EXPECT_EQ(nodes_named(graph, "n0"), nodes_named(graph, "tokens"));
  EXPECT_EQ(nodes_named(graph, "%0"), nodes_named(graph, "tokens"));
  EXPECT_EQ(nodes_named(graph, "aten::add.Tensor"), nodes_named(graph, "add"));
  EXPECT_EQ(nodes_named(graph, "aten::add").size(), 2U);
  EXPECT_EQ(nodes_named(graph, "encoder.layer.1").size(), 4U);
  EXPECT_EQ(nodes_named(graph, "encoder.layer.0.fc.weight").size(), 1U);
  for (const char* bad : {"", "n99", "%99", "encoder.lay", "nothing"})
    EXPECT_THROW(nodes_named(graph, bad), Error) << bad;
  try {
    nodes_named(graph, "layer.1.fc");
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("similar names: encoder.layer.1.fc, encoder.layer.1.fc.bias"));
  }
}

}  // namespace
}  // namespace shadowgraph
