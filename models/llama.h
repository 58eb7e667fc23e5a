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

// ModelOptions::dropout has no effect: the architecture has none.
BuiltModel build_deepseek(const DeepseekConfig& config, const ModelOptions& options);

}  // namespace shadowgraph::models
