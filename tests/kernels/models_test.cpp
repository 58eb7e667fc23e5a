// Replays tiny built-in models with kernels: inference and training steps match plain replay.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/optim.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "tests/core/replay/same_bits.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/graphs.h"

namespace shadowgraph::kernel_tests {
namespace {

constexpr uint64_t kSeed = 2026;

constexpr double kLearningRate = 1e-3;
enum class Program { kInference, kSgd, kAdamW };

Graph graph_of_model(const std::string& name, Program program) {
  const FakeTensorMode mode;
  const bool training = program != Program::kInference;
  const auto model = models::build(name, {.training = training, .tiny = true});
  if (!training) {
    const c10::NoGradGuard no_grad;
    return capture_forward(models::program_of(model)).graph;
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  const auto parameters = model.module->parameters();
  if (program == Program::kSgd) {
    optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  } else {
    optimizer = std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(kLearningRate));
  }
  return capture_training_step(models::program_of(model, optimizer.get())).graph;
}

struct After {
  ReplayResult result;
  std::map<std::string, at::Tensor> tensors;  // parameters and buffers
};

After run_model(const std::string& name, Program program, const Graph& graph,
                const std::shared_ptr<NodeGroups>& groups) {
  at::manual_seed(kSeed);
  const auto model = models::build(name, {.training = program != Program::kInference, .tiny = true});
  Bindings bindings;
  bindings.module(*model.module);
  for (size_t i = 0; i < model.inputs.size(); ++i) bindings.bind(model.input_names[i], model.inputs[i]);
  Interpreter interpreter(graph, {.check_results = true, .groups = groups});
  at::manual_seed(kSeed + 1);
  After after{.result = interpreter.run(bindings)};
  for (const auto& entry : model.module->named_parameters()) after.tensors[entry.key()] = entry.value();
  for (const auto& entry : model.module->named_buffers()) after.tensors[entry.key()] = entry.value();
  return after;
}

class KernelModels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  // `exact`: bitwise. Otherwise within epsilons of each tensor's largest element. Sums over a batch cancel, so
  // gradients deviate more than their operands.
  static void compare_program(const std::string& name, Program program, bool exact) {
    const Graph graph = graph_of_model(name, program);
    const auto groups = kernels_of(graph, exact);
    const After plain = run_model(name, program, graph, nullptr);
    const After found = run_model(name, program, graph, groups);
    ASSERT_EQ(plain.result.outputs.size(), found.result.outputs.size());
    for (size_t i = 0; i < plain.result.outputs.size(); ++i) {
      expect_close(plain.result.outputs[i], found.result.outputs[i], exact ? 0 : 256, "output " + std::to_string(i));
    }
    ASSERT_EQ(plain.result.gradients.size(), found.result.gradients.size());
    for (const auto& [key, gradient] : plain.result.gradients) {
      expect_close(gradient, found.result.gradients.at(key), exact ? 0 : 4096, "gradient of " + key);
    }
    for (const auto& [key, tensor] : plain.tensors) {
      at::Tensor other = found.tensors.at(key);
      const auto gradient = plain.result.gradients.find(key);
      if (!exact && program == Program::kAdamW && gradient != plain.result.gradients.end()) {
        // AdamW's first step is lr times the sign of the gradient, even if that is only rounding noise (attention key
        // bias).
        const at::Tensor size = gradient->second.abs();
        const double least = std::max(1e-3 * size.max().item<double>(), 1e-7);
        EXPECT_LE((tensor - other).abs().max().item<double>(), 2.01 * kLearningRate) << key;
        other = at::where(size < least, tensor, other);
      }
      expect_close(tensor, other, exact ? 0 : program == Program::kAdamW ? 65536 : 4096, key);
    }
    int64_t runs = 0;
    for (const auto& report : groups->report()) {
      EXPECT_NE(report.state, KernelGroups::State::kFailed) << report.problem;
      runs += report.kernel_runs;
    }
    EXPECT_EQ(runs, static_cast<int64_t>(groups->groups().size()));
    EXPECT_GT(runs, 0);
  }
};

TEST_P(KernelModels, Infer) {
  for (const bool exact : {true, false}) compare_program(GetParam(), Program::kInference, exact);
}
TEST_P(KernelModels, TrainWithSgd) {
  for (const bool exact : {true, false}) compare_program(GetParam(), Program::kSgd, exact);
}
TEST_P(KernelModels, TrainWithAdamW) {
  for (const bool exact : {true, false}) compare_program(GetParam(), Program::kAdamW, exact);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& info : models::available()) names.push_back(info.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Zoo, KernelModels, ::testing::ValuesIn(model_names()),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace shadowgraph::kernel_tests
