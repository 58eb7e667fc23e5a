#include "cli/source_options.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "cli/option_checks.h"
#include "cli/size_sweep.h"

namespace shadowgraph::cli {
namespace {

// All options of a capture except its source and sizes.
const OptionTable<CaptureRequest>& capture_options() {
  using enum CaptureMode;
  using enum OptimizerKind;
  const auto training = [](auto field) {
    return [field](auto& request) -> auto& { return request.training.*field; };
  };
  static const auto table =
      OptionTable<CaptureRequest>()
          .group(kModel)
          .words("dtype", &CaptureRequest::dtype, {{"f32", c10::kFloat}, {"bf16", c10::kBFloat16}, {"f16", c10::kHalf}},
                 "Convert parameters and inputs to f32, bf16 or, in Python, f16 (default: the model's own)")
          .add("input", &CaptureRequest::inputs,
               "Input spec of a .pt, .pt2 or Python model, [NAME=]'f32[batch,3,64]'; repeatable", {.has_commas = true})
          .add("attention", &CaptureRequest::attention,
               "Attention kernel: device (PyTorch's choice), flash, efficient, cudnn, math")
          .add("host_reads", &CaptureRequest::host_reads,
               "Results of data-dependent reads such as item(): item0=2.5, bool=false, finite, mask-full")
          .add("data_sizes", &CaptureRequest::data_sizes, "Data-dependent output sizes: nonzero0=17; repeatable")
          .group(kStep)
          .words("mode", &CaptureRequest::mode,
                 {{"infer", kInfer}, {"train", kTrain}, {"prefill", kPrefill}, {"decode", kDecode}, {"serve", kServe}},
                 "infer, train; prefill, decode (built-in language models); serve (fit, Python models)")
          .add("context", &CaptureRequest::context, "Tokens in the KV cache (decode) or per request (serve): 4096, 8Ki",
               {.kind = OptionKind::kCount, .min = 1})
          .words("cache", &CaptureRequest::cache, {{"grown", CacheKind::kGrown}, {"static", CacheKind::kStatic}},
                 "KV cache of prefill and decode: grown (by concatenation, default) or static")
          .words("optimizer", &CaptureRequest::optimizer,
                 {{"sgd", kSgd}, {"adam", kAdam}, {"adamw", kAdamW}, {"adafactor", kAdafactor}},
                 "Optimizer: sgd, adam, adamw; adafactor (Python models only)")
          .add("steady_state", &CaptureRequest::steady_state,
               "Capture the second training step, when optimizer state already exists")
          .add("accumulate", training(&TrainingOptions::accumulate),
               "Gradient accumulation: micro-batches per optimizer step", {.min = 1})
          .words("autocast", &CaptureRequest::autocast, {{"bf16", c10::kBFloat16}, {"f16", c10::kHalf}},
                 "Run forward and loss under torch.autocast: bf16, f16")
          .add("clip_grad_norm", training(&TrainingOptions::clip_grad_norm),
               "Clip gradients to this norm with torch.nn.utils.clip_grad_norm_", {.min = 0, .above = true})
          .add("grad_scaler", training(&TrainingOptions::grad_scaler),
               "Use torch.amp.GradScaler; gradients are assumed finite unless --host-reads overrides it")
          .add("ema", training(&TrainingOptions::ema),
               "Keep an exponential moving average of the parameters with this decay: 0.999", {.min = 0, .max = 1})
          .add("zero_grads", training(&TrainingOptions::zero_grads),
               "Use zero_grad(set_to_none=False): gradients stay allocated between steps")
          .add("debug", &CaptureRequest::debug, "Show the Python traceback if the model raises (Python models only)")
          .add("checkpoint", &CaptureRequest::checkpoint,
               "Apply activation checkpointing to modules: 'transformer.h.*', or auto (numbered layers)");
  return table;
}

constexpr std::array kTrainingOptions{"--optimizer",   "--steady-state", "--accumulate", "--clip-grad-norm",
                                      "--grad-scaler", "--ema",          "--zero-grads"};

bool is_given(const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

[[noreturn]] void refuse_option(const std::string& option, const std::string& why) {
  throw CLI::ValidationError(option, why);
}

// Rejects options of a capture for a saved graph.
void refuse_for_saved_graph(const CLI::App& command, const CaptureRequest& request) {
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool of_capture = option->get_group() == kModel || option->get_group() == kStep;
    // Checkpointing also rewrites saved steps, and `emit` moves them to another device.
    const bool allowed = name == "--checkpoint" || name == "--untrusted" || command.get_name() == "emit";
    if (option->count() == 0 || allowed || !(of_capture || name == "--device")) continue;
    refuse_option(name,
                  fmt::format("has no effect: {} is already captured; remove the option, or capture the model again",
                              request.source));
  }
}

// Rejects options without effect, so that a result is not mistaken for one that took them into account.
void refuse_without_effect(const CLI::App& command, const CaptureRequest& request) {
  if (request.source.empty()) return;
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(request.source, ignored);
  if (is_file && kind_of_source(request.source) == SourceKind::kGraph) return refuse_for_saved_graph(command, request);
  if (!request.trains() && !is_given(command, "--what-if")) {
    for (const char* option : kTrainingOptions) {
      if (is_given(command, option)) refuse_option(option, "applies to training only; add --mode train");
    }
    if (is_given(command, "--run")) refuse_option("--run", "applies to training only; add --mode train");
  }
}

}  // namespace

void add_capture_options_named(CLI::App& command, CaptureRequest& request, std::initializer_list<const char*> names) {
  for (const char* name : names) add_option(command, request, capture_options().at(name));
}

void begin_group(CLI::App& command, const char* heading) { command.option_defaults()->group(heading); }

void add_untrusted(CLI::App& command, CaptureRequest& request) {
  command.add_flag("--untrusted", request.untrusted, "Refuse a SOURCE that runs code: .pt, some.module:factory")
      ->group(kModel);
}

// Options are checked in the order of their declaration, so --untrusted has been read.
CLI::Option* add_source(CLI::App& command, const char* name, std::string& source, const CaptureRequest& request,
                        const char* description) {
  return command.add_option(name, source, description)->required()->check([&request](const std::string& given) {
    if (request.untrusted) refuse_code(given);
    return std::string();
  });
}

CLI::Option* add_source(CLI::App& command, CaptureRequest& request, const char* description) {
  add_untrusted(command, request);
  return add_source(command, "SOURCE", request.source, request, description);
}

void add_sizes(CLI::App& command, CaptureRequest& request) {
  begin_group(command, kModel);
  command.add_option("--batch", request.batch, "Batch size (default: the model's own)")
      ->check([](const std::string& text) {
        if (!parse_size_range(text)) return whole_number_from(1)(text);
        return fmt::format("a range is only accepted by 'shadowgraph fit SOURCE --batch {}'; give one batch size",
                           text);
      });
  add_tokens(command, "--seq", request.seq, "Sequence length of a language model: 8192, 8Ki");
}

void add_capture_options_but_sizes(CLI::App& command, CaptureRequest& request) {
  for (OptionTable<CaptureRequest>::Row row : capture_options().rows()) {
    if (row.name == "mode" && command.get_name() != "fit") std::erase(row.takes.words, "serve");
    add_option(command, request, row);
  }
  begin_group(command, kDevice);
  command
      .add_option_function<std::string>(
          "--device", [&request](const std::string& name) { request.device = c10::Device(name); },
          "Simulated device, which need not exist: cpu, cuda, cuda:i")
      ->check(device_name)
      ->default_str(request.device.str());
  command.final_callback([&command, &request] { refuse_without_effect(command, request); });
}

void add_capture_options(CLI::App& command, CaptureRequest& request) {
  add_sizes(command, request);
  add_capture_options_but_sizes(command, request);
}

CLI::Option* add_spec_option(CLI::App& command, std::string& spec) {
  return command.add_option("--spec", spec,
                            "Device for time estimates: a name from 'list devices' or a spec file (default: h100)");
}

CLI::Option* add_interconnect_option(CLI::App& command, std::string& interconnect) {
  return command.add_option("--interconnect", interconnect,
                            "Links between devices: h100, mi300x, pcie5, ... or a file (default: typical for --spec)");
}

CLI::Option* add_allocator_option(CLI::App& command, std::string& allocator) {
  return command.add_option("--allocator", allocator,
                            "Allocator settings as in PYTORCH_ALLOC_CONF: expandable_segments:True");
}

void add_estimate_options(CLI::App& command, EstimateRequest& request) {
  add_memory(command, request.memory, "Device memory, l4 or 24GiB: reports whether the step fits");
  add_spec_option(command, request.spec);
  add_interconnect_option(command, request.interconnect);
  command.add_option("--mesh", request.mesh, "Sizes of process groups that the graph refers to by name: dp=8,tp=4");
  add_allocator_option(command, request.allocator);
}

}  // namespace shadowgraph::cli
