#include "models/language_models.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/nn/init.h>

#include <cmath>

#include "shadowgraph/capture/capture.h"

namespace shadowgraph::models {

BertConfig tiny(BertConfig config) {
  config.layers = 2;
  config.heads = 2;
  config.hidden = 32;
  config.intermediate = 64;
  config.vocab = 101;
  config.max_positions = 32;
  return config;
}

struct BertEmbeddings : ConfiguredModule<BertConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& input_ids) {
    ModuleScope scope(*this);
    const int64_t seq = input_ids.size(1);
    const at::Tensor types = token_type_ids.slice(/*dim=*/1, 0, seq).expand_as(input_ids);
    at::Tensor x = word_embeddings->forward(input_ids) + token_type_embeddings->forward(types);
    x = x + position_embeddings->forward(position_ids.slice(/*dim=*/1, 0, seq));
    return dropout->forward(LayerNorm->forward(x));
  }

  torch::nn::Embedding word_embeddings = register_module(
      "word_embeddings", torch::nn::Embedding(torch::nn::EmbeddingOptions(config.vocab, config.hidden).padding_idx(0)));
  torch::nn::Embedding position_embeddings =
      register_module("position_embeddings", torch::nn::Embedding(config.max_positions, config.hidden));
  torch::nn::Embedding token_type_embeddings =
      register_module("token_type_embeddings", torch::nn::Embedding(config.token_types, config.hidden));
  torch::nn::LayerNorm LayerNorm = register_module("LayerNorm", layer_norm(config.hidden, config.norm_eps));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(config.dropout));
  at::Tensor position_ids =
      register_buffer("position_ids", torch::arange(config.max_positions, at::kLong).unsqueeze(0));
  at::Tensor token_type_ids = register_buffer("token_type_ids", torch::zeros({1, config.max_positions}, at::kLong));
};

at::Tensor BertSelfAttention::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  const int64_t batch = x.size(0), seq = x.size(1), hidden = x.size(2);
  const auto split_heads = [&](const at::Tensor& t) {
    return t.view({batch, seq, config.heads, hidden / config.heads}).transpose(1, 2);
  };
  const at::Tensor y = at::scaled_dot_product_attention(split_heads(query->forward(x)), split_heads(key->forward(x)),
                                                        split_heads(value->forward(x)), /*attn_mask=*/{},
                                                        /*dropout_p=*/is_training() ? config.attention_dropout : 0.0);
  return y.transpose(1, 2).reshape({batch, seq, hidden});
}

// The end of both halves of a layer: BertSelfOutput and BertOutput in Hugging Face.
struct BertResidualOutput : torch::nn::Module {
  BertResidualOutput(int64_t in_features, const BertConfig& config)
      : dense(register_module("dense", torch::nn::Linear(in_features, config.hidden))),
        LayerNorm(register_module("LayerNorm", layer_norm(config.hidden, config.norm_eps))),
        dropout(register_module("dropout", torch::nn::Dropout(config.dropout))) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual) {
    ModuleScope scope(*this);
    return LayerNorm->forward(dropout->forward(dense->forward(x)) + residual);
  }

  torch::nn::Linear dense;
  torch::nn::LayerNorm LayerNorm;
  torch::nn::Dropout dropout;
};

struct BertAttention : ConfiguredModule<BertConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return output->forward(self->forward(x), x);
  }

  std::shared_ptr<BertSelfAttention> self = register_module("self", std::make_shared<BertSelfAttention>(config));
  std::shared_ptr<BertResidualOutput> output =
      register_module("output", std::make_shared<BertResidualOutput>(config.hidden, config));
};

struct BertIntermediate : ConfiguredModule<BertConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return at::gelu(dense->forward(x));
  }

  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(config.hidden, config.intermediate));
};

struct BertLayer : ConfiguredModule<BertConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    const at::Tensor attended = attention->forward(x);
    return output->forward(intermediate->forward(attended), attended);
  }

  std::shared_ptr<BertAttention> attention = register_module("attention", std::make_shared<BertAttention>(config));
  std::shared_ptr<BertIntermediate> intermediate =
      register_module("intermediate", std::make_shared<BertIntermediate>(config));
  std::shared_ptr<BertResidualOutput> output =
      register_module("output", std::make_shared<BertResidualOutput>(config.intermediate, config));
};

struct BertEncoder : ConfiguredModule<BertConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(at::Tensor x) {
    ModuleScope scope(*this);
    for (const auto& module : *layer) x = module->as<BertLayer>()->forward(x);
    return x;
  }

  torch::nn::ModuleList layer = register_module("layer", layers_of<BertLayer>(config));
};

