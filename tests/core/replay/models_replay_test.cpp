// Captures every built-in model at a small size on fake tensors, and replays the graph on the real module's parameters,
// buffers and batch. The final state is bitwise equal to that of the real program, including dropout, which draws the
// same numbers.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/replay.h"
#include "tests/core/replay/same_bits.h"

namespace shadowgraph {
namespace {

constexpr uint64_t kModelSeed = 2025;

enum class OptimizerKind { kSgd, kAdamW };

std::unique_ptr<torch::optim::Optimizer> make_optimizer(OptimizerKind kind, const torch::nn::Module& module) {
  if (kind == OptimizerKind::kSgd) {
    return std::make_unique<torch::optim::SGD>(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  return std::make_unique<torch::optim::AdamW>(module.parameters(), torch::optim::AdamWOptions(1e-3));
}

models::BuiltModel build_real(const std::string& name, bool training) {
  at::manual_seed(kModelSeed);
  return models::build(name, {.training = training, .tiny = true});
}

Bindings bind_all(const models::BuiltModel& model) {
  Bindings bindings;
  bindings.module(*model.module);
  for (size_t i = 0; i < model.inputs.size(); ++i) bindings.bind(model.input_names[i], model.inputs[i]);
  return bindings;
}

void expect_same_module(const models::BuiltModel& eager, const models::BuiltModel& replayed) {
  const auto parameters = replayed.module->named_parameters();
  for (const auto& entry : eager.module->named_parameters()) {
    EXPECT_TRUE(same_bits(entry.value(), parameters[entry.key()])) << entry.key();
  }
  const auto buffers = replayed.module->named_buffers();
  for (const auto& entry : eager.module->named_buffers()) {
    EXPECT_TRUE(same_bits(entry.value(), buffers[entry.key()])) << entry.key();
  }
}

// Optimizer state is created by the graph (first step) or bound as sg::constant or placeholder (second step).
class ModelReplay : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    threads_ = at::get_num_threads();
    at::set_num_threads(1);
  }
  void TearDown() override { at::set_num_threads(threads_); }

  static Graph capture_step(const std::string& name, OptimizerKind kind, int warmup_steps = 0) {
    const FakeTensorMode mode;
    const auto model = models::build(name, {.tiny = true});
    const auto optimizer = make_optimizer(kind, *model.module);
    ProgramToCapture program = models::program_of(model, optimizer.get());
    program.warmup_steps = warmup_steps;
    return capture_training_step(program).graph;
  }

  static at::Tensor train_step(const models::BuiltModel& model, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    auto outputs = model.forward(model.inputs);
    at::Tensor loss = model.loss(outputs, model.inputs);
    outputs.clear();
    loss.backward();
    optimizer.step();
    return loss;
  }

  // Optimizer state of each parameter, in the order in which the optimizer accesses it.
  static std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer, OptimizerKind kind) {
    std::vector<at::Tensor> state;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (found == optimizer.state().end()) continue;
        if (kind == OptimizerKind::kSgd) {
          state.push_back(static_cast<const torch::optim::SGDParamState&>(*found->second).momentum_buffer());
        } else {
          const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*found->second);
          state.push_back(adam.exp_avg());
          state.push_back(adam.exp_avg_sq());
        }
      }
    }
    return state;
  }

  // The second step, with the first step's state bound to placeholders that have no name in the model.
  static void expect_same_second_step(const std::string& name, OptimizerKind kind) {
    const Graph graph = capture_step(name, kind, /*warmup_steps=*/1);
    const auto eager = build_real(name, true);
    const auto eager_optimizer = make_optimizer(kind, *eager.module);
    const auto replayed = build_real(name, true);
    const auto first_optimizer = make_optimizer(kind, *replayed.module);
    at::manual_seed(kModelSeed + 1);
    train_step(eager, *eager_optimizer);
    at::manual_seed(kModelSeed + 1);
    train_step(replayed, *first_optimizer);
    for (at::Tensor& parameter : replayed.module->parameters()) parameter.mutable_grad().reset();

    at::manual_seed(kModelSeed + 2);
    const at::Tensor loss = train_step(eager, *eager_optimizer);
    const std::vector<at::Tensor> state = state_of(*first_optimizer, kind);
    const auto parameters = replayed.module->named_parameters();
    const auto buffers = replayed.module->named_buffers();
    std::vector<at::Tensor> bound;
    size_t next = 0;
    for (const NodeId n : graph.nodes()) {
      const TargetId target = graph.node(n).target;
      if (target.index > target_of(Builtin::kInput).index) continue;
      const std::string& placeholder = graph.text(graph.arguments(n)[0].string);
      const auto input = std::find(replayed.input_names.begin(), replayed.input_names.end(), placeholder);
      if (target == target_of(Builtin::kParameter)) {
        bound.push_back(parameters[placeholder]);
      } else if (target == target_of(Builtin::kBuffer)) {
        bound.push_back(buffers[placeholder]);
      } else if (input != replayed.input_names.end()) {
        bound.push_back(replayed.inputs[static_cast<size_t>(input - replayed.input_names.begin())]);
      } else {
        ASSERT_LT(next, state.size()) << placeholder;
        bound.push_back(state[next++]);
      }
    }
    EXPECT_EQ(next, state.size()) << "the second step must read all state of the first";
    Interpreter interpreter(graph, {.check_results = true});
    at::manual_seed(kModelSeed + 2);
    const ReplayResult result = interpreter.run(Bindings().in_order(bound));
    EXPECT_TRUE(same_bits(loss, result.outputs[0])) << loss << result.outputs[0];
    expect_same_module(eager, replayed);
    const std::vector<at::Tensor> expected = state_of(*eager_optimizer, kind);
    ASSERT_EQ(expected.size(), state.size());
    for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(same_bits(expected[i], state[i])) << "state " << i;
  }

  static void expect_same_step(const std::string& name, OptimizerKind kind) {
    const Graph graph = capture_step(name, kind);

    const auto eager = build_real(name, true);
    const auto optimizer = make_optimizer(kind, *eager.module);
    at::manual_seed(kModelSeed + 1);
    const at::Tensor loss = train_step(eager, *optimizer);
    const at::Tensor next_number = at::rand({1});

    const auto replayed = build_real(name, true);
    Interpreter interpreter(graph, {.check_results = true});
    at::manual_seed(kModelSeed + 1);
    const ReplayResult result = interpreter.run(bind_all(replayed));
    EXPECT_TRUE(same_bits(next_number, at::rand({1}))) << "the generator states differ";

    ASSERT_EQ(result.outputs.size(), 1U);
    EXPECT_TRUE(same_bits(loss, result.outputs[0])) << loss << result.outputs[0];
    size_t compared = 0;
    for (const auto& entry : eager.module->named_parameters()) {
      const auto found = result.gradients.find(entry.key());
      if (found == result.gradients.end()) continue;  // the second name of a tied parameter
      EXPECT_TRUE(same_bits(entry.value().grad(), found->second)) << entry.key();
      ++compared;
    }
    EXPECT_GT(compared, 0U);
    EXPECT_EQ(compared, result.gradients.size());
    expect_same_module(eager, replayed);
  }

 private:
  int threads_ = 1;
};

