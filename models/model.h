// Key-value caches, and the interface of built-in models.
//
// A cache stores the keys and values of every layer for the tokens that a decoder has read, [batch, kv_heads, tokens,
// head_size]. As with Hugging Face's DynamicCache and StaticCache, there are two kinds. Dynamic: every layer's tensors
// are concatenated with those of the new tokens, and the old ones freed. Static: they are allocated once, and new
// tokens are copied in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace shadowgraph::models {

// Cache size per token and sequence: 2 x layers x kv_heads x head_size elements.
struct CacheShape {
  int64_t layers = 0, kv_heads = 0, head_size = 0;
  int64_t positions = 0;         // maximum position of the model's training
  bool positions_limit = false;  // positions are a table, so `positions` is a hard limit
};

class KeyValueCache {
 public:
  struct Layer {
    at::Tensor keys, values;
  };

  // An empty cache that grows with every update.
  explicit KeyValueCache(const CacheShape& shape) : shape_(shape), layers_(static_cast<size_t>(shape.layers)) {}
  // A cache after `tokens` tokens, with arbitrary contents; static for `capacity` tokens if that is positive.
  KeyValueCache(const CacheShape& shape, int64_t batch, int64_t tokens, int64_t capacity,
                const at::TensorOptions& options);

  int64_t length() const { return length_; }
  bool is_static() const { return capacity_ > 0; }
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;  // "past.0.keys", "past.0.values", ...

  // Adds a layer's new keys and values; returns all keys and values to attend to. Throws std::invalid_argument if a
  // static cache is full.
  Layer update(size_t layer, const at::Tensor& keys, const at::Tensor& values);
  // Call after all layers have been updated.
  void advance(int64_t tokens) { length_ += tokens; }
  // Attention mask of the new tokens over the result of update(); nullopt if they attend to everything or causally.
  std::optional<at::Tensor> mask(int64_t tokens, const at::Tensor& like) const;
  bool causal(int64_t tokens) const { return !is_static() && length_ == 0 && tokens > 1; }

 private:
  CacheShape shape_;
  std::vector<Layer> layers_;
  int64_t length_ = 0, capacity_ = 0;
};

// The cache of one layer during a generation step; without a cache the whole sequence is the input.
struct CachedStep {
  KeyValueCache* cache = nullptr;
  size_t layer = 0;
  std::optional<at::Tensor> mask;
  bool causal = true;

  // Returns the step of the first layer, for `tokens` new tokens.
  static CachedStep of(KeyValueCache* cache, int64_t tokens, const at::Tensor& like);
  KeyValueCache::Layer extended(at::Tensor keys, at::Tensor values) const;
};

// The interface of built-in models. Nothing here depends on a device or reads tensor data, so everything runs on fake
// tensors as well as on real ones: see the rules in the README.

// Zero, or an empty optional, selects the model's default (ModelInfo).
struct ModelOptions {
  int64_t batch = 0;
  int64_t seq = 0;                    // tokens in a sequence; must stay 0 for image models
  int64_t layers = 0;                 // of models with repeated layers (ModelInfo::layers); must stay 0 for others
  int64_t image_size = 0;             // height and width in pixels; must stay 0 for language models
  at::ScalarType dtype = at::kFloat;  // of parameters and floating-point inputs: pure bf16 training, not autocast
  bool training = true;               // module->train(training)
  bool tiny = false;                  // the same architecture at a size that trains on a CPU in well under a second
  std::optional<double> dropout;      // replaces every dropout probability of the model
};

// A module, a batch for it, and functions to run them. Copies share the module, and the functions keep it alive.
//
//     BuiltModel model = build("gpt2", {.tiny = true});
//     at::Tensor loss = model.loss(model.forward(model.inputs), model.inputs);
//     loss.backward();
struct BuiltModel {
  using Tensors = std::vector<at::Tensor>;

  std::shared_ptr<torch::nn::Module> module;

  // One synthetic batch: the model's inputs, then the targets for the loss. Random, but within valid ranges.
  Tensors inputs;
  std::vector<std::string> input_names;  // parallel to `inputs`

  // Runs the module on `inputs` (targets are ignored). The first output is the logits or the last hidden state.
  std::function<Tensors(const Tensors& inputs)> forward;
  std::vector<std::string> output_names;  // names of the outputs of `forward`

  // For generative models: the shape of the cache, and a generation step, which returns the logits of the last of
  // `input_ids`. They follow the tokens in the cache. Otherwise empty.
  std::optional<CacheShape> cache;
  std::function<at::Tensor(const at::Tensor& input_ids, KeyValueCache& cache)> next;

  // The usual scalar training loss; every parameter gets a gradient from it.
  std::function<at::Tensor(const Tensors& outputs, const Tensors& inputs)> loss;
};

}  // namespace shadowgraph::models