struct BertPooler : ConfiguredModule<BertConfig> {
  using ConfiguredModule::ConfiguredModule;

  at::Tensor forward(const at::Tensor& x) {
    ModuleScope scope(*this);
    return at::tanh(dense->forward(x.select(/*dim=*/1, /*index=*/0)));
  }

  torch::nn::Linear dense = register_module("dense", torch::nn::Linear(config.hidden, config.hidden));
};

struct BertModel : ConfiguredModule<BertConfig> {
  struct Output {
    at::Tensor last_hidden_state;  // [batch, seq, hidden]
    at::Tensor pooler_output;      // [batch, hidden]
  };

  explicit BertModel(const BertConfig& config) : ConfiguredModule(config) { normal_linear_and_embedding_(*this, 0.02); }

  // [batch, seq] token ids, all of token type 0
  Output forward(const at::Tensor& input_ids) {
    ModuleScope scope(*this);
    const at::Tensor hidden = encoder->forward(embeddings->forward(input_ids));
    return {hidden, pooler->forward(hidden)};
  }

  std::shared_ptr<BertEmbeddings> embeddings = register_module("embeddings", std::make_shared<BertEmbeddings>(config));
  std::shared_ptr<BertEncoder> encoder = register_module("encoder", std::make_shared<BertEncoder>(config));
  std::shared_ptr<BertPooler> pooler = register_module("pooler", std::make_shared<BertPooler>(config));
};

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

Gpt2Config tiny(Gpt2Config config) {
  config.layers = 2;
  config.heads = 2;
  config.hidden = 32;
  config.vocab = 101;
  config.max_positions = 32;
  return config;
}

// Layers that write to the residual stream, two per block, are initialized smaller the more blocks there are.
double Gpt2Config::residual_deviation() const { return 0.02 / std::sqrt(2.0 * static_cast<double>(layers)); }

Conv1D::Conv1D(int64_t in_features, int64_t out_features, double deviation)
    : weight(register_parameter("weight", torch::empty({in_features, out_features}))),
      bias(register_parameter("bias", torch::zeros({out_features}))) {
  torch::nn::init::normal_(weight, 0, deviation);
}

at::Tensor Conv1D::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = weight.size(1);
  return at::addmm(bias, x.view({-1, x.size(-1)}), weight).view(sizes);
}

at::Tensor Gpt2Attention::forward(const at::Tensor& x, const CachedStep& step) {
  ModuleScope scope(*this);
  const int64_t batch = x.size(0), seq = x.size(1), hidden = x.size(2);
  const auto split_heads = [&](const at::Tensor& t) {
    return t.view({batch, seq, config.heads, hidden / config.heads}).transpose(1, 2);
  };
  const auto qkv = c_attn->forward(x).split(hidden, /*dim=*/2);
  const auto [keys, values] = step.extended(split_heads(qkv[1]), split_heads(qkv[2]));
  const at::Tensor y =
      at::scaled_dot_product_attention(split_heads(qkv[0]), keys, values, step.mask,
                                       /*dropout_p=*/is_training() ? config.attention_dropout : 0.0, step.causal);
  return resid_dropout->forward(c_proj->forward(y.transpose(1, 2).reshape({batch, seq, hidden})));
}

at::Tensor Gpt2Mlp::forward(const at::Tensor& x) {
  ModuleScope scope(*this);
  const at::Tensor inner = c_fc->forward(x);
  return dropout->forward(c_proj->forward(at::gelu(inner, "tanh")));
}

at::Tensor Gpt2Block::forward(const at::Tensor& input, const CachedStep& step) {
  ModuleScope scope(*this);
  const at::Tensor x = attn->forward(ln_1->forward(input), step) + input;
  return x + mlp->forward(ln_2->forward(x));
}

struct Gpt2Model : ConfiguredModule<Gpt2Config> {
  explicit Gpt2Model(const Gpt2Config& config) : ConfiguredModule(config) {
    normal_linear_and_embedding_(*this, 0.02);
    h = register_module("h", layers_of<Gpt2Block>(config));
    ln_f = register_module("ln_f", layer_norm(config.hidden, config.norm_eps));
  }

  // [batch, seq] token ids -> [batch, seq, hidden]
  at::Tensor forward(const at::Tensor& input_ids, KeyValueCache* cache = nullptr) {
    ModuleScope scope(*this);
    const int64_t tokens = input_ids.size(1), past = cache == nullptr ? 0 : cache->length();
    const at::Tensor positions = (past == 0 ? torch::arange(tokens, input_ids.options())
                                            : torch::arange(past, past + tokens, input_ids.options()))
                                     .unsqueeze(0);
    at::Tensor x = drop->forward(wte->forward(input_ids) + wpe->forward(positions));
    CachedStep step = CachedStep::of(cache, tokens, x);
    for (const auto& block : *h) {
      x = block->as<Gpt2Block>()->forward(x, step);
      ++step.layer;
    }
    if (cache != nullptr) cache->advance(tokens);
    return ln_f->forward(x);
  }