TEST_P(ModelReplay, InfersAsEager) {
  const c10::NoGradGuard no_grad;
  Graph graph;
  {
    const FakeTensorMode mode;
    const auto model = models::build(GetParam(), {.training = false, .tiny = true});
    graph = capture_forward(models::program_of(model)).graph;
  }
  const auto real = build_real(GetParam(), false);
  const auto expected = real.forward(real.inputs);
  Interpreter interpreter(graph, {.check_results = true});
  const ReplayResult result = interpreter.run(bind_all(real));
  ASSERT_EQ(result.outputs.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(expected[i], result.outputs[i])) << i;
  // The inputs were not written, so a second run gives the same results.
  const ReplayResult again = interpreter.run(bind_all(real));
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(expected[i], again.outputs[i])) << i;
}

TEST_P(ModelReplay, TrainsAsEagerWithSgd) { expect_same_step(GetParam(), OptimizerKind::kSgd); }
TEST_P(ModelReplay, TrainsAsEagerWithAdamW) { expect_same_step(GetParam(), OptimizerKind::kAdamW); }
TEST_P(ModelReplay, TrainsASecondStepAsEagerWithSgd) { expect_same_second_step(GetParam(), OptimizerKind::kSgd); }
TEST_P(ModelReplay, TrainsASecondStepAsEagerWithAdamW) { expect_same_second_step(GetParam(), OptimizerKind::kAdamW); }

std::vector<std::string> replayed_models() {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Zoo, ModelReplay, ::testing::ValuesIn(replayed_models()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace shadowgraph
