// Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783) with its language-model head: Hugging Face's LlamaForCausalLM,
// with its names. As there, norms compute in float32, and keys and values are repeated for grouped-query attention
// before scaled_dot_product_attention.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "models/model.h"

namespace shadowgraph::models {

struct LlamaConfig {
  int64_t layers = 32, heads = 32;
  int64_t kv_heads = 8;  // must divide heads
  int64_t hidden = 4096, intermediate = 14336, vocab = 128256;
  int64_t max_positions = 131072;  // Llama 3.1; not stored in a table
  double rope_theta = 500000.0, norm_eps = 1e-5;

  int64_t head_size() const { return hidden / heads; }
};

LlamaConfig tiny(LlamaConfig config);

// The angles of the rotary position embedding (Su et al. 2021, arXiv:2104.09864).
struct LlamaRotaryEmbedding : torch::nn::Module {
  struct Rotation {
    at::Tensor cos, sin;  // [1, 1, seq, head_size]
  };

  explicit LlamaRotaryEmbedding(const LlamaConfig& config);
  // Takes sequence length, device and dtype of the result from `x` [batch, seq, hidden]; computes in float32. Positions
  // start at `past`.
  Rotation forward(const at::Tensor& x, int64_t past = 0);

  at::Tensor inv_freq;  // buffer [head_size / 2], float32 whatever the dtype of the model
};

// ModelOptions::dropout has no effect, since the architecture has no dropout.
BuiltModel build_llama(const LlamaConfig& config, const ModelOptions& options);

// DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437) with its language-model head: Hugging Face's DeepseekV3ForCausalLM,
// with its names. Latent attention; all layers except the first ones are mixtures of experts. As there, the multi-token
// prediction module is omitted.
//
// Tokens are sorted by expert, and the experts run as grouped matrix products: transformers' experts implementation
// "grouped_mm". The number of tokens per expert depends on data, but their sum does not. Unlike there, expert outputs
// are weighted in the model's dtype.
struct DeepseekConfig {
  int64_t layers = 61;
  int64_t dense_layers = 3;  // the first layers, without experts
  int64_t heads = 128, hidden = 7168;
  int64_t intermediate = 18432;  // of dense layers
  int64_t expert_intermediate = 2048, experts = 256, experts_per_token = 8;
  int64_t groups = 8;            // of experts
  int64_t groups_per_token = 4;  // from which a token's experts are selected
  double routed_scale = 2.5;
  int64_t query_rank = 1536, value_rank = 512;  // of latent queries, and of latent keys and values
  int64_t plain_size = 128, rotated_size = 64;  // parts of a query and key head without and with rotary embedding
  int64_t value_size = 128;                     // of a value head
  int64_t vocab = 129280, max_positions = 163840;
  double rope_theta = 10000.0, norm_eps = 1e-6;
};

DeepseekConfig tiny(DeepseekConfig config);

// ModelOptions::dropout has no effect, since the architecture has no dropout.
BuiltModel build_deepseek(const DeepseekConfig& config, const ModelOptions& options);

}  // namespace shadowgraph::models
