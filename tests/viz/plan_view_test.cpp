// Plan diagrams: layouts as colors, redistributions on edges, with the bytes that are sent.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/draw/draw.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

const ViewBox& box_with(const ViewModel& view, const std::string& line) {
  for (const ViewBox& box : view.boxes) {
    if (!box.lines.empty() && box.lines[0].find(line) != std::string::npos) return box;
  }
  throw Error("no box " + line);
}

// x is S(0), and mm needs its transposed view replicated, so 64 x 32 floats are gathered before the view, which is not
// drawn. The reduction of mm's P(sum) is on the edge to relu.
TEST(PlanViews, EdgesSayWhatIsRedistributedAndBoxesHowTheyLie) {
  Graph graph;
  {
    const FakeTensorMode mode;
    const at::Tensor x = at::ones({64, 32});
    const at::Tensor w = at::ones({64, 16});
    Capture session;
    graph = session.finish({at::relu(at::mm(x.t(), w))});
  }
  const NodeId view = nodes_calling(graph, "aten::t").at(0);
  const NodeId product = nodes_calling(graph, "aten::mm").at(0);
  const NodeId relu = nodes_calling(graph, "aten::relu").at(0);
  const auto layout = [](const char* text) { return Layout::parse(text); };
  GraphLayouts plan;
  plan.mesh = DeviceMesh::parse("dp=4");
  for (const NodeId node : graph.nodes()) {
    NodeLayouts& layouts = plan.nodes[node];
    if (graph.is_placeholder(node)) layouts.results = {layout("S(0)")};
  }
  plan.nodes[view] = {.operands = {layout("R")}, .results = {layout("R")}};
  plan.nodes[product] = {.operands = {layout("S(1)"), layout("S(0)")}, .results = {layout("P(sum)")}};
  plan.nodes[relu] = {.operands = {layout("R")}, .results = {layout("R")}};
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).target == target_of(Builtin::kOutput)) plan.nodes[node].operands = {layout("R")};
  }
  const Interconnect links = Interconnect::named("h100");
  const RedistributionPlanner planner(plan.mesh, {.interconnect = &links});
  const ViewModel model = view_of_plan(graph, plan, planner);
  std::vector<std::string> notes;
  for (const ViewEdge& edge : model.edges) notes.push_back(edge.note);
  EXPECT_THAT(notes, ::testing::Contains("all_gather dp 8.00 KiB, slice dp 2.00 KiB"));
  EXPECT_THAT(notes, ::testing::Contains("all_reduce dp 2.00 KiB"));
  EXPECT_EQ(model.legend_title, "layout on dp=4");
  EXPECT_NE(box_with(model, "mm").fill, box_with(model, "relu").fill);
  EXPECT_THAT(box_with(model, "mm").tooltip, HasSubstr("P(sum)"));
  EXPECT_THAT(write_dot(model), HasSubstr("all_reduce dp 2.00 KiB"));
  plan.nodes[product].operands[0] = layout("R");
  plan.nodes[product].operands[1] = layout("R");
  plan.nodes[product].results[0] = layout("R");
  const ViewModel gathered = view_of_plan(graph, plan, planner);
  notes.clear();
  for (const ViewEdge& edge : gathered.edges) notes.push_back(edge.note);
  EXPECT_THAT(notes, ::testing::Contains("all_gather dp 8.00 KiB"));
  EXPECT_THAT(notes, ::testing::Contains("all_gather dp 4.00 KiB"));
  EXPECT_EQ(box_with(gathered, "mm").fill, box_with(gathered, "relu").fill);
}

}  // namespace
}  // namespace shadowgraph
