// Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783) with its language-model head: Hugging Face's LlamaForCausalLM, by
// its names. Norms compute in float32, keys and values are repeated for grouped-query
// attention before scaled_dot_product_attention, as there.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "models/model.h"

namespace shadowgraph::models {

struct LlamaConfig {
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t kv_heads = 8;  // must divide heads
  int64_t hidden = 4096;
  int64_t intermediate = 14336;
  int64_t vocab = 128256;
  int64_t max_positions = 131072;  // Llama 3.1; there is no table of them
  double rope_theta = 500000.0;
  double norm_eps = 1e-5;

  int64_t head_size() const { return hidden / heads; }
};

LlamaConfig llama3_8b_config();
LlamaConfig llama3_70b_config();
LlamaConfig llama3_405b_config();
LlamaConfig tiny(LlamaConfig config);

struct LlamaRMSNorm : torch::nn::Module {
  LlamaRMSNorm(int64_t hidden, double eps);
  at::Tensor forward(const at::Tensor& x);

  double eps;
  at::Tensor weight;
};

// The angles of the rotary position embedding (Su et al. 2021, arXiv:2104.09864).
struct LlamaRotaryEmbedding : torch::nn::Module {
  struct Rotation {
    at::Tensor cos, sin;  // [1, 1, seq, head_size]
  };

  explicit LlamaRotaryEmbedding(const LlamaConfig& config);
  // Takes sequence length, device and dtype of the result from `x` [batch, seq, hidden]; computes in float32. Positions
  // count from `past`.
  Rotation forward(const at::Tensor& x, int64_t past = 0);

  at::Tensor inv_freq;  // buffer [head_size / 2], float32 whatever the dtype of the model
};

struct LlamaAttention : torch::nn::Module {
  explicit LlamaAttention(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x, const LlamaRotaryEmbedding::Rotation& rotation, const CachedStep& step = {});

  int64_t head_size, queries_per_kv;
  torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, o_proj{nullptr};
};

// SwiGLU (Shazeer 2020, arXiv:2002.05202).
struct LlamaMlp : torch::nn::Module {
  explicit LlamaMlp(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear gate_proj{nullptr}, up_proj{nullptr}, down_proj{nullptr};
};

struct LlamaDecoderLayer : torch::nn::Module {
  explicit LlamaDecoderLayer(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x, const LlamaRotaryEmbedding::Rotation& rotation, const CachedStep& step = {});

  std::shared_ptr<LlamaAttention> self_attn;
  std::shared_ptr<LlamaMlp> mlp;
  std::shared_ptr<LlamaRMSNorm> input_layernorm, post_attention_layernorm;
};

struct LlamaModel : torch::nn::Module {
  explicit LlamaModel(const LlamaConfig& config);
  // [batch, seq] token ids -> [batch, seq, hidden]
  at::Tensor forward(const at::Tensor& input_ids, KeyValueCache* cache = nullptr);

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers;
  std::shared_ptr<LlamaRMSNorm> norm;
  std::shared_ptr<LlamaRotaryEmbedding> rotary_emb;
};

struct LlamaForCausalLM : torch::nn::Module {
  explicit LlamaForCausalLM(const LlamaConfig& config);
  // [batch, seq] token ids -> logits [batch, seq, vocab]
  at::Tensor forward(const at::Tensor& input_ids);
  // After the tokens in the cache, which takes these in: logits of the last, [batch, 1, vocab].
  at::Tensor next(const at::Tensor& input_ids, KeyValueCache& cache);

