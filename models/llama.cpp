#include "models/llama.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "models/batch.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph::models {

namespace {

torch::nn::Linear projection(int64_t in_features, int64_t out_features) {
  return torch::nn::Linear(torch::nn::LinearOptions(in_features, out_features).bias(false));
}

// (a, b) -> (-b, a) for the halves of the last dimension.
at::Tensor rotate_half(const at::Tensor& x) {
  const int64_t half = x.size(-1) / 2;
  return at::cat({-x.slice(/*dim=*/-1, half), x.slice(/*dim=*/-1, 0, half)}, /*dim=*/-1);
}

at::Tensor rotate(const at::Tensor& x, const LlamaRotaryEmbedding::Rotation& rotation) {
  return x * rotation.cos + rotate_half(x) * rotation.sin;
}

// [batch, kv_heads, seq, head_size] -> [batch, kv_heads * times, seq, head_size], each head repeated `times` times. A
// copy, as in Hugging Face: the expanded tensor cannot be viewed with one heads dimension.
at::Tensor repeat_kv(const at::Tensor& x, int64_t times) {
  if (times == 1) return x;
  const int64_t batch = x.size(0), kv_heads = x.size(1), seq = x.size(2), head_size = x.size(3);
  return x.unsqueeze(2)
      .expand({batch, kv_heads, times, seq, head_size})
      .reshape({batch, kv_heads * times, seq, head_size});
}

// Rotates pairs of adjacent elements by sorting them into halves, as Llama's rotation expects.
at::Tensor rotate_pairs(const at::Tensor& x, const LlamaRotaryEmbedding::Rotation& rotation) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor halves = x.view({x.size(0), x.size(1), x.size(2), half, 2}).transpose(4, 3).reshape(x.sizes().vec());
  const at::Tensor turned = rotate_half(halves);
  return halves * rotation.cos + turned * rotation.sin;
}

}  // namespace

LlamaConfig tiny(LlamaConfig config) {
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  config.hidden = 32;
  config.intermediate = 64;
  config.vocab = 101;
  config.max_positions = 64;
  return config;
}

struct LlamaRMSNorm : torch::nn::Module {
  LlamaRMSNorm(int64_t hidden, double eps) : eps(eps), weight(register_parameter("weight", torch::ones({hidden}))) {}

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor variance = at::pow(wide, 2).mean(/*dim=*/-1, /*keepdim=*/true);
    return weight * (wide * at::rsqrt(variance + eps)).to(x.scalar_type());
  }

  double eps;
  at::Tensor weight;
};

LlamaRotaryEmbedding::LlamaRotaryEmbedding(const LlamaConfig& config) {
  const int64_t size = config.head_size();
  const at::Tensor exponent = torch::arange(0, size, 2, at::kFloat) / static_cast<double>(size);
  inv_freq = register_buffer("inv_freq", at::pow(config.rope_theta, exponent).reciprocal());
}

LlamaRotaryEmbedding::Rotation LlamaRotaryEmbedding::forward(const at::Tensor& x, int64_t past) {
  ModuleScope scope(*this);
  const auto options = x.options().dtype(at::kFloat).requires_grad(false);
  const at::Tensor positions =
      past == 0 ? torch::arange(x.size(1), options) : torch::arange(past, past + x.size(1), options);
  const at::Tensor half = at::matmul(positions.unsqueeze(1), inv_freq.to(at::kFloat).unsqueeze(0));
  const at::Tensor angles = at::cat({half, half}, /*dim=*/-1).unsqueeze(0).unsqueeze(0);
  return {angles.cos().to(x.scalar_type()), angles.sin().to(x.scalar_type())};
}

