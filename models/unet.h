// U-Net (Ronneberger et al. 2015, arXiv:1505.04597) in the form most people run: padded convolutions with batch norm,
// by the names of milesial/Pytorch-UNet.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include "models/model.h"

namespace shadowgraph::models {

struct UnetConfig {
  int64_t channels = 3;  // of the image
  int64_t classes = 2;
  int64_t width = 64;     // channels at full resolution; each of four levels down doubles them
  bool bilinear = false;  // upsample by interpolation instead of a transposed convolution, and half the deepest width
};

UnetConfig unet_config();
UnetConfig tiny(UnetConfig config);

// Twice: 3x3 convolution, batch norm, ReLU.
struct DoubleConv : torch::nn::Module {
  DoubleConv(int64_t in_channels, int64_t middle_channels, int64_t out_channels);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Sequential double_conv{nullptr};
};

struct Down : torch::nn::Module {
  Down(int64_t in_channels, int64_t out_channels);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Sequential maxpool_conv{nullptr};
};

struct Up : torch::nn::Module {
  Up(int64_t in_channels, int64_t out_channels, bool bilinear);
  // `x` from below is upsampled, padded to the size of `skip` and joined with it.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip);

  torch::nn::ConvTranspose2d up{nullptr};  // null: bilinear
  std::shared_ptr<DoubleConv> conv;
};

struct OutConv : torch::nn::Module {
  OutConv(int64_t in_channels, int64_t classes);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Conv2d conv{nullptr};
};

struct Unet : torch::nn::Module {
  explicit Unet(const UnetConfig& config);
  // [batch, channels, height, width], both at least 16 -> logits [batch, classes, height, width]
  at::Tensor forward(const at::Tensor& image);

  std::shared_ptr<DoubleConv> inc;
  std::shared_ptr<Down> down1, down2, down3, down4;
  std::shared_ptr<Up> up1, up2, up3, up4;
  std::shared_ptr<OutConv> outc;
};

BuiltModel build_unet(const UnetConfig& config, const ModelOptions& options);

}  // namespace shadowgraph::models
