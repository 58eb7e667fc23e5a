// Trains a small network on a device without compute kernels. Pointwise operators and row reductions are compiled at
// their first call; other operators fall back to the CPU and are counted. Compares the losses with those on the CPU.
#include <shadowgraph/kernels/kernel.h>
#include <torch/torch.h>

#include <iostream>

#include "host_device.h"

namespace sg = shadowgraph;

std::vector<double> train(c10::Device device) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
                            torch::nn::Flatten(), torch::nn::Linear(8 * 36, 32), torch::nn::GELU(),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})), torch::nn::Linear(32, 10));
  if (!device.is_cpu()) {
    for (const at::Tensor& parameter : net->parameters()) host::move(parameter);
    for (const at::Tensor& buffer : net->buffers()) host::move(buffer);
  }
  const at::Tensor images = torch::randn({16, 3, 8, 8}).to(device);
  const at::Tensor labels = torch::randint(10, {16}).to(device);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(net->forward(images), labels);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

int main() {
  host::register_device();
  const std::vector<double> expected = train(at::kCPU);

  const sg::CompiledOperators compiled =
      sg::compile_operators(sg::compilable_operators(), c10::DispatchKey::PrivateUse1);
  train(c10::Device(at::kPrivateUse1, 0));  // compiles kernels in the background
  compiled.cache().wait();
  host::forget_fallbacks();
  const std::vector<double> losses = train(c10::Device(at::kPrivateUse1, 0));

  std::cout << "compiled:\n";
  for (const auto& row : compiled.report()) {
    if (row.ran > 0) std::cout << "  " << row.op << ' ' << row.ran << '\n';
  }
  std::cout << "CPU fallbacks:\n";
  for (const auto& [op, calls] : host::fallbacks()) std::cout << "  " << op << ' ' << calls << '\n';
  bool same = true;
  for (size_t i = 0; i < losses.size(); ++i) {
    std::cout << "step " << i << ": " << losses[i] << ", on the CPU " << expected[i] << '\n';
    same = same && std::abs(losses[i] - expected[i]) < 1e-4;
  }
  return same ? 0 : 1;
}
