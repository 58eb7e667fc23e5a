// Defines what every model of the zoo is built from and what building one gives.
//
// Nothing here names a device: parameters, buffers and inputs appear wherever the caller's active mode puts them (under
// a fake-tensor mode, on the pretended device). What a forward function makes takes its device from a tensor it was
// given. Nothing reads tensor data either, so all of it runs on fake tensors; it also runs for real.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/key_value_cache.h"

namespace torch::nn {
class Module;
}

namespace shadowgraph::models {

// Zero, or an empty optional, means the default of the model (ModelInfo).
struct ModelOptions {
  int64_t batch = 0;
  int64_t seq = 0;                    // tokens in a sequence; must stay 0 for image models
  int64_t layers = 0;                 // of models with equal layers (ModelInfo::layers); must stay 0 for others
  int64_t image_size = 0;             // height and width in pixels; must stay 0 for language models
  at::ScalarType dtype = at::kFloat;  // of parameters and floating-point inputs: plain bf16 training, not autocast
  bool training = true;               // module->train(training)
  bool tiny = false;                  // same architecture at a size that trains on a CPU in well under a second
  std::optional<double> dropout;      // replaces every dropout probability of the model
};

// A module, a batch for it, and how to run them. Copies share the module. The functions own what they need.
//
//     BuiltModel model = build("gpt2", {.tiny = true});
//     at::Tensor loss = model.loss(model.forward(model.inputs), model.inputs);
//     loss.backward();
struct BuiltModel {
  using Tensors = std::vector<at::Tensor>;

  std::shared_ptr<torch::nn::Module> module;

  // One synthetic batch: what the model reads, then the targets that only the loss reads. Random, but valid: token ids
  // and labels are within range.
  Tensors inputs;
  std::vector<std::string> input_names;  // parallel to `inputs`

  // Runs the module on `inputs` (targets are ignored). Outputs[0] is the logits or the last hidden state.
  std::function<Tensors(const Tensors& inputs)> forward;
  std::vector<std::string> output_names;  // parallel to what `forward` returns

  // For models that generate token by token: what their cache is made of, and a step. A step gives the logits of the
  // last of these tokens, which follow those in the cache. Otherwise empty.
  std::optional<CacheShape> cache;
  std::function<at::Tensor(const at::Tensor& input_ids, KeyValueCache& cache)> next;

  // The scalar this kind of model is usually trained on; every parameter receives a gradient from it.
  std::function<at::Tensor(const Tensors& outputs, const Tensors& inputs)> loss;
};

}  // namespace shadowgraph::models
