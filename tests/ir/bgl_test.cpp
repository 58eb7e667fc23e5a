// The IR as a Boost graph: concepts, and the algorithms that shadowgraph/graph/bgl.h calls.
#include "shadowgraph/graph/bgl.h"

#include <boost/concept_check.hpp>
#include <boost/graph/breadth_first_search.hpp>
#include <boost/graph/graph_concepts.hpp>
#include <boost/graph/topological_sort.hpp>
#include <gtest/gtest.h>

#include "shadowgraph/graph/analysis.h"
#include "tests/ir/samples.h"
#include "tests/passes/random_graph.h"

namespace shadowgraph {
namespace {

BOOST_CONCEPT_ASSERT((boost::GraphConcept<DefUseGraph>));
BOOST_CONCEPT_ASSERT((boost::VertexListGraphConcept<DefUseGraph>));
BOOST_CONCEPT_ASSERT((boost::IncidenceGraphConcept<DefUseGraph>));
BOOST_CONCEPT_ASSERT((boost::BidirectionalGraphConcept<DefUseGraph>));
BOOST_CONCEPT_ASSERT((boost::AdjacencyGraphConcept<DefUseGraph>));
BOOST_CONCEPT_ASSERT((boost::ReadablePropertyGraphConcept<DefUseGraph, NodeId, boost::vertex_index_t>));
BOOST_CONCEPT_ASSERT((boost::ReadablePropertyMapConcept<PositionMap, NodeId>));
BOOST_CONCEPT_ASSERT((boost::ReadWritePropertyMapConcept<IdPropertyMap<NodeId, int>, NodeId>));
BOOST_CONCEPT_ASSERT((boost::LvaluePropertyMapConcept<IdPropertyMap<NodeId, int>, NodeId>));

const char* const kDiamondHead =
    "operator aten::relu(Tensor self) -> Tensor\n"
    "operator aten::mul.Tensor(Tensor self, Tensor other) -> Tensor\n"
    "s0 = 8 cpu input\ns1 = 8 cpu temporary\ns2 = 8 cpu temporary\ns3 = 8 cpu temporary\ns4 = 8 cpu temporary\n"
    "s5 = 8 cpu input\ns6 = 8 cpu temporary\n";
// x -> a -> (b, c) -> d; y -> e
const std::string kDiamond = std::string(kDiamondHead) +
                             "%0 = sg::input(name=\"x\") : f32[2] @s0\n%1 = sg::input(name=\"y\") : f32[2] @s5\n"
                             "%2 = aten::relu(self=%0) : f32[2] @s1\n%3 = aten::relu(self=%2) : f32[2] @s2\n"
                             "%4 = aten::relu(self=%2) : f32[2] @s3\n"
                             "%5 = aten::mul.Tensor(self=%3, other=%4) : f32[2] @s4\n"
                             "%6 = aten::relu(self=%1) : f32[2] @s6\n";

TEST(IrBgl, DominatorsBothWays) {
  const Graph graph = samples::graph_of(kDiamond);
  const auto up = immediate_dominators(graph);
  EXPECT_EQ(up[NodeId(5)], NodeId(2));  // over relu, not over one of its two users
  EXPECT_EQ(up[NodeId(3)], NodeId(2));
  EXPECT_EQ(up[NodeId(2)], NodeId(0));
  EXPECT_FALSE(up[NodeId(0)].valid());
  EXPECT_EQ(up[NodeId(6)], NodeId(1));
  const auto down = immediate_post_dominators(graph);
  EXPECT_EQ(down[NodeId(2)], NodeId(5));
  EXPECT_EQ(down[NodeId(0)], NodeId(2));
  EXPECT_FALSE(down[NodeId(5)].valid());
}

TEST(IrBgl, Components) {
  const Graph graph = samples::graph_of(kDiamond);
  const Components found = components(graph);
  EXPECT_EQ(found.count, 2U);
  EXPECT_EQ(found.of[NodeId(0)], found.of[NodeId(5)]);
  EXPECT_EQ(found.of[NodeId(1)], found.of[NodeId(6)]);
  EXPECT_NE(found.of[NodeId(0)], found.of[NodeId(1)]);
}

TEST(IrBgl, MinCut) {
  // 0 -3-> 1 -1-> 3, 0 -1-> 2 -5-> 3, 1 -1-> 2: the cut is 1->3, 1->2, 0->2
  const FlowEdge edges[] = {{0, 1, 3}, {1, 3, 1}, {0, 2, 1}, {2, 3, 5}, {1, 2, 1}};
  const MinCut cut = min_cut(4, edges, 0, 3);
  EXPECT_EQ(cut.capacity, 3);
  EXPECT_EQ(cut.on_source_side[0], 1);
  EXPECT_EQ(cut.on_source_side[3], 0);
  int64_t across = 0;
  for (const FlowEdge& e : edges) {
    if (cut.on_source_side[e.from] && !cut.on_source_side[e.to]) across += e.capacity;
  }
  EXPECT_EQ(across, cut.capacity);
  EXPECT_THROW(min_cut(4, edges, 0, 0), Error);
  EXPECT_THROW(min_cut(3, edges, 0, 2), Error);
  const FlowEdge negative[] = {{0, 1, -1}};
  EXPECT_THROW(min_cut(2, negative, 0, 1), Error);
}

TEST(IrBgl, MutablePropertyMaps) {
  const Graph graph = samples::graph_of(kDiamond);
  const DefUseGraph view(graph);
  IdMap<NodeId, int> distances(-1);
  auto map = property_map_of(distances);
  for (NodeId n : view.nodes()) put(map, n, 0);
  boost::queue<NodeId> queue;
  std::vector<boost::default_color_type> colors(num_vertices(view));
  boost::breadth_first_search(view, NodeId(0), queue,
                              boost::make_bfs_visitor(boost::record_distances(map, boost::on_tree_edge())),
                              boost::make_iterator_property_map(colors.begin(), get(boost::vertex_index, view)));
  EXPECT_EQ(distances[NodeId(5)], 3);
  EXPECT_EQ(distances[NodeId(6)], 0);
}

// A short way first and then a chain as long as the graph, to the same node: what makes a recursive search deep.
TEST(IrBgl, AMillionNodesInAChain) {
  Graph graph;
  const TargetId join = graph.intern_target(Target(TargetKind::kFunction, "test::join(Tensor[] x) -> Tensor"));
  const int64_t one[] = {1};
  const auto node = [&](std::vector<ValueId> operands) {
    std::vector<Argument> list;
    for (ValueId v : operands) list.push_back(Argument::of_value(v));
    const Argument argument[] = {graph.make_list(list)};
    return graph.add_tensor_result(graph.append(join, argument), {.sizes = one, .strides = one});
  };
  const ValueId root = node({});
  const ValueId near = node({root});
  ValueId far = root;
  for (int i = 0; i < 1'000'000; ++i) far = node({far});
  const ValueId end = node({near, far});
  EXPECT_EQ(immediate_dominators(graph)[graph.value(end).producer], graph.value(root).producer);
  EXPECT_EQ(immediate_post_dominators(graph)[graph.value(root).producer], graph.value(end).producer);
  EXPECT_EQ(components(graph).count, 1U);
  const DefUseGraph view(graph);
  std::vector<NodeId> reversed;
  boost::topological_sort(view, std::back_inserter(reversed));
  EXPECT_EQ(reversed.size(), graph.node_count());
  EXPECT_FALSE(sort_topologically(graph));
}

}  // namespace
}  // namespace shadowgraph
