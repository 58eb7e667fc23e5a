#include "models/batch.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>
#include <string>

namespace shadowgraph::models {

namespace {

constexpr int64_t kIgnoredLabel = -100;  // cross_entropy's default ignore_index

}  // namespace

void check_seq(int64_t seq, int64_t max_positions) {
  if (seq > max_positions) {
    throw std::invalid_argument("seq " + std::to_string(seq) + " is longer than the model's " +
                                std::to_string(max_positions) + " positions");
  }
}

at::Tensor random_ids(int64_t bound, at::IntArrayRef sizes) {
  return torch::randint(bound, sizes, at::TensorOptions().dtype(at::kLong));
}

at::Tensor random_images(int64_t batch, int64_t channels, int64_t size, at::ScalarType dtype) {
  return torch::randn({batch, channels, size, size}, at::TensorOptions().dtype(dtype));
}

at::Tensor class_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return at::cross_entropy_loss(logits.to(at::kFloat), labels);
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& labels) {
  const at::Tensor next = at::constant_pad_nd(labels, {0, 1}, kIgnoredLabel).slice(/*dim=*/1, /*start=*/1);
  const at::Tensor flat = logits.to(at::kFloat).view({-1, logits.size(-1)});
  return at::cross_entropy_loss(flat, next.contiguous().view(-1));
}

void normal_linear_and_embedding_(torch::nn::Module& root, double deviation) {
  at::NoGradGuard no_grad;
  // Without `root`, which has no shared_ptr yet while it is being constructed.
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      torch::nn::init::normal_(linear->weight, 0, deviation);
      if (linear->bias.defined()) torch::nn::init::zeros_(linear->bias);
    } else if (auto* embedding = module->as<torch::nn::Embedding>()) {
      torch::nn::init::normal_(embedding->weight, 0, deviation);
      if (const auto& row = embedding->options.padding_idx()) embedding->weight.select(/*dim=*/0, *row).zero_();
    }
  }
}

}  // namespace shadowgraph::models
