// GPT-2 (Radford et al. 2019) with its language-model head: Hugging Face's GPT2LMHeadModel, by its names. It differs
// from that in two places that change memory but no result. gelu_new is one fused operator unless the config says
// otherwise. The causal mask, unused with scaled_dot_product_attention, is not kept as a buffer in every layer.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "models/key_value_cache.h"
#include "models/model.h"

namespace shadowgraph::models {

struct Gpt2Config {
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t hidden = 768;
  int64_t vocab = 50257;
  int64_t max_positions = 1024;
  double norm_eps = 1e-5;
  double dropout = 0.1;            // embeddings and residual branches
  double attention_dropout = 0.1;  // attention weights
  bool fused_gelu = true;          // false: gelu_new as Hugging Face spells it, eight operators
};

Gpt2Config gpt2_config();
Gpt2Config gpt2_medium_config();
Gpt2Config gpt2_large_config();
Gpt2Config gpt2_xl_config();
Gpt2Config tiny(Gpt2Config config);

// A linear layer that keeps its weight as [in, out], the layout of the published checkpoints.
struct Conv1D : torch::nn::Module {
  Conv1D(int64_t in_features, int64_t out_features, double deviation = 0.02);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;
};

struct Gpt2Attention : torch::nn::Module {
  explicit Gpt2Attention(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x, const CachedStep& step = {});

  int64_t heads;
  double dropout;
  std::shared_ptr<Conv1D> c_attn, c_proj;
  torch::nn::Dropout resid_dropout{nullptr};
};

struct Gpt2Mlp : torch::nn::Module {
  explicit Gpt2Mlp(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x);

  bool fused_gelu;
  std::shared_ptr<Conv1D> c_fc, c_proj;
  torch::nn::Dropout dropout{nullptr};
};

struct Gpt2Block : torch::nn::Module {
  explicit Gpt2Block(const Gpt2Config& config);
  at::Tensor forward(const at::Tensor& x, const CachedStep& step = {});

  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  std::shared_ptr<Gpt2Attention> attn;
  std::shared_ptr<Gpt2Mlp> mlp;
};

struct Gpt2Model : torch::nn::Module {
  explicit Gpt2Model(const Gpt2Config& config);
  // [batch, seq] token ids -> [batch, seq, hidden]
  at::Tensor forward(const at::Tensor& input_ids, KeyValueCache* cache = nullptr);

  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::Dropout drop{nullptr};
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f{nullptr};
};

// A projection without bias whose weight is the parameter of another module, here the token embedding. It registers
// none, so the shared one is counted, named and updated once; torch::nn::Module does not remove duplicates.
struct TiedLinear : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight);
};

struct Gpt2LMHeadModel : torch::nn::Module {
  explicit Gpt2LMHeadModel(const Gpt2Config& config);
  // [batch, seq] token ids -> logits [batch, seq, vocab]
  at::Tensor forward(const at::Tensor& input_ids);
  // After the tokens in the cache, which takes these in: logits of the last, [batch, 1, vocab].
  at::Tensor next(const at::Tensor& input_ids, KeyValueCache& cache);

  std::shared_ptr<Gpt2Model> transformer;
  std::shared_ptr<TiedLinear> lm_head;
};

BuiltModel build_gpt2(Gpt2Config config, const ModelOptions& options);

}  // namespace shadowgraph::models
