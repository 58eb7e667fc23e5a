// The IR as a Boost graph: concept checks and some algorithms.
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

// A short path to the last node, then a chain as long as the graph: the case in which a recursive search gets deep.
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
  node({near, far});
  const DefUseGraph view(graph);
  std::vector<NodeId> reversed;
  boost::topological_sort(view, std::back_inserter(reversed));
  EXPECT_EQ(reversed.size(), graph.node_count());
  EXPECT_FALSE(sort_topologically(graph));
}

}  // namespace
}  // namespace shadowgraph
