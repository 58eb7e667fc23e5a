// Compares the parts of a training loop around forward and backward with the same loop on real tensors and a counting
// allocator: live bytes agree after every operator, to the byte. The real loop is written out here as in PyTorch's
// documentation (notes/amp_examples, torch.nn.utils.clip_grad_norm_, torch.optim.swa_utils), independently of the
// library.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "core/fake/mode/modes.h"
#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "tests/live_bytes.h"

namespace shadowgraph {
namespace {

struct Setting {
  std::string name;
  TrainingOptions training;
  std::optional<c10::ScalarType> autocast;
};

std::vector<Setting> settings() {
  const auto bf16 = c10::ScalarType::BFloat16;
  return {{"Accumulate", {.accumulate = 3}},
          {"Clip", {.clip_grad_norm = 1.0}},
          {"Scaler", {.grad_scaler = true}},
          {"Ema", {.ema = 0.99}},
          {"Autocast", {}, bf16},
          {"ZeroGrads", {.zero_grads = true}},
          {"AccumulateZeroGradsAutocast", {.accumulate = 2, .zero_grads = true}, bf16},
          {"ScalerClipEma", {.clip_grad_norm = 0.5, .grad_scaler = true, .ema = 0.9}},
          {"All", {.accumulate = 2, .clip_grad_norm = 1.0, .grad_scaler = true, .ema = 0.9, .zero_grads = true}, bf16}};
}

// A user's training loop.
class RealLoop {
 public:
  RealLoop(const models::BuiltModel& model, torch::optim::Optimizer& optimizer, const Setting& setting)
      : model_(model), optimizer_(optimizer), setting_(setting), parameters_(model.module->parameters()) {
    if (!setting.training.ema) return;
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : parameters_) ema_.push_back(tensor.detach().clone());
    for (const at::Tensor& tensor : model.module->buffers()) ema_buffers_.push_back(tensor.detach().clone());
  }

  void forget_loss() { loss_.reset(); }

  void step() {
    const TrainingOptions& training = setting_.training;
    optimizer_.zero_grad(/*set_to_none=*/!training.zero_grads);
    for (int64_t i = 0; i < training.accumulate; ++i) {
      if (setting_.autocast) {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, *setting_.autocast);
      }
      auto outputs = model_.forward(model_.inputs);
      loss_ = model_.loss(outputs, model_.inputs);
      outputs.clear();
      if (training.accumulate > 1) loss_ = loss_ / training.accumulate;
      if (setting_.autocast) {
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
      }
      if (!training.grad_scaler) {
        loss_.backward();
        continue;
      }
      if (!scale_.defined()) {
        scale_ = at::full({}, 65536.0, at::kFloat);
        growth_ = at::full({}, 0, at::kInt);
      }
      const at::Tensor scaled = loss_ * scale_;
      scaled.backward();
    }
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    at::Tensor found;
    if (training.grad_scaler) {
      const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
      found = at::full({}, 0.0, at::kFloat);
      at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
    }
    if (training.clip_grad_norm) clip(gradients);
    if (training.grad_scaler) {
      ASSERT_EQ(found.item().toDouble(), 0);
      step_optimizer();
      at::_amp_update_scale_(scale_, growth_, found, 2.0, 0.5, 2000);
      found.reset();
    } else {
      step_optimizer();
    }
    if (training.ema) average();
  }

 private:
  void step_optimizer() {
    const at::AutoGradMode grad(true);
    optimizer_.step();
  }
  void clip(const std::vector<at::Tensor>& gradients) const {
    at::Tensor total;
    {
      const auto norms = at::_foreach_norm(gradients, 2);
      total = at::linalg_vector_norm(at::stack(norms), 2);
    }
    const at::Tensor coefficient = (total + 1e-6).reciprocal() * *setting_.training.clip_grad_norm;
    at::_foreach_mul_(gradients, at::clamp(coefficient, std::nullopt, 1.0));
  }
  void average() {
    std::vector<at::Tensor> to, from;
    for (size_t i = 0; i < ema_.size(); ++i) {
      from.push_back(parameters_[i].detach());
      to.push_back(ema_[i].detach());
      if (steps_ == 0) ema_[i].detach().copy_(from[i]);
    }
    if (steps_++ > 0) at::_foreach_lerp_(to, from, 1 - *setting_.training.ema);
  }

  const models::BuiltModel& model_;
  torch::optim::Optimizer& optimizer_;
  const Setting& setting_;
  const std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> ema_, ema_buffers_;
  at::Tensor loss_, scale_, growth_;
  int64_t steps_ = 0;
};

ProgramToCapture program_of(const models::BuiltModel& model, torch::optim::Optimizer& optimizer,
                            const Setting& setting) {
  ProgramToCapture program = models::program_of(model, &optimizer);
  program.training = setting.training;
  program.autocast = setting.autocast;
  return program;
}