  std::shared_ptr<LlamaModel> model;
  torch::nn::Linear lm_head{nullptr};  // not tied to embed_tokens
};

// ModelOptions::dropout has no effect: the architecture has none.
BuiltModel build_llama(const LlamaConfig& config, const ModelOptions& options);

// DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437) with its language-model head: Hugging Face's
// DeepseekV3ForCausalLM, by its names. Attention is latent; most layers have experts, the first ones do not. The module
// that predicts a second token is left out, as there.
//
// Tokens are sorted by their experts, whose rows go through grouped products: transformers' experts implementation
// "grouped_mm". How many rows an expert has, data decides; their sum does not depend on it. Unlike there, what experts
// make is weighted in the model's own dtype.

struct DeepseekConfig {
  int64_t layers = 61;
  int64_t dense_layers = 3;  // the first ones, without experts
  int64_t heads = 128;
  int64_t hidden = 7168;
  int64_t intermediate = 18432;  // of dense layers
  int64_t expert_intermediate = 2048;
  int64_t experts = 256;
  int64_t experts_per_token = 8;
  int64_t groups = 8;            // of experts
  int64_t groups_per_token = 4;  // that a token's experts come from
  double routed_scale = 2.5;
  int64_t query_rank = 1536, value_rank = 512;  // of latent queries, and of latent keys and values
  int64_t plain_size = 128, rotated_size = 64;  // parts of a query's and a key's head
  int64_t value_size = 128;                     // of a value's head
  int64_t vocab = 129280;
  int64_t max_positions = 163840;
  double rope_theta = 10000.0;
  double norm_eps = 1e-6;
};

DeepseekConfig deepseek_v3_config();
DeepseekConfig tiny(DeepseekConfig config);

struct DeepseekAttention : torch::nn::Module {
  explicit DeepseekAttention(const DeepseekConfig& config);
  at::Tensor forward(const at::Tensor& x, const LlamaRotaryEmbedding::Rotation& rotation);

  DeepseekConfig config;
  torch::nn::Linear q_a_proj{nullptr}, q_b_proj{nullptr}, kv_a_proj_with_mqa{nullptr}, kv_b_proj{nullptr},
      o_proj{nullptr};
  std::shared_ptr<LlamaRMSNorm> q_a_layernorm, kv_a_layernorm;
};

// Which experts a token goes to, and how much each counts. Both [tokens, experts_per_token].
struct DeepseekRouter : torch::nn::Module {
  explicit DeepseekRouter(const DeepseekConfig& config);
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x);

  DeepseekConfig config;
  at::Tensor weight;
  at::Tensor e_score_correction_bias;  // buffer: balances loads, untouched by gradients
};

struct DeepseekExperts : torch::nn::Module {
  explicit DeepseekExperts(const DeepseekConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& chosen, const at::Tensor& weights);

  at::Tensor gate_up_proj;  // [experts, 2 expert_intermediate, hidden]
  at::Tensor down_proj;     // [experts, hidden, expert_intermediate]
};

struct DeepseekMoe : torch::nn::Module {
  explicit DeepseekMoe(const DeepseekConfig& config);
  at::Tensor forward(const at::Tensor& x);

  std::shared_ptr<DeepseekRouter> gate;
  std::shared_ptr<DeepseekExperts> experts;
  std::shared_ptr<LlamaMlp> shared_experts;
};

struct DeepseekLayer : torch::nn::Module {
  DeepseekLayer(const DeepseekConfig& config, bool dense);
  at::Tensor forward(const at::Tensor& x, const LlamaRotaryEmbedding::Rotation& rotation);

  std::shared_ptr<DeepseekAttention> self_attn;
  std::shared_ptr<LlamaMlp> dense;   // one of both
  std::shared_ptr<DeepseekMoe> moe;  //
  std::shared_ptr<LlamaRMSNorm> input_layernorm, post_attention_layernorm;
};

struct DeepseekModel : torch::nn::Module {
  explicit DeepseekModel(const DeepseekConfig& config);
  at::Tensor forward(const at::Tensor& input_ids);

  torch::nn::Embedding embed_tokens{nullptr};
  torch::nn::ModuleList layers;
  std::shared_ptr<LlamaRMSNorm> norm;
  std::shared_ptr<LlamaRotaryEmbedding> rotary_emb;
};

struct DeepseekForCausalLM : torch::nn::Module {
  explicit DeepseekForCausalLM(const DeepseekConfig& config);
  // [batch, seq] token ids -> logits [batch, seq, vocab]
  at::Tensor forward(const at::Tensor& input_ids);

  std::shared_ptr<DeepseekModel> model;
  torch::nn::Linear lm_head{nullptr};
};

// ModelOptions::dropout has no effect: the architecture has none.
BuiltModel build_deepseek(const DeepseekConfig& config, const ModelOptions& options);

}  // namespace shadowgraph::models
