// Vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929), with torchvision's names and structure.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "models/model.h"

namespace shadowgraph::models {

struct VitConfig {
  int64_t image_size = 224;  // the position embedding fixes it
  int64_t patch_size = 16;   // must divide image_size
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t hidden = 768;
  int64_t mlp = 3072;
  int64_t classes = 1000;
  double dropout = 0.0;            // after the position embedding, attention and both layers of the MLP
  double attention_dropout = 0.0;  // on attention weights
};

VitConfig vit_b_16_config();
VitConfig tiny(VitConfig config);

// Self attention with the packed projection and the names of nn.MultiheadAttention, batch first.
struct PackedSelfAttention : torch::nn::Module {
  PackedSelfAttention(int64_t hidden, int64_t heads, double dropout);
  at::Tensor forward(const at::Tensor& x);

  int64_t heads;
  double dropout;
  at::Tensor in_proj_weight, in_proj_bias;
  torch::nn::Linear out_proj{nullptr};
};

struct VitEncoderBlock : torch::nn::Module {
  explicit VitEncoderBlock(const VitConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  std::shared_ptr<PackedSelfAttention> self_attention;
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Sequential mlp{nullptr};  // 0 Linear, 1 GELU, 2 Dropout, 3 Linear, 4 Dropout
};

struct VitEncoder : torch::nn::Module {
  explicit VitEncoder(const VitConfig& config);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor pos_embedding;  // [1, 1 + patches, hidden]
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Sequential layers;  // encoder_layer_0, encoder_layer_1, ...
  torch::nn::LayerNorm ln{nullptr};
};

struct VisionTransformer : torch::nn::Module {
  explicit VisionTransformer(const VitConfig& config);
  // [batch, 3, image_size, image_size] -> logits [batch, classes]
  at::Tensor forward(const at::Tensor& image);

  torch::nn::Conv2d conv_proj{nullptr};
  at::Tensor class_token;  // [1, 1, hidden]
  std::shared_ptr<VitEncoder> encoder;
  torch::nn::Sequential heads;  // head
};

BuiltModel build_vit(VitConfig config, const ModelOptions& options);

}  // namespace shadowgraph::models
