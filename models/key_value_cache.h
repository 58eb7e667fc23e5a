// Holds what a decoder keeps of the tokens that it has read: keys and values of every layer, [batch, kv_heads, tokens,
// head_size]. There are two ways, as in Hugging Face's DynamicCache and StaticCache. Grown: every layer's tensors are
// concatenated with those of the new tokens, and the old ones die. Static: they are allocated once, and new tokens are
// copied in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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
