// Composition of profilers that compute costs of nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/error.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/profilers.h"
#include "tests/profiler/test_graph.h"

namespace shadowgraph {
namespace {

using shadowgraph::testing::TestGraph;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// x @ w, its two backward products, and a backward node that belongs to no forward node.
struct Step {
  TestGraph t;
  TestGraph::Call x, w, x_t, w_t, mm, of_x, of_w, other;
  Step() {
    x = t.input("x", {64, 32});
    w = t.parameter("w", {32, 16});
    x_t = t.input("x_t", {32, 64});
    w_t = t.input("w_t", {16, 32});
    mm = t.call("aten::mm", {x, w}, {{64, 16}});
    t.save(mm.node, {mm.value(), w.value()});
    t.phase = Graph::kBackward;
    of_x = t.call("aten::mm", {mm, w_t}, {{64, 32}}, mm.node);
    of_w = t.call("aten::mm", {x_t, mm}, {{32, 16}}, mm.node);
    other = t.call("aten::relu", {of_w}, {{32, 16}});
  }
};

TEST(NodeProfilers, BackwardStandsBesideItsForwardNode) {
  const Step step;
  GraphProfiler profilers;
  profilers.add(FlopProfiler()).add(MemoryProfiler());
  const NodeTable table = profilers.run(profile(step.t.graph));
  EXPECT_EQ(table.nodes(), (std::vector<NodeId>{step.x.node, step.w.node, step.x_t.node, step.w_t.node, step.mm.node,
                                                step.other.node}));
  const NodeCost& flops = table.at(step.mm.node, "matmul_flops");
  EXPECT_EQ(flops.forward, 2 * 64 * 32 * 16);
  const auto of_backward = profile(step.t.graph).of(step.of_x.node).matmul;
  EXPECT_GT(of_backward, 0);
  EXPECT_EQ(flops.backward, static_cast<double>(of_backward + profile(step.t.graph).of(step.of_w.node).matmul));
  EXPECT_EQ(table.at(step.mm.node, "allocated_bytes").forward, 64 * 16 * 4);
  EXPECT_EQ(table.at(step.mm.node, "allocated_bytes").backward, (64 * 32 + 32 * 16) * 4);
  EXPECT_EQ(table.at(step.mm.node, "saved_bytes").forward, 64 * 16 * 4) << "the parameter was there before";
  EXPECT_EQ(table.at(step.other.node, "elementwise_flops").forward, 32 * 16);
  EXPECT_EQ(table.total(0).forward + table.total(0).backward, flops.forward + flops.backward);
  EXPECT_TRUE(table.has(step.mm.node));
  EXPECT_FALSE(table.has(step.of_x.node));
}

TEST(NodeProfilers, DerivativesOfDerivativesBelongToTheFirst) {
  TestGraph t;
  const auto x = t.input("x", {8});
  const auto first = t.call("aten::sin", {x}, {{8}});
  t.phase = Graph::kBackward;
  const auto second = t.call("aten::cos", {x}, {{8}}, first.node);
  t.call("aten::neg", {second}, {{8}}, second.node);
  const NodeTable table = GraphProfiler().add(MemoryProfiler()).run(profile(t.graph));
  EXPECT_EQ(table.at(first.node, "allocated_bytes").backward, 64);
}

TEST(NodeProfilers, RulesOfOnesOwnAndWhatTheyDoNotKnow) {
  const Step step;
  GraphProfiler profilers;
  profilers.add("energy", "J", [&](const Profile& of, NodeId node) -> std::optional<double> {
    if (node == step.of_w.node) return std::nullopt;
    return of.graph().target(node).name() == "aten::mm" ? 2.0 : 0.0;
  });
  const NodeTable table = profilers.run(profile(step.t.graph));
  EXPECT_EQ(table.at(step.mm.node, "energy").forward, 2);
  EXPECT_EQ(table.at(step.mm.node, "energy").backward, 2);
  EXPECT_EQ(table.at(step.mm.node, "energy").unknown, 1u);
  const std::string csv = to_csv(table);
  EXPECT_THAT(csv, StartsWith("node,phase,module,op,source,energy,backward_energy,unknown\n"));
  EXPECT_THAT(csv, HasSubstr("4,forward,,aten::mm,,2,2,1\n"));
}

TEST(NodeProfilers, WhatIsNotKnownIsCounted) {
  TestGraph t;
  const auto x = t.input("x", {8, 8});
  const auto odd = t.call("aten::_fft_c2c", {x}, {{8, 8}});
  const Profile costs = profile(t.graph);
  const NodeTable table = GraphProfiler().add(TimeProfiler()).run(costs);
  EXPECT_EQ(table.at(odd.node, "seconds").unknown, 1u) << "no spec";
  const DeviceSpec spec = DeviceSpec::named("h100");
  const Profile timed = profile(t.graph, {.spec = &spec});
  EXPECT_GT(GraphProfiler().add(TimeProfiler()).run(timed).at(odd.node, "seconds").forward, 0);
}

TEST(NodeProfilers, NamesAreHeldApart) {
  GraphProfiler profilers;
  profilers.add(FlopProfiler());
  EXPECT_THROW(profilers.add(FlopProfiler()), Error);
  EXPECT_THROW(profilers.add("matmul_flops", "", [](const Profile&, NodeId) { return 0.0; }), Error);
  EXPECT_THROW(profilers.add("mine", "", nullptr), Error);
  const Step step;
  const NodeTable table = profilers.run(profile(step.t.graph));
  EXPECT_THROW((void)table.at(step.mm.node, "energy"), Error);
  EXPECT_THROW((void)table.at(step.of_x.node, "matmul_flops"), Error);
}

}  // namespace
}  // namespace shadowgraph
