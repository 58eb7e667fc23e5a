// Residual networks (He et al. 2015, arXiv:1512.03385), v1.5 as torchvision has them: stride on the 3x3 convolution.
// Parameter and buffer names are torchvision's.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <array>

#include "models/model.h"

namespace shadowgraph::models {

struct ResNetConfig {
  std::array<int64_t, 4> blocks = {2, 2, 2, 2};  // residual blocks in each of the four stages
  bool bottleneck = false;                       // 1x1, 3x3, 1x1 blocks with four times the output channels
  int64_t width = 64;                            // channels of the first stage; each next stage doubles them
  int64_t classes = 1000;
};

ResNetConfig resnet18_config();
ResNetConfig resnet50_config();
ResNetConfig tiny(ResNetConfig config);

// Two 3x3 convolutions.
struct BasicBlock : torch::nn::Module {
  static constexpr int64_t kExpansion = 1;
  BasicBlock(int64_t in_channels, int64_t channels, int64_t stride);
  at::Tensor forward(const at::Tensor& input);

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  torch::nn::Sequential downsample{nullptr};  // null where the shortcut is the identity
};

// 1x1 down, 3x3, 1x1 up.
struct Bottleneck : torch::nn::Module {
  static constexpr int64_t kExpansion = 4;
  Bottleneck(int64_t in_channels, int64_t channels, int64_t stride);
  at::Tensor forward(const at::Tensor& input);

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  torch::nn::Sequential downsample{nullptr};
};

struct ResNet : torch::nn::Module {
  explicit ResNet(const ResNetConfig& config);
  // [batch, 3, height, width] -> logits [batch, classes]
  at::Tensor forward(const at::Tensor& image);

  torch::nn::Conv2d conv1{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr};
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc{nullptr};
};

BuiltModel build_resnet(const ResNetConfig& config, const ModelOptions& options);

}  // namespace shadowgraph::models
