// Captures programs that use checkpoint(): regions, links, saved tensors, bytes against a real run, and replay.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "core/fake/mode/modes.h"
#include "shadowgraph/capture/activation_checkpoint.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/profile.h"
#include "tests/live_bytes.h"

namespace shadowgraph {
namespace {

enum class How { kPlain, kEach, kNested };

struct LayerImpl : torch::nn::Module {
  explicit LayerImpl(int64_t width) {
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    const ModuleScope scope(*this);
    at::Tensor h = torch::dropout(torch::gelu(up->forward(x)), 0.3, is_training());
    h = down->forward(h).add_(x);
    return torch::relu_(h);
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Layer);

struct StackImpl : torch::nn::Module {
  StackImpl(int64_t width, How h) : how(h) {
    layers = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 6; ++i) layers->push_back(Layer(width));
  }
  at::Tensor layer(size_t i, const at::Tensor& x) {
    const auto run = [this, i](const at::Tensor& in) { return layers->ptr<LayerImpl>(i)->forward(in); };
    return how == How::kPlain ? run(x) : checkpoint({.name = "layer" + std::to_string(i)}, run, x);
  }
  at::Tensor forward(at::Tensor x) {
    const ModuleScope scope(*this);
    for (size_t i = 0; i < 6; i += 2) {
      const auto pair = [this, i](const at::Tensor& in) { return layer(i + 1, layer(i, in)); };
      x = how == How::kNested ? checkpoint({.name = "pair" + std::to_string(i)}, pair, x) : pair(x);
    }
    return x;
  }
  How how;
  torch::nn::ModuleList layers{nullptr};
};
TORCH_MODULE(Stack);

constexpr int64_t kWidth = 16;

Graph capture(How how, c10::DeviceType device = c10::kCPU) {
  const FakeTensorMode mode({.device = device});
  Stack stack(kWidth, how);
  torch::optim::SGD sgd(stack->parameters(), 0.1);
  return capture_training_step(
             *stack, {at::empty({32, kWidth})}, [](const Tensors& out) { return out[0].pow(2).sum(); }, sgd)
      .graph;
}

class CheckpointCapture : public ::testing::TestWithParam<How> {};

TEST_P(CheckpointCapture, VerifiesAndComesBackFromItsText) {
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    const Graph graph = capture(GetParam(), device);
    verify(graph);
    EXPECT_EQ(to_text(parse(to_text(graph))), to_text(graph));
    EXPECT_EQ(to_text(capture(GetParam(), device)), to_text(graph));
  }
}

TEST_P(CheckpointCapture, IsPredictedToTheByteAfterEveryOperator) {
  CountingAllocator& allocator = CountingAllocator::install();
  const Graph graph = capture(GetParam());
  const auto timeline = MemoryTimeline::of(graph);
  std::vector<AfterCall> predicted;
  for (uint32_t i = 0; i < timeline.steps(); ++i) {
    const Target& target = graph.target(timeline.node(i));
    if (target.kind() == TargetKind::kOperator) predicted.push_back({target.name(), timeline.total(i), 0});
  }

  const int64_t before = allocator.live;
  Stack stack(kWidth, GetParam());
  torch::optim::SGD sgd(stack->parameters(), 0.1);
  const at::Tensor x = at::randn({32, kWidth});
  LiveBytes real(allocator);
  {
    const ObserveMode observe(real);
    sgd.zero_grad();
    at::Tensor loss = stack->forward(x).pow(2).sum();
    loss.backward();
    sgd.step();
  }
  ASSERT_EQ(predicted.size(), real.calls.size());
  int64_t peak = 0;
  int64_t predicted_peak = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    ASSERT_EQ(predicted[i].name, real.calls[i].name) << i;
    EXPECT_EQ(predicted[i].live, real.calls[i].live - before) << "call " << i << ", " << predicted[i].name;
    predicted_peak = std::max(predicted_peak, predicted[i].live);
    peak = std::max(peak, real.calls[i].live - before);
  }
  EXPECT_EQ(predicted_peak, peak);
}

