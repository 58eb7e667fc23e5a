#include "models/vit.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>

#include <cmath>
#include <stdexcept>

#include "models/batch.h"
#include "shadowgraph/capture.h"

namespace shadowgraph::models {

namespace {

torch::nn::LayerNorm layer_norm(const VitConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.hidden}).eps(1e-6));
}

torch::nn::Linear mlp_layer(int64_t in_features, int64_t out_features) {
  torch::nn::Linear linear(in_features, out_features);
  torch::nn::init::xavier_uniform_(linear->weight);
  torch::nn::init::normal_(linear->bias, 0, 1e-6);
  return linear;
}

}  // namespace

VitConfig vit_b_16_config() { return {}; }

VitConfig tiny(VitConfig config) {
  config.image_size = 32;
  config.patch_size = 8;
  config.layers = 2;
  config.heads = 2;
  config.hidden = 32;
  config.mlp = 64;
  config.classes = 10;
  return config;
}

PackedSelfAttention::PackedSelfAttention(int64_t hidden, int64_t heads, double dropout)
    : heads(heads), dropout(dropout) {
  in_proj_weight = register_parameter("in_proj_weight", torch::empty({3 * hidden, hidden}));
  in_proj_bias = register_parameter("in_proj_bias", torch::empty({3 * hidden}));
  out_proj = register_module("out_proj", torch::nn::Linear(hidden, hidden));
  torch::nn::init::xavier_uniform_(in_proj_weight);
  torch::nn::init::zeros_(in_proj_bias);
  torch::nn::init::zeros_(out_proj->bias);
}

at::Tensor PackedSelfAttention::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  const int64_t batch = x.size(0), tokens = x.size(1), hidden = x.size(2);
  // [batch, tokens, 3 * hidden] -> three of [batch, heads, tokens, hidden / heads]
  const auto qkv = at::linear(x, in_proj_weight, in_proj_bias)
                       .view({batch, tokens, 3, heads, hidden / heads})
                       .permute({2, 0, 3, 1, 4})
                       .unbind(0);
  at::Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                                  /*dropout_p=*/is_training() ? dropout : 0.0);
  return out_proj->forward(y.transpose(1, 2).reshape({batch, tokens, hidden}));
}

VitEncoderBlock::VitEncoderBlock(const VitConfig& config) {
  ln_1 = register_module("ln_1", layer_norm(config));
  self_attention = register_module(
      "self_attention", std::make_shared<PackedSelfAttention>(config.hidden, config.heads, config.attention_dropout));
  dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
  ln_2 = register_module("ln_2", layer_norm(config));
  mlp = register_module(
      "mlp",
      torch::nn::Sequential(mlp_layer(config.hidden, config.mlp), torch::nn::GELU(), torch::nn::Dropout(config.dropout),
                            mlp_layer(config.mlp, config.hidden), torch::nn::Dropout(config.dropout)));
}

at::Tensor VitEncoderBlock::forward(const at::Tensor& input) {
  ModuleScope scope(*this);
  const at::Tensor x = input + dropout->forward(self_attention->forward(ln_1->forward(input)));
  return x + mlp->forward(ln_2->forward(x));
}

VitEncoder::VitEncoder(const VitConfig& config) {
  const int64_t side = config.image_size / config.patch_size;
  pos_embedding = register_parameter("pos_embedding", torch::empty({1, 1 + side * side, config.hidden}));
  torch::nn::init::normal_(pos_embedding, 0, 0.02);
  dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
  for (int64_t i = 0; i < config.layers; ++i) {
    layers->push_back("encoder_layer_" + std::to_string(i), std::make_shared<VitEncoderBlock>(config));
  }
  register_module("layers", layers);
  ln = register_module("ln", layer_norm(config));
}

at::Tensor VitEncoder::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  return ln->forward(layers->forward(dropout->forward(x + pos_embedding)));
}

VisionTransformer::VisionTransformer(const VitConfig& config) {
  class_token = register_parameter("class_token", torch::zeros({1, 1, config.hidden}));
  conv_proj = register_module(
      "conv_proj",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, config.hidden, config.patch_size).stride(config.patch_size)));
  torch::nn::init::normal_(conv_proj->weight, 0,
                           std::sqrt(1.0 / static_cast<double>(3 * config.patch_size * config.patch_size)));
  torch::nn::init::zeros_(conv_proj->bias);
  encoder = register_module("encoder", std::make_shared<VitEncoder>(config));
  // torchvision starts the head at zero, which stops every gradient of the first step below it; Linear's own start is
  // kept instead.
  heads->push_back("head", torch::nn::Linear(config.hidden, config.classes));
  register_module("heads", heads);
}

at::Tensor VisionTransformer::forward(const at::Tensor& image) {
  ModuleScope scope(*this);
  // [batch, hidden, rows, columns] -> [batch, patches, hidden]
  const at::Tensor patches = conv_proj->forward(image).flatten(2).permute({0, 2, 1});
  const at::Tensor tokens = at::cat({class_token.expand({image.size(0), -1, -1}), patches}, /*dim=*/1);
  return heads->forward(encoder->forward(tokens).select(/*dim=*/1, /*index=*/0));
}

BuiltModel build_vit(VitConfig config, const ModelOptions& options) {
  if (options.image_size % config.patch_size != 0) {
    throw std::invalid_argument("image_size " + std::to_string(options.image_size) +
                                " is not a multiple of the patch size " + std::to_string(config.patch_size));
  }
  config.image_size = options.image_size;
  config.dropout = options.dropout.value_or(config.dropout);
  config.attention_dropout = options.dropout.value_or(config.attention_dropout);
  auto vit = std::make_shared<VisionTransformer>(config);
  BuiltModel built;
  built.module = vit;
  built.inputs = {random_images(options.batch, 3, config.image_size, options.dtype),
                  random_ids(config.classes, {options.batch})};
  built.input_names = {"image", "labels"};
  built.forward = [vit](const BuiltModel::Tensors& inputs) { return BuiltModel::Tensors{vit->forward(inputs[0])}; };
  built.output_names = {"logits"};
  built.loss = [](const BuiltModel::Tensors& outputs, const BuiltModel::Tensors& inputs) {
    return class_loss(outputs[0], inputs[1]);
  };
  return built;
}

}  // namespace shadowgraph::models
