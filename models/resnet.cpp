#include "models/resnet.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/nn/init.h>

#include "models/batch.h"
#include "shadowgraph/capture.h"

namespace shadowgraph::models {

namespace {

// Every convolution here is followed by a batch norm, so none has a bias.
torch::nn::Conv2d convolution(int64_t in_channels, int64_t out_channels, int64_t kernel, int64_t stride = 1) {
  torch::nn::Conv2d conv(
      torch::nn::Conv2dOptions(in_channels, out_channels, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
  return conv;
}

torch::nn::Sequential projection(int64_t in_channels, int64_t out_channels, int64_t stride) {
  return torch::nn::Sequential(convolution(in_channels, out_channels, 1, stride), torch::nn::BatchNorm2d(out_channels));
}

template <typename Block>
torch::nn::Sequential stage(int64_t in_channels, int64_t channels, int64_t blocks, int64_t stride) {
  torch::nn::Sequential layers;
  for (int64_t i = 0; i < blocks; ++i) {
    const bool first = i == 0;
    layers->push_back(
        std::make_shared<Block>(first ? in_channels : channels * Block::kExpansion, channels, first ? stride : 1));
  }
  return layers;
}

template <typename Block>
std::array<torch::nn::Sequential, 4> stages(const ResNetConfig& config) {
  std::array<torch::nn::Sequential, 4> result = {nullptr, nullptr, nullptr, nullptr};
  int64_t in_channels = config.width;
  for (size_t i = 0; i < result.size(); ++i) {
    const int64_t channels = config.width << i;
    result[i] = stage<Block>(in_channels, channels, config.blocks[i], /*stride=*/i == 0 ? 1 : 2);
    in_channels = channels * Block::kExpansion;
  }
  return result;
}

// relu(branch + shortcut) in place, as torchvision has it: neither needs its own result for backward but relu.
at::Tensor add_shortcut(at::Tensor branch, torch::nn::Sequential& downsample, const at::Tensor& input) {
  branch += downsample ? downsample->forward(input) : input;
  return at::relu_(branch);
}

}  // namespace

ResNetConfig resnet18_config() { return {}; }

ResNetConfig resnet50_config() { return {.blocks = {3, 4, 6, 3}, .bottleneck = true}; }

ResNetConfig tiny(ResNetConfig config) {
  config.blocks = {2, 1, 1, 1};  // two in the first stage: a block without and one with a shortcut of its own
  config.width = 8;
  config.classes = 10;
  return config;
}

BasicBlock::BasicBlock(int64_t in_channels, int64_t channels, int64_t stride) {
  conv1 = register_module("conv1", convolution(in_channels, channels, 3, stride));
  bn1 = register_module("bn1", torch::nn::BatchNorm2d(channels));
  conv2 = register_module("conv2", convolution(channels, channels, 3));
  bn2 = register_module("bn2", torch::nn::BatchNorm2d(channels));
  if (stride != 1 || in_channels != channels * kExpansion) {
    downsample = register_module("downsample", projection(in_channels, channels * kExpansion, stride));
  }
}

at::Tensor BasicBlock::forward(const at::Tensor& input) {
  ModuleScope scope(*this);
  at::Tensor x = bn1->forward(conv1->forward(input));
  at::relu_(x);
  x = bn2->forward(conv2->forward(x));
  return add_shortcut(x, downsample, input);
}

Bottleneck::Bottleneck(int64_t in_channels, int64_t channels, int64_t stride) {
  conv1 = register_module("conv1", convolution(in_channels, channels, 1));
  bn1 = register_module("bn1", torch::nn::BatchNorm2d(channels));
  conv2 = register_module("conv2", convolution(channels, channels, 3, stride));
  bn2 = register_module("bn2", torch::nn::BatchNorm2d(channels));
  conv3 = register_module("conv3", convolution(channels, channels * kExpansion, 1));
  bn3 = register_module("bn3", torch::nn::BatchNorm2d(channels * kExpansion));
  if (stride != 1 || in_channels != channels * kExpansion) {
    downsample = register_module("downsample", projection(in_channels, channels * kExpansion, stride));
  }
}

at::Tensor Bottleneck::forward(const at::Tensor& input) {
  ModuleScope scope(*this);
  at::Tensor x = bn1->forward(conv1->forward(input));
  at::relu_(x);
  x = bn2->forward(conv2->forward(x));
  at::relu_(x);
  x = bn3->forward(conv3->forward(x));
  return add_shortcut(x, downsample, input);
}

ResNet::ResNet(const ResNetConfig& config) {
  conv1 = register_module(
      "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, config.width, 7).stride(2).padding(3).bias(false)));
  torch::nn::init::kaiming_normal_(conv1->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
  bn1 = register_module("bn1", torch::nn::BatchNorm2d(config.width));
  const auto layers = config.bottleneck ? stages<Bottleneck>(config) : stages<BasicBlock>(config);
  layer1 = register_module("layer1", layers[0]);
  layer2 = register_module("layer2", layers[1]);
  layer3 = register_module("layer3", layers[2]);
  layer4 = register_module("layer4", layers[3]);
  const int64_t expansion = config.bottleneck ? Bottleneck::kExpansion : BasicBlock::kExpansion;
  fc = register_module("fc", torch::nn::Linear(config.width * 8 * expansion, config.classes));
}

at::Tensor ResNet::forward(const at::Tensor& image) {
  ModuleScope scope(*this);
  at::Tensor x = bn1->forward(conv1->forward(image));
  at::relu_(x);
  x = at::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  x = layer1->forward(x);
  x = layer2->forward(x);
  x = layer3->forward(x);
  x = layer4->forward(x);
  x = at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
  return fc->forward(x);
}

BuiltModel build_resnet(const ResNetConfig& config, const ModelOptions& options) {
  auto net = std::make_shared<ResNet>(config);
  BuiltModel built;
  built.module = net;
  built.inputs = {random_images(options.batch, 3, options.image_size, options.dtype),
                  random_ids(config.classes, {options.batch})};
  built.input_names = {"image", "labels"};
  built.forward = [net](const BuiltModel::Tensors& inputs) { return BuiltModel::Tensors{net->forward(inputs[0])}; };
  built.output_names = {"logits"};
  built.loss = [](const BuiltModel::Tensors& outputs, const BuiltModel::Tensors& inputs) {
    return class_loss(outputs[0], inputs[1]);
  };
  return built;
}

}  // namespace shadowgraph::models
