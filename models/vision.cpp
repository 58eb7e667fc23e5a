#include "models/vision.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/pooling.h>

#include <cmath>
#include <stdexcept>

#include "models/batch.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph::models {

namespace {

// Without bias, since every convolution here is followed by a batch norm.
torch::nn::Conv2d convolution(int64_t in_channels, int64_t out_channels, int64_t kernel, int64_t stride = 1) {
  torch::nn::Conv2d conv(
      torch::nn::Conv2dOptions(in_channels, out_channels, kernel).stride(stride).padding(kernel / 2).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
  return conv;
}

struct BlockConfig {
  int64_t in_channels, channels, stride;
};

// Null if the shortcut is the identity.
torch::nn::Sequential projection(const BlockConfig& config, int64_t out_channels) {
  if (config.stride == 1 && config.in_channels == out_channels) return nullptr;
  return torch::nn::Sequential(convolution(config.in_channels, out_channels, 1, config.stride),
                               torch::nn::BatchNorm2d(out_channels));
}

template <typename Block>
std::vector<torch::nn::Sequential> stages(const ResNetConfig& config) {
  std::vector<torch::nn::Sequential> stages;
  int64_t in_channels = config.width;
  for (size_t stage = 0; stage < config.blocks.size(); ++stage) {
    torch::nn::Sequential& blocks = stages.emplace_back();
    const int64_t channels = config.width << stage;
    for (int64_t i = 0; i < config.blocks[stage]; ++i) {
      const int64_t stride = i == 0 && stage > 0 ? 2 : 1;
      blocks->push_back(std::make_shared<Block>(BlockConfig{in_channels, channels, stride}));
      in_channels = channels * Block::kExpansion;
    }
  }
  return stages;
}

// relu(branch + shortcut) in place, as in torchvision: only relu saves its result for backward.
at::Tensor add_shortcut(at::Tensor branch, torch::nn::Sequential& downsample, const at::Tensor& input) {
  branch += downsample ? downsample->forward(input) : input;
  return at::relu_(branch);
}

torch::nn::Conv2d convolution(int64_t in_channels, int64_t out_channels) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, out_channels, 3).padding(1).bias(false));
}

torch::nn::ReLU relu_in_place() { return torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)); }

torch::nn::Linear mlp_layer(int64_t in_features, int64_t out_features) {
  torch::nn::Linear linear(in_features, out_features);
  torch::nn::init::xavier_uniform_(linear->weight);
  torch::nn::init::normal_(linear->bias, 0, 1e-6);
  return linear;
}

}  // namespace

ResNetConfig tiny(ResNetConfig config) {
  config.blocks = {2, 1, 1, 1};  // two in the first stage: a block with a downsampled shortcut and one without
  config.width = 8;
  config.classes = 10;
  return config;
}

// Two 3x3 convolutions.
struct BasicBlock : ConfiguredModule<BlockConfig> {
  static constexpr int64_t kExpansion = 1;
  explicit BasicBlock(const BlockConfig& config) : ConfiguredModule(config) {
    if (downsample) register_module("downsample", downsample);
  }

  at::Tensor forward(const at::Tensor& input) {
    ModuleScope scope(*this);
    at::Tensor x = bn1->forward(conv1->forward(input));
    at::relu_(x);
    x = bn2->forward(conv2->forward(x));
    return add_shortcut(x, downsample, input);
  }

  torch::nn::Conv2d conv1 =
      register_module("conv1", convolution(config.in_channels, config.channels, 3, config.stride));
  torch::nn::BatchNorm2d bn1 = register_module("bn1", torch::nn::BatchNorm2d(config.channels));
  torch::nn::Conv2d conv2 = register_module("conv2", convolution(config.channels, config.channels, 3));
  torch::nn::BatchNorm2d bn2 = register_module("bn2", torch::nn::BatchNorm2d(config.channels));
  torch::nn::Sequential downsample = projection(config, config.channels);
};

