// `shadowgraph fit`: the largest size that fits in memory, tables over ranges of sizes, and serving engines.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/size_sweep.h"
#include "cli/source_options.h"
#include "cli/tool.h"
#include "cli/verbs.h"
#include "shadowgraph/plan/serving.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/units.h"

namespace shadowgraph::cli {
namespace {

// Options of --mode serve, except spec, context and memory.
struct ServeRequest {
  ServingOptions engine;
  std::optional<std::string> weights;
  std::vector<std::string> keep;
  int devices = 1;
  std::string interconnect;
};

struct FitRequest {
  CaptureRequest capture{.mode = CaptureMode::kTrain};
  std::optional<MemoryLimit> memory;
  std::string spec;  // device for times and, unless `memory` is given, memory; empty: the device of `memory`, or h100
  MemoryMetric by = MemoryMetric::kDevice;
  std::string allocator;                 // as in PYTORCH_ALLOC_CONF
  std::optional<SizeRange> batches;      // --batch 1..512: prints a table instead of searching
  std::optional<int64_t> longest_from;   // --seq 1Ki..: searches for the longest sequence from here on
  std::optional<SizeRange> seqs;         // --seq 512..8Ki: prints a table, with `batches`
  std::vector<std::string> checkpoints;  // checkpointing policies to try besides none: "auto", "layers.*"
  ServeRequest serve;
  bool json = false;
};

struct Probe {
  int64_t size = 0;
  bool fits = false;
  int64_t held = 0;  // bytes
  int64_t peak = 0;  // live bytes
  int64_t flops = 0;
  double seconds = 0;  // per step; 0: unknown
  std::optional<CacheInfo> cache;
};

bool searches_context(const FitRequest& request) {
  return request.capture.mode == CaptureMode::kDecode && request.capture.context == 0;
}

const char* name_of_size(const FitRequest& request) {
  if (searches_context(request)) return "context";
  return request.longest_from ? "seq" : "batch";
}

// Searches the sizes of one program with one checkpointing policy.
class Fitting {
 public:
  Fitting(const FitRequest& request, std::string checkpoint) : request_(request), checkpoint_(std::move(checkpoint)) {
    options_.memory.allocator = AllocatorSettings::parse(request.allocator);
    options_.top_at_peak = 0;
    if (!request.capture.device.is_cpu()) {
      spec_ = Machine::find(request.spec, {}, request.memory).specs();
      options_.spec = &*spec_;
      options_.memory.assumptions = DeviceAssumptions::of(*spec_);
    }
    // With a capacity, the simulated allocator frees cached blocks and retries when memory runs out, as on the device
    // and in the verdict of `profile`. A growing KV cache, for example, leaves blocks slightly too small to be reused.
    options_.memory.capacity = capacity_of(*request.memory, request.by, options_.memory.assumptions);
  }

  // Returns the largest size >= `least` that fits; empty if `least` does not fit.
  std::optional<Probe> largest(int64_t least) {
    std::optional<Probe> best = probe(least);
    if (!best || !best->fits) return std::nullopt;
    int64_t step = std::max<int64_t>(1, least);
    int64_t beyond = 0;  // the smallest size known not to fit
    while (beyond == 0 && best->size < kMost) {
      const auto next = probe(best->size + step);
      if (next && next->fits) {
        best = next;
        step *= 2;
      } else {
        beyond = best->size + step;
      }
    }
    while (beyond - best->size > 1) {
      const int64_t middle = best->size + (beyond - best->size) / 2;
      if (const auto next = probe(middle); next && next->fits) {
        best = next;
      } else {
        beyond = middle;
      }
    }
    return best;
  }

  int captures = 0;
  std::string limit;  // why larger sizes were not possible, if not for memory

 private:
  static constexpr int64_t kMost = int64_t{1} << 24;