std::vector<AfterCall> live_after_operators(const Graph& graph) {
  std::vector<AfterCall> calls;
  const auto timeline = MemoryTimeline::of(graph);
  for (uint32_t i = 0; i < timeline.steps(); ++i) {
    const Target& target = graph.target(timeline.node(i));
    if (target.kind() == TargetKind::kOperator) calls.push_back({target.name(), timeline.total(i), 0});
  }
  return calls;
}

class LoopOf : public ::testing::TestWithParam<std::tuple<std::string, Setting>> {
 protected:
  static models::BuiltModel built() { return models::build(std::get<0>(GetParam()), {.tiny = true}); }
  static const Setting& setting() { return std::get<1>(GetParam()); }

  static void expect_equal(const std::vector<AfterCall>& predicted, const std::vector<AfterCall>& real,
                           int64_t before) {
    ASSERT_EQ(predicted.size(), real.size());
    int differ = 0;
    for (size_t i = 0; i < predicted.size(); ++i) {
      ASSERT_EQ(predicted[i].name, real[i].name) << "call " << i;
      if (predicted[i].live == real[i].live - before || ++differ > 10) continue;
      ADD_FAILURE() << "call " << i << ", " << predicted[i].name << ": predicted " << predicted[i].live << ", real "
                    << real[i].live - before;
    }
    EXPECT_EQ(differ, 0) << "of " << predicted.size() << " calls";
  }
};

TEST_P(LoopOf, TheFirstTwoStepsHoldWhatTheRealOnesHold) {
  CountingAllocator& allocator = CountingAllocator::install();
  for (const int warmup : {0, 1}) {
    SCOPED_TRACE(warmup == 0 ? "first step" : "second step");
    std::vector<AfterCall> predicted;
    {
      const FakeTensorMode mode({.device = at::kCPU});
      const auto model = built();
      torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
      ProgramToCapture program = program_of(model, optimizer, setting());
      program.warmup_steps = warmup;
      const CaptureResult capture = capture_training_step(program);
      verify(capture.graph);
      predicted = live_after_operators(capture.graph);
    }
    const int64_t before = allocator.live;
    const auto model = built();
    torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
    RealLoop loop(model, optimizer, setting());
    for (int i = 0; i < warmup; ++i) loop.step();
    // The last step's loss and gradients are freed, as in a capture of one step, except gradients that are kept.
    LiveBytes real(allocator);
    if (warmup > 0) optimizer.zero_grad(!setting().training.zero_grads);
    loop.forget_loss();
    {
      const ObserveMode observe(real);
      loop.step();
    }
    expect_equal(predicted, real.calls, before);
  }
}

