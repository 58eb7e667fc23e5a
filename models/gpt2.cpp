#include "models/gpt2.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/init.h>

#include <cmath>
#include <numbers>

#include "models/batch.h"
#include "models/initialization.h"
#include "shadowgraph/capture.h"

namespace shadowgraph::models {

namespace {

torch::nn::LayerNorm layer_norm(const Gpt2Config& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.hidden}).eps(config.norm_eps));
}

// Layers that write to the residual stream start smaller the more of them there are: two a block.
double residual_deviation(const Gpt2Config& config) {
  return 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers));
}

at::Tensor gelu_new(const at::Tensor& x) {
  const double scale = std::sqrt(2.0 / std::numbers::pi);
  return 0.5 * x * (1.0 + at::tanh(scale * (x + 0.044715 * at::pow(x, 3.0))));
}

}  // namespace

Gpt2Config gpt2_config() { return {}; }

Gpt2Config gpt2_medium_config() { return {.layers = 24, .heads = 16, .hidden = 1024}; }

Gpt2Config gpt2_large_config() { return {.layers = 36, .heads = 20, .hidden = 1280}; }

Gpt2Config gpt2_xl_config() { return {.layers = 48, .heads = 25, .hidden = 1600}; }

Gpt2Config tiny(Gpt2Config config) {
  config.layers = 2;
  config.heads = 2;
  config.hidden = 32;
  config.vocab = 101;
  config.max_positions = 32;
  return config;
}

Conv1D::Conv1D(int64_t in_features, int64_t out_features, double deviation) {
  weight = register_parameter("weight", torch::empty({in_features, out_features}));
  bias = register_parameter("bias", torch::zeros({out_features}));
  torch::nn::init::normal_(weight, 0, deviation);
}

at::Tensor Conv1D::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(1);
  return at::addmm(bias, x.view({-1, x.size(-1)}), weight).view(sizes);
}

Gpt2Attention::Gpt2Attention(const Gpt2Config& config) : heads(config.heads), dropout(config.attention_dropout) {
  c_attn = register_module("c_attn", std::make_shared<Conv1D>(config.hidden, 3 * config.hidden));
  c_proj =
      register_module("c_proj", std::make_shared<Conv1D>(config.hidden, config.hidden, residual_deviation(config)));
  resid_dropout = register_module("resid_dropout", torch::nn::Dropout(config.dropout));
}

at::Tensor Gpt2Attention::forward(const at::Tensor& x, const CachedStep& step) {
  ModuleScope scope(*this);
  const int64_t batch = x.size(0), seq = x.size(1), hidden = x.size(2);
  const auto split_heads = [&](const at::Tensor& t) {
    return t.view({batch, seq, heads, hidden / heads}).transpose(1, 2);
  };
  const auto qkv = c_attn->forward(x).split(hidden, /*dim=*/2);
  const auto [keys, values] = step.extended(split_heads(qkv[1]), split_heads(qkv[2]));
  const at::Tensor y = at::scaled_dot_product_attention(split_heads(qkv[0]), keys, values, step.mask,
                                                        /*dropout_p=*/is_training() ? dropout : 0.0, step.causal);
  return resid_dropout->forward(c_proj->forward(y.transpose(1, 2).reshape({batch, seq, hidden})));
}

Gpt2Mlp::Gpt2Mlp(const Gpt2Config& config) : fused_gelu(config.fused_gelu) {
  c_fc = register_module("c_fc", std::make_shared<Conv1D>(config.hidden, 4 * config.hidden));
  c_proj =
      register_module("c_proj", std::make_shared<Conv1D>(4 * config.hidden, config.hidden, residual_deviation(config)));
  dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
}

at::Tensor Gpt2Mlp::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  const at::Tensor inner = c_fc->forward(x);
  return dropout->forward(c_proj->forward(fused_gelu ? at::gelu(inner, "tanh") : gelu_new(inner)));
}

Gpt2Block::Gpt2Block(const Gpt2Config& config) {
  ln_1 = register_module("ln_1", layer_norm(config));
  attn = register_module("attn", std::make_shared<Gpt2Attention>(config));
  ln_2 = register_module("ln_2", layer_norm(config));
  mlp = register_module("mlp", std::make_shared<Gpt2Mlp>(config));
}

