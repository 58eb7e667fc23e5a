#include "models/model.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/le.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include <stdexcept>

namespace shadowgraph::models {

KeyValueCache::KeyValueCache(const CacheShape& shape, int64_t batch, int64_t tokens, int64_t capacity,
                             const at::TensorOptions& options)
    : KeyValueCache(shape) {
  if (capacity > 0 && tokens >= capacity) {
    throw std::invalid_argument("a cache of " + std::to_string(capacity) + " tokens has no room after " +
                                std::to_string(tokens));
  }
  length_ = tokens;
  capacity_ = capacity;
  const std::vector<int64_t> sizes{batch, shape.kv_heads, capacity > 0 ? capacity : tokens, shape.head_size};
  for (Layer& layer : layers_) layer = {torch::zeros(sizes, options), torch::zeros(sizes, options)};
}

std::vector<std::pair<std::string, at::Tensor>> KeyValueCache::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string prefix = "past." + std::to_string(i);
    named.emplace_back(prefix + ".keys", layers_[i].keys);
    named.emplace_back(prefix + ".values", layers_[i].values);
  }
  return named;
}

KeyValueCache::Layer KeyValueCache::update(size_t at, const at::Tensor& keys, const at::Tensor& values) {
  Layer& layer = layers_.at(at);
  if (is_static()) {
    const int64_t tokens = keys.size(2);
    if (length_ + tokens > capacity_) {
      throw std::invalid_argument("a cache of " + std::to_string(capacity_) + " tokens is full");
    }
    const at::Tensor positions = torch::arange(length_, length_ + tokens, keys.options().dtype(at::kLong));
    layer.keys.index_copy_(2, positions, keys);
    layer.values.index_copy_(2, positions, values);
    return layer;
  }
  // As in Hugging Face, the first update also copies: it concatenates an empty tensor and the new ones.
  const auto grown = [](const at::Tensor& old, const at::Tensor& now) {
    return at::cat({old.defined() ? old : torch::empty({0}, now.options()), now}, /*dim=*/-2);
  };
  layer.keys = grown(layer.keys, keys);
  layer.values = grown(layer.values, values);
  return layer;
}

std::optional<at::Tensor> KeyValueCache::mask(int64_t tokens, const at::Tensor& like) const {
  if (!is_static() && (tokens == 1 || length_ == 0)) return std::nullopt;
  const auto options = like.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor seen = torch::arange(is_static() ? capacity_ : length_ + tokens, options);
  const at::Tensor own = torch::arange(length_, length_ + tokens, options);
  return at::le(seen.unsqueeze(0), own.unsqueeze(1));
}

CachedStep CachedStep::of(KeyValueCache* cache, int64_t tokens, const at::Tensor& like) {
  if (cache == nullptr) return {};
  return {.cache = cache, .mask = cache->mask(tokens, like), .causal = cache->causal(tokens)};
}

KeyValueCache::Layer CachedStep::extended(at::Tensor keys, at::Tensor values) const {
  if (cache == nullptr) return {std::move(keys), std::move(values)};
  return cache->update(layer, keys, values);
}

}  // namespace shadowgraph::models