TEST_P(LoopOf, ARunOfThreeStepsHoldsWhatTheRealOneHolds) {
  CountingAllocator& allocator = CountingAllocator::install();
  std::vector<AfterCall> predicted;
  RunMemory memory;
  {
    const FakeTensorMode mode({.device = at::kCPU});
    const auto model = built();
    torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
    const CaptureResult run = capture_training_run(program_of(model, optimizer, setting()), 3);
    verify(run.graph);
    predicted = live_after_operators(run.graph);
    memory = RunMemory::of(run.graph);
  }
  const int64_t before = allocator.live;
  const auto model = built();
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  RealLoop loop(model, optimizer, setting());
  LiveBytes real(allocator);
  std::vector<int64_t> peaks;
  for (int i = 0; i < 3; ++i) {
    const size_t begin = real.calls.size();
    {
      const ObserveMode observe(real);
      loop.step();
    }
    int64_t most = 0;
    for (size_t at = begin; at < real.calls.size(); ++at) most = std::max(most, real.calls[at].live - before);
    peaks.push_back(most);
  }
  expect_equal(predicted, real.calls, before);
  ASSERT_EQ(memory.steps.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(memory.steps[i].peak, peaks[i]) << "step " << i + 1;
  EXPECT_EQ(memory.peak(), *std::max_element(peaks.begin(), peaks.end()));
  EXPECT_FALSE(memory.reserved_peak());  // a CPU has no caching allocator
}

INSTANTIATE_TEST_SUITE_P(Zoo, LoopOf,
                         ::testing::Combine(::testing::Values("gpt2", "resnet18", "llama3_8b"),
                                            ::testing::ValuesIn(settings())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

// ---- Hand-computed

// A linear layer of 100 x 50 without bias, whose input requires no gradient: 20,000 bytes of weight. AdamW allocates 2
// x 20,000 of state in the first step, and each step has gradients of 20,000.
CaptureResult run_of_linear(const TrainingOptions& training, c10::Device device, int steps = 3) {
  const FakeTensorMode mode({.device = device});
  const auto linear = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(100, 50).bias(false));
  torch::optim::AdamW optimizer(linear->parameters(), torch::optim::AdamWOptions(1e-3));
  return capture_training_run(
      ProgramToCapture{.module = linear.get(),
                       .inputs = {at::empty({8, 100})},
                       .forward = [&](const Tensors& in) { return Tensors{linear->forward(in[0])}; },
                       .loss = [](const Tensors& out) { return out[0].sum(); },
                       .optimizer = &optimizer,
                       .training = training},
      steps);
}

TEST(TrainingRun, StepsOfALinearLayerByHand) {
  const RunMemory memory = RunMemory::of(run_of_linear({}, at::kCPU).graph);
  constexpr int64_t kWeight = 100 * 50 * 4, kInput = 8 * 100 * 4, kLoss = 4;
  // In AdamW: weight, gradient, two averages and the denominator: sqrt, then the quotient as a second tensor.
  EXPECT_EQ(memory.steps[1].peak, memory.steady().peak);
  EXPECT_EQ(memory.steady().phase, "optimizer");
  EXPECT_EQ(memory.steady().peak, memory.steps[0].peak);
  EXPECT_GE(memory.peak(), 5 * kWeight + kInput + kLoss);
  EXPECT_LE(memory.peak(), 6 * kWeight + kInput + kLoss);
}

TEST(TrainingRun, TheAllocatorOfADeviceKeepsWhatStepsLeave) {
  const RunMemory memory = RunMemory::of(run_of_linear({}, c10::Device(at::kCUDA, 0)).graph);
  for (const StepMemory& step : memory.steps) {
    ASSERT_TRUE(step.reserved_peak && step.allocated_peak && step.reserved_after);
    EXPECT_GE(*step.allocated_peak, step.peak);
    EXPECT_GE(*step.reserved_peak, *step.allocated_peak);
    EXPECT_LE(*step.reserved_after, *step.reserved_peak);
  }
  EXPECT_EQ(memory.reserved_peak(), memory.steady().reserved_peak);
  const RunMemory little = RunMemory::of(run_of_linear({}, c10::Device(at::kCUDA, 0)).graph,
                                         {.capacity = 521 * kMebibyte, .assumptions = {.context = 520 * kMebibyte}});
  EXPECT_FALSE(little.out_of_memory.empty());
  EXPECT_FALSE(little.reserved_peak());
}

// 40 MiB in the first step, 4 MiB in the second: each step has its own peak, but reserved memory stays.
TEST(TrainingRun, ASmallerStepHasASmallerPeak) {
  const RunMemory memory = RunMemory::of(parse(R"(shadowgraph 1 libtorch 2.13.0
operator aten::relu(Tensor self) -> Tensor
operator aten::repeat(Tensor self, SymInt[] repeats) -> Tensor
s0 = 4194304 cuda:0 input
s1 = 41943040 cuda:0 temporary
s2 = 4194304 cuda:0 temporary
s3 = 4194304 cuda:0 temporary
r1 = scope "step 1" in r0
r2 = scope "step 2" in r0
n0: %0 = sg::input(name="x") : f32[1048576] @s0
n1: %1 = aten::repeat(self=%0, repeats=[10]) : f32[10485760] @s1 | r1
n2: %2 = aten::relu(self=%0) : f32[1048576] @s2 | r1 free(s1)
n3: %3 = aten::relu(self=%0) : f32[1048576] @s3 | r2 free(s2)
n4: sg::output(values=[%3])
)"));
  ASSERT_EQ(memory.steps.size(), 2U);
  EXPECT_EQ(memory.steps[0].peak, 48 * kMebibyte);  // x, the repeated tensor, and the result
  EXPECT_EQ(memory.steps[1].peak, 12 * kMebibyte);
  EXPECT_EQ(memory.steps[0].allocated_peak, 48 * kMebibyte);
  EXPECT_EQ(memory.steps[1].allocated_peak, 12 * kMebibyte);
  EXPECT_EQ(memory.steps[1].reserved_peak, memory.steps[0].reserved_after);
}

TEST(TrainingRun, ZeroedGradientsStayAndAccumulatedOnesAreAddedTo) {
  const auto calls = [](const Graph& graph, std::string_view name, PhaseId phase) {
    int count = 0;
    for (const NodeId node : graph.nodes()) {
      count += graph.node(node).phase == phase && graph.target(node).name().starts_with(name) ? 1 : 0;
    }
    return count;
  };
  // 3 steps: nothing to zero in the first, then one gradient each.
  EXPECT_EQ(calls(run_of_linear({.zero_grads = true}, at::kCPU).graph, "aten::zero_", Graph::kOptimizer), 2);
  EXPECT_EQ(calls(run_of_linear({}, at::kCPU).graph, "aten::zero_", Graph::kOptimizer), 0);
  // 4 micro-batches, 3 steps: each loss is divided; the first allocates the gradient, the others accumulate into it.
  const Graph graph = run_of_linear({.accumulate = 4}, at::kCPU).graph;
  EXPECT_EQ(calls(graph, "aten::div", Graph::kForward), 3 * 4);
  EXPECT_EQ(calls(graph, "aten::add_", Graph::kBackward), 3 * 3);
  EXPECT_EQ(calls(run_of_linear({}, at::kCPU).graph, "aten::div", Graph::kForward), 0);
}

void expect_refused(const TrainingOptions& training, const std::string& says) {
  try {
    run_of_linear(training, at::kCPU);
    ADD_FAILURE() << "no error that says " << says;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(says));
  }
}

TEST(TrainingRun, OptionsThatMakeNoSenseAreRefused) {
  expect_refused({.accumulate = 0}, "micro-batches and must be at least 1, not 0");
  expect_refused({.accumulate = -2}, "micro-batches and must be at least 1, not -2");
  expect_refused({.clip_grad_norm = 0.0}, "positive");
  expect_refused({.clip_grad_norm = -1.0}, "positive");
  expect_refused({.ema = -0.1}, "between 0 and 1");
  expect_refused({.ema = 1.5}, "between 0 and 1");
  EXPECT_THROW(run_of_linear({}, at::kCPU, 0), Error);

  const FakeTensorMode mode({.device = at::kCPU});
  const auto linear = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(10, 5));
  ProgramToCapture program{.module = linear.get(),
                           .inputs = {at::empty({8, 10})},
                           .forward = [&](const Tensors& in) { return Tensors{linear->forward(in[0])}; },
                           .loss = [](const Tensors& out) { return out[0].sum(); },
                           .training = {.grad_scaler = true}};
  EXPECT_THROW(capture_training_step(program), Error);  // no optimizer to step
  program.training = {.ema = 0.9};
  EXPECT_THROW(capture_forward(program), Error);  // no training
  program.training = {};
  program.autocast = c10::ScalarType::Float;
  EXPECT_THROW(capture_forward(program), Error);
  EXPECT_THROW(capture_training_step(program), Error);
  EXPECT_THROW(RunMemory::of(capture_forward(ProgramToCapture{.inputs = {at::empty({2})},
                                                              .forward = [](const Tensors& in) { return in; }})
                                 .graph),
               Error);
}

TEST(TrainingRun, AutocastIsForInferenceToo) {
  const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 0)});
  const auto linear = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(10, 5));
  const CaptureResult capture =
      capture_forward(ProgramToCapture{.module = linear.get(),
                                       .inputs = {at::empty({8, 10})},
                                       .forward = [&](const Tensors& in) { return Tensors{linear->forward(in[0])}; },
                                       .autocast = c10::ScalarType::BFloat16});
  const Profile costs = profile(capture.graph);
  EXPECT_EQ(costs.outputs->at(0).dtype, c10::ScalarType::BFloat16);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
}