struct LlamaAttention : ConfiguredModule<LlamaConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& x, const LlamaRotaryEmbedding::Rotation& rotation, const CachedStep& step = {}) {
    ModuleScope scope(*this);
    const int64_t batch = x.size(0), seq = x.size(1);
    const auto split_heads = [&](const at::Tensor& t) { return t.view({batch, seq, -1, head_size}).transpose(1, 2); };
    const at::Tensor q = rotate(split_heads(q_proj->forward(x)), rotation);
    const at::Tensor k = rotate(split_heads(k_proj->forward(x)), rotation);
    const at::Tensor v = split_heads(v_proj->forward(x));
    const auto [keys, values] = step.extended(k, v);
    const at::Tensor y =
        at::scaled_dot_product_attention(q, repeat_kv(keys, queries_per_kv), repeat_kv(values, queries_per_kv),
                                         step.mask, /*dropout_p=*/0.0, step.causal);
    return o_proj->forward(y.transpose(1, 2).reshape({batch, seq, -1}));
  }

  const int64_t head_size = config.head_size(), queries_per_kv = config.heads / config.kv_heads;
  const int64_t kv_size = config.kv_heads * head_size;
  torch::nn::Linear q_proj = register_module("q_proj", projection(config.hidden, config.hidden));
  torch::nn::Linear k_proj = register_module("k_proj", projection(config.hidden, kv_size));
  torch::nn::Linear v_proj = register_module("v_proj", projection(config.hidden, kv_size));
  torch::nn::Linear o_proj = register_module("o_proj", projection(config.hidden, config.hidden));
};

// SwiGLU (Shazeer 2020, arXiv:2002.05202).
struct LlamaMlp : torch::nn::Module {
  LlamaMlp(int64_t hidden, int64_t intermediate)
      : gate_proj(register_module("gate_proj", projection(hidden, intermediate))),
        up_proj(register_module("up_proj", projection(hidden, intermediate))),
        down_proj(register_module("down_proj", projection(intermediate, hidden))) {}

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return down_proj->forward(at::silu(gate_proj->forward(x)) * up_proj->forward(x));
  }

  torch::nn::Linear gate_proj, up_proj, down_proj;
};

// The norm over the hidden size, in Llama and DeepSeek.
template <class Config>
std::shared_ptr<LlamaRMSNorm> rms_norm(const Config& config) {
  return std::make_shared<LlamaRMSNorm>(config.hidden, config.norm_eps);
}

struct LlamaDecoderLayer : ConfiguredModule<LlamaConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& input, const LlamaRotaryEmbedding::Rotation& rotation,
                     const CachedStep& step = {}) {
    ModuleScope scope(*this);
    const at::Tensor x = input + self_attn->forward(input_layernorm->forward(input), rotation, step);
    return x + mlp->forward(post_attention_layernorm->forward(x));
  }

  std::shared_ptr<LlamaAttention> self_attn = register_module("self_attn", std::make_shared<LlamaAttention>(config));
  std::shared_ptr<LlamaMlp> mlp =
      register_module("mlp", std::make_shared<LlamaMlp>(config.hidden, config.intermediate));
  std::shared_ptr<LlamaRMSNorm> input_layernorm = register_module("input_layernorm", rms_norm(config));
  std::shared_ptr<LlamaRMSNorm> post_attention_layernorm =
      register_module("post_attention_layernorm", rms_norm(config));
};

// A decoder without its head, but for the pass over its layers.
template <class Config, class Layer>
struct DecoderModel : ConfiguredModule<Config> {
  DecoderModel(const Config& config, const LlamaConfig& rotary)
      : ConfiguredModule<Config>(config),
        embed_tokens(this->register_module("embed_tokens", torch::nn::Embedding(config.vocab, config.hidden))),
        layers(this->register_module("layers", layers_of<Layer>(config))),
        norm(this->register_module("norm", rms_norm(config))),
        rotary_emb(this->register_module("rotary_emb", std::make_shared<LlamaRotaryEmbedding>(rotary))) {}

  torch::nn::Embedding embed_tokens;
  torch::nn::ModuleList layers;
  std::shared_ptr<LlamaRMSNorm> norm;
  std::shared_ptr<LlamaRotaryEmbedding> rotary_emb;
};

// A decoder and its head.
template <class Config, class Model>
struct CausalLanguageModel : ConfiguredModule<Config> {
  explicit CausalLanguageModel(const Config& config)
      : ConfiguredModule<Config>(config),
        model(this->register_module("model", std::make_shared<Model>(config))),
        lm_head(this->register_module("lm_head", projection(config.hidden, config.vocab))) {
    normal_linear_and_embedding_(*this, 0.02);
  }

