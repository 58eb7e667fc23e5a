#include "models/initialization.h"

#include <c10/core/GradMode.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace shadowgraph::models {

void normal_linear_and_embedding_(torch::nn::Module& root, double deviation) {
  at::NoGradGuard no_grad;
  // Without `root` itself: it has no shared_ptr yet while it is being constructed.
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      torch::nn::init::normal_(linear->weight, 0, deviation);
      if (linear->bias.defined()) {
        torch::nn::init::zeros_(linear->bias);
      }
    } else if (auto* embedding = module->as<torch::nn::Embedding>()) {
      torch::nn::init::normal_(embedding->weight, 0, deviation);
      if (const auto& row = embedding->options.padding_idx()) {
        embedding->weight.select(/*dim=*/0, *row).zero_();
      }
    }
  }
}

}  // namespace shadowgraph::models
