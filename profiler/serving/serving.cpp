#include "shadowgraph/profile/serving.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "profiler/program_costs.h"
#include "profiler/serving/pass_time.h"
#include "profiler/serving/stored_weights.h"
#include "profiler/time/kernel_work.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/saturating.h"

namespace shadowgraph {
namespace {

void check(const std::vector<CacheLayer>& cache, const ServingOptions& options) {
  if (options.spec == nullptr) throw Error("serve: the figures of a device are needed (spec)");
  if (options.spec->device == c10::kCPU) {
    throw Error("serve: " + options.spec->name + " is a CPU: engines with pages are of GPUs; give l4, h100, ...");
  }
  if (options.context < 1) throw Error("serve: the tokens of a request are needed (context)");
  if (options.prompt > options.context) {
    throw Error(
        fmt::format("serve: a prompt of {} tokens is longer than the request of {}", options.prompt, options.context));
  }
  if (!(options.memory_share > 0 && options.memory_share <= 1)) {
    throw Error(fmt::format("serve: {} is no share of the device's memory", options.memory_share));
  }
  if (options.page < 1 || options.tokens_at_once < 1) throw Error("serve: pages and passes have one token or more");
  const bool keeps = std::ranges::any_of(
      cache, [](const CacheLayer& layer) { return layer.token_bytes > 0 || layer.state_bytes > 0; });
  if (!keeps) throw Error("serve: the program keeps nothing of a request: it is no generation with a cache");
}

int64_t kept_tokens(const CacheLayer& layer, int64_t tokens) {
  return layer.window > 0 ? std::min(layer.window, tokens) : tokens;
}

// What an engine with memory for `cache` bytes of pages does.
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
      if (layer.window == 0 || layer.window > options_.context) serving.token_bytes += layer.token_bytes;
    }
    serving.request_bytes = request_bytes(options_.context);
    memory_of(serving);
    serving.requests = serving.cache > 0 ? serving.cache / serving.request_bytes : 0;
    serving.longest = longest_within(serving.cache);
    if (serving.fits()) times_of(serving);
    say_assumptions(serving);
    return serving;
  }

 private:
  int64_t request_bytes(int64_t tokens) const {
    int64_t bytes = 0;
    for (const CacheLayer& layer : cache_) {
      const int64_t pages = (kept_tokens(layer, tokens) + options_.page - 1) / options_.page;
      bytes = saturating_add(bytes, layer.state_bytes);
      bytes = saturating_add(bytes, saturating_multiply(pages * options_.page, layer.token_bytes));
    }
    return bytes;
  }

  // Tokens of the longest request whose pages fit; 0 without one. A model whose layers all have windows has no longest.
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

  // The pass with most tokens says what weights and activations take.
  void memory_of(Serving& serving) {
    const int64_t tokens = std::min(options_.tokens_at_once, options_.context);
    const Graph pass = capture_(std::max<int64_t>(1, options_.tokens_at_once / options_.context), tokens);
    const StoredWeights weights(pass, options_.weights, options_.kept);
    if (options_.weights && weights.quantised() == 0) {
      throw Error(
          fmt::format("serve: no weight would be stored in {}: no matrix product reads a parameter that is not "
                      "kept",
                      options_.weights->title));
    }
    serving.weights = weights.bytes();
    serving.weights_made = weights.bytes_made();
    serving.quantised = weights.quantised();
    const ProfileOptions how{.top_at_peak = 0};
    const Profile costs = profile(pass, how);
    serving.activations = std::max<int64_t>(0, costs.peak_with_scratch.bytes - weights.bytes_made());
    const DeviceAssumptions assumptions = DeviceAssumptions::of(*options_.spec);
    serving.context_bytes = assumptions.context;
    if (costs.communication() != nullptr) {
      for (const ProcessGroupInfo& group : costs.communication()->groups()) {
        if (group.size > 1) serving.context_bytes += assumptions.nccl_group;
      }
      if (options_.interconnect != nullptr) serving.links = options_.interconnect->title;
    }
    const int64_t left = serving.engine - serving.weights - serving.activations - serving.context_bytes;
    int64_t all_layers = 0;
    for (const CacheLayer& layer : cache_) all_layers += layer.token_bytes;
    const int64_t page = all_layers * options_.page;
    serving.pages = left > 0 && page > 0 ? left / page : 0;
    serving.cache = page > 0 ? serving.pages * page : std::max<int64_t>(0, left);
  }

  void times_of(Serving& serving) {
    Graph prompt = capture_(1, serving.prompt);
    const PassTime first = PassTime::of(prompt, StoredWeights(prompt, options_.weights, options_.kept), options_);
    serving.first_token = first.seconds + first.attention;
    if (first.attention_flops.empty()) {
      serving.assumptions.emplace_back(
          "the program's attention is no single kernel: its scores are among the activations and in the first token's "
          "time, an engine's are not");
    }
    for (int64_t requests = 1;; requests = std::min(requests * 4, serving.requests)) {
      const double seconds = next_token(requests);
      serving.rows.push_back({requests, seconds, static_cast<double>(requests) / seconds});
      if (requests == serving.requests) break;
    }
  }

  // Each of so many requests has all its tokens but this one.
  double next_token(int64_t requests) {
    Graph token = capture_(requests, 1);
    const PassTime pass = PassTime::of(token, StoredWeights(token, options_.weights, options_.kept), options_);
    const DeviceSpec& spec = *options_.spec;
    double seconds = pass.seconds;
    const KernelClass kind = KernelClass::kAttention;
    for (size_t i = 0; i < cache_.size(); ++i) {
      const auto kept = static_cast<double>(kept_tokens(cache_[i], options_.context));
      const double bytes = static_cast<double>(requests) * (kept * static_cast<double>(cache_[i].token_bytes) +
                                                            static_cast<double>(cache_[i].state_bytes));
      if (bytes <= 0) continue;
      // Captured with one key; each further one costs as much.
      const double flops = i < pass.attention_flops.size() ? static_cast<double>(pass.attention_flops[i]) * kept : 0;
      seconds +=
          kernel_seconds(spec, {.kind = kind, .dtype = pass.attention_dtype, .flops = flops, .bytes = bytes}).total();
    }
    return seconds;
  }

  void say_assumptions(Serving& serving) const {
    auto& said = serving.assumptions;
    said.insert(said.end(), options_.assumptions.begin(), options_.assumptions.end());
    if (std::ranges::any_of(cache_, [](const CacheLayer& layer) { return layer.state_bytes > 0; })) {
      said.emplace_back("recurrent layers run as the program writes them; an engine has kernels for them");
    }
    said.push_back(fmt::format("the engine takes {:.0f} % of the device; passes have at most {} tokens; pages have {}",
                               100 * options_.memory_share, options_.tokens_at_once, options_.page));
    said.emplace_back(
        "elementwise kernels are fused and the host is never waited for (CUDA graphs, whose memory is not "
        "counted)");
    said.emplace_back("a first token is that of a request alone; a next one reads the whole length of each request");
    if (options_.weights && options_.weights->computes &&
        !options_.spec->matmul.contains(*options_.weights->computes)) {
      said.push_back(fmt::format("{} does not compute in {}: weights become what activations are", serving.device,
                                 c10::toString(*options_.weights->computes)));
    }
    if (!options_.kept.empty() && options_.weights) {
      const auto shown = std::span(options_.kept).first(std::min<size_t>(options_.kept.size(), 3));
      const size_t more = options_.kept.size() - shown.size();
      said.push_back(fmt::format("not quantised: {}{}, and what is no matrix product's", fmt::join(shown, ", "),
                                 more > 0 ? fmt::format(" and {} more", more) : ""));
    }
  }

  static constexpr int64_t kNoLongest = int64_t{1} << 40;

  const CaptureForward& capture_;
  const std::vector<CacheLayer>& cache_;
  const ServingOptions& options_;
};

}  // namespace

Serving serve(const CaptureForward& capture, const std::vector<CacheLayer>& cache, const ServingOptions& options) {
  check(cache, options);
  return Engine(capture, cache, options).answer();
}

}  // namespace shadowgraph