// 1x1 down, 3x3, 1x1 up.
struct Bottleneck : ConfiguredModule<BlockConfig> {
  static constexpr int64_t kExpansion = 4;
  explicit Bottleneck(const BlockConfig& config) : ConfiguredModule(config) {
    if (downsample) register_module("downsample", downsample);
  }

  at::Tensor forward(const at::Tensor& input) {
    ModuleScope scope(*this);
    at::Tensor x = bn1->forward(conv1->forward(input));
    at::relu_(x);
    x = bn2->forward(conv2->forward(x));
    at::relu_(x);
    x = bn3->forward(conv3->forward(x));
    return add_shortcut(x, downsample, input);
  }

  const int64_t out_channels = config.channels * kExpansion;
  torch::nn::Conv2d conv1 = register_module("conv1", convolution(config.in_channels, config.channels, 1));
  torch::nn::BatchNorm2d bn1 = register_module("bn1", torch::nn::BatchNorm2d(config.channels));
  torch::nn::Conv2d conv2 = register_module("conv2", convolution(config.channels, config.channels, 3, config.stride));
  torch::nn::BatchNorm2d bn2 = register_module("bn2", torch::nn::BatchNorm2d(config.channels));
  torch::nn::Conv2d conv3 = register_module("conv3", convolution(config.channels, out_channels, 1));
  torch::nn::BatchNorm2d bn3 = register_module("bn3", torch::nn::BatchNorm2d(out_channels));
  torch::nn::Sequential downsample = projection(config, out_channels);
};

struct ResNet : ConfiguredModule<ResNetConfig> {
  explicit ResNet(const ResNetConfig& config) : ConfiguredModule(config) {
    for (size_t i = 0; i < layers.size(); ++i) register_module("layer" + std::to_string(i + 1), layers[i]);
    const int64_t expansion = config.bottleneck ? Bottleneck::kExpansion : BasicBlock::kExpansion;
    fc = register_module("fc", torch::nn::Linear(config.width * 8 * expansion, config.classes));
  }

  // [batch, 3, height, width] -> logits [batch, classes]
  at::Tensor forward(const at::Tensor& image) {
    ModuleScope scope(*this);
    at::Tensor x = bn1->forward(conv1->forward(image));
    at::relu_(x);
    x = at::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
    for (torch::nn::Sequential& layer : layers) x = layer->forward(x);
    x = at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
    return fc->forward(x);
  }

  torch::nn::Conv2d conv1 = register_module("conv1", convolution(3, config.width, 7, 2));
  torch::nn::BatchNorm2d bn1 = register_module("bn1", torch::nn::BatchNorm2d(config.width));
  std::vector<torch::nn::Sequential> layers =
      config.bottleneck ? stages<Bottleneck>(config) : stages<BasicBlock>(config);
  torch::nn::Linear fc{nullptr};
};

BuiltModel build_resnet(const ResNetConfig& config, const ModelOptions& options) {
  auto net = std::make_shared<ResNet>(config);
  at::Tensor images = random_images(options.batch, 3, options.image_size, options.dtype);
  return model_of_logits(net, {"image", images}, random_ids(config.classes, {options.batch}), class_loss);
}

UnetConfig tiny(UnetConfig config) {
  config.width = 4;
  return config;
}

// Twice: 3x3 convolution, batch norm, ReLU.
struct DoubleConv : torch::nn::Module {
  DoubleConv(int64_t in_channels, int64_t middle_channels, int64_t out_channels)
      : double_conv(register_module(
            "double_conv",
            torch::nn::Sequential(convolution(in_channels, middle_channels), torch::nn::BatchNorm2d(middle_channels),
                                  relu_in_place(), convolution(middle_channels, out_channels),
                                  torch::nn::BatchNorm2d(out_channels), relu_in_place()))) {}

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return double_conv->forward(x);
  }

  torch::nn::Sequential double_conv;
};

