#include "cli/model_options.h"

#include "cli/option_checks.h"

namespace shadowgraph::cli {
namespace {

constexpr const char* kBy =
    "Which bytes --memory is of: live, of tensors; reserved, of PyTorch's caching allocator; device, these with the "
    "assumed context and NCCL's buffers (default: live with profile, device with fit)";

}  // namespace

void add_mode_option(CLI::App& command, std::string& mode) {
  command
      .add_option(
          "--mode", mode,
          "infer: forward alone; train: forward, backward and optimizer step; of gpt2 and llama3 with a cache of "
          "keys and values: prefill, the whole prompt; decode, one token after --context others")
      ->check(CLI::IsMember({"infer", "train", "prefill", "decode"}))
      ->capture_default_str();
}

void set_mode(CaptureRequest& request, const std::string& mode) {
  request.train = mode == "train";
  if (mode == "prefill" || mode == "decode") request.generation = mode;
}

// With `profile`, a range of batches is taken too.
void add_capture_options(CLI::App& command, CaptureRequest& request, std::string& mode, ProfileRequest* profile) {
  if (profile == nullptr) {
    command.add_option("--batch", request.batch, "Batch size (default: the model's own)")->check(whole_number_from(1));
  } else {
    command
        .add_option_function<std::string>(
            "--batch",
            [&request, profile](const std::string& text) {
              profile->batches = parse_size_range(text);
              if (!profile->batches) request.batch = std::stoll(text);
            },
            "Batch size (default: the model's own), or a range: 1..512, 8..512:8 for a table of all of them")
        ->check([](const std::string& text) {
          return parse_size_range(text) ? std::string() : whole_number_from(1)(text);
        });
    command
        .add_option_function<std::string>(
            "--memory", [profile](const std::string& text) { profile->memory = parse_bytes(text); },
            "With a range of batches: memory of the device, 24GiB; the largest batch within it is named")
        ->check(size_like("24GiB"));
    command.add_option("--by", profile->by, kBy)->check(CLI::IsMember({"live", "reserved", "device"}));
  }
  command.add_option("--seq", request.seq, "Sequence length of language models")->check(whole_number_from(1));
  add_mode_option(command, mode);
  command
      .add_option("--context", request.context,
                  "With --mode decode: tokens in the cache of keys and values before the one that is computed")
      ->check(whole_number_from(1));
  command
      .add_option("--cache", request.cache,
                  "With --mode prefill and decode: grown, every layer's keys and values concatenated with the new ones "
                  "(Hugging Face's default; what is not given), or static, allocated at full length")
      ->check(CLI::IsMember({"grown", "static"}));
  command.add_option("--optimizer", request.optimizer, "Optimizer of a training step")
      ->check(CLI::IsMember({"sgd", "adamw"}))
      ->capture_default_str();
  command.add_flag("--steady-state", request.steady_state,
                   "Record the second training step, with optimizer state in memory, not the first");
  command
      .add_option("--device", request.device,
                  "Device to pretend: cpu, cuda or cuda:i. It need not exist; it decides which kernels are chosen")
      ->check([](const std::string& text) {
        const bool cuda = text == "cuda" || (text.starts_with("cuda:") && text.size() > 5 && text.size() <= 7 &&
                                             text.find_first_not_of("0123456789", 5) == std::string::npos);
        return text == "cpu" || cuda ? std::string() : "'" + text + "' is not cpu, cuda or cuda:i";
      })
      ->capture_default_str();
  command.add_option("--dtype", request.dtype, "Floating-point type of parameters and inputs")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command
      .add_option("--autocast", request.autocast,
                  "torch.autocast of forward and loss: bf16 or f16; parameters keep their type")
      ->check(CLI::IsMember({"bf16", "f16"}));
  command
      .add_option("--accumulate", request.training.accumulate,
                  "Training: gradients of so many micro-batches, each of --batch, before the optimizer's step")
      ->check(whole_number_from(1));
  command
      .add_option_function<double>(
          "--clip-grad-norm", [&request](const double& norm) { request.training.clip_grad_norm = norm; },
          "Training: torch.nn.utils.clip_grad_norm_ to this norm")
      ->check(positive_number);
  command.add_flag("--grad-scaler", request.training.grad_scaler,
                   "Training: torch.amp.GradScaler; its check for infinities finds none unless --host-reads says so");
  command
      .add_option_function<double>(
          "--ema", [&request](const double& decay) { request.training.ema = decay; },
          "Training: an exponential moving average of the parameters with this decay, 0.999")
      ->check(from_0_to_1);
  command.add_flag("--zero-grads", request.training.zero_grads,
                   "Training: zero_grad(set_to_none=False), gradients stay allocated from step to step");
  command
      .add_option("--attention", request.attention,
                  "auto: the kernel that the device would take; math: never a fused one")
      ->check(CLI::IsMember({"auto", "math"}))
      ->capture_default_str();
  command
      .add_option("--input", request.inputs,
                  "Dtype and shape of one input of a TorchScript file, e.g. 'f32[8,3,224,224]'; repeat for several. A "
                  "torch.export archive knows its inputs: for other sizes only")
      ->take_all()
      ->delimiter('\0');
  command
      .add_option(
          "--host-reads", request.host_reads,
          "What the program reads and data decides: item0=2.5 by name, bool=false, int=3 or float=1.5 for all of a "
          "kind, finite (no infinities, no NaNs), mask-full (masks hide nothing); repeat for several")
      ->take_all()
      ->delimiter(',');
  command
      .add_option("--data-sizes", request.data_sizes,
                  "Sizes of results that depend on data, by the name that the error tells: nonzero0=17")
      ->take_all()
      ->delimiter(',');
  command.add_option(
      "--checkpoint", request.checkpoint,
      "Activation checkpoints: modules whose activations backward computes again, 'transformer.h.*', or auto "
      "for numbered layers; policies: opt --pass checkpoint{...}");
}

void add_profile_options(CLI::App& command, ProfileRequest& request, std::string& mode) {
  command
      .add_option("source", request.capture.source,
                  "Built-in model, TorchScript file, torch.export archive, or graph file")
      ->required();
  command.add_option("-o,--output", request.directory, "Folder for graph.sg, profile.json, graph.dot and graph.svg");
  command.add_flag("--json", request.json, "Print one JSON object instead of tables");
  command.add_option("--group", request.group, "Rows of the table: module, composite or operator")
      ->check(CLI::IsMember({"module", "composite", "operator"}))
      ->capture_default_str();
  command.add_option("--depth", request.depth, "Module levels in the table (0: what fits)")
      ->check(whole_number_from(0));
  command.add_option("--rows", request.rows, "Most rows of the table (0: all)")
      ->check(whole_number_from(0))
      ->capture_default_str();
  add_capture_options(command, request.capture, mode, &request);
  command.add_flag("--measure", request.measure,
                   "Run each distinct call once on this machine's CPU, for scratch memory inside kernels and seconds; "
                   "kept for the next time");
  command.add_option(
      "--spec", request.spec,
      "Device that the time is estimated for: a name of 'shadowgraph devices', or a file (default: h100 for "
      "cuda, this machine's calibration for cpu)");
  command.add_option("--interconnect", request.interconnect,
                     "Links between processes: a100, h100, h200, b200, mi300x, pcie4, pcie5, or a file (default: what "
                     "is usual around the device of --spec)");
  command
      .add_option("--mesh", request.mesh,
                  "Sizes of process groups that the graph names and does not describe: dp=8,tp=4")
      ->type_name("NAME=SIZE,...");
  command.add_option("--allocator", request.allocator,
                     "Settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them: expandable_segments:True");
  command.add_flag("--run", request.run,
                   "Training: also record the first three steps of a run, and say what each holds: the first step, the "
                   "second, the steady state");
  command
      .add_option_function<std::string>(
          "--device-memory",
          [&request](const std::string& text) {
            request.device_memory = parse_bytes(text);
            if (!request.device_memory)
              throw CLI::ValidationError("--device-memory", "'" + text + "' is no size like 80GiB");
          },
          "Memory of the device, 80GiB: says so if the step does not fit")
      ->type_name("BYTES");
}

void add_report_options(CLI::App& command, ReportRequest& request, std::string& mode) {
  command
      .add_option("source", request.profile.capture.source,
                  "Built-in model, TorchScript file, torch.export archive, or graph file")
      ->required();
  command.add_option("-o,--output", request.output, "HTML file to write; it needs no other")->required();
  command.add_option(
      "--compare", request.compare,
      "What it was before: a graph file, a profile.json, or another model, captured with the same options");
  command
      .add_option("--color", request.color,
                  "Values of nodes to colour by, too: FILE.json, FILE.csv or FILE.csv:COLUMN (docs/pictures.md)")
      ->type_name("FILE");
  command.add_option("--title", request.title, "Title of the page (default: the model, or the file)");
  add_capture_options(command, request.profile.capture, mode, nullptr);
  command.add_option("--spec", request.profile.spec,
                     "Device that the time is estimated for: a name of 'shadowgraph devices', or a file");
  command.add_option("--interconnect", request.profile.interconnect, "Links between processes, as for profile");
  command.add_option("--mesh", request.profile.mesh, "Sizes of process groups, as for profile: dp=8,tp=4")
      ->type_name("NAME=SIZE,...");
  command.add_option("--allocator", request.profile.allocator,
                     "Settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them");
}

void add_fit_options(CLI::App& command, FitRequest& request, std::string& mode) {
  command.add_option("model", request.capture.source, "Built-in model")->required();
  command
      .add_option_function<std::string>(
          "--memory", [&request](const std::string& text) { request.memory = *parse_bytes(text); },
          "Memory of the device: 80GB, 24GiB")
      ->required()
      ->check(size_like("24GiB"));
  command.add_option("--by", request.by, kBy)->check(CLI::IsMember({"live", "reserved", "device"}));
  add_capture_options(command, request.capture, mode, nullptr);
  command.remove_option(command.get_option("--seq"));
  command.remove_option(command.get_option("--mode"));
  add_mode_option(command, mode);
  command
      .add_option_function<std::string>(
          "--seq",
          [&request](const std::string& text) {
            const auto size = sequence_option(text);
            if (text.ends_with("..")) {
              request.longest_from = size;
            } else {
              request.capture.seq = *size;
            }
          },
          "Sequence length, 512; or 1k.. for the longest one from there on, at --batch")
      ->check([](const std::string& text) {
        return sequence_option(text) ? std::string()
                                     : "'" + text + "' is neither a length such as 512 or 1k nor a range such as 1k..";
      });
  command.add_option("--with-checkpoint", request.checkpoints,
                     "Also with these modules computed again in backward: auto, 'layers.*'; repeat for several");
  command.add_option("--allocator", request.allocator,
                     "Settings of the caching allocator, as PYTORCH_ALLOC_CONF takes them");
  command.add_flag("--json", request.json, "As JSON, key batch (or seq, or context)");
}

void add_what_if_options(CLI::App& command, WhatIfRequest& request) {
  CaptureRequest& capture = request.capture;
  command
      .add_option(
          "source", capture.source,
          "Graph file of a training step; or built-in model, TorchScript file or torch.export archive, of which a "
          "step is captured first")
      ->required();
  command.add_option("--batch", capture.batch, "Of the step that is captured: batch size")->check(whole_number_from(1));
  command.add_option("--seq", capture.seq, "Of the step that is captured: sequence length")
      ->check(whole_number_from(1));
  command.add_option("--device", capture.device, "Of the step that is captured: cpu, cuda or cuda:i")
      ->capture_default_str();
  command
      .add_option("--input", capture.inputs, "Of a TorchScript file: dtype and shape of an input; repeat for several")
      ->take_all()
      ->delimiter('\0');
  command.add_flag("--steady-state", capture.steady_state, "Of the step that is captured: the second one");
  command
      .add_option_function<std::string>(
          "--dtype",
          [&request](const std::string& text) {
            request.change.dtype = text == "bf16" ? c10::ScalarType::BFloat16 : c10::ScalarType::Half;
          },
          "What if parameters and activations were bf16 or f16 in place of f32")
      ->check(CLI::IsMember({"bf16", "f16"}));
  command
      .add_option("--optimizer", request.change.optimizer, "What if the optimizer were this one, or there were none")
      ->check(CLI::IsMember({"none", "sgd", "sgd_momentum", "adam", "adamw"}));
  command.add_option("--accumulate", request.change.accumulate, "What if so many micro-batches were accumulated")
      ->check(whole_number_from(1));
  command.add_option("--checkpoint", request.change.checkpoint,
                     "What if these modules were computed again in backward: 'transformer.h.*', auto");
  command.add_option("--zero", request.change.zero_stage, "What if ZeRO of this stage spread the step over --ranks")
      ->check(CLI::IsMember({0, 1, 2, 3}));
  command.add_option("--ranks", request.change.ranks, "Ranks of --zero")->check(whole_number_from(2));
  command.add_flag("--json", request.json, "As JSON");
}

}  // namespace shadowgraph::cli
