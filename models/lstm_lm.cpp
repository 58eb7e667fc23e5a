#include "models/lstm_lm.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/init.h>

#include "models/batch.h"
#include "shadowgraph/capture.h"

namespace shadowgraph::models {

LstmLmConfig lstm_lm_config() { return {}; }

LstmLmConfig tiny(LstmLmConfig config) {
  config.vocab = 101;
  config.embedding = 16;
  config.hidden = 24;
  return config;
}

LstmLanguageModel::LstmLanguageModel(const LstmLmConfig& config) {
  drop = register_module("drop", torch::nn::Dropout(config.dropout));
  encoder = register_module("encoder", torch::nn::Embedding(config.vocab, config.embedding));
  rnn = register_module(
      "rnn",
      torch::nn::LSTM(
          torch::nn::LSTMOptions(config.embedding, config.hidden).num_layers(config.layers).dropout(config.dropout)));
  decoder = register_module("decoder", torch::nn::Linear(config.hidden, config.vocab));
  torch::nn::init::uniform_(encoder->weight, -0.1, 0.1);
  torch::nn::init::uniform_(decoder->weight, -0.1, 0.1);
  torch::nn::init::zeros_(decoder->bias);
}

LstmLanguageModel::Output LstmLanguageModel::forward(const at::Tensor& input_ids, const at::Tensor& hidden,
                                                     const at::Tensor& cell) {
  ModuleScope scope(*this);
  const auto [output, state] = rnn->forward(drop->forward(encoder->forward(input_ids)), std::make_tuple(hidden, cell));
  const at::Tensor decoded = decoder->forward(drop->forward(output));
  return {at::log_softmax(decoded.view({-1, decoded.size(-1)}), /*dim=*/1), std::get<0>(state), std::get<1>(state)};
}

BuiltModel build_lstm_lm(LstmLmConfig config, const ModelOptions& options) {
  config.dropout = options.dropout.value_or(config.dropout);
  auto lstm = std::make_shared<LstmLanguageModel>(config);
  BuiltModel built;
  built.module = lstm;
  const auto state = [&] {
    return torch::zeros({config.layers, options.batch, config.hidden}, at::TensorOptions().dtype(options.dtype));
  };
  built.inputs = {random_ids(config.vocab, {options.seq, options.batch}), state(), state(),
                  random_ids(config.vocab, {options.seq * options.batch})};
  built.input_names = {"input_ids", "hidden", "cell", "labels"};
  built.forward = [lstm](const BuiltModel::Tensors& inputs) {
    const LstmLanguageModel::Output output = lstm->forward(inputs[0], inputs[1], inputs[2]);
    return BuiltModel::Tensors{output.log_probabilities, output.hidden, output.cell};
  };
  built.output_names = {"log_probabilities", "hidden", "cell"};
  built.loss = [](const BuiltModel::Tensors& outputs, const BuiltModel::Tensors& inputs) {
    return at::nll_loss(outputs[0].to(at::kFloat), inputs[3]);
  };
  return built;
}

}  // namespace shadowgraph::models
