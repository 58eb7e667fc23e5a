// Simulates a serving engine: quantized weights, times of forward passes, and requests that fit in memory.
#include "shadowgraph/plan/serving.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "profiler/program_costs.h"
#include "profiler/time/kernel_work.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/structure.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

struct Readers {
  bool matmul = false, other = false;
};

IdMap<StorageId, Readers> readers_of(const Graph& graph) {
  IdMap<StorageId, Readers> readers;
  KernelClasses classes(graph);
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).kind() == TargetKind::kBuiltin || graph.facts(node).is_view) continue;
    const bool matmul = classes.of(node) == KernelClass::kMatmul;
    graph.for_each_input(node, [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (!storage.valid()) return;
      (matmul && graph.sizes(value).size() >= 2 ? readers[storage].matmul : readers[storage].other) = true;
    });
  }
  return readers;
}

class StoredWeights {
 public:
  // Quantizes floating-point weights that are only read by matmuls and have two dimensions, or three for experts. Names
  // that contain one of `kept` are not quantized.
  StoredWeights(const Graph& graph, const std::optional<WeightFormat>& format, const std::vector<std::string>& kept)
      : graph_(graph) {
    const IdMap<StorageId, Readers> readers = readers_of(graph);
    IdMap<StorageId, uint8_t> seen;
    for (const NodeId node : graph.nodes()) {
      const TargetId target = graph.node(node).target;
      if (target != target_of(Builtin::kParameter) && target != target_of(Builtin::kBuffer)) continue;
      graph.for_each_output(node, [&](ValueId value) {
        const StorageId storage = graph.value(value).storage;
        if (!storage.valid() || seen[storage] != 0) return;
        seen[storage] = 1;
        const int64_t unquantized = graph.storage(storage).bytes;
        bytes_ += unquantized;
        bytes_unquantized_ += unquantized;
        const auto sizes = graph.sizes(value);
        const bool matrix = sizes.size() == 2 || sizes.size() == 3;
        const Readers& by = readers[storage];
        if (!by.matmul || by.other || !matrix || !c10::isFloatingType(graph.value(value).dtype)) return;
        Weight weight{.experts = sizes.size() == 3 ? sizes[0] : 0};
        const std::string name = placeholder_name(graph, node);
        const bool stays =
            std::ranges::any_of(kept, [&](const std::string& part) { return name.find(part) != name.npos; });
        if (format && !stays) {
          const int64_t one = format->bytes(sizes[sizes.size() - 2], sizes[sizes.size() - 1]);
          const int64_t stored = one * std::max<int64_t>(1, weight.experts);
          weight.share = unquantized > 0 ? static_cast<double>(stored) / static_cast<double>(unquantized) : 1;
          bytes_ += stored - unquantized;
          quantized_ += graph.numel(value);
        }
        by_storage_[storage] = weight;
      });
    }
  }

  int64_t bytes() const { return bytes_; }  // of parameters and buffers, as stored
  int64_t bytes_unquantized() const { return bytes_unquantized_; }
  int64_t quantized() const { return quantized_; }  // parameters
  // Quantized size of a value as a fraction of its original size; 1 for values that are not quantized.
  double share(ValueId value) const { return weight_of(value).share; }
  // Number of experts in a weight; 0 for other values.
  int64_t experts(ValueId value) const { return weight_of(value).experts; }

 private:
  struct Weight {
    double share = 1;
    int64_t experts = 0;
  };
  Weight weight_of(ValueId value) const {
    const StorageId storage = graph_.value(value).storage;
    return storage.valid() ? by_storage_[storage] : Weight();
  }

  const Graph& graph_;
  IdMap<StorageId, Weight> by_storage_;
  int64_t bytes_ = 0, bytes_unquantized_ = 0, quantized_ = 0;
};

// Time of matmuls with quantized weights: less memory traffic than captured, and possibly another compute dtype.
class StoredProducts {
 public:
  StoredProducts(const ProgramCosts& costs, const StoredWeights& weights, const ServingOptions& options)
      : graph_(costs.graph()), works_(costs, *options.spec), weights_(weights), options_(options) {}

