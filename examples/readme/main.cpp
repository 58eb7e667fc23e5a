#include <shadowgraph/shadowgraph.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  sg::FakeTensorMode mode({.device = at::kCUDA});  // no GPU needed, nothing is allocated
  torch::nn::Sequential net(torch::nn::Linear(4096, 16384), torch::nn::GELU(), torch::nn::Linear(16384, 4096));
  torch::optim::AdamW adamw(net->parameters());

  const sg::CaptureResult step = sg::capture_training_step(
      *net.ptr(), {torch::randn({8192, 4096})}, [](const sg::Tensors& outputs) { return outputs[0].sum(); }, adamw);

  const sg::Profile costs = sg::profile(step.graph);
  std::cout << sg::to_text(costs.summary()) << sg::to_text(costs);
  sg::write_graph_file("mlp.sg", step.graph);  // read it back with sg::read_graph_file, draw it with the tool
}