struct Down : torch::nn::Module {
  Down(int64_t in_channels, int64_t out_channels)
      : maxpool_conv(register_module(
            "maxpool_conv",
            torch::nn::Sequential(torch::nn::MaxPool2d(2),
                                  std::make_shared<DoubleConv>(in_channels, out_channels, out_channels)))) {}

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return maxpool_conv->forward(x);
  }

  torch::nn::Sequential maxpool_conv;
};

struct Up : torch::nn::Module {
  Up(int64_t in_channels, int64_t out_channels)
      : up(register_module("up", torch::nn::ConvTranspose2d(
                                     torch::nn::ConvTranspose2dOptions(in_channels, in_channels / 2, 2).stride(2)))),
        conv(register_module("conv", std::make_shared<DoubleConv>(in_channels, out_channels, out_channels))) {}

  // Upsamples `x`, pads it to the size of `skip`, and concatenates both.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip) {
    ModuleScope scope(*this);
    const at::Tensor large = up->forward(x);
    // An odd size lost its last row or column while downsampling.
    const int64_t rows = skip.size(2) - large.size(2), columns = skip.size(3) - large.size(3);
    const at::Tensor padded =
        at::constant_pad_nd(large, {columns / 2, columns - columns / 2, rows / 2, rows - rows / 2});
    return conv->forward(at::cat({skip, padded}, /*dim=*/1));
  }

  torch::nn::ConvTranspose2d up;
  std::shared_ptr<DoubleConv> conv;
};

struct OutConv : torch::nn::Module {
  OutConv(int64_t in_channels, int64_t classes)
      : conv(register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in_channels, classes, 1)))) {}

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return conv->forward(x);
  }

  torch::nn::Conv2d conv;
};

struct Unet : ConfiguredModule<UnetConfig> {
  using ConfiguredModule::ConfiguredModule;

  // [batch, 3, height, width], both at least 16 -> logits [batch, classes, height, width]
  at::Tensor forward(const at::Tensor& image) {
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

  const int64_t w = config.width;
  std::shared_ptr<DoubleConv> inc = register_module("inc", std::make_shared<DoubleConv>(3, w, w));
  std::shared_ptr<Down> down1 = register_module("down1", std::make_shared<Down>(w, 2 * w));
  std::shared_ptr<Down> down2 = register_module("down2", std::make_shared<Down>(2 * w, 4 * w));
  std::shared_ptr<Down> down3 = register_module("down3", std::make_shared<Down>(4 * w, 8 * w));
  std::shared_ptr<Down> down4 = register_module("down4", std::make_shared<Down>(8 * w, 16 * w));
  std::shared_ptr<Up> up1 = register_module("up1", std::make_shared<Up>(16 * w, 8 * w));
  std::shared_ptr<Up> up2 = register_module("up2", std::make_shared<Up>(8 * w, 4 * w));
  std::shared_ptr<Up> up3 = register_module("up3", std::make_shared<Up>(4 * w, 2 * w));
  std::shared_ptr<Up> up4 = register_module("up4", std::make_shared<Up>(2 * w, w));
  std::shared_ptr<OutConv> outc = register_module("outc", std::make_shared<OutConv>(w, config.classes));
};

BuiltModel build_unet(const UnetConfig& config, const ModelOptions& options) {
  if (options.image_size < 16) {
    throw std::invalid_argument("image_size " + std::to_string(options.image_size) +
                                " is too small: the U-Net halves it four times, so it needs at least 16");
  }
  auto unet = std::make_shared<Unet>(config);
  at::Tensor images = random_images(options.batch, 3, options.image_size, options.dtype);
  const at::Tensor labels = random_ids(config.classes, {options.batch, options.image_size, options.image_size});
  return model_of_logits(unet, {"image", images}, labels, class_loss);
}

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

struct VitEncoderBlock : ConfiguredModule<VitConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& input) {
    ModuleScope scope(*this);
    const at::Tensor x = input + dropout->forward(self_attention->forward(ln_1->forward(input)));
    return x + mlp->forward(ln_2->forward(x));
  }

  torch::nn::LayerNorm ln_1 = register_module("ln_1", layer_norm(config.hidden, 1e-6));
  std::shared_ptr<PackedSelfAttention> self_attention = register_module(
      "self_attention", std::make_shared<PackedSelfAttention>(config.hidden, config.heads, config.attention_dropout));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
  torch::nn::LayerNorm ln_2 = register_module("ln_2", layer_norm(config.hidden, 1e-6));
  torch::nn::Sequential mlp = register_module(
      "mlp",
      torch::nn::Sequential(mlp_layer(config.hidden, config.mlp), torch::nn::GELU(), torch::nn::Dropout(config.dropout),
                            mlp_layer(config.mlp, config.hidden), torch::nn::Dropout(config.dropout)));
};

