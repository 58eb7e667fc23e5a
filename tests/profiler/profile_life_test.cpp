// Profiles whose graph is moved, destroyed or replaced must throw. Before graphs had tokens, these accesses read freed
// memory or the empty moved-from graph.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <optional>
#include <utility>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/profilers.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;

struct ProfiledStep {
  Graph graph;
  NodeId product;
};

// One product of a 2 x 4 input and a 4 x 8 parameter in module "fc", then its all-reduce over four processes.
ProfiledStep small_step() {
  TestGraph t;
  const auto x = t.input("x", {2, 4});
  const auto weight = t.parameter("fc.weight", {4, 8});
  TestGraph::Call product;
  {
    auto net = t.module("", "Net");
    auto fc = t.module("fc", "Linear");
    product = t.call("aten::mm", {x, weight}, {{2, 8}});
  }
  const auto sum = t.call("_c10d_functional::all_reduce",
                          {product, t.graph.string_argument("sum"), t.graph.string_argument("world")}, {{2, 8}});
  t.output({sum});
  return {std::move(t.graph), product.node};
}

std::string message_of(const auto& ask) {
  try {
    ask();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

constexpr const char* kGone = "the graph of this profile was destroyed; keep it alive while the profile is in use";

TEST(ProfileLife, ViewsOfADestroyedGraphThrow) {
  std::optional<ProfiledStep> step = small_step();
  const Profile costs = profile(step->graph);
  const NodeId product = step->product;
  const int64_t peak = costs.timeline().peak().bytes;
  step.reset();
  EXPECT_EQ(message_of([&] { costs.graph(); }), kGone);
  EXPECT_EQ(message_of([&] { costs.summary(); }), kGone);
  EXPECT_EQ(message_of([&] { costs.memory_layout(); }), kGone);
  EXPECT_EQ(message_of([&] { costs.timeline(c10::Device("cpu")); }), kGone);
  EXPECT_EQ(message_of([&] { findings(costs); }), kGone);
  EXPECT_EQ(message_of([&] { to_text(costs); }), kGone);
  EXPECT_EQ(message_of([&] { to_json(costs); }), kGone);
  EXPECT_EQ(message_of([&] { GraphProfiler().add(FlopProfiler()).run(costs); }), kGone);
  // Costs and copied results do not need the graph.
  EXPECT_EQ(costs.of(product).matmul, 2 * 2 * 4 * 8);
  EXPECT_EQ(costs.peak.bytes, peak);
  EXPECT_EQ(costs.timeline().peak().bytes, peak);
}

TEST(ProfileLife, WhatWasAskedBeforeIsStillThere) {
  std::optional<ProfiledStep> step = small_step();
  const Profile costs = profile(step->graph);
  const int64_t bytes = costs.memory_layout().bytes;
  const size_t found = findings(costs).size();
  step.reset();
  EXPECT_EQ(costs.memory_layout().bytes, bytes);
  EXPECT_EQ(findings(costs).size(), found);
}

TEST(ProfileLife, FollowsAGraphThatIsMoved) {
  ProfiledStep step = small_step();
  const Profile costs = profile(step.graph);
  const std::string text = to_text(costs);
  const std::string table = to_text(costs.summary());
  const Graph moved = std::move(step.graph);
  EXPECT_EQ(&costs.graph(), &moved);
  EXPECT_EQ(to_text(costs), text);
  EXPECT_EQ(to_text(costs.summary()), table);
}

TEST(ProfileLife, AGraphThatIsAssignedToIsAnother) {
  ProfiledStep step = small_step(), other = small_step();
  const Profile costs = profile(step.graph);
  const Profile others = profile(other.graph);
  step.graph = std::move(other.graph);
  EXPECT_EQ(message_of([&] { costs.graph(); }), kGone);
  EXPECT_EQ(&others.graph(), &step.graph);
}

TEST(ProfileLife, ACopyIsAnotherGraph) {
  std::optional<ProfiledStep> step = small_step();
  const Graph copy = clone(step->graph);
  const Profile costs = profile(step->graph);
  step.reset();
  EXPECT_EQ(message_of([&] { costs.graph(); }), kGone);
  EXPECT_EQ(&profile(copy).graph(), &copy);
}

TEST(ProfileLife, CommunicationAndTablesThrow) {
  std::optional<ProfiledStep> step = small_step();
  const Profile costs = profile(step->graph);
  const Communication sent = Communication::of(step->graph, {.mesh = {{.name = "world", .size = 4}}});
  const NodeTable table = GraphProfiler().add(FlopProfiler()).run(costs);
  ASSERT_EQ(sent.total().calls, 1);
  step.reset();
  EXPECT_EQ(sent.total().calls, 1);
  EXPECT_EQ(message_of([&] { sent.of(Graph::kForward); }),
            "the graph of this communication was destroyed; keep it alive while the communication is in use");
  EXPECT_THROW(sent.by_module(), Error);
  EXPECT_EQ(message_of([&] { to_csv(table); }),
            "the graph of this table of nodes was destroyed; keep it alive while the table of nodes is in use");
  EXPECT_EQ(table.total(0).forward, 2 * 2 * 4 * 8);
}

TEST(ProfileLife, NoGraphAtAllIsGone) { EXPECT_THROW(WeakGraph().get("test"), Error); }

}  // namespace
}  // namespace shadowgraph