  double seconds(NodeId node, const NodeTime& captured) {
    double less = 0;
    bool stored = false;
    graph_.for_each_input(node, [&](ValueId value) {
      const double share = weights_.share(value) * hit(node, value);
      if (share >= 1) return;
      stored |= weights_.share(value) < 1;
      less += (1 - share) * static_cast<double>(graph_.logical_bytes(value));
    });
    if (less <= 0) return captured.seconds;
    const DeviceSpec& spec = *options_.spec;
    KernelWork work = works_.of(node);
    work.bytes = std::max(0.0, work.bytes - less);
    if (stored && options_.weights->computes && spec.matmul.contains(*options_.weights->computes)) {
      work.dtype = *options_.weights->computes;
    }
    return kernel_seconds(spec, work).total();
  }

 private:
  // Expected fraction of experts that receive at least one row, with uniform routing.
  double hit(NodeId node, ValueId value) const {
    const int64_t experts = weights_.experts(value);
    if (experts <= 1) return 1;
    int64_t rows = 0;
    graph_.for_each_input(node, [&](ValueId other) {
      if (graph_.value(other).kind != ValueKind::kTensor ||
          graph_.value(other).storage == graph_.value(value).storage) {
        return;
      }
      const auto sizes = graph_.sizes(other);
      if (sizes.size() == 2 && c10::isFloatingType(graph_.value(other).dtype)) rows = std::max(rows, sizes[0]);
    });
    if (rows == 0) return 1;  // batched: every expert has rows
    return 1 - std::pow(1 - 1.0 / static_cast<double>(experts), static_cast<double>(rows));
  }

  const Graph& graph_;
  KernelWorks works_;
  const StoredWeights& weights_;
  const ServingOptions& options_;
};

// Time of a captured forward pass in a serving engine: kernels run one after another, elementwise ones fused, with
// quantized weights. Attention is separate, since the engine's KV cache differs from the captured program's.
struct PassTime {
  double seconds = 0;                    // without attention
  double attention = 0;                  // seconds of attention as captured
  std::vector<int64_t> attention_flops;  // per call
  c10::ScalarType attention_dtype = c10::kFloat;

  // Annotates the groups of fused nodes in the graph.
  static PassTime of(Graph& graph, const StoredWeights& weights, const ServingOptions& options) {
    const FuseGroupsResult fused = fuse_groups(graph);
    const ProgramCosts costs(graph);
    const DeviceSpec& spec = *options.spec;
    const StepTime time = StepTime::of(costs, spec);
    StoredProducts products(costs, weights, options);
    PassTime pass;
    IdMap<NodeId, uint8_t> grouped;
    for (const FuseGroupsResult::Group& group : fused.groups) {
      KernelSeconds fused_kernel =
          kernel_seconds(spec, {.kind = KernelClass::kPointwise, .bytes = static_cast<double>(group.fused_bytes)});
      for (const NodeId node : group.nodes) {
        grouped[node] = 1;
        fused_kernel.compute += time.of(node).compute;
      }
      pass.seconds += fused_kernel.total();
    }
    for (const NodeId node : costs.nodes) {
      if (std::as_const(grouped)[node] != 0) continue;
      const NodeTime& at = time.of(node);
      if (at.kind == KernelClass::kAttention) {
        pass.attention += at.seconds;
        pass.attention_flops.push_back(costs.flops().of(node).matmul);
        graph.for_each_input(node, [&](ValueId value) {
          if (c10::isFloatingType(graph.value(value).dtype)) pass.attention_dtype = graph.value(value).dtype;
        });
      } else {
        pass.seconds += at.kind == KernelClass::kMatmul ? products.seconds(node, at) : at.seconds;
      }
    }
    pass.seconds += Communication::of(graph, {.interconnect = options.interconnect}).total().seconds;
    return pass;
  }
};

void check(const std::vector<CacheLayer>& cache, const ServingOptions& options) {
  if (options.spec == nullptr) throw Error("serve: no device given; set spec, for example l4 or h100");
  if (options.spec->device == c10::kCPU) {
    throw Error("serve: " + options.spec->name +
                " is a CPU, but serving engines with paged KV caches need a GPU; use l4, h100, ...");
  }
  if (options.context < 1) throw Error("serve: the tokens per request are missing; set context");
  if (options.prompt > options.context) {
    throw Error(
        fmt::format("serve: a prompt of {} tokens is longer than the request of {}", options.prompt, options.context));
  }
  if (!(options.memory_share > 0 && options.memory_share <= 1)) {
    throw Error(fmt::format("serve: memory_share must be above 0 and at most 1, not {}", options.memory_share));
  }
  if (options.page < 1 || options.max_batched_tokens < 1)
    throw Error("serve: page and max_batched_tokens must be at least 1");
  if (std::ranges::any_of(cache, [](const CacheLayer& layer) { return layer.stride < 1; }))
    throw Error("serve: the stride of a cache layer must be at least 1");
  if (std::ranges::all_of(cache, [](const CacheLayer& l) { return l.token_bytes <= 0 && l.state_bytes <= 0; }))
    throw Error("serve: the program has no KV cache or other state; it must generate with a cache");
}