  // Returns empty if the program cannot be captured at this size.
  std::optional<Probe> probe(int64_t size) {
    CaptureRequest at = request_.capture;
    (searches_context(request_) ? at.context : request_.longest_from ? at.seq : at.batch) = size;
    // The first step does not show the gradients that stay allocated for the second.
    if (at.training.zero_grads) at.steady_state = true;
    at.checkpoint = checkpoint_;
    std::optional<LoadedGraph> loaded;
    try {
      loaded = load(at);
    } catch (const std::exception& error) {
      if (captures == 0) throw;
      limit = error.what();
      limit = limit.substr(0, limit.find('\n'));
      return std::nullopt;
    }
    ++captures;
    const Profile costs = profile(loaded->graph, options_);
    Probe probe{.size = size, .held = held(costs), .peak = costs.leading_peak().bytes, .cache = costs.cache};
    probe.fits = probe.held <= request_.memory->bytes && costs.out_of_memory.empty();
    for (const auto& [phase, flops] : costs.flops) probe.flops += flops.matmul;
    if (costs.time() != nullptr) probe.seconds = costs.time()->per_step(costs.time()->seconds());
    if (!probe.fits) limit.clear();
    return probe;
  }

  int64_t held(const Profile& costs) const {
    if (request_.by == MemoryMetric::kLive) return costs.leading_peak().bytes;
    if (!costs.device_memory) return std::max(costs.peak_with_scratch.bytes, costs.leading_peak().bytes);
    return request_.by == MemoryMetric::kReserved ? costs.device_memory->reserved_peak
                                                  : costs.device_memory->footprint();
  }