TEST_P(CheckpointCapture, ReplaysAsTheProgramRuns) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const Graph graph = capture(GetParam());
  const auto build = [] {
    at::manual_seed(3);
    return Stack(kWidth, GetParam());
  };
  Stack eager = build();
  Stack replayed = build();
  const at::Tensor x = at::randn({32, kWidth});
  torch::optim::SGD sgd(eager->parameters(), 0.1);
  at::manual_seed(4);
  const at::Tensor loss = eager->forward(x).pow(2).sum();
  loss.backward();
  sgd.step();
  const at::Tensor next = at::rand({3});
  at::manual_seed(4);
  const ReplayResult result =
      Interpreter(graph, {.check_results = true}).run(Bindings().module(*replayed).bind("input0", x));
  EXPECT_TRUE(at::equal(next, at::rand({3})));
  EXPECT_TRUE(at::equal(loss, result.outputs[0]));
  const auto parameters = replayed->named_parameters();
  for (const auto& entry : eager->named_parameters()) {
    EXPECT_TRUE(at::equal(entry.value().grad(), result.gradients.at(entry.key()))) << entry.key();
    EXPECT_TRUE(at::equal(entry.value(), parameters[entry.key()])) << entry.key();
  }
  at::set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(How, CheckpointCapture, ::testing::Values(How::kPlain, How::kEach, How::kNested));

TEST(CheckpointCaptureRegions, TheSecondRunIsBackwardLinkedToTheFirst) {
  const Graph graph = capture(How::kEach);
  const auto again = recompute_regions(graph);
  int64_t repeated = 0;
  std::map<std::string, int> regions;
  for (const NodeId n : graph.nodes()) {
    const RegionId region = again[graph.node(n).region];
    if (!region.valid()) continue;
    regions[graph.text(graph.region(region).name)] = 1;
    EXPECT_EQ(graph.node(n).phase, Graph::kBackward) << to_text(graph, n);
    if (graph.target(n).kind() != TargetKind::kOperator) continue;
    ++repeated;
    const NodeId first = graph.node(n).forward;
    ASSERT_TRUE(first.valid()) << to_text(graph, n);
    EXPECT_EQ(graph.node(first).target, graph.node(n).target);
    EXPECT_EQ(graph.node(first).phase, Graph::kForward);
    bool in_checkpoint = false;
    for (RegionId r = graph.node(first).region; r.valid(); r = graph.region(r).parent) {
      in_checkpoint = in_checkpoint || graph.region(r).kind == RegionKind::kCheckpoint;
    }
    EXPECT_TRUE(in_checkpoint);
  }
  EXPECT_EQ(regions.size(), 6);
  EXPECT_GT(repeated, 6 * 8);
}

// The recomputation diverges from forward at some point. Nodes after that point have no counterpart, even if the same
// operator appears at the same offset.
TEST(CheckpointCaptureRegions, LinksEndWhereTheSecondRunGoesAnotherWay) {
  Capture session;
  const at::Tensor x = at::ones({4}).requires_grad_(true);
  int runs = 0;
  const at::Tensor y = checkpoint(
      [&runs](const at::Tensor& in) {
        const at::Tensor a = in.exp();
        const at::Tensor b = runs++ == 0 ? a.sin() : a.cos();
        return b.tanh();
      },
      x);
  y.sum().backward();
  const Graph graph = session.finish({y});
  const auto again = recompute_regions(graph);
  std::vector<std::string> linked;
  std::vector<std::string> alone;
  for (const NodeId n : graph.nodes()) {
    if (!again[graph.node(n).region].valid() || graph.target(n).kind() != TargetKind::kOperator) continue;
    (graph.node(n).forward.valid() ? linked : alone).push_back(graph.target(n).name());
  }
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(linked, std::vector<std::string>{"aten::exp"}) << to_text(graph);
  EXPECT_EQ(alone, (std::vector<std::string>{"aten::cos", "aten::tanh"})) << to_text(graph);
}

TEST(CheckpointCaptureRegions, MemoryFalls) {
  const Graph plain = capture(How::kPlain);
  const Graph each = capture(How::kEach);
  const auto peak = [](const Graph& graph) { return MemoryTimeline::of(graph).peak().bytes; };
  EXPECT_LT(peak(each), peak(plain));
}

}  // namespace
}  // namespace shadowgraph
