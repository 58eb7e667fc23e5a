// The LSTM language model of PyTorch's word_language_model example (RNNModel), at its defaults on WikiText-2.
// Time-major, as there: token ids are [seq, batch].
#pragma once

#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "models/model.h"

namespace shadowgraph::models {

struct LstmLmConfig {
  int64_t vocab = 33278;
  int64_t embedding = 200;
  int64_t hidden = 200;
  int64_t layers = 2;
  double dropout = 0.2;  // after the embedding, between layers and before the decoder
};

LstmLmConfig lstm_lm_config();
LstmLmConfig tiny(LstmLmConfig config);

struct LstmLanguageModel : torch::nn::Module {
  struct Output {
    at::Tensor log_probabilities;  // [seq * batch, vocab]
    at::Tensor hidden, cell;       // [layers, batch, hidden], for the next stretch of text
  };

  explicit LstmLanguageModel(const LstmLmConfig& config);
  Output forward(const at::Tensor& input_ids, const at::Tensor& hidden, const at::Tensor& cell);

  torch::nn::Dropout drop{nullptr};
  torch::nn::Embedding encoder{nullptr};
  torch::nn::LSTM rnn{nullptr};
  torch::nn::Linear decoder{nullptr};
};

BuiltModel build_lstm_lm(LstmLmConfig config, const ModelOptions& options);

}  // namespace shadowgraph::models