  const FitRequest& request_;
  std::string checkpoint_;
  ProfileOptions options_;
  std::optional<DeviceSpec> spec_;
};

nlohmann::json to_json(const std::string& policy, const char* what, const Fitting& fitting,
                       const std::optional<Probe>& best) {
  nlohmann::json entry{{"checkpoint", policy}, {"captures", fitting.captures}, {what, best ? best->size : 0}};
  if (best) {
    entry["bytes"] = best->held;
    entry["peak_bytes"] = best->peak;
    entry["flops"] = best->flops;
    if (best->seconds > 0) entry["seconds"] = best->seconds;
    if (best->cache) {
      entry["cache_bytes"] = best->cache->bytes;
      entry["bytes_per_token"] = best->cache->bytes_per_token;
      entry["positions"] = best->cache->positions;
    }
  }
  if (!fitting.limit.empty()) entry["limit"] = fitting.limit;
  return entry;
}

void print_row(const std::string& policy, const Fitting& fitting, const Probe& best) {
  print_out("{:<16} {:>8} {:>12} {:>12} {:>12} {:>12}  {} captures\n", policy, best.size, human_bytes(best.held),
            human_bytes(best.peak), human_count(best.flops), best.seconds > 0 ? human_seconds(best.seconds) : "-",
            fitting.captures);
  if (!fitting.limit.empty()) print_out("{:<16} {:>8} limited by: {}\n", "", "", fitting.limit);
  if (!best.cache) return;
  print_out("{:<16} {:>8} KV cache: {} bytes per token and sequence, {} in total{}\n", "", "",
            exact_count(best.cache->bytes_per_token), human_bytes(best.cache->bytes),
            best.cache->context > best.cache->positions
                ? fmt::format("; the model was trained on {} positions", exact_count(best.cache->positions))
                : "");
}

std::string of_device(const MemoryLimit& memory) { return memory.device.empty() ? "" : " (" + memory.title + ")"; }

// Checks that the source can be captured at other sizes: the input specs must name them.
void check_source(const FitRequest& request) {
  const SourceKind kind = kind_of_source(request.capture.source);
  if (kind == SourceKind::kGraph) {
    throw Error("fit captures several sizes and needs a model; " + request.capture.source +
                " is a saved graph with fixed sizes");
  }
  const bool other_batches = request.batches || !request.longest_from;
  if (other_batches && !has_size(request.capture, "batch")) {
    throw Error(request.capture.source +
                ": fit varies the batch size; mark it in the input specs: --input 'f32[batch,3,224,224]'");
  }
  if ((request.seqs || request.longest_from) && !has_size(request.capture, "seq")) {
    throw Error(request.capture.source +
                ": fit varies the sequence length; mark it in the input specs: --input 'i64[batch,seq]'");
  }
}

// Captures every size that is tried, about thirty at most; the result is one of them, so nothing is extrapolated. On a
// CPU, which has no caching allocator, bytes are the peak including known scratch memory, or live bytes.
int search(const FitRequest& request) {
  check_source(request);
  if (searches_context(request) && request.longest_from) {
    throw Error("--mode decode searches for the longest context; remove --seq");
  }
  if (request.by == MemoryMetric::kReserved && request.capture.device.is_cpu()) {
    throw Error("--by reserved: a CPU has no caching allocator; use --by live, or --device cuda");
  }
  const char* what = name_of_size(request);
  const int64_t least = request.longest_from.value_or(1);
  std::vector<std::string> policies{request.capture.checkpoint};
  if (request.capture.trains()) {
    policies.insert(policies.end(), request.checkpoints.begin(), request.checkpoints.end());
  }
  auto list = nlohmann::json::array();
  // Times are of this device; none for a CPU.
  std::string timed;
  if (!request.capture.device.is_cpu()) timed = Machine::find(request.spec, {}, request.memory).specs().title;
  if (!request.json) {
    print_out("{} of memory{}, counting {}{}{}\n", human_bytes(request.memory->bytes), of_device(*request.memory),
              request.by == MemoryMetric::kDevice ? "allocator and CUDA context"
              : request.by == MemoryMetric::kLive ? "live tensors only"
                                                  : "bytes reserved by the allocator",
              request.capture.trains() && !timed.empty() ? "; optimizers as by default on CUDA, foreach=True" : "",
              timed.empty() || timed == request.memory->title ? "" : "; times on " + timed);
    print_out("{:<16} {:>8} {:>12} {:>12} {:>12} {:>12}\n", "CHECKPOINTS", what,
              request.by == MemoryMetric::kDevice ? "on device" : to_string(request.by), "live peak", "FLOPs a step",
              "time a step");
  }
  bool any = false;
  for (const std::string& policy : policies) {
    Fitting fitting(request, policy);
    const std::string name = policy.empty() ? "none" : policy;
    const auto best =
        with_progress(fmt::format("looking for the largest {}", what), [&] { return fitting.largest(least); });
    any |= best.has_value();
    if (request.json) {
      list.push_back(to_json(name, what, fitting, best));
    } else if (best) {
      print_row(name, fitting, *best);
    } else {
      print_out("{:<16} {:>8}  {} {} does not fit\n", name, "-", what, least);
    }
  }
  if (request.json) {
    nlohmann::json answer = list.front();  // the policy of --checkpoint, or none
    answer["memory_bytes"] = request.memory->bytes;
    if (!request.memory->device.empty()) answer["device"] = request.memory->device;
    answer["by"] = to_string(request.by);
    if (!timed.empty()) answer["spec"] = timed;
    answer["with_checkpoints"] = nlohmann::json::array();
    for (size_t i = 1; i < list.size(); ++i) answer["with_checkpoints"].push_back(list[i]);
    print_text(json_text(answer));
  }
  if (any) return 0;
  std::string tries;
  if (!request.capture.dtype) tries += ", or try --dtype bf16";
  if (request.checkpoints.empty()) tries += ", or try --with-checkpoint auto";
  throw Error(fmt::format("{} does not fit in {} with {} {}; give more memory{}", request.capture.source,
                          human_bytes(request.memory->bytes), what, least, tries));
}

int sweep(const CLI::App& command, const FitRequest& request) {
  takes_none_of(command, "--batch A..B", {"--with-checkpoint"});
  check_source(request);
  const bool by_given = command.count("--by") > 0;
  if (by_given && !request.memory) throw Error("--by requires --memory");
  // A CPU has only live bytes.
  const MemoryMetric by = !by_given && request.capture.device.is_cpu() ? MemoryMetric::kLive : request.by;
  sweep_batches(request.capture, {*request.batches, request.memory, by, request.spec, request.allocator, request.json});
  return 0;
}

int grid(const CLI::App& command, const FitRequest& request) {
  takes_none_of(command, "--batch A..B with --seq A..B", {"--with-checkpoint"});
  check_source(request);
  const bool live = command.count("--by") == 0 && request.capture.device.is_cpu();
  SizeGridRequest sizes{.batches = doubling_sizes(request.batches->first, request.batches->last),
                        .seqs = doubling_sizes(request.seqs->first, request.seqs->last),
                        .memory = *request.memory,
                        .by = live ? MemoryMetric::kLive : request.by,
                        .allocator = AllocatorSettings::parse(request.allocator),
                        .device = request.capture.device};
  if (!sizes.device->is_cpu()) {
    sizes.assumptions = DeviceAssumptions::of(Machine::find(request.spec, {}, request.memory).specs());
  }
  const auto capture = [&](int64_t batch, int64_t seq) {
    CaptureRequest at = request.capture;
    at.batch = batch;
    at.seq = seq;
    return load(at).graph;
  };
  const SizeGrid found = with_progress("looking for sizes that fit", [&] { return SizeGrid::of(capture, sizes); });
  if (request.json) {
    nlohmann::json answer = to_json(found);
    answer["model"] = request.capture.source;
    print_text(json_text(answer));
    return 0;
  }
  print_text(fmt::format("{} of memory{}\n", human_bytes(request.memory->bytes), of_device(*request.memory)) +
             to_text(found));
  return 0;
}

// Fills in the memory of the --spec device if --memory was not given.
FitRequest with_memory(const FitRequest& request) {
  FitRequest fitted = request;
  if (fitted.memory || fitted.spec.empty()) return fitted;
  fitted.memory = Machine::find(fitted.spec).memory;
  if (!fitted.memory) throw Error("--spec " + fitted.spec + " has no memory size; add --memory");
  return fitted;
}

const std::string& kServing = ServingOptions::table().rows().front().group;

int serve(const CLI::App& command, const FitRequest& request) {
  takes_only(
      command, "--mode serve",
      {"SOURCE", "--untrusted", "--mode", "--spec", "--memory", "--context", "--dtype", "--debug", "--json", kServing});
  const CaptureRequest& capture = request.capture;
  if (kind_of_source(capture.source) != SourceKind::kPython) {
    throw Error("--mode serve requires a Python model (hf:CONFIG.json or some.module:factory), not " + capture.source +
                "; use --mode decode to find its longest context");
  }
  if (capture.context == 0) throw CLI::RequiredError("--context");
  const std::string device = !request.spec.empty() || !request.memory ? request.spec : request.memory->device;
  if (device.empty()) throw Error("--mode serve requires a device; add --spec, for example --spec l4");
  const ServeRequest& serve_options = request.serve;
  nlohmann::json keep, weights;
  if (!serve_options.keep.empty()) keep = serve_options.keep;
  if (serve_options.weights) weights = *serve_options.weights == "none" ? "" : *serve_options.weights;
  nlohmann::json how{{"spec", device},
                     {"context", capture.context},
                     {"weights", weights},
                     {"keep", keep},
                     {"tensor_parallel", serve_options.devices},
                     {"memory", request.memory ? request.memory->bytes : 0},
                     {"interconnect", serve_options.interconnect}};
  for (const auto& row : ServingOptions::table().rows()) how[row.name] = row.json(row.print(serve_options.engine));
  const Serving answer = with_progress("profiling " + capture.source + " as served", [&] {
    return needed_python(capture.source + " is a Python model")
        .serve({{"source", capture.source},
                {"debug", capture.debug},
                {"dtype", capture.dtype ? nlohmann::json(dtype_name(*capture.dtype)) : nullptr},
                {"how", std::move(how)}});
  });
  print_text(request.json ? json_text(to_json(answer)) : to_text(answer));
  return answer.fits() ? 0 : 1;
}

int fit(const CLI::App& command, const FitRequest& request) {
  if (request.capture.mode == CaptureMode::kServe) return serve(command, request);
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_group() != kServing) continue;
    throw CLI::ValidationError(option->get_name(), "requires --mode serve");
  }
  FitRequest completed = with_memory(request);
  if (request.batches && !request.seqs && !request.longest_from) return sweep(command, completed);
  if (!completed.memory) throw CLI::RequiredError("--memory or --spec");
  if (completed.longest_from && completed.batches) {  // "1k.." in a table
    completed.seqs = SizeRange{.first = *completed.longest_from, .last = *completed.longest_from * 64};
  }
  if (!completed.seqs) return search(completed);
  if (!completed.batches) completed.batches = SizeRange{.first = 1, .last = 64};
  return grid(command, completed);
}

