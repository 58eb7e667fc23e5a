// Dependences, topological orders, and the Boost.Graph algorithms that use them.
#include <gtest/gtest.h>

#include "shadowgraph/graph/analysis.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

const char* const kLinesBefore =
    "operator aten::relu(Tensor self) -> Tensor\n"
    "operator aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)\n"
    "operator aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor\n"
    "operator aten::_local_scalar_dense(Tensor self) -> Scalar\n"
    "function my::print(Tensor x, ...) -> ()\n"
    "s0 = 16 cpu input\ns1 = 16 cpu temporary\ns2 = 16 cpu temporary\ns3 = 16 cpu temporary\n"
    "%0 = sg::input(name=\"x\") : f32[4] @s0\n";

std::vector<uint32_t> before(const Graph& graph, uint32_t n) {
  std::vector<uint32_t> result;
  const Dependences dependences = Dependences::of(graph);
  for (NodeId b : dependences.before(NodeId(n))) result.push_back(b.index);
  return result;
}

TEST(IrDependences, ReadsAndWritesOfAStorage) {
  const Graph graph = samples::graph_of(std::string(kLinesBefore) +
                                        "%1 = aten::relu(self=%0) : f32[4] @s1\n"                   // n1 reads
                                        "%2 = aten::add_.Tensor(self=%0, other=%0) : f32[4] @s0\n"  // n2 writes
                                        "%3 = aten::relu(self=%0) : f32[4] @s2\n"  // n3 reads the result of n1
                                        "%4 = aten::add_.Tensor(self=%2, other=%1) : f32[4] @s0\n"  // n4 writes
                                        "%5 = aten::relu(self=%1) : f32[4] @s3\n");
  EXPECT_EQ(before(graph, 2), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(before(graph, 3), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(before(graph, 4), (std::vector<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(before(graph, 5), (std::vector<uint32_t>{1}));
}

// A view depends on geometry only: writes to contents may move across it, t_ may not.
TEST(IrDependences, ViewsAreIndependentOfContents) {
  const Graph graph = samples::graph_of(
      "operator aten::t(Tensor(a) self) -> Tensor(a)\noperator aten::t_(Tensor(a!) self) -> Tensor(a!)\n" +
      std::string(kLinesBefore) +
      "%1 = aten::add_.Tensor(self=%0, other=%0) : f32[4] @s0\n"  // n1 writes
      "%2 = aten::t(self=%0) : f32[4] @s0\n"                      // n2 views
      "%3 = aten::add_.Tensor(self=%0, other=%0) : f32[4] @s0\n"  // n3 writes
      "%4 = aten::t_(self=%0) : f32[4] @s0\n"                     // n4 writes, and changes the geometry
      "%5 = aten::t(self=%0) : f32[4] @s0\n");                    // n5 views the new geometry
  EXPECT_EQ(before(graph, 2), (std::vector<uint32_t>{0}));
  EXPECT_EQ(before(graph, 3), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(before(graph, 4), (std::vector<uint32_t>{0, 2, 3}));
  EXPECT_EQ(before(graph, 5), (std::vector<uint32_t>{0, 4}));
}

TEST(IrDependences, RandomHostAndUnknownNodesStayInOrder) {
  const Graph graph = samples::graph_of(std::string(kLinesBefore) +
                                        "%1 = aten::bernoulli(self=%0) : f32[4] @s1\n"
                                        "%2 = aten::_local_scalar_dense(self=%0) : float\n"
                                        "%3 = aten::bernoulli(self=%0) : f32[4] @s2\n"
                                        "my::print(x=%1)\n"
                                        "%4 = aten::_local_scalar_dense(self=%0) : float\n");
  EXPECT_EQ(before(graph, 3), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(before(graph, 4), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(before(graph, 5), (std::vector<uint32_t>{0, 4}));
}

TEST(IrTopology, SortsWhatWasPutInTheWrongPlace) {
  Graph graph = samples::graph_of(std::string(kLinesBefore) +
                                  "%1 = aten::relu(self=%0) : f32[4] @s1\n%2 = aten::relu(self=%1) : f32[4] @s2\n"
                                  "sg::output(values=[%2])\n");
  EXPECT_FALSE(sort_topologically(graph));
  // Bypasses checks to create a use before its definition.
  const Argument later[] = {Argument::of_value(ValueId(2))};
  graph.insert_before(NodeId(1), graph.node(NodeId(1)).target, later);
  EXPECT_FALSE(violations(graph).empty());
  EXPECT_TRUE(sort_topologically(graph));
  EXPECT_NO_THROW(verify(graph)) << to_text(graph);
  const std::string text = to_text(graph);
  EXPECT_FALSE(sort_topologically(graph));
  EXPECT_EQ(to_text(graph), text);
}

TEST(IrTopology, GroupsComeTogetherOrAreRefused) {
  Graph graph = samples::graph_of(std::string(kLinesBefore) +
                                  "%1 = aten::relu(self=%0) : f32[4] @s1\n%2 = aten::relu(self=%0) : f32[4] @s2\n"
                                  "%3 = aten::relu(self=%1) : f32[4] @s3\n");
  const auto d = Dependences::of(graph);
  IdMap<NodeId, int32_t> groups(-1);
  groups[NodeId(1)] = groups[NodeId(3)] = 5;
  EXPECT_EQ(topological_order(graph, d, groups), (std::vector{NodeId(0), NodeId(1), NodeId(3), NodeId(2)}));
  groups[NodeId(0)] = 1;
  graph.set_arguments(NodeId(2), std::vector{Argument::of_value(ValueId(1))});
  graph.set_arguments(NodeId(3), std::vector{Argument::of_value(ValueId(2))});
  EXPECT_THROW(topological_order(graph, Dependences::of(graph), groups), GraphError);
}

}  // namespace
}  // namespace shadowgraph
