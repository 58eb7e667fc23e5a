#include "models/bert.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "models/batch.h"
#include "models/initialization.h"
#include "shadowgraph/capture.h"

namespace shadowgraph::models {

namespace {

torch::nn::LayerNorm layer_norm(const BertConfig& config) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.hidden}).eps(config.norm_eps));
}

}  // namespace

BertConfig bert_base_config() { return {}; }

BertConfig tiny(BertConfig config) {
  config.layers = 2;
  config.heads = 2;
  config.hidden = 32;
  config.intermediate = 64;
  config.vocab = 101;
  config.max_positions = 32;
  return config;
}

BertEmbeddings::BertEmbeddings(const BertConfig& config) {
  word_embeddings = register_module(
      "word_embeddings", torch::nn::Embedding(torch::nn::EmbeddingOptions(config.vocab, config.hidden).padding_idx(0)));
  position_embeddings =
      register_module("position_embeddings", torch::nn::Embedding(config.max_positions, config.hidden));
  token_type_embeddings =
      register_module("token_type_embeddings", torch::nn::Embedding(config.token_types, config.hidden));
  LayerNorm = register_module("LayerNorm", layer_norm(config));
  dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
  const auto ids = at::TensorOptions().dtype(at::kLong);
  position_ids = register_buffer("position_ids", torch::arange(config.max_positions, ids).unsqueeze(0));
  token_type_ids = register_buffer("token_type_ids", torch::zeros({1, config.max_positions}, ids));
}

at::Tensor BertEmbeddings::forward(const at::Tensor& input_ids) {
  ModuleScope scope(*this);
  const int64_t seq = input_ids.size(1);
  const at::Tensor types = token_type_ids.slice(/*dim=*/1, 0, seq).expand_as(input_ids);
  at::Tensor x = word_embeddings->forward(input_ids) + token_type_embeddings->forward(types);
  x = x + position_embeddings->forward(position_ids.slice(/*dim=*/1, 0, seq));
  return dropout->forward(LayerNorm->forward(x));
}

BertSelfAttention::BertSelfAttention(const BertConfig& config)
    : heads(config.heads), dropout(config.attention_dropout) {
  query = register_module("query", torch::nn::Linear(config.hidden, config.hidden));
  key = register_module("key", torch::nn::Linear(config.hidden, config.hidden));
  value = register_module("value", torch::nn::Linear(config.hidden, config.hidden));
}

at::Tensor BertSelfAttention::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  const int64_t batch = x.size(0), seq = x.size(1), hidden = x.size(2);
  const auto split_heads = [&](const at::Tensor& t) {
    return t.view({batch, seq, heads, hidden / heads}).transpose(1, 2);
  };
  const at::Tensor y = at::scaled_dot_product_attention(split_heads(query->forward(x)), split_heads(key->forward(x)),
                                                        split_heads(value->forward(x)),
                                                        /*attn_mask=*/{}, /*dropout_p=*/is_training() ? dropout : 0.0);
  return y.transpose(1, 2).reshape({batch, seq, hidden});
}

BertResidualOutput::BertResidualOutput(int64_t in_features, const BertConfig& config) {
  dense = register_module("dense", torch::nn::Linear(in_features, config.hidden));
  LayerNorm = register_module("LayerNorm", layer_norm(config));
  dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
}

at::Tensor BertResidualOutput::forward(const at::Tensor& x, const at::Tensor& residual) {
  ModuleScope scope(*this);
  return LayerNorm->forward(dropout->forward(dense->forward(x)) + residual);
}

BertAttention::BertAttention(const BertConfig& config) {
  self = register_module("self", std::make_shared<BertSelfAttention>(config));
  output = register_module("output", std::make_shared<BertResidualOutput>(config.hidden, config));
}

at::Tensor BertAttention::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  return output->forward(self->forward(x), x);
}

BertIntermediate::BertIntermediate(const BertConfig& config) {
  dense = register_module("dense", torch::nn::Linear(config.hidden, config.intermediate));
}

at::Tensor BertIntermediate::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  return at::gelu(dense->forward(x));
}

BertLayer::BertLayer(const BertConfig& config) {
  attention = register_module("attention", std::make_shared<BertAttention>(config));
  intermediate = register_module("intermediate", std::make_shared<BertIntermediate>(config));
  output = register_module("output", std::make_shared<BertResidualOutput>(config.intermediate, config));
}

at::Tensor BertLayer::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  const at::Tensor attended = attention->forward(x);
  return output->forward(intermediate->forward(attended), attended);
}

BertEncoder::BertEncoder(const BertConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i) {
    layer->push_back(std::make_shared<BertLayer>(config));
  }
  register_module("layer", layer);
}

at::Tensor BertEncoder::forward(at::Tensor x) {
  ModuleScope scope(*this);
  for (const auto& module : *layer) {
    x = module->as<BertLayer>()->forward(x);
  }
  return x;
}

BertPooler::BertPooler(const BertConfig& config) {
  dense = register_module("dense", torch::nn::Linear(config.hidden, config.hidden));
}

at::Tensor BertPooler::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  return at::tanh(dense->forward(x.select(/*dim=*/1, /*index=*/0)));
}

BertModel::BertModel(const BertConfig& config) {
  embeddings = register_module("embeddings", std::make_shared<BertEmbeddings>(config));
  encoder = register_module("encoder", std::make_shared<BertEncoder>(config));
  pooler = register_module("pooler", std::make_shared<BertPooler>(config));
  normal_linear_and_embedding_(*this, 0.02);
}

BertModel::Output BertModel::forward(const at::Tensor& input_ids) {
  ModuleScope scope(*this);
  const at::Tensor hidden = encoder->forward(embeddings->forward(input_ids));
  return {hidden, pooler->forward(hidden)};
}

BuiltModel build_bert(BertConfig config, const ModelOptions& options) {
  check_seq(options.seq, config.max_positions);
  config.dropout = options.dropout.value_or(config.dropout);
  config.attention_dropout = options.dropout.value_or(config.attention_dropout);
  auto bert = std::make_shared<BertModel>(config);
  BuiltModel built;
  built.module = bert;
  built.inputs = {random_ids(config.vocab, {options.batch, options.seq}), random_ids(config.hidden, {options.batch})};
  built.input_names = {"input_ids", "labels"};
  built.forward = [bert](const BuiltModel::Tensors& inputs) {
    const BertModel::Output output = bert->forward(inputs[0]);
    return BuiltModel::Tensors{output.last_hidden_state, output.pooler_output};
  };
  built.output_names = {"last_hidden_state", "pooler_output"};
  built.loss = [](const BuiltModel::Tensors& outputs, const BuiltModel::Tensors& inputs) {
    return class_loss(outputs[1], inputs[1]);
  };
  return built;
}

}  // namespace shadowgraph::models