// Parses "512..8k".
std::optional<SizeRange> sequence_range(const std::string& text) {
  const size_t dots = text.find("..");
  if (dots == text.npos) return std::nullopt;
  const auto first = parse_count(text.substr(0, dots));
  const auto last = parse_count(text.substr(dots + 2));
  if (!first || !last || *last < *first) return std::nullopt;
  return SizeRange{.first = *first, .last = *last};
}

void add_ranges(CLI::App& command, FitRequest& request) {
  begin_group(command, kModel);
  command
      .add_option_function<std::string>(
          "--batch",
          [&request](const std::string& text) {
            request.batches = parse_size_range(text);
            if (!request.batches) request.capture.batch = std::stoll(text);
          },
          "Batch size, with --seq 1Ki..; or a range to tabulate: 1..512, 8..512:8")
      ->check([](const std::string& text) {
        if (parse_size_range(text)) return std::string();
        return text.find("..") == text.npos ? whole_number_from(1)(text)
                                            : "'" + text + "' is not a range such as 1..512 or 8..512:8";
      });
  command
      .add_option_function<std::string>(
          "--seq",
          [&request](const std::string& text) {
            request.seqs = sequence_range(text);
            if (text.ends_with("..")) {
              request.longest_from = parse_count(text.substr(0, text.size() - 2));
            } else if (!request.seqs) {
              request.capture.seq = *parse_count(text);
            }
          },
          "Sequence length; 1k.. finds the longest; 512..8k tabulates, with --batch A..B")
      ->check([](const std::string& text) {
        const bool open = text.ends_with("..") && parse_count(text.substr(0, text.size() - 2));
        if (open || parse_count(text) || sequence_range(text)) return std::string();
        return "'" + text + "' is not a length such as 512 or 1k, or a range such as 1k.. or 512..8k";
      });
}

