// Models of the zoo train on examples/new_backend's device (forward, backward, AdamW) as on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "examples/new_backend/host_device.h"
#include "models/registry.h"
#include "shadowgraph/kernels/kernel.h"
#include "tests/kernels/temporary_folder.h"

namespace shadowgraph {
namespace {

const c10::Device kHost(c10::DeviceType::PrivateUse1, 0);

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;  // of the last step
  std::vector<at::Tensor> parameters;
};

Trained train(const std::string& name, c10::Device device, int steps) {
  torch::manual_seed(1);
  models::BuiltModel model = models::build(name, {.tiny = true, .dropout = 0.0});
  if (!device.is_cpu()) {
    for (const at::Tensor& parameter : model.module->parameters()) host::move(parameter);
    for (const at::Tensor& buffer : model.module->buffers()) host::move(buffer);
  }
  for (at::Tensor& input : model.inputs) input = input.to(device);
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  Trained out;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model.loss(model.forward(model.inputs), model.inputs);
    EXPECT_EQ(loss.device().type(), device.type());
    loss.backward();
    optimizer.step();
    out.losses.push_back(loss.item<double>());
  }
  for (const at::Tensor& parameter : model.module->parameters()) {
    EXPECT_EQ(parameter.device().type(), device.type());
    out.parameters.push_back(parameter.detach().cpu());
    out.gradients.push_back(parameter.grad().cpu());
  }
  return out;
}

class ModelOnTheHost : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { host::register_device(); }
};

TEST_P(ModelOnTheHost, TrainsAsOnTheCpu) {
  torch::set_num_threads(1);
  const Trained cpu = train(GetParam(), at::kCPU, 3);
  host::forget_fallbacks();
  const Trained device = train(GetParam(), kHost, 3);
  ASSERT_EQ(cpu.losses.size(), device.losses.size());
  for (size_t i = 0; i < cpu.losses.size(); ++i)
    EXPECT_NEAR(device.losses[i], cpu.losses[i], 2e-5 * cpu.losses[i]) << i;
  for (size_t i = 0; i < cpu.parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(device.gradients[i], cpu.gradients[i], 1e-3, 1e-5)) << i;
    EXPECT_TRUE(at::allclose(device.parameters[i], cpu.parameters[i], 1e-3, 1e-4)) << i;
  }
  EXPECT_LT(device.losses.back(), device.losses.front());
  const auto fallbacks = host::fallbacks();
  EXPECT_TRUE(fallbacks.contains("aten::addcdiv.out"));  // called by the optimizer
  EXPECT_TRUE(fallbacks.contains("aten::nll_loss_backward.grad_input"));
}

TEST_P(ModelOnTheHost, TrainsOnKernelsMadeOnDemandAsOnTheCpu) {
  torch::set_num_threads(1);
  const TemporaryFolder folder;
  const Trained cpu = train(GetParam(), at::kCPU, 3);
  const CompiledOperators compiled =
      compile_operators(compilable_operators(), c10::DispatchKey::PrivateUse1, {.cache = folder.cache()});
  host::forget_fallbacks();
  const Trained device = train(GetParam(), kHost, 3);
  for (size_t i = 0; i < cpu.losses.size(); ++i)
    EXPECT_NEAR(device.losses[i], cpu.losses[i], 2e-5 * cpu.losses[i]) << i;
  for (size_t i = 0; i < cpu.parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(device.gradients[i], cpu.gradients[i], 1e-3, 1e-5)) << i;
  }
  int64_t ran = 0;
  for (const auto& row : compiled.report()) ran += row.ran;
  int64_t left = 0;
  for (const auto& [op, calls] : host::fallbacks()) left += calls;
  EXPECT_GT(ran, left) << "most calls must use kernels";
  EXPECT_FALSE(host::fallbacks().contains("aten::addcdiv.out"));
}

INSTANTIATE_TEST_SUITE_P(Zoo, ModelOnTheHost, ::testing::Values("resnet18", "gpt2", "bert_base"));

}  // namespace
}  // namespace shadowgraph
