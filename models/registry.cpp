#include "models/registry.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <concepts>
#include <functional>
#include <stdexcept>

#include "models/language_models.h"
#include "models/llama.h"
#include "models/vision.h"

namespace shadowgraph::models {

namespace {

struct Row {
  ModelInfo info;
  int64_t tiny_size;                                       // sequence length or image size of a tiny model
  std::function<BuiltModel(const ModelOptions& o)> build;  // requires batch and size to be set
};

template <class Config>
concept HasLayers = requires(Config config) {
  { config.layers } -> std::same_as<int64_t&>;
};

template <class Config, class Build>
Row row(Build build_family, const Config& config, ModelInfo info, int64_t tiny_size, int64_t first_layers = 0) {
  if constexpr (HasLayers<Config>) info.layers = config.layers;
  info.first_layers = first_layers;
  return {std::move(info), tiny_size, [build_family, config](const ModelOptions& options) {
            Config made = options.tiny ? tiny(config) : config;
            if constexpr (HasLayers<Config>) {
              if (options.layers > 0) made.layers = options.layers;
            }
            return build_family(made, options);
          }};
}

constexpr int64_t kTinyBatch = 2;

// Fields of ModelInfo: name, description, batch, seq, image size, parameters.
const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      row(build_resnet, ResNetConfig{},
          {"resnet18", "residual network, 18 layers (torchvision)", 32, 0, 224, 11'689'512}, 64),
      row(build_resnet, ResNetConfig{.blocks = {3, 4, 6, 3}, .bottleneck = true},
          {"resnet50", "residual network, 50 layers, bottleneck blocks (torchvision)", 32, 0, 224, 25'557'032}, 64),
      row(build_vit, VitConfig{},
          {"vit_b_16", "vision transformer, base, 16x16 patches (torchvision)", 32, 0, 224, 86'567'656}, 32),
      row(build_bert, BertConfig{},
          {"bert_base", "BERT base, uncased, with pooler (Hugging Face BertModel)", 8, 512, 0, 109'482'240}, 16),
      row(build_gpt2, Gpt2Config{},
          {"gpt2", "GPT-2 with tied head (Hugging Face GPT2LMHeadModel)", 8, 512, 0, 124'439'808}, 16),
      row(build_gpt2, Gpt2Config{.layers = 24, .heads = 16, .hidden = 1024},
          {"gpt2_medium", "GPT-2 medium with tied head", 8, 512, 0, 354'823'168}, 16),
      row(build_gpt2, Gpt2Config{.layers = 36, .heads = 20, .hidden = 1280},
          {"gpt2_large", "GPT-2 large with tied head", 8, 512, 0, 774'030'080}, 16),
      row(build_gpt2, Gpt2Config{.layers = 48, .heads = 25, .hidden = 1600},
          {"gpt2_xl", "GPT-2 XL with tied head", 8, 512, 0, 1'557'611'200}, 16),
      row(build_llama, LlamaConfig{},
          {"llama3_8b", "Llama 3 8B (Hugging Face LlamaForCausalLM)", 1, 2048, 0, 8'030'261'248}, 16),
      row(build_llama, LlamaConfig{.layers = 80, .heads = 64, .hidden = 8192, .intermediate = 28672},
          {"llama3_70b", "Llama 3 70B (Hugging Face LlamaForCausalLM)", 1, 2048, 0, 70'553'706'496}, 16),
      row(build_llama, LlamaConfig{.layers = 126, .heads = 128, .hidden = 16384, .intermediate = 53248},
          {"llama3_405b", "Llama 3 405B (Hugging Face LlamaForCausalLM)", 1, 2048, 0, 405'853'388'800}, 16),
      row(build_deepseek, DeepseekConfig{},
          {"deepseek_v3", "DeepSeek-V3, 256 experts (Hugging Face DeepseekV3ForCausalLM)", 1, 2048, 0, 671'026'404'352},
          16, 3),
      row(build_unet, UnetConfig{},
          {"unet", "U-Net for segmentation, transposed convolutions (milesial)", 4, 0, 256, 31'037'698}, 32),
      row(build_lstm_lm, LstmLmConfig{},
          {"lstm_lm", "two-layer LSTM language model on WikiText-2 (PyTorch word_language_model)", 20, 35, 0,
           13'987'678},
          16),
  };
  return table;
}

const Row& find_row(std::string_view name) {
  const auto row = std::find_if(rows().begin(), rows().end(), [&](const Row& r) { return r.info.name == name; });
  if (row == rows().end()) {
    std::string message = "unknown model '" + std::string(name) + "'; available models:";
    for (const ModelInfo& info : available()) message += (&info == &available().front() ? " " : ", ") + info.name;
    throw std::invalid_argument(message);
  }
  return *row;
}

[[noreturn]] void reject(const ModelInfo& info, const std::string& why) {
  throw std::invalid_argument("model '" + info.name + "': " + why);
}

// Sets a size that was not given to `fallback`; throws if it is given but the model does not have it.
void resolve(const ModelInfo& info, const char* option, bool applies, int64_t fallback, int64_t& value) {
  if (value < 0) reject(info, std::string(option) + " must not be negative, got " + std::to_string(value));
  if (!applies && value != 0) reject(info, std::string("has no ") + option + "; remove this option");
  if (applies && value == 0) value = fallback;
}

ModelOptions resolved(const Row& row, ModelOptions options) {
  const ModelInfo& info = row.info;
  const auto choose = [&](int64_t full, int64_t tiny) { return options.tiny ? tiny : full; };
  resolve(info, "batch", true, choose(info.default_batch, kTinyBatch), options.batch);
  resolve(info, "seq", info.default_seq != 0, choose(info.default_seq, row.tiny_size), options.seq);
  resolve(info, "image_size", info.default_image_size != 0, choose(info.default_image_size, row.tiny_size),
          options.image_size);
  if (options.layers < 0 || (options.layers > 0 && info.layers == 0)) {
    reject(info, info.layers == 0 ? "has no layers to choose" : "layers must not be negative");
  }
  if (!at::isFloatingType(options.dtype)) {
    reject(info, std::string("dtype must be a floating-point type, got ") + c10::toString(options.dtype));
  }
  if (options.dropout && !(*options.dropout >= 0 && *options.dropout <= 1)) {
    reject(info, "dropout must be between 0 and 1, got " + std::to_string(*options.dropout));
  }
  return options;
}

// torch::nn::Module::to(dtype) would also convert integers (position ids, batch counts) and the table of rotary
// frequencies, which must stay float32. So this converts floating-point parameters, and floating-point buffers of
// modules with parameters (running statistics).
void convert_to(torch::nn::Module& root, at::ScalarType dtype) {
  at::NoGradGuard no_grad;
  const auto convert = [&](at::Tensor& tensor) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype));
  };
  for (const auto& module : root.modules()) {
    auto parameters = module->named_parameters(/*recurse=*/false);
    if (parameters.is_empty()) continue;
    for (auto& parameter : parameters) convert(parameter.value());
    for (auto& buffer : module->named_buffers(/*recurse=*/false)) convert(buffer.value());
  }
}

}  // namespace

const std::vector<ModelInfo>& available() {
  static const std::vector<ModelInfo> infos = [] {
    std::vector<ModelInfo> result;
    for (const Row& row : rows()) result.push_back(row.info);
    return result;
  }();
  return infos;
}

BuiltModel build(std::string_view name, const ModelOptions& options) {
  const Row& row = find_row(name);
  BuiltModel built = row.build(resolved(row, options));
  if (options.dtype != at::kFloat) convert_to(*built.module, options.dtype);
  built.module->train(options.training);
  return built;
}

}  // namespace shadowgraph::models