void add_serving_options(CLI::App& command, ServeRequest& request) {
  cli::add_options(command, request.engine, ServingOptions::table());
  command.add_option("--weights", request.weights,
                     "Quantization of weights: awq, gptq:group=32, none, ... (default: the configuration's)");
  add_list(command, "--keep", request.keep,
           "Parameters to leave unquantized: substrings or patterns (default: the output layer)");
  add_number(command, "--tp", request.devices, 1, "Tensor-parallel degree");
  add_interconnect_option(command, request.interconnect);
}

void add_options(CLI::App& command, FitRequest& request) {
  add_source(command, request.capture, "Built-in model, .pt or .pt2 file, some.module:factory or hf:CONFIG.json");
  add_ranges(command, request);
  add_capture_options_but_sizes(command, request.capture);
  add_memory(command, request.memory, "Device memory: l4, 24GiB (default: that of --spec)");
  add_spec_option(command, request.spec);
  add_field(command, "--by", request.by,
            "Bytes --memory limits: live (tensors), reserved (allocator), device (plus CUDA context)");
  add_allocator_option(command, request.allocator);
  add_serving_options(command, request.serve);
  begin_group(command, kOutput);
  command.add_option("--with-checkpoint", request.checkpoints,
                     "Also try activation checkpointing of these modules: auto, 'layers.*'; repeatable");
  command.add_flag("--json", request.json, "Print JSON; the result is under batch, seq or context");
  command.footer(
      "Examples:\n"
      "  shadowgraph fit llama3_8b --memory h100 --dtype bf16 --seq 8Ki.. --batch 1\n"
      "  shadowgraph fit gpt2 --memory l4 --batch 1..64 --seq 128..1024\n"
      "  shadowgraph fit resnet50 --memory 24GiB --batch 1..256\n"
      "  shadowgraph fit hf:CONFIG.json --mode serve --spec h100 --tp 4 --context 32Ki --weights fp8");
}

}  // namespace

Work declare_fit(CLI::App& command) { return work_of<FitRequest>(command, add_options, fit); }

}  // namespace shadowgraph::cli
