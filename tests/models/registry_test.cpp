// Tests the model zoo on real CPU tensors, at tiny size: every model trains, has its Python original's parameter names,
// and respects its options. Parameter counts at full size are checked under fake tensors elsewhere.
#include "models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "models/language_models.h"
#include "models/llama.h"
#include "models/vision.h"

namespace shadowgraph::models {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

std::vector<std::string> state_names(const torch::nn::Module& module) {
  std::vector<std::string> names = module.named_parameters().keys();
  for (const auto& buffer : module.named_buffers()) {
    names.push_back(buffer.key());
  }
  return names;
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    count += parameter.numel();
  }
  return count;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class EveryModel : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { torch::manual_seed(7); }
};

TEST_P(EveryModel, TrainsOneStep) {
  BuiltModel model = build(GetParam(), {.tiny = true});
  ASSERT_EQ(model.inputs.size(), model.input_names.size());
  EXPECT_TRUE(model.module->is_training());

  const auto outputs = model.forward(model.inputs);
  ASSERT_EQ(outputs.size(), model.output_names.size());
  const at::Tensor loss = model.loss(outputs, model.inputs);
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_TRUE(std::isfinite(loss.item<double>()));
  loss.backward();

  for (const auto& parameter : model.module->named_parameters()) {
    SCOPED_TRACE(parameter.key());
    const at::Tensor& gradient = parameter.value().grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_TRUE(gradient.isfinite().all().item<bool>());
    EXPECT_GT(gradient.abs().max().item<double>(), 0.0);
  }
}

TEST_P(EveryModel, LearnsItsBatch) {
  BuiltModel model = build(GetParam(), {.tiny = true, .dropout = 0.0});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-2));
  double first = 0, last = 0;
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model.loss(model.forward(model.inputs), model.inputs);
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    first = step == 0 ? last : first;
  }
  EXPECT_LT(last, 0.95 * first);
}

