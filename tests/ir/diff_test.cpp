// Differences between graphs, node by node.
#include <gtest/gtest.h>

#include <functional>

#include "ir/records.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/verify.h"
#include "tests/ir/samples.h"
#include "tests/passes/random_graph.h"

namespace shadowgraph {
namespace {

std::string diff_text(const Graph& before, const Graph& after) {
  return to_text(GraphDiff::of(before, after), before, after);
}

TEST(IrDiff, EqualGraphsDoNotDiffer) {
  const Graph graph = parse(samples::kTraining);
  EXPECT_TRUE(GraphDiff::of(graph, clone(graph)).empty());
  EXPECT_EQ(diff_text(graph, clone(graph)), "");
  EXPECT_TRUE(GraphDiff::of(Graph(), Graph()).empty());
  EXPECT_EQ(GraphDiff::of(Graph(), graph).added, graph.node_count());
  EXPECT_EQ(GraphDiff::of(graph, Graph()).removed, graph.node_count());
}

TEST(IrDiff, AnInsertedNodeIsOneDifference) {
  const Graph before = parse(samples::kTraining);
  Graph after = clone(before);
  InsertionPoint at(after, NodeId(4));
  at.insert(after.node(NodeId(3)).target, {Argument::of_value(ValueId(0))});
  const GraphDiff diff = GraphDiff::of(before, after);
  EXPECT_EQ(diff.added, 1U);
  EXPECT_EQ(diff.changes.size(), 1U);
  EXPECT_EQ(diff.same, before.node_count());
  EXPECT_EQ(diff_text(before, after),
            "@@ -, n4 @@\n+ n4: aten::t(self=%0) | r2 grad_mode \"linear.cpp:4\"\n"
            "0 removed, 1 added, 0 changed, 12 the same\n");
}

TEST(IrDiff, SaysWhatChanged) {
  const Graph before = parse(samples::kTraining);
  const auto text_after = [&](const std::function<void(Graph&)>& edit) {
    Graph after = clone(before);
    edit(after);
    return diff_text(before, after);
  };
  EXPECT_NE(text_after([](Graph& g) { g.set_argument(NodeId(6), 1, Argument::of_float(0.25)); }).find("p=0.25"),
            std::string::npos);
  EXPECT_NE(text_after([](Graph& g) { g.set_note(NodeId(6), "a", "b"); }).find("differs in its notes"),
            std::string::npos);
  EXPECT_NE(text_after([](Graph& g) { mutable_node(g, NodeId(6)).flags.grad_mode = false; }).find("its modes"),
            std::string::npos);
  EXPECT_NE(text_after([](Graph& g) { mutable_node(g, NodeId(6)).region = RegionId(0); }).find("its region"),
            std::string::npos);
  EXPECT_NE(text_after([](Graph& g) { g.set_saved(NodeId(4), {}); }).find("its saved tensors"), std::string::npos);
  EXPECT_NE(text_after([](Graph& g) { mutable_node(g, NodeId(8)).forward = NodeId(3); }).find("its forward node"),
            std::string::npos);
  // The same type from a different node.
  EXPECT_NE(text_after([](Graph& g) {
              g.replace_uses_if(ValueId(5), ValueId(4), [](NodeId, const Argument&) { return true; });
            }).find("differs in operand 0"),
            std::string::npos);
  EXPECT_NE(text_after([](Graph& g) { mutable_storage(g, StorageId(2)).bytes = 64; }).find("s2 differs"),
            std::string::npos);
}

TEST(IrDiff, RandomEditsAreFoundAndLimitsHold) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Graph before = random_graph(random, 200);
    Graph after = clone(before);
    size_t erased = 0;
    for (NodeId n : after.nodes()) {
      if (after.can_erase(n) && n != after.last() && random() % 2 == 0) {
        after.erase(n);
        ++erased;
      }
    }
    const GraphDiff diff = GraphDiff::of(before, after);
    EXPECT_EQ(diff.removed - diff.added, erased);
    EXPECT_EQ(diff.same + diff.changed + diff.removed, before.node_count());
    EXPECT_EQ(diff.same + diff.changed + diff.added, after.node_count());
    EXPECT_EQ(diff.empty(), !first_difference(before, after).has_value());
  }
}

// More differences than one search handles: all are found, though perhaps not the fewest.
TEST(IrDiff, GraphsThatHaveLittleInCommon) {
  std::mt19937 random(7);
  const Graph before = random_graph(random, 3000);
  const Graph after = random_graph(random, 3000);
  const GraphDiff diff = GraphDiff::of(before, after);
  EXPECT_EQ(diff.same + diff.changed + diff.removed, before.node_count());
  EXPECT_EQ(diff.same + diff.changed + diff.added, after.node_count());
  const std::string text = to_text(diff, before, after, 10);
  EXPECT_NE(text.find("... and " + std::to_string(diff.changes.size() - 10) + " more"), std::string::npos);
}

}  // namespace
}  // namespace shadowgraph