  // [batch, seq] token ids -> logits [batch, seq, vocab]
  at::Tensor forward(const at::Tensor& input_ids) {
    ModuleScope scope(*this);
    return lm_head->forward(model->forward(input_ids));
  }

  std::shared_ptr<Model> model;
  torch::nn::Linear lm_head;  // not tied to embed_tokens
};

struct LlamaModel : DecoderModel<LlamaConfig, LlamaDecoderLayer> {
  explicit LlamaModel(const LlamaConfig& config) : DecoderModel(config, config) {}

  // [batch, seq] token ids -> [batch, seq, hidden]
  at::Tensor forward(const at::Tensor& input_ids, KeyValueCache* cache = nullptr) {
    ModuleScope scope(*this);
    at::Tensor x = embed_tokens->forward(input_ids);
    const LlamaRotaryEmbedding::Rotation rotation = rotary_emb->forward(x, cache == nullptr ? 0 : cache->length());
    CachedStep step = CachedStep::of(cache, x.size(1), x);
    for (const auto& layer : *layers) {
      x = layer->as<LlamaDecoderLayer>()->forward(x, rotation, step);
      ++step.layer;
    }
    if (cache != nullptr) cache->advance(x.size(1));
    return norm->forward(x);
  }
};

struct LlamaForCausalLM : CausalLanguageModel<LlamaConfig, LlamaModel> {
  using CausalLanguageModel::CausalLanguageModel;

  // Logits of the last token, [batch, 1, vocab], given the tokens in the cache, to which it adds `input_ids`.
  at::Tensor next(const at::Tensor& input_ids, KeyValueCache& cache) {
    ModuleScope scope(*this);
    return lm_head->forward(model->forward(input_ids, &cache).slice(/*dim=*/1, /*start=*/-1));
  }
};

BuiltModel build_llama(const LlamaConfig& config, const ModelOptions& options) {
  check_seq(options.seq, config.max_positions);
  auto llama = std::make_shared<LlamaForCausalLM>(config);
  BuiltModel built = causal_language_model(llama, config.vocab, options);
  built.cache = {.layers = config.layers,
                 .kv_heads = config.kv_heads,
                 .head_size = config.head_size(),
                 .positions = config.max_positions};
  built.next = [llama](const at::Tensor& input_ids, KeyValueCache& cache) { return llama->next(input_ids, cache); };
  return built;
}

DeepseekConfig tiny(DeepseekConfig config) {
  config.layers = 3;
  config.dense_layers = 1;
  config.heads = 4;
  config.hidden = 32;
  config.intermediate = 64;
  config.expert_intermediate = 16;
  config.experts = 8;
  config.experts_per_token = 2;
  config.groups = 4;
  config.groups_per_token = 2;
  config.query_rank = 24;
  config.value_rank = 16;
  config.plain_size = 16;
  config.rotated_size = 8;
  config.value_size = 16;
  config.vocab = 101;
  config.max_positions = 64;
  return config;
}

struct DeepseekAttention : ConfiguredModule<DeepseekConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& x, const LlamaRotaryEmbedding::Rotation& rotation) {
    ModuleScope scope(*this);
    const int64_t batch = x.size(0), seq = x.size(1);
    const auto split_heads = [&](const at::Tensor& t, int64_t size) {
      return t.view({batch, seq, -1, size}).transpose(1, 2);
    };
    const at::Tensor queries = split_heads(q_b_proj->forward(q_a_layernorm->forward(q_a_proj->forward(x))),
                                           config.plain_size + config.rotated_size);
    const auto query = queries.split_with_sizes({config.plain_size, config.rotated_size}, /*dim=*/-1);
    const auto latent =
        kv_a_proj_with_mqa->forward(x).split_with_sizes({config.value_rank, config.rotated_size}, /*dim=*/-1);
    const at::Tensor both =
        split_heads(kv_b_proj->forward(kv_a_layernorm->forward(latent[0])), config.plain_size + config.value_size);
    const auto key_value = both.split_with_sizes({config.plain_size, config.value_size}, /*dim=*/-1);
    const at::Tensor turned_key = rotate_pairs(latent[1].view({batch, 1, seq, config.rotated_size}), rotation);
    const at::Tensor q = at::cat({query[0], rotate_pairs(query[1].contiguous(), rotation)}, /*dim=*/-1);
    const at::Tensor k = at::cat({key_value[0], turned_key.expand({batch, key_value[0].size(1), seq, -1})}, /*dim=*/-1);
    const at::Tensor y =
        at::scaled_dot_product_attention(q, k, key_value[1], {}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return o_proj->forward(y.transpose(1, 2).reshape({batch, seq, -1}));
  }