TEST_P(EveryModel, TrainsInBfloat16) {
  BuiltModel model = build(GetParam(), {.dtype = at::kBFloat16, .tiny = true, .dropout = 0.0});
  for (const auto& parameter : model.module->named_parameters()) {
    EXPECT_EQ(parameter.value().scalar_type(), at::kBFloat16) << parameter.key();
  }
  for (const auto& buffer : model.module->named_buffers()) {
    const std::string& name = buffer.key();
    const bool integral =
        name.ends_with("num_batches_tracked") || name.ends_with("position_ids") || name.ends_with("token_type_ids");
    const auto expected = integral ? at::kLong : name.ends_with("inv_freq") ? at::kFloat : at::kBFloat16;
    EXPECT_EQ(buffer.value().scalar_type(), expected) << name;
  }
  const auto outputs = model.forward(model.inputs);
  EXPECT_EQ(outputs[0].scalar_type(), at::kBFloat16);
  const at::Tensor loss = model.loss(outputs, model.inputs);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_TRUE(std::isfinite(loss.item<double>()));
  loss.backward();
  for (const auto& parameter : model.module->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
}

TEST_P(EveryModel, IsDeterministicWithoutDropout) {
  for (const ModelOptions& options :
       {ModelOptions{.tiny = true, .dropout = 0.0}, ModelOptions{.training = false, .tiny = true, .dropout = 0.9}}) {
    BuiltModel model = build(GetParam(), options);
    EXPECT_EQ(model.module->is_training(), options.training);
    EXPECT_TRUE(torch::equal(model.forward(model.inputs)[0], model.forward(model.inputs)[0]));
  }
}

TEST_P(EveryModel, DropsOutIfAsked) {
  const std::set<std::string> without = {"resnet18",   "resnet50",    "unet",       "llama3_8b",
                                         "llama3_70b", "llama3_405b", "deepseek_v3"};
  BuiltModel model = build(GetParam(), {.tiny = true, .dropout = 0.5});
  const bool same = torch::equal(model.forward(model.inputs)[0], model.forward(model.inputs)[0]);
  EXPECT_EQ(same, without.contains(GetParam()));
}

TEST_P(EveryModel, EveryDropoutTakesTheOption) {
  BuiltModel model = build(GetParam(), {.tiny = true, .dropout = 0.25});
  for (const auto& module : model.module->modules()) {
    SCOPED_TRACE(module->name());
    if (const auto* dropout = module->as<torch::nn::Dropout>()) {
      EXPECT_EQ(dropout->options.p(), 0.25);
    } else if (const auto* lstm = module->as<torch::nn::LSTM>()) {
      EXPECT_EQ(lstm->options.dropout(), 0.25);
    } else if (const auto* packed = module->as<PackedSelfAttention>()) {
      EXPECT_EQ(packed->dropout, 0.25);
    } else if (const auto* bert = module->as<BertSelfAttention>()) {
      EXPECT_EQ(bert->config.attention_dropout, 0.25);
    } else if (const auto* gpt2 = module->as<Gpt2Attention>()) {
      EXPECT_EQ(gpt2->config.attention_dropout, 0.25);
    }
  }
}

TEST_P(EveryModel, TakesBatchAndSizeFromTheOptions) {
  const auto info =
      std::find_if(available().begin(), available().end(), [](const auto& i) { return i.name == GetParam(); });
  ModelOptions options{.batch = 3, .tiny = true};
  std::vector<int64_t> expected;
  if (info->default_seq != 0) {
    options.seq = 9;
    expected = GetParam() == "lstm_lm" ? std::vector<int64_t>{9, 3} : std::vector<int64_t>{3, 9};
  } else {
    options.image_size = 48;
    expected = {3, 3, 48, 48};
  }
  BuiltModel model = build(GetParam(), options);
  EXPECT_EQ(model.inputs[0].sizes().vec(), expected);
  EXPECT_TRUE(model.loss(model.forward(model.inputs), model.inputs).isfinite().item<bool>());
}

TEST_P(EveryModel, ComposedModulesHaveReadableClassNames) {
  BuiltModel model = build(GetParam(), {.tiny = true});
  for (const auto& module : model.module->modules()) {
    if (module->name().find("shadowgraph") != std::string::npos) {
      EXPECT_TRUE(module->name().starts_with("shadowgraph::models::")) << module->name();
      EXPECT_FALSE(module->name().ends_with("Impl")) << module->name();
    }
  }
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (const ModelInfo& info : available()) {
    names.push_back(info.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, ::testing::ValuesIn(all_names()),
                         [](const auto& info) { return info.param; });

struct KnownNames {
  std::string model;
  std::vector<std::string> names;
};

TEST(Models, HaveTheNamesOfTheirOriginals) {
  const std::vector<KnownNames> rows = {
      {"resnet18",
       {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer2.0.downsample.0.weight",
        "layer2.0.downsample.1.num_batches_tracked", "fc.bias"}},
      {"resnet50", {"layer1.0.conv3.weight", "layer1.0.bn3.bias", "layer1.0.downsample.0.weight", "fc.weight"}},
      {"vit_b_16",
       {"class_token", "conv_proj.weight", "encoder.pos_embedding", "encoder.layers.encoder_layer_0.ln_1.weight",
        "encoder.layers.encoder_layer_1.self_attention.in_proj_weight",
        "encoder.layers.encoder_layer_1.self_attention.out_proj.weight", "encoder.layers.encoder_layer_0.mlp.0.weight",
        "encoder.layers.encoder_layer_0.mlp.3.bias", "encoder.ln.weight", "heads.head.weight"}},
      {"bert_base",
       {"embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight", "embeddings.LayerNorm.weight",
        "embeddings.position_ids", "encoder.layer.0.attention.self.query.weight",
        "encoder.layer.1.attention.output.dense.bias", "encoder.layer.1.intermediate.dense.weight",
        "encoder.layer.1.output.LayerNorm.bias", "pooler.dense.weight"}},
      {"gpt2",
       {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight",
        "transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_proj.bias", "transformer.h.0.mlp.c_fc.weight",
        "transformer.ln_f.bias"}},
      {"llama3_8b",
       {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.gate_proj.weight",
        "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight",
        "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight", "model.norm.weight",
        "lm_head.weight"}},
      {"unet",
       {"inc.double_conv.0.weight", "inc.double_conv.4.running_var", "down1.maxpool_conv.1.double_conv.3.weight",
        "up1.up.weight", "up4.conv.double_conv.1.weight", "outc.conv.bias"}},
      {"lstm_lm", {"encoder.weight", "rnn.weight_ih_l0", "rnn.bias_hh_l1", "decoder.weight", "decoder.bias"}},
  };
  for (const KnownNames& row : rows) {
    EXPECT_THAT(state_names(*build(row.model, {.tiny = true}).module), IsSupersetOf(row.names)) << row.model;
  }
}

TEST(Models, WeightLayouts) {
  const auto gpt2 = build("gpt2", {.tiny = true}).module->named_parameters();
  EXPECT_EQ(gpt2["transformer.h.0.attn.c_attn.weight"].sizes(), at::IntArrayRef({32, 96}));  // [in, out]
  EXPECT_FALSE(gpt2.contains("lm_head.weight"));                                             // tied: wte, counted once
  const auto llama = build("llama3_8b", {.tiny = true}).module->named_parameters();
  EXPECT_EQ(llama["model.layers.0.self_attn.k_proj.weight"].sizes(), at::IntArrayRef({16, 32}));  // 2 heads of 8
  EXPECT_FALSE(llama["lm_head.weight"].is_same(llama["model.embed_tokens.weight"]));
}

// The model has:
//
//     2 layers     (3 * 32 * 32 + 3 * 32) + (32 * 32 + 32) + (32 * 128 + 128) + (128 * 32 + 32) + 2 * 64 = 12,704 each
//     embeddings   101 * 32 + 32 * 32 = 4,256
//     last norm    64
TEST(Models, TiedHeadCountsOnce) {
  EXPECT_EQ(parameter_count(*build("gpt2", {.tiny = true}).module), 2 * 12704 + 4256 + 64);
}

TEST(Models, LanguageModelsAreCausal) {
  for (const char* name : {"gpt2", "llama3_8b"}) {
    BuiltModel model = build(name, {.training = false, .tiny = true});
    const at::Tensor before = model.forward(model.inputs)[0];
    auto changed = model.inputs;
    changed[0] = changed[0].clone();
    changed[0].select(1, 10).add_(1).remainder_(101);
    const at::Tensor after = model.forward(changed)[0];
    EXPECT_TRUE(torch::allclose(before.slice(1, 0, 10), after.slice(1, 0, 10))) << name;
    EXPECT_FALSE(torch::allclose(before.select(1, 10), after.select(1, 10))) << name;
    EXPECT_FALSE(torch::allclose(before.select(1, 15), after.select(1, 15))) << name;
  }
}

TEST(Models, LossOfLanguageModelsIsOfTheNextToken) {
  BuiltModel model = build("gpt2", {.tiny = true, .dropout = 0.0});
  const auto outputs = model.forward(model.inputs);
  const at::Tensor logits = outputs[0].slice(1, 0, -1).flatten(0, 1);
  const at::Tensor next = model.inputs[1].slice(1, 1).flatten();
  const at::Tensor expected = -logits.log_softmax(-1).gather(1, next.unsqueeze(1)).mean();
  EXPECT_TRUE(torch::allclose(model.loss(outputs, model.inputs), expected));
}

TEST(Models, PackedSelfAttentionIsMultiheadAttention) {
  torch::manual_seed(7);
  PackedSelfAttention ours(32, 4, 0.0);
  torch::nn::MultiheadAttention theirs(torch::nn::MultiheadAttentionOptions(32, 4));
  torch::NoGradGuard no_grad;
  theirs->in_proj_weight.copy_(ours.in_proj_weight);
  theirs->in_proj_bias.copy_(ours.in_proj_bias.normal_());
  theirs->out_proj->weight.copy_(ours.out_proj->weight);
  theirs->out_proj->bias.copy_(ours.out_proj->bias.normal_());
  const at::Tensor x = torch::randn({2, 5, 32});
  const at::Tensor t = x.transpose(0, 1);
  const at::Tensor expected = std::get<0>(theirs->forward(t, t, t)).transpose(0, 1);
  EXPECT_TRUE(torch::allclose(ours.forward(x), expected, 1e-5, 1e-6));
}

// Rotates the pair (x[i], x[i + size / 2]) by position * theta^(-2i / size), computed by hand.
TEST(Models, RotaryAngles) {
  const LlamaConfig config = tiny(LlamaConfig{});  // head size 8
  const auto rotation = LlamaRotaryEmbedding(config).forward(torch::zeros({1, 5, 32}));
  ASSERT_EQ(rotation.cos.sizes(), at::IntArrayRef({1, 1, 5, 8}));
  for (int64_t position = 0; position < 5; ++position) {
    for (int64_t i = 0; i < 8; ++i) {
      const double angle = static_cast<double>(position) * std::pow(500000.0, -2.0 * static_cast<double>(i % 4) / 8.0);
      EXPECT_NEAR(rotation.cos[0][0][position][i].item<double>(), std::cos(angle), 1e-6);
      EXPECT_NEAR(rotation.sin[0][0][position][i].item<double>(), std::sin(angle), 1e-6);
    }
  }
}

// GPT-2's paper, 2.3: weights of layers that write to the residual stream are scaled by 1/sqrt(number of such layers).
TEST(Models, Gpt2StartsLayersOfTheResidualStreamSmaller) {
  torch::manual_seed(7);
  Gpt2Config config;
  config.layers = 8;
  config.hidden = 128;
  const Gpt2Block block(config);
  constexpr double kResidual = 0.02 / 4;  // 4 = sqrt(2 * 8 layers)
  // With at least 16,384 samples, the sample standard deviation is within 2 %.
  EXPECT_NEAR(block.attn->c_attn->weight.std().item<double>(), 0.02, 0.02 / 50);
  EXPECT_NEAR(block.attn->c_proj->weight.std().item<double>(), kResidual, kResidual / 50);
  EXPECT_NEAR(block.mlp->c_fc->weight.std().item<double>(), 0.02, 0.02 / 50);
  EXPECT_NEAR(block.mlp->c_proj->weight.std().item<double>(), kResidual, kResidual / 50);
}

TEST(Models, UnetKeepsTheImageSize) {
  BuiltModel unet = build("unet", {.batch = 2, .image_size = 37, .tiny = true});
  EXPECT_EQ(unet.forward({torch::randn({2, 3, 37, 50})})[0].sizes(), at::IntArrayRef({2, 2, 37, 50}));
}

TEST(Models, RefusesWhatItCannotBuild) {
  const std::string unknown = message_of([] { build("gpt5"); });
  EXPECT_THAT(unknown, HasSubstr("'gpt5'"));
  for (const ModelInfo& info : available()) {
    EXPECT_THAT(unknown, HasSubstr(info.name));
  }
  EXPECT_THAT(message_of([] { build("gpt2", {.seq = 1025}); }), HasSubstr("1024 positions"));
  EXPECT_THAT(message_of([] { build("resnet18", {.seq = 5}); }), HasSubstr("has no seq"));
  EXPECT_THAT(message_of([] { build("gpt2", {.image_size = 5}); }), HasSubstr("has no image_size"));
  EXPECT_THAT(message_of([] { build("gpt2", {.batch = -1}); }), HasSubstr("batch"));
  EXPECT_THAT(message_of([] { build("gpt2", {.dtype = at::kLong}); }), HasSubstr("Long"));
  EXPECT_THAT(message_of([] { build("gpt2", {.dropout = 1.5}); }), HasSubstr("dropout"));
  EXPECT_THAT(message_of([] { build("vit_b_16", {.image_size = 225}); }), HasSubstr("patch size 16"));
  EXPECT_THAT(message_of([] { build("unet", {.image_size = 8}); }), HasSubstr("at least 16"));
}

}  // namespace
}  // namespace shadowgraph::models
