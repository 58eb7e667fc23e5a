// Hand-written plans on integer values, whose sums are exact: bitwise equal to a single device.
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/verify.h"
#include "tests/sharding/captured_step.h"
#include "tests/sharding/random_plan.h"

namespace shadowgraph {
namespace {

using Kind = Builtin;

Placement cut_if_divisible(std::span<const int64_t> sizes, size_t dim, int64_t devices) {
  return dim < sizes.size() && sizes[dim] % devices == 0 ? Placement::shard(static_cast<int64_t>(dim))
                                                         : Placement::replicate();
}

int64_t calls(const Graph& graph, const std::string& name) {
  return static_cast<int64_t>(nodes_calling(graph, "_c10d_functional::" + name).size());
}

struct HandMade {
  std::vector<ShardedGraph> ranks;
  int64_t parameters = 0;
};

HandMade run_by_hand(const CapturedStep& step, const char* mesh, const PlanMaker::Place& place) {
  PlanMaker maker(step.graph);
  const GraphLayouts plan = maker.by_hand(DeviceMesh::parse(mesh), place);
  HandMade made{apply_to_all(step.graph, plan)};
  for (const ShardedGraph& rank : made.ranks) verify(rank.graph);
  worst_difference(run_whole(step), simulate(made.ranks, step.inputs));
  made.parameters = static_cast<int64_t>(nodes_calling(step.graph, "sg::parameter").size());
  return made;
}

class HandMadePlans : public ::testing::TestWithParam<std::string> {};

// Replicated parameters, sharded batch: each gradient is all-reduced once, and nothing is gathered.
TEST_P(HandMadePlans, DataParallel) {
  const CapturedStep step = capture_step(GetParam(), StepOptimizer::kAdamW, 4);
  const HandMade made = run_by_hand(step, "dp=4", [](const std::string&, Kind kind, size_t, auto sizes) {
    return kind == Kind::kInput ? cut_if_divisible(sizes, 0, 4) : Placement::replicate();
  });
  const Graph& graph = made.ranks[0].graph;
  EXPECT_GE(calls(graph, "all_reduce"), 0);
  EXPECT_GE(calls(graph, "all_reduce") + calls(graph, "reduce_scatter_tensor"), made.parameters / 2);
}

// Parameters and optimizer state are also sharded: all-gather before use, reduce-scatter of gradients.
TEST_P(HandMadePlans, FullySharded) {
  const CapturedStep step = capture_step(GetParam(), StepOptimizer::kAdamW, 4);
  const HandMade made = run_by_hand(
      step, "dp=2", [](const std::string&, Kind, size_t, auto sizes) { return cut_if_divisible(sizes, 0, 2); });
  const Graph& graph = made.ranks[0].graph;
  EXPECT_GE(calls(graph, "all_gather_into_tensor"), made.parameters / 2);
  EXPECT_GE(calls(graph, "reduce_scatter_tensor"), made.parameters / 4);
}

// Linear layers alternate between column- and row-parallel on the second mesh axis; the first shards the batch.
TEST_P(HandMadePlans, DataAndTensorParallel) {
  const CapturedStep step = capture_step(GetParam(), StepOptimizer::kSgd, 4);
  const HandMade made = run_by_hand(step, "dp=2,tp=2", [](const std::string& name, Kind kind, size_t axis, auto sizes) {
    if (axis == 0)
      return kind == Kind::kInput && sizes.size() == 2 ? cut_if_divisible(sizes, 0, 2) : Placement::replicate();
    const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
    const bool columns =
        has("gate_proj") || has("up_proj") || has("c_fc") || has("q_proj") || has("k_proj") || has("v_proj");
    const bool rows = has("down_proj") || has("mlp.c_proj.weight") || has("o_proj");
    // Conv1D stores its weight transposed.
    const bool turned = has("c_fc.weight") || has("c_proj");
    if (columns) return cut_if_divisible(sizes, turned ? 1 : 0, 2);
    if (rows) return cut_if_divisible(sizes, turned ? 0 : 1, 2);
    return Placement::replicate();
  });
  EXPECT_GT(calls(made.ranks[0].graph, "all_reduce") + calls(made.ranks[0].graph, "reduce_scatter_tensor"), 0);
}

INSTANTIATE_TEST_SUITE_P(Transformers, HandMadePlans, ::testing::Values("gpt2", "llama3_8b"),
                         [](const auto& info) { return info.param; });

// ---------------------------------------------------------------------------------------------------------------------

struct WholeNumbersImpl : torch::nn::Module {
  WholeNumbersImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).padding(1)));
    first = register_module("first", torch::nn::Linear(8 * 4 * 4, 24));
    second = register_module("second", torch::nn::Linear(24, 8));
    embedding = register_module("embedding", torch::nn::Embedding(12, 24));
  }
  at::Tensor forward(const at::Tensor& image, const at::Tensor& words) {
    at::Tensor x = torch::relu(conv(image));
    x = torch::relu(first(x.flatten(1)));
    x = x + embedding(words).sum(1);
    return second(x).clamp_min(-3);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Embedding embedding{nullptr};
};
TORCH_MODULE(WholeNumbers);

TEST(WholeNumbers, RandomPlansGiveTheSameBits) {
  CapturedStep step;
  {
    const FakeTensorMode mode;
    WholeNumbers net;
    net->to(at::kDouble);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    const at::Tensor image = at::empty({12, 4, 4, 4}, at::kDouble);
    const at::Tensor words = at::empty({12, 6}, at::kLong);
    step.graph = capture_training_step(
                     *net, {image, words}, [](const Tensors& outputs) { return (outputs[0] * outputs[0]).sum(); }, sgd)
                     .graph;
  }
  at::manual_seed(3);
  for (const NodeId node : step.graph.nodes()) {
    if (step.graph.node(node).target.index > target_of(Builtin::kInput).index) continue;
    const ValueId value = step.graph.results(node)[0].ref.value;
    const auto sizes = step.graph.sizes(value);
    const at::TensorOptions options(step.graph.value(value).dtype);
    const bool words = step.graph.value(value).dtype == at::kLong;
    step.inputs.push_back(
        at::randint(words ? 0 : -2, words ? 12 : 3, c10::IntArrayRef(sizes.data(), sizes.size()), options));
  }
  const WholeRun whole = run_whole(step);
  ASSERT_LT(whole.result.outputs.at(0).item<double>(), 1e15);  // sums are exact
  PlanMaker maker(step.graph);
  int64_t partial = 0;
  for (const char* mesh : {"2", "3", "4", "2x2", "2x2x2"}) {
    for (uint32_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(std::string(mesh) + " seed " + std::to_string(seed));
      const GraphLayouts plan = maker.random(DeviceMesh::parse(mesh), seed, 0.8);
      const std::vector<ShardedGraph> ranks = apply_to_all(step.graph, plan);
      partial += calls(ranks[0].graph, "all_reduce") + calls(ranks[0].graph, "reduce_scatter_tensor");
      const SimulatedRun run = simulate(ranks, step.inputs);
      EXPECT_TRUE(at::equal(run.outputs.at(0), whole.result.outputs.at(0)));
      for (const auto& [name, gradient] : run.gradients) {
        EXPECT_TRUE(at::equal(gradient, whole.result.gradients.at(name))) << name;
      }
      for (size_t i = 0; i < run.inputs.size(); ++i) EXPECT_TRUE(at::equal(run.inputs[i], whole.inputs[i])) << i;
    }
  }
  EXPECT_GT(partial, 100);  // the plan includes reductions over ranks
}

}  // namespace
}  // namespace shadowgraph
