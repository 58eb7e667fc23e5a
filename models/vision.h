// Residual networks (He et al. 2015, arXiv:1512.03385), v1.5 as in torchvision: stride in the 3x3 convolution.
// Parameter and buffer names are torchvision's.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <array>

#include "models/model.h"

namespace shadowgraph::models {

struct ResNetConfig {
  std::array<int64_t, 4> blocks = {2, 2, 2, 2};  // residual blocks in each of the four stages
  bool bottleneck = false;                       // 1x1, 3x3, 1x1 blocks with four times the output channels
  int64_t width = 64;                            // channels of the first stage; each next stage doubles them
  int64_t classes = 1000;
};

ResNetConfig tiny(ResNetConfig config);

BuiltModel build_resnet(const ResNetConfig& config, const ModelOptions& options);

// U-Net (Ronneberger et al. 2015, arXiv:1505.04597) in its common form: padded convolutions with batch norm, with the
// names of milesial/Pytorch-UNet.
struct UnetConfig {
  int64_t classes = 2;
  int64_t width = 64;  // channels at full resolution, doubled at each of the four levels
};

UnetConfig tiny(UnetConfig config);

BuiltModel build_unet(const UnetConfig& config, const ModelOptions& options);

// Vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929), with torchvision's names and structure.
struct VitConfig {
  int64_t image_size = 224;  // fixed by the position embedding
  int64_t patch_size = 16;   // must divide image_size
  int64_t layers = 12, heads = 12, hidden = 768, mlp = 3072, classes = 1000;
  double dropout = 0.0;            // after the position embedding, attention and both layers of the MLP
  double attention_dropout = 0.0;  // on attention weights
};

VitConfig tiny(VitConfig config);

// Self attention with a packed projection and the names of nn.MultiheadAttention, batch first.
struct PackedSelfAttention : torch::nn::Module {
  PackedSelfAttention(int64_t hidden, int64_t heads, double dropout);
  at::Tensor forward(const at::Tensor& x);

  int64_t heads;
  double dropout;
  at::Tensor in_proj_weight, in_proj_bias;
  torch::nn::Linear out_proj{nullptr};
};

BuiltModel build_vit(VitConfig config, const ModelOptions& options);

}  // namespace shadowgraph::models
