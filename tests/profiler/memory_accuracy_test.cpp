// Compares predicted live bytes with a real CPU run and a counting allocator: every built-in model, at a small size,
// agrees after every operator of a training step, to the byte, on every processor.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <algorithm>

#include "core/fake/mode/modes.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/profile.h"
#include "tests/live_bytes.h"

namespace shadowgraph {
namespace {

// Operators whose kernels allocate and free scratch memory: oneDNN's operand copies in its own layouts, and its
// scratchpads. The graph does not contain it, and it depends on the processor.
bool has_scratch(const std::string& op) {
  return op == "aten::convolution" || op == "aten::convolution_backward" || op == "aten::mkldnn_rnn_layer" ||
         op == "aten::mkldnn_rnn_layer_backward";
}

struct Peaks {
  int64_t predicted = 0;
  int64_t real = 0;
  void see(int64_t predicted_bytes, int64_t real_bytes) {
    predicted = std::max(predicted, predicted_bytes);
    real = std::max(real, real_bytes);
  }
};

class MemoryOf : public ::testing::TestWithParam<std::string> {};

TEST_P(MemoryOf, ATrainingStepOnTheCpuIsPredictedToTheByte) {
  CountingAllocator& allocator = CountingAllocator::install();
  std::vector<AfterCall> predicted;
  MeasuredCalls measured;
  int64_t predicted_with_scratch = 0;
  Graph graph;
  {
    const FakeTensorMode mode({.device = at::kCPU});
    const auto model = models::build(GetParam(), {.tiny = true});
    torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto step = capture_training_step(
        ProgramToCapture{.module = model.module.get(),
                         .inputs = model.inputs,
                         .input_names = model.input_names,
                         .forward = model.forward,
                         .loss = [&](const Tensors& outputs) { return model.loss(outputs, model.inputs); },
                         .optimizer = &optimizer});
    graph = clone(step.graph);
    const auto timeline = MemoryTimeline::of(step.graph);
    for (uint32_t i = 0; i < timeline.steps(); ++i) {
      const Target& target = step.graph.target(timeline.node(i));
      if (target.kind() == TargetKind::kOperator) predicted.push_back({target.name(), timeline.total(i), 0});
    }
  }

  // Measures the scratch memory of each distinct call once, on real tensors.
  const MeasureReport report = measure_calls(graph, measured, {.repeats = 0});
  EXPECT_EQ(report.left_out.size(), 0u) << report.left_out.front().op << ": " << report.left_out.front().reason;
  predicted_with_scratch = profile(graph, {.measured = &measured}).peak_with_scratch.bytes;

  const int64_t before = allocator.live;
  const auto model = models::build(GetParam(), {.tiny = true});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  LiveBytes real(allocator);
  {
    const ObserveMode observe(real);
    optimizer.zero_grad();
    auto outputs = model.forward(model.inputs);
    at::Tensor loss = model.loss(outputs, model.inputs);
    outputs.clear();
    loss.backward();
    optimizer.step();
  }

  ASSERT_EQ(predicted.size(), real.calls.size());
  Peaks peaks;
  Peaks without_scratch;
  int differ = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const int64_t live = real.calls[i].live - before;
    ASSERT_EQ(predicted[i].name, real.calls[i].name);
    if (predicted[i].live != live && ++differ <= 10) {
      ADD_FAILURE() << "call " << i << ", " << predicted[i].name << ": predicted " << predicted[i].live << ", real "
                    << live;
    }
    const int64_t most = real.calls[i].most - before;
    peaks.see(predicted[i].live, most);
    if (!has_scratch(predicted[i].name)) without_scratch.see(predicted[i].live, most);
  }
  EXPECT_EQ(differ, 0) << "of " << predicted.size() << " calls";
  // In the optimizer, where nearly all of these models peak, one call converts three scalars to tensors.
  EXPECT_LE(without_scratch.predicted, without_scratch.real);
  EXPECT_LE(without_scratch.real - without_scratch.predicted, 12);
  EXPECT_LE(peaks.predicted, peaks.real);
  // With scratch memory, the predicted peak is within -0.5 % and +3 % of the real one.
  EXPECT_GE(static_cast<double>(predicted_with_scratch), 0.995 * static_cast<double>(peaks.real));
  EXPECT_LE(static_cast<double>(predicted_with_scratch), 1.03 * static_cast<double>(peaks.real));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Zoo, MemoryOf, ::testing::ValuesIn(model_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace shadowgraph
