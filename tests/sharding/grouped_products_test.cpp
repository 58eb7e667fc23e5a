// Grouped matrix products of experts: sharded plans are bitwise equal to one device.
#include <ATen/ops/_grouped_mm.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "tests/sharding/captured_step.h"
#include "tests/sharding/random_plan.h"

namespace shadowgraph {
namespace {

struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() {
    up = register_parameter("up", torch::empty({4, 32, 64}));
    down = register_parameter("down", torch::empty({4, 64, 32}));
  }
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& ends) {
    // Multiply by rows, because sum() has an expanded gradient, which the kernel refuses.
    return at::_grouped_mm(at::_grouped_mm(rows, up, ends).relu(), down, ends) * rows;
  }
  at::Tensor up, down;
};
TORCH_MODULE(Experts);

TEST(GroupedProducts, RandomPlansGiveTheSameBits) {
  CapturedStep step;
  {
    const FakeTensorMode mode;
    Experts net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    step.graph = capture_training_step(
                     *net, {at::empty({24, 32}), at::empty({4}, at::kInt)},
                     [](const Tensors& outputs) { return outputs[0].sum(); }, sgd)
                     .graph;
  }
  at::manual_seed(3);
  for (const NodeId node : step.graph.nodes()) {
    if (step.graph.node(node).target.index > target_of(Builtin::kInput).index) continue;
    const ValueId value = step.graph.results(node)[0].ref.value;
    const auto sizes = step.graph.sizes(value);
    const bool ends = step.graph.value(value).dtype == at::kInt;
    step.inputs.push_back(ends ? at::tensor({6, 6, 18, 24}, at::kInt)
                               : at::randint(-2, 3, c10::IntArrayRef(sizes.data(), sizes.size()), at::kFloat));
  }
  const WholeRun whole = run_whole(step);
  ASSERT_LT(whole.result.outputs.at(0).abs().item<double>(), 1e6);  // sums are exact
  PlanMaker maker(step.graph);
  int64_t cut = 0;
  for (const char* mesh : {"2", "4", "2x2"}) {
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(std::string(mesh) + " seed " + std::to_string(seed));
      const GraphLayouts plan = maker.random(DeviceMesh::parse(mesh), seed, 0.9);
      for (const NodeId node : step.graph.nodes()) {
        if (step.graph.target(node).name() != "aten::_grouped_mm") continue;
        for (const Layout& layout : plan.nodes[node].operands) cut += layout.is_replicated() ? 0 : 1;
      }
      EXPECT_EQ(worst_difference(whole, simulate(apply_to_all(step.graph, plan), step.inputs)), 0.0);
    }
  }
  EXPECT_GT(cut, 40);
}

}  // namespace
}  // namespace shadowgraph
