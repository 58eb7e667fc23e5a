// Caches of keys and values, and what every model is built from and gives.
//
// A cache holds what a decoder keeps of the tokens that it has read: keys and values of every layer, [batch, kv_heads, tokens,
// head_size]. There are two ways, as in Hugging Face's DynamicCache and StaticCache. Grown: every layer's tensors are
// concatenated with those of the new tokens, and the old ones die. Static: they are allocated once, and new tokens are
// copied in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shadowgraph::models {

// What one token of one sequence takes: 2 x layers x kv_heads x head_size elements.
struct CacheShape {
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_size = 0;
  int64_t positions = 0;         // that the model was trained on
  bool positions_limit = false;  // it has a table of them and cannot go beyond

  int64_t bytes_per_token(at::ScalarType dtype) const;
};

class KeyValueCache {
 public:
  struct Layer {
    at::Tensor keys, values;
  };

  // Empty; it grows with every update.
  explicit KeyValueCache(const CacheShape& shape) : shape_(shape), layers_(static_cast<size_t>(shape.layers)) {}
  // As after `tokens` tokens, of any contents; with a `capacity`, static of that many tokens.
  KeyValueCache(const CacheShape& shape, int64_t batch, int64_t tokens, int64_t capacity,
                const at::TensorOptions& options);

  int64_t length() const { return length_; }
  bool is_static() const { return capacity_ > 0; }
  const std::vector<Layer>& layers() const { return layers_; }
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;  // "past.0.keys", "past.0.values", ...

  // Takes a layer's new keys and values; gives all to attend to. Throws std::invalid_argument when a static one is
  // full.
  Layer update(size_t layer, const at::Tensor& keys, const at::Tensor& values);
  // Once all layers have been updated.
  void advance(int64_t tokens) { length_ += tokens; }
  // Which of what update() gives each new token may see; none where that is all of it, or all up to itself.
  std::optional<at::Tensor> mask(int64_t tokens, const at::Tensor& like) const;
  bool causal(int64_t tokens) const { return !is_static() && length_ == 0 && tokens > 1; }

 private:
  CacheShape shape_;
  std::vector<Layer> layers_;
  int64_t length_ = 0;
  int64_t capacity_ = 0;
};

// A layer's part in a step of generation; without a cache the whole sequence is there.
struct CachedStep {
  KeyValueCache* cache = nullptr;
  size_t layer = 0;
  std::optional<at::Tensor> mask;
  bool causal = true;

  // The step of the first layer, for `tokens` new tokens.
  static CachedStep of(KeyValueCache* cache, int64_t tokens, const at::Tensor& like);
  KeyValueCache::Layer extended(at::Tensor keys, at::Tensor values) const;
};

}  // namespace shadowgraph::models

// Defines what every model of the zoo is built from and what building one gives.
//
// Nothing here names a device: parameters, buffers and inputs appear wherever the caller's active mode puts them (under
// a fake-tensor mode, on the pretended device). What a forward function makes takes its device from a tensor it was
// given. Nothing reads tensor data either, so all of it runs on fake tensors; it also runs for real.

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
