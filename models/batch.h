// The base class of modules; synthetic batches, and losses of the models. Independent of devices (see model.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "models/model.h"

namespace shadowgraph::models {

// A module that keeps its config, so that a member's initializer can create and register a submodule.
template <class Config>
struct ConfiguredModule : torch::nn::Module {
  explicit ConfiguredModule(const Config& config) : config(config) {}

  const Config config;
};

// `config.layers` layers, which receive their index if they differ by it.
template <class Layer, class Config>
torch::nn::ModuleList layers_of(const Config& config) {
  torch::nn::ModuleList layers;
  for (int64_t i = 0; i < config.layers; ++i) {
    if constexpr (std::is_constructible_v<Layer, const Config&, int64_t>) {
      layers->push_back(std::make_shared<Layer>(config, i));
    } else {
      layers->push_back(std::make_shared<Layer>(config));
    }
  }
  return layers;
}

inline torch::nn::LayerNorm layer_norm(int64_t hidden, double eps) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}).eps(eps));
}

// Throws std::invalid_argument if `seq` exceeds `max_positions`.
void check_seq(int64_t seq, int64_t max_positions);

// Uniform int64 in [0, bound): token ids, class labels, per-pixel classes.
at::Tensor random_ids(int64_t bound, at::IntArrayRef sizes);

// Standard normal [batch, channels, size, size].
at::Tensor random_images(int64_t batch, int64_t channels, int64_t size, at::ScalarType dtype);

// Mean cross entropy in float32 of `logits` [batch, classes, ...] against `labels` [batch, ...].
at::Tensor class_loss(const at::Tensor& logits, const at::Tensor& labels);

// Mean cross entropy in float32 of the logits at each position against the label of the next position; the last
// position has none. `logits` [batch, seq, vocab], `labels` [batch, seq]. Shifts the labels, not the logits, as Hugging
// Face's ForCausalLMLoss does, which avoids a copy of the logits.
at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& labels);

// Initializes every Linear and Embedding below `root`: weights normal with mean 0 and standard deviation `deviation`,
// biases and padding rows zero. Does not read tensor data. May be called in the constructor of `root`.
void normal_linear_and_embedding_(torch::nn::Module& root, double deviation);

// Builds a model with one input tensor and the output "logits", which `loss` compares with `labels`.
template <class Model>
BuiltModel model_of_logits(const std::shared_ptr<Model>& model, std::pair<std::string, at::Tensor> input,
                           at::Tensor labels, at::Tensor (*loss)(const at::Tensor& logits, const at::Tensor& labels)) {
  BuiltModel built;
  built.module = model;
  built.inputs = {std::move(input.second), std::move(labels)};
  built.input_names = {std::move(input.first), "labels"};
  built.forward = [model](const BuiltModel::Tensors& inputs) { return BuiltModel::Tensors{model->forward(inputs[0])}; };
  built.output_names = {"logits"};
  built.loss = [loss](const BuiltModel::Tensors& outputs, const BuiltModel::Tensors& inputs) {
    return loss(outputs[0], inputs[1]);
  };
  return built;
}

template <class Model>
BuiltModel causal_language_model(const std::shared_ptr<Model>& model, int64_t vocab, const ModelOptions& options) {
  const at::Tensor input_ids = random_ids(vocab, {options.batch, options.seq});
  return model_of_logits(model, {"input_ids", input_ids}, input_ids.clone(), next_token_loss);
}

}  // namespace shadowgraph::models
