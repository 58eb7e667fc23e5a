#include "models/unet.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/pooling.h>

#include <stdexcept>

#include "models/batch.h"
#include "shadowgraph/capture.h"

namespace shadowgraph::models {

namespace {

torch::nn::Conv2d convolution(int64_t in_channels, int64_t out_channels) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, 3).padding(1).bias(false));
}

torch::nn::ReLU relu_in_place() { return torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)); }

at::Tensor twice_as_large(const at::Tensor& x) {
  return at::upsample_bilinear2d(x, {x.size(2) * 2, x.size(3) * 2}, /*align_corners=*/true);
}

}  // namespace

UnetConfig unet_config() { return {}; }

UnetConfig tiny(UnetConfig config) {
  config.width = 4;
  return config;
}

DoubleConv::DoubleConv(int64_t in_channels, int64_t middle_channels, int64_t out_channels) {
  double_conv =
      register_module("double_conv", torch::nn::Sequential(convolution(in_channels, middle_channels),
                                                           torch::nn::BatchNorm2d(middle_channels), relu_in_place(),
                                                           convolution(middle_channels, out_channels),
                                                           torch::nn::BatchNorm2d(out_channels), relu_in_place()));
}

at::Tensor DoubleConv::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  return double_conv->forward(x);
}

Down::Down(int64_t in_channels, int64_t out_channels) {
  maxpool_conv = register_module(
      "maxpool_conv", torch::nn::Sequential(torch::nn::MaxPool2d(2),
                                            std::make_shared<DoubleConv>(in_channels, out_channels, out_channels)));
}

at::Tensor Down::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  return maxpool_conv->forward(x);
}

Up::Up(int64_t in_channels, int64_t out_channels, bool bilinear) {
  if (!bilinear) {
    up = register_module(
        "up", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in_channels, in_channels / 2, 2).stride(2)));
  }
  conv = register_module(
      "conv", std::make_shared<DoubleConv>(in_channels, bilinear ? in_channels / 2 : out_channels, out_channels));
}

at::Tensor Up::forward(const at::Tensor& x, const at::Tensor& skip) {
  ModuleScope scope(*this);
  const at::Tensor large = up ? up->forward(x) : twice_as_large(x);
  // An odd size lost its last row or column on the way down.
  const int64_t rows = skip.size(2) - large.size(2), columns = skip.size(3) - large.size(3);
  const at::Tensor padded = at::constant_pad_nd(large, {columns / 2, columns - columns / 2, rows / 2, rows - rows / 2});
  return conv->forward(at::cat({skip, padded}, /*dim=*/1));
}

OutConv::OutConv(int64_t in_channels, int64_t classes) {
  conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, classes, 1)));
}

at::Tensor OutConv::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  return conv->forward(x);
}

Unet::Unet(const UnetConfig& config) {
  const int64_t w = config.width;
  const int64_t divisor = config.bilinear ? 2 : 1;  // interpolation keeps the channels, so what goes up has half
  inc = register_module("inc", std::make_shared<DoubleConv>(config.channels, w, w));
  down1 = register_module("down1", std::make_shared<Down>(w, 2 * w));
  down2 = register_module("down2", std::make_shared<Down>(2 * w, 4 * w));
  down3 = register_module("down3", std::make_shared<Down>(4 * w, 8 * w));
  down4 = register_module("down4", std::make_shared<Down>(8 * w, 16 * w / divisor));
  up1 = register_module("up1", std::make_shared<Up>(16 * w, 8 * w / divisor, config.bilinear));
  up2 = register_module("up2", std::make_shared<Up>(8 * w, 4 * w / divisor, config.bilinear));
  up3 = register_module("up3", std::make_shared<Up>(4 * w, 2 * w / divisor, config.bilinear));
  up4 = register_module("up4", std::make_shared<Up>(2 * w, w, config.bilinear));
  outc = register_module("outc", std::make_shared<OutConv>(w, config.classes));
}

at::Tensor Unet::forward(const at::Tensor& image) {
  ModuleScope scope(*this);
  const at::Tensor x1 = inc->forward(image);
  const at::Tensor x2 = down1->forward(x1);
  const at::Tensor x3 = down2->forward(x2);
  const at::Tensor x4 = down3->forward(x3);
  at::Tensor x = down4->forward(x4);
  x = up1->forward(x, x4);
  x = up2->forward(x, x3);
  x = up3->forward(x, x2);
  x = up4->forward(x, x1);
  return outc->forward(x);
}

BuiltModel build_unet(const UnetConfig& config, const ModelOptions& options) {
  if (options.image_size < 16) {
    throw std::invalid_argument("image_size " + std::to_string(options.image_size) +
                                " is too small: the U-Net halves it four times, so it needs at least 16");
  }
  auto unet = std::make_shared<Unet>(config);
  BuiltModel built;
  built.module = unet;
  built.inputs = {random_images(options.batch, config.channels, options.image_size, options.dtype),
                  random_ids(config.classes, {options.batch, options.image_size, options.image_size})};
  built.input_names = {"image", "labels"};
  built.forward = [unet](const BuiltModel::Tensors& inputs) { return BuiltModel::Tensors{unet->forward(inputs[0])}; };
  built.output_names = {"logits"};
  built.loss = [](const BuiltModel::Tensors& outputs, const BuiltModel::Tensors& inputs) {
    return class_loss(outputs[0], inputs[1]);
  };
  return built;
}

}  // namespace shadowgraph::models
