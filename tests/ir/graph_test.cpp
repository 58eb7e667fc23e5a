// Edits of a graph, and its Boost.Graph view.
#include <boost/graph/dominator_tree.hpp>
#include <boost/graph/topological_sort.hpp>
#include <gtest/gtest.h>

#include "shadowgraph/graph/bgl.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

// x -> a, b; a, b -> add; add, x -> cat (in a list, x twice)
const char* const kDiamondGraph =
    "operator aten::relu(Tensor self) -> Tensor\noperator aten::neg(Tensor self) -> Tensor\n"
    "operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n"
    "operator aten::cat(Tensor[] tensors, int dim=0) -> Tensor\n"
    "s0 = 8 cpu input\ns1 = 8 cpu temporary\ns2 = 8 cpu temporary\ns3 = 8 cpu temporary\ns4 = 24 cpu temporary\n"
    "%0 = sg::input(name=\"x\") : f32[2] @s0\n"
    "%1 = aten::relu(self=%0) : f32[2] @s1\n"
    "%2 = aten::neg(self=%0) : f32[2] @s2\n"
    "%3 = aten::add.Tensor(self=%1, other=%2) : f32[2] @s3 | saved(self)\n"
    "%4 = aten::cat(tensors=[%3, %0, %0]) : f32[6] @s4 | free(s3)\n";

std::vector<uint32_t> users(const Graph& graph, ValueId v) {
  std::vector<uint32_t> result;
  graph.for_each_use(v, [&](NodeId n) { result.push_back(n.index); });
  return result;
}

TEST(IrGraph, EraseRefusesWhileResultsAreUsed) {
  Graph graph = samples::graph_of(kDiamondGraph);
  EXPECT_THROW(graph.erase(NodeId(3)), GraphError);
  EXPECT_NO_THROW(verify(graph));
  graph.erase(NodeId(4));
  graph.erase(NodeId(3));
  EXPECT_EQ(graph.node_count(), 3U);
  EXPECT_EQ(users(graph, ValueId(0)), (std::vector<uint32_t>{1, 2}));
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrGraph, EraseHandsDeathsToTheNodeBefore) {
  Graph graph = samples::graph_of(kDiamondGraph);
  graph.erase(NodeId(4));
  ASSERT_EQ(graph.frees(NodeId(3)).size(), 1U);
  EXPECT_EQ(graph.storage(StorageId(3)).freed_after, NodeId(3));
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrGraph, ReplaceAllUsesReachesListsAndSavedTensors) {
  Graph graph = samples::graph_of(kDiamondGraph);
  graph.replace_all_uses_with(ValueId(0), ValueId(0));
  EXPECT_EQ(users(graph, ValueId(0)), (std::vector<uint32_t>{1, 2, 4, 4}));
  graph.replace_all_uses_with(ValueId(1), ValueId(0));
  EXPECT_EQ(users(graph, ValueId(0)), (std::vector<uint32_t>{1, 2, 4, 4, 3}));
  EXPECT_EQ(graph.saved(NodeId(3))[0].value, ValueId(0));
  EXPECT_FALSE(graph.has_uses(ValueId(1)));
  EXPECT_NO_THROW(verify(graph));
  EXPECT_THROW(graph.replace_all_uses_with(ValueId(0), ValueId(2)), GraphError);  // neg would become its own operand
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrGraph, MoveBefore) {
  Graph graph = samples::graph_of(kDiamondGraph);
  graph.move_before(NodeId(2), NodeId(1));
  graph.move_before(NodeId(4), NodeId());
  EXPECT_NO_THROW(verify(graph));
  std::vector<uint32_t> order;
  for (NodeId n : graph.nodes()) order.push_back(n.index);
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 2, 1, 3, 4}));
  EXPECT_THROW(graph.move_before(NodeId(3), NodeId(1)), GraphError);
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrGraph, ListsAreNotSharedBetweenNodes) {
  Graph graph = samples::graph_of(kDiamondGraph);
  const auto arguments = graph.arguments(NodeId(4));
  const std::vector<Argument> copy(arguments.begin(), arguments.end());
  const NodeId twin = graph.insert_before(NodeId(4), graph.node(NodeId(4)).target, copy);
  EXPECT_NO_THROW(verify(graph));
  graph.erase(twin);
  EXPECT_EQ(users(graph, ValueId(0)), (std::vector<uint32_t>{1, 2, 4, 4}));
  EXPECT_NO_THROW(verify(graph));
}