  torch::nn::Linear q_a_proj = register_module("q_a_proj", projection(config.hidden, config.query_rank));
  std::shared_ptr<LlamaRMSNorm> q_a_layernorm =
      register_module("q_a_layernorm", std::make_shared<LlamaRMSNorm>(config.query_rank, config.norm_eps));
  torch::nn::Linear q_b_proj = register_module(
      "q_b_proj", projection(config.query_rank, config.heads*(config.plain_size + config.rotated_size)));
  torch::nn::Linear kv_a_proj_with_mqa =
      register_module("kv_a_proj_with_mqa", projection(config.hidden, config.value_rank + config.rotated_size));
  std::shared_ptr<LlamaRMSNorm> kv_a_layernorm =
      register_module("kv_a_layernorm", std::make_shared<LlamaRMSNorm>(config.value_rank, config.norm_eps));
  torch::nn::Linear kv_b_proj =
      register_module("kv_b_proj", projection(config.value_rank, config.heads*(config.plain_size + config.value_size)));
  torch::nn::Linear o_proj = register_module("o_proj", projection(config.heads* config.value_size, config.hidden));
};

// The selected experts of each token and their weights, both [tokens, experts_per_token].
struct DeepseekRouter : ConfiguredModule<DeepseekConfig> {
  using ConfiguredModule::ConfiguredModule;

  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    const int64_t tokens = x.size(0), of_group = config.experts / config.groups;
    const at::Tensor scores = at::linear(x.to(at::kFloat), weight.to(at::kFloat)).sigmoid();
    at::Tensor choice = scores.detach() + e_score_correction_bias.unsqueeze(0);
    const at::Tensor of_groups = std::get<0>(choice.view({tokens, config.groups, of_group}).topk(2)).sum(-1);
    const at::Tensor groups = std::get<1>(of_groups.topk(config.groups_per_token, -1, true, /*sorted=*/false));
    const at::Tensor mask = at::zeros_like(of_groups).scatter_(1, groups, 1);
    const at::Tensor each =
        mask.unsqueeze(-1).expand({tokens, config.groups, of_group}).reshape({tokens, config.experts});
    choice = choice.masked_fill(each.to(at::kBool).logical_not(), 0.0);
    const at::Tensor chosen = std::get<1>(choice.topk(config.experts_per_token, -1, true, /*sorted=*/false));
    const at::Tensor weights = scores.gather(1, chosen);
    return {chosen, weights / (weights.sum(-1, /*keepdim=*/true) + 1e-20) * config.routed_scale};
  }

  at::Tensor weight = register_parameter("weight", torch::randn({config.experts, config.hidden}) * 0.02);
  // Balances expert loads; not updated by gradients.
  at::Tensor e_score_correction_bias = register_buffer("e_score_correction_bias", torch::zeros({config.experts}));
};

