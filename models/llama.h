// Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783) with its language-model head: Hugging Face's LlamaForCausalLM, by
// its names. Norms compute in float32, keys and values are repeated for grouped-query
// attention before scaled_dot_product_attention, as there.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "models/key_value_cache.h"
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

}  // namespace shadowgraph::models
