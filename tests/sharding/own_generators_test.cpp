// Ranks that draw from a user-created generator start from the same state and leave it as a single device would.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/shard/simulate.h"
#include "tests/sharding/random_plan.h"

namespace shadowgraph {
namespace {

TEST(OwnGeneratorsOfRanks, BeginAlike) {
  const at::Generator own = at::detail::createCPUGenerator(3);
  const at::Tensor real = at::ones({4, 6});
  Graph graph = [&] {
    const c10::NoGradGuard no_grad;
    Capture session({.guards = false});
    const at::Tensor x = session.mode().from_real(real);
    session.name_input(x, "x");
    at::Tensor sum = x + at::rand({4, 6}, own);
    return session.finish({sum * at::rand({4, 6}, own)});
  }();
  PlanMaker maker(graph);
  const GraphLayouts plan = maker.by_hand(
      DeviceMesh::parse("4"), [](const std::string&, Builtin, size_t, auto) { return Placement::replicate(); });
  const at::Generator reference = at::detail::createCPUGenerator(3);
  for (int run = 0; run < 2; ++run) {
    const at::Tensor first = real + at::rand({4, 6}, reference);
    const at::Tensor wanted = first * at::rand({4, 6}, reference);
    const std::vector<ShardedGraph> ranks = apply_to_all(graph, plan);
    EXPECT_TRUE(at::equal(simulate(ranks, std::vector{real}).outputs.at(0), wanted)) << run;
    EXPECT_TRUE(own.get_state().equal(reference.get_state())) << run;
  }
}

}  // namespace
}  // namespace shadowgraph
