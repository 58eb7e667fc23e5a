#include "cli/fit.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/output.h"
#include "cli/progress.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/time.h"

namespace shadowgraph::cli {
namespace {

struct Probe {
  int64_t size = 0;
  bool fits = false;
  int64_t held = 0;  // bytes
  int64_t peak = 0;  // live bytes
  int64_t flops = 0;
  double seconds = 0;  // of a step; 0: no times
  std::optional<CacheInfo> cache;
};

// What is looked for.
bool looks_for_context(const FitRequest& request) {
  return request.capture.generation == "decode" && request.capture.context == 0;
}

const char* name_of_size(const FitRequest& request) {
  if (looks_for_context(request)) return "context";
  return request.longest_from ? "seq" : "batch";
}

// Tries sizes of one program with one checkpoint policy.
class Fitting {
 public:
  Fitting(const FitRequest& request, std::string checkpoint) : request_(request), checkpoint_(std::move(checkpoint)) {
    options_.memory.allocator = AllocatorSettings::parse(request.allocator);
    options_.top_at_peak = 0;
    // A grown cache leaves free blocks that are a little too small for the next tokens; where they are in the way, the
    // allocator gives them back and tries again, as it does on a device of this memory.
    if (looks_for_context(request) && request.by != "live") {
      options_.memory.capacity = request.memory + (request.by == "reserved" ? options_.memory.assumptions.context : 0);
    }
    if (request.capture.device != "cpu") {
      spec_ = DeviceSpec::named("h100");
      options_.spec = &*spec_;
    }
  }

  // The largest that fits, of sizes from `least` on. Empty if that does not.
  std::optional<Probe> largest(int64_t least) {
    std::optional<Probe> best = probe(least);
    if (!best || !best->fits) return std::nullopt;
    int64_t step = std::max<int64_t>(1, least);
    int64_t beyond = 0;  // the least size known not to do
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
      const auto middle = probe(best->size + (beyond - best->size) / 2);
      if (middle && middle->fits) {
        best = middle;
      } else {
        beyond = best->size + (beyond - best->size) / 2;
      }
    }
    return best;
  }

  int captures = 0;
  std::string limit;  // why larger sizes were not tried, if it was not memory

 private:
  static constexpr int64_t kMost = int64_t{1} << 24;

  // Empty if the program does not exist at this size.
  std::optional<Probe> probe(int64_t size) {
    CaptureRequest at = request_.capture;
    (looks_for_context(request_) ? at.context : request_.longest_from ? at.seq : at.batch) = size;
    // What a first step with gradients that stay leaves to the next is not in that step alone.
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
    Probe probe{.size = size, .peak = costs.peak.bytes};
    probe.held = held(costs);
    probe.fits = probe.held <= request_.memory && costs.out_of_memory.empty();
    for (const auto& [phase, flops] : costs.flops) probe.flops = probe.flops + flops.matmul;
    probe.cache = costs.cache;
    if (costs.time() != nullptr) probe.seconds = costs.time()->seconds();
    if (!probe.fits) limit.clear();
    return probe;
  }

  int64_t held(const Profile& costs) const {
    if (request_.by == "live") return costs.peak.bytes;
    if (!costs.device_memory) return costs.peak_with_scratch.bytes;
    return request_.by == "reserved" ? costs.device_memory->reserved_peak : costs.device_memory->footprint();
  }

  const FitRequest& request_;
  std::string checkpoint_;
  ProfileOptions options_;
  std::optional<DeviceSpec> spec_;
};

}  // namespace

void fit(const FitRequest& request) {
  if (kind_of_source(request.capture.source) != SourceKind::kModel) {
    throw Error(request.capture.source +
                ": fit changes the batch or the sequence, which only a built-in model takes; for a file "
                "use profile --input at the sizes in question, or shadowgraph.fit() in Python");
  }
  if (looks_for_context(request) && request.longest_from) {
    throw Error("--mode decode looks for the longest context; it takes no --seq");
  }
  if (request.by == "reserved" && request.capture.device == "cpu") {
    throw Error("--by reserved: a CPU has no caching allocator; --by live, or --device cuda");
  }
  const char* what = name_of_size(request);
  std::vector<std::string> policies{request.capture.checkpoint};
  if (request.capture.train) policies.insert(policies.end(), request.checkpoints.begin(), request.checkpoints.end());
  auto list = nlohmann::json::array();
  if (!request.json) {
    fmt::print("{:<16} {:>8} {:>12} {:>12} {:>14} {:>14}  {}\n", "CHECKPOINTS", what,
               request.by == "device" ? "on device" : request.by, "live peak", "FLOPs a step", "time a step", "");
  }
  bool any = false;
  for (const std::string& policy : policies) {
    Fitting fitting(request, policy);
    const std::string name = policy.empty() ? "none" : policy;
    const auto best = [&] {
      const Progress progress("looking for the largest " + std::string(what));
      return fitting.largest(request.longest_from.value_or(1));
    }();
    any |= best.has_value();
    if (request.json) {
      nlohmann::json entry{{"checkpoint", name}, {"captures", fitting.captures}, {what, best ? best->size : 0}};
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
      list.push_back(std::move(entry));
      continue;
    }
    if (!best) {
      fmt::print("{:<16} {:>8}  not even {} {} fits\n", name, "-", what, request.longest_from.value_or(1));
      continue;
    }
    fmt::print("{:<16} {:>8} {:>12} {:>12} {:>14} {:>14}  {} captures{}\n", name, best->size, human_bytes(best->held),
               human_bytes(best->peak), human_count(best->flops),
               best->seconds > 0 ? human_seconds(best->seconds) : "-", fitting.captures,
               fitting.limit.empty() ? "" : "; no larger one: " + fitting.limit);
    if (best->cache) {
      fmt::print("{:<16} {:>8} {} bytes a token and sequence, {} in all{}\n", "", "",
                 exact_count(best->cache->bytes_per_token), human_bytes(best->cache->bytes),
                 best->cache->context > best->cache->positions
                     ? fmt::format("; the model was trained on {} positions", exact_count(best->cache->positions))
                     : "");
    }
  }
  if (request.json) {
    nlohmann::json answer = list.front();  // without checkpoints, or with those asked for
    answer["memory_bytes"] = request.memory;
    answer["by"] = request.by;
    answer["with_checkpoints"] = nlohmann::json::array();
    for (size_t i = 1; i < list.size(); ++i) answer["with_checkpoints"].push_back(list[i]);
    print_text(json_text(answer));
  }
  if (!any) {
    throw Error(fmt::format("{} does not fit into {} at {} {}", request.capture.source, human_bytes(request.memory),
                            what, request.longest_from.value_or(1)));
  }
}

}  // namespace shadowgraph::cli