// Number of entries of a request, in pages of `page` tokens.
int64_t entries(const CacheLayer& layer, int64_t tokens, int64_t page) {
  if (layer.pending) return tokens % layer.stride;
  const int64_t kept = layer.window > 0 ? std::min(layer.window, tokens) : tokens;
  return (kept + page - 1) / page * page / layer.stride;
}

class Engine {
 public:
  Engine(const CaptureForward& capture, const std::vector<CacheLayer>& cache, const ServingOptions& options)
      : capture_(capture), cache_(cache), options_(options) {}

  Serving answer() {
    const DeviceSpec& spec = *options_.spec;
    Serving serving{.device = spec.title.empty() ? spec.name : spec.title,
                    .memory = options_.memory > 0 ? options_.memory : spec.memory,
                    .format = options_.weights ? options_.weights->title : "",
                    .tokens = options_.context,
                    .prompt = options_.prompt > 0 ? options_.prompt : options_.context};
    serving.engine = static_cast<int64_t>(std::floor(static_cast<double>(serving.memory) * options_.memory_share));
    for (const CacheLayer& layer : cache_) {
      const bool grows = !layer.pending && (layer.window == 0 || layer.window > options_.context);
      if (grows) serving.token_bytes += layer.token_bytes / layer.stride;
    }
    serving.request_bytes = request_bytes(options_.context);
    memory_of(serving);
    serving.requests = serving.cache > 0 ? serving.cache / serving.request_bytes : 0;
    serving.longest = longest_within(serving.cache);
    if (serving.fits()) times_of(serving);
    note_assumptions(serving);
    return serving;
  }

 private:
  int64_t request_bytes(int64_t tokens) const {
    int64_t bytes = 0;
    for (const CacheLayer& layer : cache_) bytes = saturating_add(bytes, layer.bytes(tokens, options_.page));
    return bytes;
  }

  // Tokens of the longest request whose pages fit, or 0. Unlimited if all layers have windows.
  int64_t longest_within(int64_t bytes) const {
    if (request_bytes(1) > bytes) return 0;
    int64_t fits = 1, beyond = kNoLongest;
    if (request_bytes(beyond) <= bytes) return beyond;
    while (beyond - fits > 1) {
      const int64_t middle = fits + (beyond - fits) / 2;
      (request_bytes(middle) <= bytes ? fits : beyond) = middle;
    }
    return fits;
  }

  // Measures weights and activations in the forward pass with the most tokens.
  void memory_of(Serving& serving) {
    const int64_t tokens = std::min(options_.max_batched_tokens, options_.context);
    const Graph pass = capture_(std::max<int64_t>(1, options_.max_batched_tokens / options_.context), tokens);
    const StoredWeights weights(pass, options_.weights, options_.kept);
    if (options_.weights && weights.quantized() == 0) {
      throw Error(
          fmt::format("serve: no weight can be quantized to {}: no matmul reads a parameter other than those in --keep",
                      options_.weights->title));
    }
    serving.weights = weights.bytes();
    serving.weights_made = weights.bytes_unquantized();
    serving.quantized = weights.quantized();
    const ProfileOptions how{.top_at_peak = 0};
    const Profile costs = profile(pass, how);
    serving.activations = std::max<int64_t>(0, costs.peak_with_scratch.bytes - weights.bytes_unquantized());
    const DeviceAssumptions assumptions = DeviceAssumptions::of(*options_.spec);
    serving.context_bytes = assumptions.context;
    if (costs.communication() != nullptr) {
      for (const ProcessGroupInfo& group : costs.communication()->groups()) {
        if (group.size > 1) serving.context_bytes += assumptions.nccl_group;
      }
      if (options_.interconnect != nullptr) serving.links = options_.interconnect->title;
    }
    const int64_t left = serving.engine - serving.weights - serving.activations - serving.context_bytes;
    int64_t page = 0;
    for (const CacheLayer& layer : cache_) {
      if (!layer.pending) page += layer.token_bytes * options_.page / layer.stride;
    }
    serving.pages = left > 0 && page > 0 ? left / page : 0;
    serving.cache = page > 0 ? serving.pages * page : std::max<int64_t>(0, left);
  }