TEST(TrainingRun, AScalerAsksHostReadsIfTheyAreGiven) {
  // If an infinity was found, the step is skipped: the optimizer adds no nodes.
  const auto adds = [](const HostReads& reads) {
    const FakeTensorMode mode({.device = at::kCPU, .host_reads = reads});
    const auto linear = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(10, 5));
    torch::optim::SGD optimizer(linear->parameters(), torch::optim::SGDOptions(1e-2));
    const CaptureResult step = capture_training_step(
        ProgramToCapture{.module = linear.get(),
                         .inputs = {at::empty({8, 10})},
                         .forward = [&](const Tensors& in) { return Tensors{linear->forward(in[0])}; },
                         .loss = [](const Tensors& out) { return out[0].sum(); },
                         .optimizer = &optimizer,
                         .training = {.grad_scaler = true}});
    int count = 0;
    for (const NodeId node : step.graph.nodes()) {
      count +=
          step.graph.node(node).phase == Graph::kOptimizer && step.graph.target(node).name() == "aten::add_.Tensor";
    }
    return count;
  };
  EXPECT_EQ(adds({}), 2);
  EXPECT_EQ(adds({.finite = true}), 2);
  EXPECT_EQ(adds({.values = {{"float", 1.0}}}), 0);
}

TEST(RunMemory, PeaksAreThoseOfTheLargestStep) {
  RunMemory run;
  for (const auto& [live, reserved] : {std::pair{100, 512}, {300, 2048}, {200, 1024}}) {
    run.steps.emplace_back().peak = live;
    run.steps.back().reserved_peak = reserved;
  }
  EXPECT_EQ(run.peak(), 300);
  EXPECT_EQ(run.reserved_peak(), 2048);
  EXPECT_THAT(to_text(run), ::testing::HasSubstr("  maximum             300 B                2.00 KiB\n"));
}

}  // namespace
}  // namespace shadowgraph