struct DeepseekExperts : ConfiguredModule<DeepseekConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& x, const at::Tensor& chosen, const at::Tensor& weights) {
    ModuleScope scope(*this);
    const int64_t tokens = x.size(0), times = chosen.size(1), experts = gate_up_proj.size(0);
    const at::Tensor expert = chosen.reshape({-1});
    const at::Tensor order = expert.argsort();
    const at::Tensor back = order.argsort();
    const at::Tensor sorted = expert.index_select(0, order);
    const at::Tensor counts = at::histc(sorted.to(at::kFloat), experts, 0, static_cast<double>(experts - 1));
    const at::Tensor ends = counts.cumsum(0, at::kInt);
    const at::Tensor rows = x.index_select(0, order.floor_divide(times));
    const auto halves = at::_grouped_mm(rows, gate_up_proj.transpose(-2, -1), ends).chunk(2, /*dim=*/-1);
    const at::Tensor made = at::_grouped_mm(at::silu(halves[0]) * halves[1], down_proj.transpose(-2, -1), ends);
    const at::Tensor weight = weights.to(x.scalar_type()).reshape({-1}).index_select(0, order).unsqueeze(-1);
    return (made * weight).index_select(0, back).view({tokens, times, -1}).sum(1);
  }

  at::Tensor gate_up_proj = register_parameter(
      "gate_up_proj", torch::randn({config.experts, 2 * config.expert_intermediate, config.hidden}) * 0.02);
  at::Tensor down_proj =
      register_parameter("down_proj", torch::randn({config.experts, config.hidden, config.expert_intermediate}) * 0.02);
};

struct DeepseekMoe : ConfiguredModule<DeepseekConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    const at::Tensor tokens = x.view({-1, x.size(-1)});
    const auto [chosen, weights] = gate->forward(tokens);
    return experts->forward(tokens, chosen, weights).view(x.sizes()) + shared_experts->forward(x);
  }

  std::shared_ptr<DeepseekExperts> experts = register_module("experts", std::make_shared<DeepseekExperts>(config));
  std::shared_ptr<DeepseekRouter> gate = register_module("gate", std::make_shared<DeepseekRouter>(config));
  std::shared_ptr<LlamaMlp> shared_experts =
      register_module("shared_experts", std::make_shared<LlamaMlp>(config.hidden, config.expert_intermediate));
};

struct DeepseekLayer : torch::nn::Module {
  DeepseekLayer(const DeepseekConfig& config, int64_t index)
      : self_attn(register_module("self_attn", std::make_shared<DeepseekAttention>(config))) {
    const bool is_dense = index < config.dense_layers;
    if (is_dense) dense = register_module("mlp", std::make_shared<LlamaMlp>(config.hidden, config.intermediate));
    if (!is_dense) moe = register_module("mlp", std::make_shared<DeepseekMoe>(config));
    input_layernorm = register_module("input_layernorm", rms_norm(config));
    post_attention_layernorm = register_module("post_attention_layernorm", rms_norm(config));
  }

  at::Tensor forward(const at::Tensor& input, const LlamaRotaryEmbedding::Rotation& rotation) {
    ModuleScope scope(*this);
    const at::Tensor x = input + self_attn->forward(input_layernorm->forward(input), rotation);
    const at::Tensor normed = post_attention_layernorm->forward(x);
    return x + (dense ? dense->forward(normed) : moe->forward(normed));
  }

  std::shared_ptr<DeepseekAttention> self_attn;
  std::shared_ptr<LlamaMlp> dense;   // in the first layers, otherwise null
  std::shared_ptr<DeepseekMoe> moe;  // in the other layers
  std::shared_ptr<LlamaRMSNorm> input_layernorm, post_attention_layernorm;
};

struct DeepseekModel : DecoderModel<DeepseekConfig, DeepseekLayer> {
  explicit DeepseekModel(const DeepseekConfig& config)
      : DecoderModel(config, {.heads = 1, .hidden = config.rotated_size, .rope_theta = config.rope_theta}) {}

  at::Tensor forward(const at::Tensor& input_ids) {
    ModuleScope scope(*this);
    at::Tensor x = embed_tokens->forward(input_ids);
    const LlamaRotaryEmbedding::Rotation rotation = rotary_emb->forward(x);
    for (const auto& layer : *layers) x = layer->as<DeepseekLayer>()->forward(x, rotation);
    return norm->forward(x);
  }
};

struct DeepseekForCausalLM : CausalLanguageModel<DeepseekConfig, DeepseekModel> {
  using CausalLanguageModel::CausalLanguageModel;
};

BuiltModel build_deepseek(const DeepseekConfig& config, const ModelOptions& options) {
  check_seq(options.seq, config.max_positions);
  return causal_language_model(std::make_shared<DeepseekForCausalLM>(config), config.vocab, options);
}

}  // namespace shadowgraph::models
