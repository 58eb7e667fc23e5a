// BERT (Devlin et al. 2018, arXiv:1810.04805) with a pooler and no task head: Hugging Face's BertModel, with its names.
// Without an attention mask: every token attends to every token, as in Hugging Face without padding.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include "models/batch.h"

namespace shadowgraph::models {

struct BertConfig {
  int64_t layers = 12, heads = 12, hidden = 768, intermediate = 3072, vocab = 30522, max_positions = 512;
  int64_t token_types = 2;
  double norm_eps = 1e-12;
  double dropout = 0.1;            // hidden states
  double attention_dropout = 0.1;  // attention weights
};

BertConfig tiny(BertConfig config);

struct BertSelfAttention : ConfiguredModule<BertConfig> {
  using ConfiguredModule::ConfiguredModule;
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear query = register_module("query", torch::nn::Linear(config.hidden, config.hidden));
  torch::nn::Linear key = register_module("key", torch::nn::Linear(config.hidden, config.hidden));
  torch::nn::Linear value = register_module("value", torch::nn::Linear(config.hidden, config.hidden));
};

// BertModel has no head, so the loss uses the pooler's output as class scores, with one label per sequence.
BuiltModel build_bert(BertConfig config, const ModelOptions& options);

// GPT-2 (Radford et al. 2019) with its language-model head: Hugging Face's GPT2LMHeadModel, with its names. Two
// differences change memory but no result: gelu_new is one fused operator instead of eight, and the
// causal mask, which scaled_dot_product_attention does not use, is not stored in every layer.
struct Gpt2Config {
  int64_t layers = 12, heads = 12, hidden = 768, vocab = 50257, max_positions = 1024;
  double norm_eps = 1e-5;
  double dropout = 0.1;            // embeddings and residual branches
  double attention_dropout = 0.1;  // attention weights

  double residual_deviation() const;
};

Gpt2Config tiny(Gpt2Config config);

// A linear layer that keeps its weight as [in, out], the layout of the published checkpoints.
struct Conv1D : torch::nn::Module {
  Conv1D(int64_t in_features, int64_t out_features, double deviation = 0.02);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;
};

struct Gpt2Attention : ConfiguredModule<Gpt2Config> {
  using ConfiguredModule::ConfiguredModule;
  at::Tensor forward(const at::Tensor& x, const CachedStep& step = {});

  std::shared_ptr<Conv1D> c_attn =
      register_module("c_attn", std::make_shared<Conv1D>(config.hidden, 3 * config.hidden));
  std::shared_ptr<Conv1D> c_proj =
      register_module("c_proj", std::make_shared<Conv1D>(config.hidden, config.hidden, config.residual_deviation()));
  torch::nn::Dropout resid_dropout = register_module("resid_dropout", torch::nn::Dropout(config.dropout));
};

struct Gpt2Mlp : ConfiguredModule<Gpt2Config> {
  using ConfiguredModule::ConfiguredModule;
  at::Tensor forward(const at::Tensor& x);

  std::shared_ptr<Conv1D> c_fc = register_module("c_fc", std::make_shared<Conv1D>(config.hidden, 4 * config.hidden));
  std::shared_ptr<Conv1D> c_proj = register_module(
      "c_proj", std::make_shared<Conv1D>(4 * config.hidden, config.hidden, config.residual_deviation()));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
};

struct Gpt2Block : ConfiguredModule<Gpt2Config> {
  using ConfiguredModule::ConfiguredModule;
  at::Tensor forward(const at::Tensor& x, const CachedStep& step = {});

  torch::nn::LayerNorm ln_1 = register_module("ln_1", layer_norm(config.hidden, config.norm_eps));
  std::shared_ptr<Gpt2Attention> attn = register_module("attn", std::make_shared<Gpt2Attention>(config));
  torch::nn::LayerNorm ln_2 = register_module("ln_2", layer_norm(config.hidden, config.norm_eps));
  std::shared_ptr<Gpt2Mlp> mlp = register_module("mlp", std::make_shared<Gpt2Mlp>(config));
};

BuiltModel build_gpt2(Gpt2Config config, const ModelOptions& options);

// The LSTM language model of PyTorch's word_language_model example (RNNModel), with its defaults on WikiText-2.
// Time-major: token ids are [seq, batch].
struct LstmLmConfig {
  int64_t vocab = 33278, embedding = 200, hidden = 200, layers = 2;
  double dropout = 0.2;  // after the embedding, between layers and before the decoder
};

LstmLmConfig tiny(LstmLmConfig config);

BuiltModel build_lstm_lm(LstmLmConfig config, const ModelOptions& options);

}  // namespace shadowgraph::models
