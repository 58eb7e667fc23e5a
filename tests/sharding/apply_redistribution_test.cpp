// Redistributions emitted as nodes: whatever steps move a tensor between layouts on a mesh, its value is unchanged.
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <random>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/shard/simulate.h"
#include "tests/ir/samples.h"

namespace shadowgraph {
namespace {

// x -> relu -> neg -> output, where each value may have a different layout.
Graph chain(std::span<const int64_t> sizes) {
  std::string text;
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    text += (text.empty() ? "" : ",") + std::to_string(size);
    elements *= size;
  }
  const std::string type = "f64[" + text + "]";
  const std::string bytes = std::to_string(elements * 8);
  return samples::graph_of(
      "operator aten::relu(Tensor self) -> Tensor\noperator aten::neg(Tensor self) -> Tensor\n"
      "s0 = " +
      bytes + " cpu input\ns1 = " + bytes + " cpu temporary\ns2 = " + bytes +
      " cpu temporary\n"
      "n0: %0 = sg::input(name=\"x\") : " +
      type +
      " @s0\n"
      "n1: %1 = aten::relu(self=%0) : " +
      type +
      " @s1\n"
      "n2: %2 = aten::neg(self=%1) : " +
      type +
      " @s2 | free(s1)\n"
      "n3: sg::output(values=[%2])\n");
}

std::vector<NodeId> nodes_of(const Graph& graph) {
  std::vector<NodeId> nodes;
  for (const NodeId node : graph.nodes()) nodes.push_back(node);
  return nodes;
}

GraphLayouts plan_of(const Graph& graph, const DeviceMesh& mesh, const Layout& in, const Layout& relu,
                     const Layout& neg, const Layout& out) {
  GraphLayouts plan;
  plan.mesh = mesh;
  const std::vector<NodeId> nodes = nodes_of(graph);
  plan.nodes[nodes[0]] = {{}, {in}};
  plan.nodes[nodes[1]] = {{relu}, {relu}};
  plan.nodes[nodes[2]] = {{neg}, {neg}};
  plan.nodes[nodes[3]] = {{out}, {}};
  return plan;
}

at::Tensor numbers(std::span<const int64_t> sizes) {
  int64_t elements = 1;
  for (const int64_t size : sizes) elements *= size;
  return at::arange(elements, at::kDouble).reshape(c10::IntArrayRef(sizes.data(), sizes.size()));
}

Layout random_layout(std::mt19937& random, std::span<const int64_t> sizes, const DeviceMesh& mesh) {
  while (true) {
    Layout layout(mesh.axes.size());
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (random() % 6 == 0) continue;
      constexpr int64_t kOuter[] = {1, 1, 1, 2, 3, 4, 6, 8};
      layout[axis] = Placement::shard(random() % sizes.size(), kOuter[random() % 8]);
    }
    if (local_sizes(sizes, layout, mesh)) return layout;
  }
}

TEST(ApplyRedistribution, ComesOutAsItWentInWhateverTheWay) {
  for (const char* mesh_text : {"2", "3", "4", "2x2", "3x2", "2x2x2"}) {
    const DeviceMesh mesh = DeviceMesh::parse(mesh_text);
    for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{{24}, {12, 8}, {4, 12, 8}, {1, 24, 1}}) {
      const Graph graph = chain(sizes);
      const at::Tensor x = numbers(sizes);
      std::mt19937 random(7);
      for (int round = 0; round < 20; ++round) {
        const Layout layouts[] = {random_layout(random, sizes, mesh), random_layout(random, sizes, mesh),
                                  random_layout(random, sizes, mesh), random_layout(random, sizes, mesh)};
        const GraphLayouts plan = plan_of(graph, mesh, layouts[0], layouts[1], layouts[2], layouts[3]);
        SCOPED_TRACE(mesh.to_string() + ": " + to_string(layouts[0]) + " " + to_string(layouts[1]) + " " +
                     to_string(layouts[2]) + " " + to_string(layouts[3]));
        const std::vector<ShardedGraph> ranks = apply_to_all(graph, plan);
        for (const ShardedGraph& rank : ranks) verify(rank.graph);
        const SimulatedRun run = simulate(ranks, std::vector<at::Tensor>{x});
        ASSERT_TRUE(at::equal(run.outputs.at(0), -x));
        ASSERT_TRUE(at::equal(run.inputs.at(0), x));
      }
    }
  }
}

// Partial placeholders are allowed: rank 0 has the whole sum and the others have zeros.
TEST(ApplyRedistribution, PartialTensorsAreReduced) {
  for (const char* mesh_text : {"2", "3", "2x2", "2x2x2"}) {
    const DeviceMesh mesh = DeviceMesh::parse(mesh_text);
    const std::vector<int64_t> sizes{12, 24};
    const Graph graph = chain(sizes);
    const at::Tensor x = numbers(sizes);
    std::mt19937 random(11);
    for (const PartialOp op : {PartialOp::kSum, PartialOp::kAverage, PartialOp::kMax, PartialOp::kMin}) {
      for (int round = 0; round < 8; ++round) {
        Layout in = random_layout(random, sizes, mesh);
        const Layout to = random_layout(random, sizes, mesh);
        const size_t axis = random() % mesh.axes.size();
        in[axis] = Placement::partial(op);
        if (!local_sizes(sizes, in, mesh)) continue;
        const GraphLayouts plan = plan_of(graph, mesh, in, to, to, Layout(mesh.axes.size()));
        SCOPED_TRACE(mesh.to_string() + ": " + to_string(in) + " " + to_string(to));
        const SimulatedRun run = simulate(apply_to_all(graph, plan), std::vector<at::Tensor>{x});
        ASSERT_TRUE(at::equal(run.outputs.at(0), -x));
      }
    }
  }
}

TEST(ApplyRedistribution, RanksThatReduceOtherwiseDoNotMeet) {
  const std::vector<int64_t> sizes{4};
  const Graph graph = chain(sizes);
  const Layout sum{Placement::partial(PartialOp::kSum)}, whole(1);
  const GraphLayouts plan = plan_of(graph, DeviceMesh::parse("2"), sum, whole, whole, whole);
  std::vector<ShardedGraph> ranks = apply_to_all(graph, plan);
  int changed = 0;
  Graph& last = ranks[1].graph;
  for (const NodeId n : last.nodes()) {
    if (last.target(n).name() != "_c10d_functional::all_reduce") continue;
    last.set_argument(n, 1, last.string_argument("max"));
    ++changed;
  }
  ASSERT_EQ(changed, 1);
  try {
    simulate(ranks, std::vector<at::Tensor>{numbers(sizes)});
    FAIL() << "one sums, the other takes the largest";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("ranks call different collectives"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace shadowgraph