  void times_of(Serving& serving) {
    Graph prompt = capture_(1, serving.prompt);
    const PassTime first = PassTime::of(prompt, StoredWeights(prompt, options_.weights, options_.kept), options_);
    serving.first_token = first.seconds + first.attention;
    if (first.attention_flops.empty()) {
      serving.assumptions.emplace_back(
          "the program's attention is not fused: its scores count in activations and first token time, unlike in an "
          "engine");
    }
    for (int64_t requests = 1;; requests = std::min(requests * 4, serving.requests)) {
      const double seconds = next_token(requests);
      serving.rows.push_back({requests, seconds, static_cast<double>(requests) / seconds});
      if (requests == serving.requests) break;
    }
  }

  // Each request already has all its tokens except this one.
  double next_token(int64_t requests) {
    Graph token = capture_(requests, 1);
    const PassTime pass = PassTime::of(token, StoredWeights(token, options_.weights, options_.kept), options_);
    constexpr KernelClass kind = KernelClass::kAttention;
    double seconds = pass.seconds;
    size_t call = 0;
    for (const CacheLayer& layer : cache_) {
      const double bytes = static_cast<double>(requests) * static_cast<double>(layer.bytes(options_.context));
      if (bytes <= 0) continue;
      // attention_flops are those of a single key; the FLOPs are proportional to the number of keys.
      const bool attends = layer.token_bytes > 0 && call < pass.attention_flops.size();
      const double flops = attends ? static_cast<double>(pass.attention_flops[call++]) *
                                         static_cast<double>(entries(layer, options_.context, 1))
                                   : 0;
      seconds +=
          kernel_seconds(*options_.spec, {.kind = kind, .dtype = pass.attention_dtype, .flops = flops, .bytes = bytes})
              .total();
    }
    return seconds;
  }

  void note_assumptions(Serving& serving) const {
    auto& notes = serving.assumptions;
    notes.insert(notes.end(), options_.assumptions.begin(), options_.assumptions.end());
    if (std::ranges::any_of(cache_, [](const CacheLayer& layer) { return layer.state_bytes > 0; })) {
      notes.emplace_back("recurrent layers run as captured; an engine has fused kernels for them");
    }
    notes.push_back(
        fmt::format("the engine uses {:.0f} % of device memory; at most {} tokens per forward pass; {} tokens per page",
                    100 * options_.memory_share, options_.max_batched_tokens, options_.page));
    notes.emplace_back(
        "elementwise kernels are fused, and the host is never a bottleneck (CUDA graphs, whose memory is not counted)");
    notes.emplace_back("first token: of a single request; next token: reads the full length of each request");
    if (options_.weights && options_.weights->computes &&
        !options_.spec->matmul.contains(*options_.weights->computes)) {
      notes.push_back(fmt::format("{} does not compute in {}: weights are converted to the dtype of activations",
                                  serving.device, c10::toString(*options_.weights->computes)));
    }
    if (!options_.kept.empty() && options_.weights) {
      const auto shown = std::span(options_.kept).first(std::min<size_t>(options_.kept.size(), 3));
      const size_t more = options_.kept.size() - shown.size();
      notes.push_back(fmt::format("not quantized: {}{}, and parameters not used by matmuls", fmt::join(shown, ", "),
                                  more > 0 ? fmt::format(" and {} more", more) : ""));
    }
  }

  static constexpr int64_t kNoLongest = int64_t{1} << 40;

  const CaptureForward& capture_;
  const std::vector<CacheLayer>& cache_;
  const ServingOptions& options_;
};

}  // namespace

int64_t CacheLayer::bytes(int64_t tokens, int64_t page) const {
  return saturating_add(state_bytes, saturating_multiply(entries(*this, tokens, page), token_bytes));
}