TEST(IrGraph, DifferencesAreFound) {
  const Graph a = parse(samples::kTraining);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = samples::kTraining;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto difference = first_difference(a, parse(text));
    return difference.value_or("equal");
  };
  EXPECT_EQ(changed("grad_mode", "grad_mode"), "equal");
  EXPECT_NE(changed("p=0.5", "p=0.25").find("n6 differs in its arguments"), std::string::npos);
  EXPECT_NE(changed("backward of n4", "optimizer of n4").find("its phase"), std::string::npos);
  EXPECT_NE(changed("backward of n4", "backward of n3").find("its forward node"), std::string::npos);
  EXPECT_NE(changed("saved(self)", "saved(mat2)").find("its saved tensors"), std::string::npos);
  EXPECT_NE(changed("free(s4)", "").find("freed after"), std::string::npos);
  EXPECT_NE(changed("linear.cpp:3", "linear.cpp:5").find("source"), std::string::npos);
  EXPECT_NE(changed("[2,3]{1,2} @s6", "[2,3]{1,2} @s6 grad").find("a result"), std::string::npos);
  EXPECT_NE(changed("autocast_cuda", "autocast_cpu").find("its modes"), std::string::npos);
  EXPECT_NE(changed("layer1.0", "layer1.1").find("r1 differs"), std::string::npos);
  EXPECT_NE(changed("weight=%0, bias=%1", "weight=%1, bias=%1").find("r2 differs"), std::string::npos);
  EXPECT_NE(changed("s2 = 48", "s2 = 49").find("s2 differs"), std::string::npos);
  EXPECT_NE(changed("= \"4\"", "= \"5\"").find("guards"), std::string::npos);
  EXPECT_NE(changed("two", "three").find("metadata"), std::string::npos);
  EXPECT_NE(changed("n11: sg::output(values=[%9, None])\n", "").find("12 nodes versus 11"), std::string::npos);
}

TEST(IrBoostGraph, Edges) {
  const Graph graph = samples::graph_of(kDiamondGraph);
  const DefUseGraph def_use = def_use_graph(graph);
  EXPECT_EQ(num_vertices(def_use), 5U);
  EXPECT_EQ(out_degree(0, def_use), 4U);
  EXPECT_EQ(in_degree(4, def_use), 3U);
  EXPECT_EQ(degree(3, def_use), 3U);
  std::vector<size_t> sources;
  for (auto [e, end] = in_edges(4, def_use); e != end; ++e) {
    sources.push_back(source(*e, def_use));
    EXPECT_EQ(graph.value(def_use[*e]).producer, def_use[source(*e, def_use)]);
  }
  EXPECT_EQ(sources, (std::vector<size_t>{3, 0, 0}));
}

TEST(IrBoostGraph, TopologicalSortAfterErasing) {
  Graph graph = samples::graph_of(kDiamondGraph);
  for (const uint32_t n : {4, 3, 1}) graph.erase(NodeId(n));
  const DefUseGraph def_use = def_use_graph(graph);
  std::vector<size_t> reversed;
  boost::topological_sort(def_use, std::back_inserter(reversed));
  ASSERT_EQ(reversed.size(), 2U);
  EXPECT_EQ(def_use[reversed.back()], NodeId(0));
  EXPECT_EQ(def_use[reversed.front()], NodeId(2));
}

TEST(IrBoostGraph, DominatorTree) {
  const DefUseGraph def_use = def_use_graph(samples::graph_of(kDiamondGraph));
  std::vector<size_t> dominators(num_vertices(def_use));
  const auto index = get(boost::vertex_index, def_use);
  boost::lengauer_tarjan_dominator_tree(def_use, 0, boost::make_iterator_property_map(dominators.begin(), index));
  EXPECT_EQ(dominators[1], 0U);
  EXPECT_EQ(dominators[3], 0U);  // neither relu nor neg, since the two paths go through one each
  EXPECT_EQ(dominators[4], 0U);
}

}  // namespace
}  // namespace shadowgraph