  torch::nn::Embedding wte = register_module("wte", torch::nn::Embedding(config.vocab, config.hidden));
  torch::nn::Embedding wpe = register_module("wpe", torch::nn::Embedding(config.max_positions, config.hidden));
  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(config.dropout));
  torch::nn::ModuleList h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
};

// A projection without bias whose weight belongs to another module, here the token embedding. It does not register the
// weight, so the shared one is counted, named and updated once; torch::nn::Module does not remove duplicates.
struct TiedLinear : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight) {
    ModuleScope scope(*this);
    return at::linear(x, weight);
  }
};

struct Gpt2LMHeadModel : ConfiguredModule<Gpt2Config> {
  using ConfiguredModule::ConfiguredModule;

  // [batch, seq] token ids -> logits [batch, seq, vocab]
  at::Tensor forward(const at::Tensor& input_ids) {
    ModuleScope scope(*this);
    return lm_head->forward(transformer->forward(input_ids), transformer->wte->weight);
  }

  // Logits of the last token, [batch, 1, vocab], given the tokens in the cache, to which it adds `input_ids`.
  at::Tensor next(const at::Tensor& input_ids, KeyValueCache& cache) {
    ModuleScope scope(*this);
    const at::Tensor last = transformer->forward(input_ids, &cache).slice(/*dim=*/1, /*start=*/-1);
    return lm_head->forward(last, transformer->wte->weight);
  }

  std::shared_ptr<Gpt2Model> transformer = register_module("transformer", std::make_shared<Gpt2Model>(config));
  std::shared_ptr<TiedLinear> lm_head = register_module("lm_head", std::make_shared<TiedLinear>());
};

BuiltModel build_gpt2(Gpt2Config config, const ModelOptions& options) {
  check_seq(options.seq, config.max_positions);
  config.dropout = options.dropout.value_or(config.dropout);
  config.attention_dropout = options.dropout.value_or(config.attention_dropout);
  auto gpt2 = std::make_shared<Gpt2LMHeadModel>(config);
  BuiltModel built = causal_language_model(gpt2, config.vocab, options);
  built.cache = {.layers = config.layers,
                 .kv_heads = config.heads,
                 .head_size = config.hidden / config.heads,
                 .positions = config.max_positions,
                 .positions_limit = true};
  built.next = [gpt2](const at::Tensor& input_ids, KeyValueCache& cache) { return gpt2->next(input_ids, cache); };
  return built;
}

LstmLmConfig tiny(LstmLmConfig config) {
  config.vocab = 101;
  config.embedding = 16;
  config.hidden = 24;
  return config;
}

struct LstmLanguageModel : ConfiguredModule<LstmLmConfig> {
  struct Output {
    at::Tensor log_probabilities;  // [seq * batch, vocab]
    at::Tensor hidden, cell;       // hidden, cell: [layers, batch, hidden], for the next segment of text
  };

  explicit LstmLanguageModel(const LstmLmConfig& config) : ConfiguredModule(config) {
    torch::nn::init::uniform_(encoder->weight, -0.1, 0.1);
    torch::nn::init::uniform_(decoder->weight, -0.1, 0.1);
    torch::nn::init::zeros_(decoder->bias);
  }

  Output forward(const at::Tensor& input_ids, const at::Tensor& hidden, const at::Tensor& cell) {
    ModuleScope scope(*this);
    const auto [output, state] =
        rnn->forward(drop->forward(encoder->forward(input_ids)), std::make_tuple(hidden, cell));
    const at::Tensor decoded = decoder->forward(drop->forward(output));
    return {at::log_softmax(decoded.view({-1, decoded.size(-1)}), /*dim=*/1), std::get<0>(state), std::get<1>(state)};
  }

  torch::nn::Dropout drop = register_module("drop", torch::nn::Dropout(config.dropout));
  torch::nn::Embedding encoder = register_module("encoder", torch::nn::Embedding(config.vocab, config.embedding));
  torch::nn::LSTM rnn = register_module(
      "rnn",
      torch::nn::LSTM(
          torch::nn::LSTMOptions(config.embedding, config.hidden).num_layers(config.layers).dropout(config.dropout)));
  torch::nn::Linear decoder = register_module("decoder", torch::nn::Linear(config.hidden, config.vocab));
};

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
