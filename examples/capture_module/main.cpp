// Captures a training step of a small module on a simulated GPU, and profiles the graph.
#include <shadowgraph/capture/capture.h>
#include <shadowgraph/profile/profile.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <iostream>

struct PerceptronImpl : torch::nn::Module {
  PerceptronImpl()
      : hidden(register_module("hidden", torch::nn::Linear(256, 1024))),
        head(register_module("head", torch::nn::Linear(1024, 10))) {}

  at::Tensor forward(const at::Tensor& x) {
    shadowgraph::ModuleScope scope(*this);
    return head(torch::relu(hidden(x)));
  }

  torch::nn::Linear hidden, head;
};
TORCH_MODULE(Perceptron);

int main() {
  // Tensors created while the mode is active are fake: they have shapes and the device cuda:0, but no data.
  shadowgraph::FakeTensorMode mode({.device = at::kCUDA});
  Perceptron net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const at::Tensor images = at::empty({64, 256});

  const auto loss = [](const shadowgraph::Tensors& outputs) { return outputs[0].square().mean(); };
  const shadowgraph::CaptureResult step = shadowgraph::capture_training_step(*net, {images}, loss, optimizer);

  const auto profile = shadowgraph::profile(step.graph);
  std::cout << shadowgraph::to_text(profile);

  // 256 * 1024 + 1024 + 1024 * 10 + 10
  const bool right =
      profile.size.parameters == 273'418 && profile.device == c10::Device("cuda:0") && profile.peak.bytes > 0;
  std::cout << (right ? "as expected\n" : "not as expected\n");
  return right ? 0 : 1;
}
