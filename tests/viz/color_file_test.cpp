// Node values read from files, values of folded layers, and edges that are not plain reads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/text.h"
#include "tests/profiler/test_graph.h"
#include "viz/page_data.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// x, then four layers of relu and neg: n1 n2, n3 n4, n5 n6, n7 n8; output n9.
TestGraph four_layers() {
  TestGraph t;
  auto x = t.input("x", {4});
  for (int i = 0; i < 4; ++i) {
    auto layer = t.module("layers." + std::to_string(i), "Layer");
    x = t.call("aten::relu", {x}, {{4}});
    x = t.call("aten::neg", {x}, {{4}});
  }
  t.output({x});
  return t;
}

NodeId node(const Graph& graph, size_t number) { return nodes_named(graph, "n" + std::to_string(number)).at(0); }

std::string error_of(const Graph& graph, const std::string& text, const std::string& column = {}) {
  try {
    node_colors_of_text(graph, text, "values", column);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ColorFile, JsonWithAndWithoutATitle) {
  const TestGraph t = four_layers();
  const NodeColors plain = node_colors_of_text(t.graph, R"({"n1": 2.5, "%4": 1, "3": 4})", "values.json");
  EXPECT_EQ(plain.title, "values.json");
  EXPECT_EQ(plain.unit, NodeColors::Unit::kNone);
  EXPECT_EQ(plain.amounts[node(t.graph, 1)], 2.5);
  EXPECT_EQ(plain.amounts[node(t.graph, 4)], 1);
  EXPECT_EQ(plain.amounts[node(t.graph, 3)], 4);
  EXPECT_EQ(plain.amounts[node(t.graph, 2)], 0);
  const NodeColors titled =
      node_colors_of_text(t.graph, R"({"title": "gpu 3", "unit": "seconds", "nodes": {"n1": 0.5}})", "values.json");
  EXPECT_EQ(titled.title, "gpu 3");
  EXPECT_EQ(titled.unit, NodeColors::Unit::kSeconds);
  const ViewModel model = ViewModel::of(t.graph, {.fold_repeats = false, .colors = &titled});
  EXPECT_EQ(model.legend_title, "gpu 3, logarithmic");
  EXPECT_EQ(model.legend.front().label, "500.00 ms");
}

TEST(ColorFile, TablesWithQuotesAndColumns) {
  const TestGraph t = four_layers();
  const std::string table = "op,node,seconds,rank\n\"a,\"\"b\",1,0.25,left\r\nrelu,2,,\"right\nside\"\n";
  const NodeColors first = node_colors_of_text(t.graph, "node,peak_bytes\n1,2048\n", "t.csv");
  EXPECT_EQ(first.title, "peak_bytes");
  EXPECT_EQ(first.unit, NodeColors::Unit::kBytes);
  EXPECT_EQ(first.amounts[node(t.graph, 1)], 2048);
  const NodeColors seconds = node_colors_of_text(t.graph, table, "t.csv", "seconds");
  EXPECT_EQ(seconds.unit, NodeColors::Unit::kSeconds);
  EXPECT_EQ(seconds.amounts[node(t.graph, 1)], 0.25);
  EXPECT_EQ(seconds.amounts[node(t.graph, 2)], 0);
  const NodeColors rank = node_colors_of_text(t.graph, table, "t.csv", "rank");
  ASSERT_EQ(rank.kind_entries.size(), 2U);
  EXPECT_EQ(rank.kind_entries[1].label, "right\nside");
  EXPECT_EQ(rank.kinds[node(t.graph, 2)], 1U);
  EXPECT_TRUE(is_color_file("a.csv:seconds") && is_color_file("a.json") && !is_color_file("time"));
}

TEST(ColorFile, SaysWhatIsWrongAndWhere) {
  const TestGraph t = four_layers();
  EXPECT_THAT(error_of(t.graph, "{"), HasSubstr("invalid JSON"));
  EXPECT_THAT(error_of(t.graph, "{\"n10\": 1}"), HasSubstr("no node 'n10'; give n0 to n9"));
  EXPECT_THAT(error_of(t.graph, "{\"layers.0\": 1}"), HasSubstr("no node 'layers.0'"));
  EXPECT_THAT(error_of(t.graph, "{\"n1\": null}"), HasSubstr("must be a number or a string"));
  EXPECT_THAT(error_of(t.graph, "{\"n1\": -1}"), HasSubstr("-1 of n1 must be a non-negative number"));
  EXPECT_THAT(error_of(t.graph, "{\"n1\": 1, \"n2\": \"left\"}"), HasSubstr("only numbers or only strings"));
  EXPECT_THAT(error_of(t.graph, R"({"unit": "miles", "nodes": {}})"), HasSubstr("unknown unit 'miles'"));
  EXPECT_THAT(error_of(t.graph, ""), HasSubstr("at least two columns"));
  EXPECT_THAT(error_of(t.graph, "node,a\n1,2\n1,3\n"), HasSubstr("line 3: node '1' occurs twice"));
  EXPECT_THAT(error_of(t.graph, "node,a\n1,2,3\n"), HasSubstr("line 2 has 3 fields, but line 1 has 2"));
  EXPECT_THAT(error_of(t.graph, "node,a\n1,nan\n"), HasSubstr("nan of 1 must be a non-negative number"));
  EXPECT_THAT(error_of(t.graph, "node,a\n1,2\n", "b"), HasSubstr("no column 'b'; choose one of node, a"));
}

// Equal layers are drawn once, even if their measured values differ: 1, 2, 3 and 6 seconds.
TEST(ColorFile, EqualLayersSayLeastMeanAndMost) {
  const TestGraph t = four_layers();
  const NodeColors colors = node_colors_of_text(
      t.graph, R"({"unit": "seconds", "nodes": {"n1": 1, "n3": 1, "n4": 1, "n5": 3, "n7": 2, "n8": 4}})", "measured");
  const ViewModel closed = ViewModel::of(t.graph, {.depth = 0, .colors = &colors});
  // One box contains the folded layers: 1 + 2 + 3 + 6.
  ASSERT_EQ(closed.boxes.size(), 3U);
  EXPECT_THAT(closed.boxes[1].lines, Contains("12.00 s")) << write_dot(closed);
  const ViewModel folded = ViewModel::of(t.graph, {.depth = 1, .colors = &colors});
  ASSERT_EQ(folded.boxes.size(), 3U);
  EXPECT_THAT(folded.boxes[1].lines, Contains("x4: min 1.00 s, mean 3.00 s, max 6.00 s")) << write_dot(folded);
  const ViewModel open = ViewModel::of(t.graph, {.depth = 9, .colors = &colors});
  ASSERT_EQ(open.boxes.size(), 4U);
  EXPECT_THAT(open.boxes[1].tooltip, HasSubstr("measured: x4: min 1.00 s, mean 1.75 s, max 3.00 s"));
  ASSERT_EQ(open.clusters.size(), 2U);
  EXPECT_THAT(open.clusters[1].subtitle, HasSubstr("x4: min 1.00 s, mean 3.00 s, max 6.00 s"));
}

TEST(Page, HoldsGivenValues) {
  const TestGraph t = four_layers();
  const Profile costs = profile(t.graph);
  const NodeColors amounts = node_colors_of_text(t.graph, "node,seconds\n1,0.5\n8,2\n", "t.csv");
  const std::string data = page_data(costs, {.values = &amounts});
  EXPECT_NE(data.find(R"("given":{"title":"seconds","unit":"seconds","values":[[1,0.5],[8,2.0]]})"), data.npos);
  const NodeColors kinds = node_colors_of_text(t.graph, "{\"n2\": \"left\"}", "t.json");
  EXPECT_NE(page_data(costs, {.values = &kinds}).find(R"("kinds":[["left","#8ec7ea"]])"), data.npos);
  EXPECT_EQ(page_data(costs, {}).find("\"given\""), data.npos);
}

TEST(ViewModel, AliasesAndWritesAreEdgesOfTheirOwn) {
  TestGraph t;
  const auto x = t.input("x", {4, 2});
  const auto y = t.call("aten::relu", {x}, {{4, 2}});
  const auto view = t.view("aten::t", {y}, y.value(), {2, 4});
  const auto written = t.view("aten::neg_", {view}, y.value(), {2, 4});
  const auto sum = t.call("aten::add.Tensor", {written, view, Argument::of_int(1)}, {{2, 4}});
  t.output({sum});
  const ViewModel model = ViewModel::of(t.graph, {.show_views = true});
  std::vector<std::string> edges;
  for (const ViewEdge& edge : model.edges) {
    edges.push_back(model.boxes[edge.from].lines.front() + " " + model.boxes[edge.to].lines.front() + " " +
                    std::to_string(static_cast<int>(edge.kind)));
  }
  EXPECT_THAT(edges, ElementsAre("x relu 0", "relu t 1", "t neg_ 2", "neg_ add 0", "t add 0", "add output 0"));
  const std::string dot = write_dot(model);
  EXPECT_THAT(dot,
              HasSubstr("n1 -> n2 [label=\"  f32[4,2]  \", tooltip=\"f32[4,2] of aten::relu\", "
                        "labeltooltip=\"f32[4,2] of aten::relu\", penwidth=1.0, style=dashed, color=\"#0072b2\"]"));
  EXPECT_THAT(dot, HasSubstr("style=dotted, color=\"#d55e00\""));
  EXPECT_THAT(dot, HasSubstr("blue, dashed: alias (same storage)"));
  EXPECT_THAT(dot, HasSubstr("orange, dotted: written in place"));
  const std::string plain = write_dot(ViewModel::of(four_layers().graph));
  EXPECT_EQ(plain.find("written in place"), plain.npos);
}

}  // namespace
}  // namespace shadowgraph
