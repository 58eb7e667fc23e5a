// BERT (Devlin et al. 2018, arXiv:1810.04805) with a pooler and no task head: Hugging Face's BertModel, by its names.
// Without an attention mask: every token attends to every token, as Hugging Face does when all tokens are real.
#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "models/model.h"

namespace shadowgraph::models {

struct BertConfig {
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t hidden = 768;
  int64_t intermediate = 3072;
  int64_t vocab = 30522;
  int64_t max_positions = 512;
  int64_t token_types = 2;
  double norm_eps = 1e-12;
  double dropout = 0.1;            // hidden states
  double attention_dropout = 0.1;  // attention weights
};

BertConfig bert_base_config();
BertConfig tiny(BertConfig config);

struct BertEmbeddings : torch::nn::Module {
  explicit BertEmbeddings(const BertConfig& config);
  at::Tensor forward(const at::Tensor& input_ids);

  torch::nn::Embedding word_embeddings{nullptr}, position_embeddings{nullptr}, token_type_embeddings{nullptr};
  torch::nn::LayerNorm LayerNorm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  at::Tensor position_ids, token_type_ids;  // buffers [1, max_positions]: 0, 1, 2, ... and zeros
};

struct BertSelfAttention : torch::nn::Module {
  explicit BertSelfAttention(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x);

  int64_t heads;
  double dropout;
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr};
};

// Projection, dropout, residual and norm that close both halves of a layer: BertSelfOutput and BertOutput there.
struct BertResidualOutput : torch::nn::Module {
  BertResidualOutput(int64_t in_features, const BertConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual);

  torch::nn::Linear dense{nullptr};
  torch::nn::LayerNorm LayerNorm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

struct BertAttention : torch::nn::Module {
  explicit BertAttention(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x);

  std::shared_ptr<BertSelfAttention> self;
  std::shared_ptr<BertResidualOutput> output;
};

struct BertIntermediate : torch::nn::Module {
  explicit BertIntermediate(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear dense{nullptr};
};

struct BertLayer : torch::nn::Module {
  explicit BertLayer(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x);

  std::shared_ptr<BertAttention> attention;
  std::shared_ptr<BertIntermediate> intermediate;
  std::shared_ptr<BertResidualOutput> output;
};

struct BertEncoder : torch::nn::Module {
  explicit BertEncoder(const BertConfig& config);
  at::Tensor forward(at::Tensor x);

  torch::nn::ModuleList layer;
};

struct BertPooler : torch::nn::Module {
  explicit BertPooler(const BertConfig& config);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear dense{nullptr};
};

struct BertModel : torch::nn::Module {
  struct Output {
    at::Tensor last_hidden_state;  // [batch, seq, hidden]
    at::Tensor pooler_output;      // [batch, hidden]
  };

  explicit BertModel(const BertConfig& config);
  // [batch, seq] token ids, all of token type 0
  Output forward(const at::Tensor& input_ids);

  std::shared_ptr<BertEmbeddings> embeddings;
  std::shared_ptr<BertEncoder> encoder;
  std::shared_ptr<BertPooler> pooler;
};

// The model has no head of its own. So the loss takes the features of the pooler's output for classes and scores them
// against one label a sequence. The gradient enters where that of a sequence classifier does.
BuiltModel build_bert(BertConfig config, const ModelOptions& options);

}  // namespace shadowgraph::models
