#include "cli/source_options.h"

#include <fmt/format.h>

#include "cli/effects.h"
#include "cli/option_checks.h"
#include "cli/size_sweep.h"

namespace shadowgraph::cli {
namespace {

void add_model_options(CLI::App& command, CaptureRequest& request) {
  begin_group(command, kModel);
  add_dtype_option(command, request);
  add_list(command, "--input", request.inputs,
           "An input of .pt or in Python, [NAME=]'f32[batch,3,64]'; repeat. .pt2: for other sizes");
  add_choice(command, "--attention", request.attention,
             {{"device", AttentionKernel::kDevices},
              {"flash", AttentionKernel::kFlash},
              {"efficient", AttentionKernel::kEfficient},
              {"cudnn", AttentionKernel::kCudnn},
              {"math", AttentionKernel::kMath}},
             "Kernel of attention: device (PyTorch's choice), flash, efficient, cudnn, math");
  add_answers_to_reads(command, request);
}

void add_training_options(CLI::App& command, CaptureRequest& request) {
  add_optimizer_option(command, request, "Optimizer of a training step: sgd, adam, adamw; in Python adafactor");
  command.add_flag("--steady-state", request.steady_state, "The second training step, with optimizer state there");
  add_number(command, "--accumulate", request.training.accumulate, 1, "Micro-batches before the optimizer's step");
  add_loop_options(command, request);
  command.add_option("--checkpoint", request.checkpoint,
                     "Modules that backward computes again: 'transformer.h.*', or auto for numbered layers");
}

void add_step_options(CLI::App& command, CaptureRequest& request) {
  begin_group(command, kStep);
  using enum CaptureMode;
  const bool fits = command.get_name() == "fit";
  std::vector<std::pair<std::string, CaptureMode>> modes = {
      {"infer", kInfer}, {"train", kTrain}, {"prefill", kPrefill}, {"decode", kDecode}};
  if (fits) modes.emplace_back("serve", kServe);
  add_choice(command, "--mode", request.mode, std::move(modes),
             fits ? "infer, train; of gpt2, llama3: prefill, decode; in Python: serve (below)"
                  : "infer, train; of gpt2, llama3: prefill, decode (a token after --context)");
  add_tokens(command, "--context", request.context,
             fits ? "decode: tokens in the cache; serve: of a request, 8k" : "decode: tokens in the cache, 4096 or 4k");
  add_choice(command, "--cache", request.cache, {{"grown", CacheKind::kGrown}, {"static", CacheKind::kStatic}},
             "prefill, decode: grown by concatenation (default), or static");
  add_training_options(command, request);
}

}  // namespace

void add_dtype_option(CLI::App& command, CaptureRequest& request) {
  add_choice(command, "--dtype", request.dtype, {{"f32", c10::kFloat}, {"bf16", c10::kBFloat16}, {"f16", c10::kHalf}},
             "Convert parameters and inputs to f32, bf16; in Python f16 (as made; built-in models: f32)");
}

void add_answers_to_reads(CLI::App& command, CaptureRequest& request) {
  add_list(command, "--host-reads", request.host_reads,
           "What the program reads from data: item0=2.5, bool=false, finite, mask-full; repeat", ',');
  add_list(command, "--data-sizes", request.data_sizes, "Sizes of results that depend on data: nonzero0=17; repeat",
           ',');
}

void add_optimizer_option(CLI::App& command, CaptureRequest& request, const char* description) {
  using enum OptimizerKind;
  add_choice(command, "--optimizer", request.optimizer,
             {{"sgd", kSgd}, {"adam", kAdam}, {"adamw", kAdamW}, {"adafactor", kAdafactor}}, description);
}

void add_loop_options(CLI::App& command, CaptureRequest& request) {
  add_choice(command, "--autocast", request.autocast, {{"bf16", c10::kBFloat16}, {"f16", c10::kHalf}},
             "torch.autocast of forward and loss: bf16, f16");
  command
      .add_option_function<double>(
          "--clip-grad-norm", [&request](const double& norm) { request.training.clip_grad_norm = norm; },
          "torch.nn.utils.clip_grad_norm_ to this norm")
      ->check(positive_number);
  command.add_flag("--grad-scaler", request.training.grad_scaler,
                   "torch.amp.GradScaler, which finds no infinity unless --host-reads says so");
  command
      .add_option_function<double>(
          "--ema", [&request](const double& decay) { request.training.ema = decay; },
          "A moving average of the parameters with this decay, 0.999")
      ->check(from_0_to_1);
  command.add_flag("--zero-grads", request.training.zero_grads,
                   "zero_grad(set_to_none=False): gradients stay from step to step");
  command.add_flag("--debug", request.debug, "Of a model in Python: show where the program raised");
}

void begin_group(CLI::App& command, const char* heading) { command.option_defaults()->group(heading); }

CLI::Option* add_source(CLI::App& command, CaptureRequest& request, const char* description) {
  return command.add_option("SOURCE", request.source, description)->required();
}

void add_sizes(CLI::App& command, CaptureRequest& request) {
  begin_group(command, kModel);
  command.add_option("--batch", request.batch, "Batch size (default: the model's own)")
      ->check([](const std::string& text) {
        if (!parse_size_range(text)) return whole_number_from(1)(text);
        return fmt::format("a range of batches is for 'shadowgraph fit SOURCE --batch {}'", text);
      });
  add_number(command, "--seq", request.seq, 1, "Sequence length of a language model");
}

void add_capture_options_but_sizes(CLI::App& command, CaptureRequest& request) {
  add_model_options(command, request);
  add_step_options(command, request);
  begin_group(command, kDevice);
  command
      .add_option_function<std::string>(
          "--device", [&request](const std::string& name) { request.device = c10::Device(name); },
          "Device to pretend, which need not exist: cpu, cuda, cuda:i")
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
                            "Device that times are estimated for: one of 'list devices', or a file (h100)");
}

CLI::Option* add_interconnect_option(CLI::App& command, std::string& interconnect) {
  return command.add_option("--interconnect", interconnect,
                            "Links between devices: h100, mi300x, pcie5, ... or a file (those around --spec)");
}

CLI::Option* add_allocator_option(CLI::App& command, std::string& allocator) {
  return command.add_option("--allocator", allocator, "As PYTORCH_ALLOC_CONF: expandable_segments:True");
}

void add_estimate_options(CLI::App& command, EstimateRequest& request) {
  add_memory(command, request.memory, "Memory of the device, l4 or 24GiB: says whether the step fits");
  add_spec_option(command, request.spec);
  add_interconnect_option(command, request.interconnect);
  command.add_option("--mesh", request.mesh, "Sizes of process groups that the graph only names: dp=8,tp=4");
  add_allocator_option(command, request.allocator);
}

}  // namespace shadowgraph::cli