struct VitEncoder : ConfiguredModule<VitConfig> {
  explicit VitEncoder(const VitConfig& config) : ConfiguredModule(config) {
    torch::nn::init::normal_(pos_embedding, 0, 0.02);
    for (int64_t i = 0; i < config.layers; ++i) {
      layers->push_back("encoder_layer_" + std::to_string(i), std::make_shared<VitEncoderBlock>(config));
    }
    register_module("layers", layers);
    ln = register_module("ln", layer_norm(config.hidden, 1e-6));
  }

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return ln->forward(layers->forward(dropout->forward(x + pos_embedding)));
  }

  const int64_t side = config.image_size / config.patch_size;
  at::Tensor pos_embedding = register_parameter("pos_embedding", torch::empty({1, 1 + side* side, config.hidden}));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
  torch::nn::Sequential layers;  // encoder_layer_0, encoder_layer_1, ...
  torch::nn::LayerNorm ln{nullptr};
};

struct VisionTransformer : ConfiguredModule<VitConfig> {
  explicit VisionTransformer(const VitConfig& config) : ConfiguredModule(config) {
    torch::nn::init::normal_(conv_proj->weight, 0,
                             std::sqrt(1.0 / static_cast<double>(3 * config.patch_size * config.patch_size)));
    torch::nn::init::zeros_(conv_proj->bias);
    encoder = register_module("encoder", std::make_shared<VitEncoder>(config));
    // Keeps Linear's initialization: torchvision's zeros block all gradients below in the first step.
    heads->push_back("head", torch::nn::Linear(config.hidden, config.classes));
    register_module("heads", heads);
  }

  // [batch, 3, image_size, image_size] -> logits [batch, classes]
  at::Tensor forward(const at::Tensor& image) {
    ModuleScope scope(*this);
    // [batch, hidden, rows, columns] -> [batch, patches, hidden]
    const at::Tensor patches = conv_proj->forward(image).flatten(2).permute({0, 2, 1});
    const at::Tensor tokens = at::cat({class_token.expand({image.size(0), -1, -1}), patches}, /*dim=*/1);
    return heads->forward(encoder->forward(tokens).select(/*dim=*/1, /*index=*/0));
  }

  at::Tensor class_token = register_parameter("class_token", torch::zeros({1, 1, config.hidden}));
  torch::nn::Conv2d conv_proj = register_module(
      "conv_proj",
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, config.hidden, config.patch_size).stride(config.patch_size)));
  std::shared_ptr<VitEncoder> encoder;
  torch::nn::Sequential heads;  // head
};

BuiltModel build_vit(VitConfig config, const ModelOptions& options) {
  if (options.image_size % config.patch_size != 0) {
    throw std::invalid_argument("image_size " + std::to_string(options.image_size) +
                                " is not a multiple of the patch size " + std::to_string(config.patch_size));
  }
  config.image_size = options.image_size;
  config.dropout = options.dropout.value_or(config.dropout);
  config.attention_dropout = options.dropout.value_or(config.attention_dropout);
  auto vit = std::make_shared<VisionTransformer>(config);
  at::Tensor images = random_images(options.batch, 3, config.image_size, options.dtype);
  return model_of_logits(vit, {"image", images}, random_ids(config.classes, {options.batch}), class_loss);
}

}  // namespace shadowgraph::models