at::Tensor Gpt2Block::forward(const at::Tensor& input, const CachedStep& step) {
  ModuleScope scope(*this);
  const at::Tensor x = attn->forward(ln_1->forward(input), step) + input;
  return x + mlp->forward(ln_2->forward(x));
}

Gpt2Model::Gpt2Model(const Gpt2Config& config) {
  wte = register_module("wte", torch::nn::Embedding(config.vocab, config.hidden));
  wpe = register_module("wpe", torch::nn::Embedding(config.max_positions, config.hidden));
  normal_linear_and_embedding_(*this, 0.02);
  drop = register_module("drop", torch::nn::Dropout(config.dropout));
  for (int64_t i = 0; i < config.layers; ++i) {
    h->push_back(std::make_shared<Gpt2Block>(config));
  }
  register_module("h", h);
  ln_f = register_module("ln_f", layer_norm(config));
}

at::Tensor Gpt2Model::forward(const at::Tensor& input_ids, KeyValueCache* cache) {
  ModuleScope scope(*this);
  const int64_t tokens = input_ids.size(1), past = cache == nullptr ? 0 : cache->length();
  const at::Tensor positions =
      (past == 0 ? torch::arange(tokens, input_ids.options()) : torch::arange(past, past + tokens, input_ids.options()))
          .unsqueeze(0);
  at::Tensor x = drop->forward(wte->forward(input_ids) + wpe->forward(positions));
  CachedStep step = CachedStep::of(cache, tokens, x);
  for (const auto& block : *h) {
    x = block->as<Gpt2Block>()->forward(x, step);
    ++step.layer;
  }
  if (cache != nullptr) cache->advance(tokens);
  return ln_f->forward(x);
}

at::Tensor TiedLinear::forward(const at::Tensor& x, const at::Tensor& weight) {
  ModuleScope scope(*this);
  return at::linear(x, weight);
}

Gpt2LMHeadModel::Gpt2LMHeadModel(const Gpt2Config& config) {
  transformer = register_module("transformer", std::make_shared<Gpt2Model>(config));
  lm_head = register_module("lm_head", std::make_shared<TiedLinear>());
}

at::Tensor Gpt2LMHeadModel::forward(const at::Tensor& input_ids) {
  ModuleScope scope(*this);
  return lm_head->forward(transformer->forward(input_ids), transformer->wte->weight);
}

at::Tensor Gpt2LMHeadModel::next(const at::Tensor& input_ids, KeyValueCache& cache) {
  ModuleScope scope(*this);
  const at::Tensor last = transformer->forward(input_ids, &cache).slice(/*dim=*/1, /*start=*/-1);
  return lm_head->forward(last, transformer->wte->weight);
}

BuiltModel build_gpt2(Gpt2Config config, const ModelOptions& options) {
  check_seq(options.seq, config.max_positions);
  config.dropout = options.dropout.value_or(config.dropout);
  config.attention_dropout = options.dropout.value_or(config.attention_dropout);
  auto gpt2 = std::make_shared<Gpt2LMHeadModel>(config);
  BuiltModel built;
  built.module = gpt2;
  const at::Tensor input_ids = random_ids(config.vocab, {options.batch, options.seq});
  built.inputs = {input_ids, input_ids.clone()};
  built.input_names = {"input_ids", "labels"};
  built.forward = [gpt2](const BuiltModel::Tensors& inputs) { return BuiltModel::Tensors{gpt2->forward(inputs[0])}; };
  built.output_names = {"logits"};
  built.cache = {.layers = config.layers,
                 .kv_heads = config.heads,
                 .head_size = config.hidden / config.heads,
                 .positions = config.max_positions,
                 .positions_limit = true};
  built.next = [gpt2](const at::Tensor& input_ids, KeyValueCache& cache) { return gpt2->next(input_ids, cache); };
  built.loss = [](const BuiltModel::Tensors& outputs, const BuiltModel::Tensors& inputs) {
    return next_token_loss(outputs[0], inputs[1]);
  };
  return built;
}

}  // namespace shadowgraph::models
