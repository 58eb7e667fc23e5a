// Boost's algorithms on a large graph.
#include "shadowgraph/graph/bgl.h"

#include <boost/graph/topological_sort.hpp>
#include <gtest/gtest.h>

#include "shadowgraph/graph/analysis.h"

namespace shadowgraph {
namespace {

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
  const DefUseGraph def_use = def_use_graph(graph);
  std::vector<size_t> reversed;
  boost::topological_sort(def_use, std::back_inserter(reversed));
  EXPECT_EQ(reversed.size(), graph.node_count());
  EXPECT_FALSE(sort_topologically(graph));
}

}  // namespace
}  // namespace shadowgraph