const OptionTable<ServingOptions>& ServingOptions::table() {
  static const auto table =
      OptionTable<ServingOptions>()
          .group("Serving (--mode serve): an engine with a paged KV cache")
          .add("prompt", &ServingOptions::prompt, "Prompt tokens of a request, out of --context (0: all)",
               {.kind = OptionKind::kCount, .min = 0})
          .add("memory_share", &ServingOptions::memory_share, "Fraction of device memory that the engine may use",
               {.min = 0, .max = 1})
          .add("max_batched_tokens", &ServingOptions::max_batched_tokens, "Maximum tokens per forward pass",
               {.kind = OptionKind::kCount, .min = 1})
          .add("page", &ServingOptions::page, "Tokens per KV cache page", {.min = 1});
  return table;
}

Serving serve(const CaptureForward& capture, const std::vector<CacheLayer>& cache, const ServingOptions& options) {
  check(cache, options);
  return Engine(capture, cache, options).answer();
}

nlohmann::json to_json(const Serving& serving) {
  auto rows = nlohmann::json::array();
  for (const ServingRow& row : serving.rows) {
    rows.push_back({{"requests", row.requests},
                    {"next_token_seconds", row.next_token},
                    {"tokens_per_second", row.tokens_per_second}});
  }
  nlohmann::json answer{{"fits", serving.fits()},
                        {"device", serving.device},
                        {"memory_bytes", serving.memory},
                        {"engine_bytes", serving.engine},
                        {"weights_bytes", serving.weights},
                        {"weights_bytes_as_made", serving.weights_made},
                        {"quantized_parameters", serving.quantized},
                        {"activations_bytes", serving.activations},
                        {"context_bytes", serving.context_bytes},
                        {"pages", serving.pages},
                        {"cache_bytes", serving.cache},
                        {"bytes_per_token", serving.token_bytes},
                        {"bytes_per_request", serving.request_bytes},
                        {"tokens", serving.tokens},
                        {"prompt", serving.prompt},
                        {"requests", serving.requests},
                        {"longest_request", serving.longest},
                        {"rows", rows},
                        {"assumptions", serving.assumptions}};
  if (!serving.format.empty()) answer["weights"] = serving.format;
  if (!serving.links.empty()) answer["interconnect"] = serving.links;
  if (serving.fits()) answer["first_token_seconds"] = serving.first_token;
  return answer;
}

std::string to_text(const Serving& serving) {
  std::string text = serving.fits()
                         ? fmt::format("fits: {} requests of {} tokens at once on {}\n", exact_count(serving.requests),
                                       exact_count(serving.tokens), serving.device)
                         : fmt::format("does not fit: no request of {} tokens fits on {}\n",
                                       exact_count(serving.tokens), serving.device);
  if (!serving.fits() && serving.longest > 0) {
    text += fmt::format("  the longest request that fits has {} tokens\n", exact_count(serving.longest));
  } else if (!serving.fits()) {
    text += "  not even one token fits: try fewer bits per weight, more devices, or a larger --memory-share\n";
  }
  const auto line = [&](const char* what, int64_t bytes, const std::string& more) {
    text += fmt::format("  {:<12} {:>11}{}{}\n", what, human_bytes(bytes), more.empty() ? "" : "  ", more);
  };
  line("device", serving.memory, "of which the engine uses " + human_bytes(serving.engine));
  line("weights", serving.weights,
       serving.format.empty() ? std::string()
                              : fmt::format("{} parameters in {}; {} unquantized", human_count(serving.quantized),
                                            serving.format, human_bytes(serving.weights_made)));
  line("activations", serving.activations, "of a forward pass");
  line("context", serving.context_bytes, serving.links.empty() ? "CUDA context" : "CUDA context and NCCL buffers");
  if (!serving.links.empty()) text += fmt::format("  {:<12} {}\n", "links", serving.links);
  line("cache", serving.cache,
       fmt::format("{} pages; {} per request, {} per additional token", exact_count(serving.pages),
                   human_bytes(serving.request_bytes), human_bytes(serving.token_bytes)));
  if (serving.fits()) {
    text += fmt::format("  first token after {} (prompt of {} tokens)\n", human_seconds(serving.first_token),
                        exact_count(serving.prompt));
    text += fmt::format("\n{:>10} {:>12} {:>12}\n", "requests", "next token", "tokens/s");
    for (const ServingRow& row : serving.rows) {
      text += fmt::format("{:>10} {:>12} {:>12.1f}\n", exact_count(row.requests), human_seconds(row.next_token),
                          row.tokens_per_second);
    }
  }
  text += "\nassumptions\n";
  for (const std::string& assumption : serving.assumptions) text += "  " + assumption + "\n";
  return text;
}

}  // namespace shadowgraph
