// Finds changes of a request with which a plan fits. Tries, one by one:
//   - lifting each restriction of the search space;
//   - offloading activations and the optimizer to CPU;
//   - gradients and moments in bfloat16, without main weights;
//   - the smallest sufficient increase of memory, devices or batch, or reduction of the sequence length, by bisection.
// Changes are sorted by the factor by which they change the request.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "parallel/plan/planner.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

constexpr TrainingState kAllBfloat16{.gradient = 2, .optimizer = 4};

struct Change {
  double size = 1;  // factor; 1: only a restriction is lifted
  std::string text;
};

class FittingChanges {
 public:
  FittingChanges(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache)
      : source_(source), request_(request), cache_(cache), memory_(usable_memory(request)) {
    request_.simulated = 1;
  }

  std::string text() {
    std::string text = fmt::format("no plan of {} fits in {} on each of {} devices", source_.name, human_bytes(memory_),
                                   request_.devices);
    lift_constraints();
    if (first_fitting_plan(source_, request_, cache_, kEverything)) {
      offload();
      more_memory();
      smaller_state();
    } else {
      text = fmt::format(
          "no plan of {} exists for {} devices and {} samples per step: no tensor-parallel degree, pipeline degree and "
          "micro-batch in the search space divides them",
          source_.name, request_.devices, request_.batch);
      more(&ClusterRequest::batch, 1, "samples per step");
    }
    const int64_t machine = request_.links.levels.empty() ? 1 : request_.links.levels.front().size;
    more(&ClusterRequest::devices, machine > 0 && request_.devices % machine == 0 ? machine : 1, "devices");
    shorter_sequences();
    std::ranges::stable_sort(found_, {}, &Change::size);
    if (found_.empty()) return text + "; neither more memory, nor more devices, nor shorter sequences would fit";
    text += ". Changes that would fit, smallest first:";
    for (const Change& change : found_) text += "\n  " + change.text;
    return text;
  }

 private:
  // The limit for estimated bytes, given how much simulations have exceeded estimates.
  int64_t estimated_limit(int64_t memory) const { return static_cast<int64_t>(static_cast<double>(memory) / excess_); }

  // Simulates a changed request, and records the change if a plan fits.
  bool add(double size, const std::string& change, const StepSource& source, const ClusterRequest& request,
           LayerCostCache& cache) {
    const ClusterPlan answer = search_plan(source, request, cache, false);
    if (answer.simulated.empty()) return false;
    const SimulatedPlan& best = answer.best();
    found_.push_back(
        {size, fmt::format("{}: {}, {} per step, {} of {} per device", change, to_string(best.plan),
                           human_seconds(best.run.seconds()), human_bytes(best.bytes()), human_bytes(answer.memory))});
    return true;
  }

  void lift_constraints() {
    int held = 0;
    ClusterRequest all = request_;
    const auto lift = [&](const char* name, auto ClusterRequest::*knob) {
      if ((request_.*knob).empty()) return;
      ++held;
      ClusterRequest freed = request_;
      (freed.*knob).clear();
      (all.*knob).clear();
      add(1, fmt::format("with any {}", name), source_, freed, cache_);
    };
    if (source_.any_micro_batch) lift("micro-batch", &ClusterRequest::micro_batch);
    lift("ZeRO", &ClusterRequest::zero);
    lift("tensor parallel", &ClusterRequest::tensor);
    lift("context parallel", &ClusterRequest::context);
    lift("pipeline", &ClusterRequest::pipeline);
    lift("stages per rank", &ClusterRequest::stages_per_rank);
    lift("schedule", &ClusterRequest::schedules);
    lift("recompute", &ClusterRequest::recompute);
    if (found_.empty() && held > 1) add(1, "without restrictions", source_, all, cache_);
  }

  void offload() {
    const auto with = [&](const char* what, const std::vector<Offload>& offload) {
      if (std::ranges::all_of(offload, [&](Offload what) { return request_.may_offload(what); })) return false;
      ClusterRequest changed = request_;
      changed.offload.insert(changed.offload.end(), offload.begin(), offload.end());
      return add(1, fmt::format("with {} offloaded to CPU", what), source_, changed, cache_);
    };
    const DeviceSpec& device = request_.device;
    const bool state = device.host && device.host->bandwidth > 0 && request_.state.optimizer;
    bool fits = device.host && with("activations", {Offload::kActivations});
    fits = (state && with("the optimizer", {Offload::kOptimizer})) || fits;
    if (state && !fits) with("activations and the optimizer", {Offload::kActivations, Offload::kOptimizer});
  }

  void smaller_state() {
    if (!request_.state.optimizer || !request_.state.gradient) return;
    ClusterRequest smaller = request_;
    smaller.state = kAllBfloat16;
    LayerCostCache cache;
    const double size = static_cast<double>(2 + *request_.state.gradient + *request_.state.optimizer) /
                        static_cast<double>(2 + *kAllBfloat16.gradient + *kAllBfloat16.optimizer);
    add(size, "with gradients and moments in bfloat16 and without main weights (changes training numerics)", source_,
        smaller, cache);
  }

  // Doubles the memory until a plan fits, then bisects to one percent. Reports the simulated bytes of the plan found.
  void more_memory() {
    int64_t least = memory_, most = memory_;
    std::optional<FittingPlan> found = first_fitting_plan(source_, request_, cache_, most);
    for (int doublings = 0; !found && doublings < kDoublings; ++doublings) {
      least = most;
      found = first_fitting_plan(source_, request_, cache_, most *= 2);
    }
    while (found && most - least > most / 100) {
      const int64_t middle = least + (most - least) / 2;
      auto nearer = first_fitting_plan(source_, request_, cache_, middle);
      (nearer ? most : least) = middle;
      if (nearer) found = std::move(nearer);
    }
    if (!found) return;
    const SimulatedPlan result = cache_.simulator.of(source_, request_, found->plan);
    excess_ = std::max(1.0, static_cast<double>(result.bytes()) / static_cast<double>(found->estimate.bytes));
    const int64_t overhead = runtime_overhead_bytes(request_.device);
    if (result.bytes() <= memory_) {  // the search skipped it because its estimate was too large
      found_.push_back(
          {1, fmt::format(
                  "no change needed with this plan, whose estimate was too large: {}, {} per step, {} of {} per device",
                  to_string(result.plan), human_seconds(result.run.seconds()), human_bytes(result.bytes()),
                  human_bytes(memory_))});
      return;
    }
    const auto whole = static_cast<double>(result.bytes() + overhead);
    found_.push_back({whole / static_cast<double>(memory_ + overhead),
                      fmt::format("devices with {}, {} more: {}, {} per step", human_bytes(result.bytes() + overhead),
                                  human_bytes(result.bytes() - memory_), to_string(result.plan),
                                  human_seconds(result.run.seconds()))});
  }

  // Finds the smallest value that fits according to estimates, to 1/16, and verifies it by simulation; increases it by
  // a step if it does not fit.
  struct Variant {
    StepSource source;
    ClusterRequest request;
    LayerCostCache* cache;
  };
  void least(int64_t begin, int64_t step, const std::function<std::optional<Variant>(int64_t)>& change,
             const std::function<std::string(int64_t)>& text) {
    const auto fits = [&](int64_t value) {
      const std::optional<Variant> variant = change(value);
      return variant && first_fitting_plan(variant->source, variant->request, *variant->cache, estimated_limit(memory_))
                            .has_value();
    };
    int64_t low = begin, high = begin;
    for (int doublings = 0; doublings < kDoublings; ++doublings) {
      low = high;
      high *= 2;
      if (!change(high)) return;
      if (fits(high)) break;
      if (doublings + 1 == kDoublings) return;
    }
    while (high - low > std::max(step, low / 16)) {
      const int64_t middle = (low + (high - low) / 2) / step * step;
      if (middle <= low || middle >= high) break;
      (fits(middle) ? high : low) = middle;
    }
    for (int tries = 0; tries < 3; ++tries, high += std::max(step, high / 16 / step * step)) {
      const std::optional<Variant> variant = change(high);
      if (!variant) return;
      const double size = static_cast<double>(high) / static_cast<double>(begin);
      if (add(size, text(high), variant->source, variant->request, *variant->cache)) return;
    }
  }

  void more(int64_t ClusterRequest::*count, int64_t step, const char* what) {
    const int64_t now = request_.*count;
    least(
        now, step,
        [&](int64_t value) {
          Variant variant{source_, request_, &cache_};
          variant.request.*count = value;
          return std::optional(std::move(variant));
        },
        [&](int64_t value) { return fmt::format("{} {}, {} more", value, what, value - now); });
  }

  // The number of tokens per step stays the same.
  void shorter_sequences() {
    constexpr int64_t kShortest = 128;
    if (!source_.with_sequence || request_.sequence == 0) return;
    std::map<int64_t, LayerCostCache> caches;
    int64_t longest = 0;
    const auto fits = [&](int64_t sequence) {
      ClusterRequest shorter = with_sequence(request_, sequence);
      if (shorter.micro_batch.empty()) shorter.micro_batch = {1};  // needs the least memory
      return first_fitting_plan(source_.with_sequence(sequence), shorter, caches[sequence], estimated_limit(memory_))
          .has_value();
    };
    int64_t shortest = request_.sequence;
    for (int64_t half = request_.sequence / 2; half >= kShortest && longest == 0; half /= 2) {
      (fits(half) ? longest : shortest) = half;
    }
    if (longest == 0) return;
    const int64_t step = std::max<int64_t>(1, longest / 8);
    while (shortest - longest > step) {
      const int64_t middle = longest + (shortest - longest) / 2 / step * step;
      if (middle == longest) break;
      (fits(middle) ? longest : shortest) = middle;
    }
    for (int tries = 0; tries < 3 && longest > 0; ++tries, longest -= step) {
      const double size = static_cast<double>(request_.sequence) / static_cast<double>(longest);
      if (add(size, fmt::format("sequences of {} tokens", longest), source_.with_sequence(longest),
              with_sequence(request_, longest), caches[longest])) {
        return;
      }
    }
  }

  static constexpr int kDoublings = 10;
  static constexpr int64_t kEverything = int64_t{1} << 60;

  const StepSource& source_;
  ClusterRequest request_;
  LayerCostCache& cache_;
  int64_t memory_;
  double excess_ = 1;
  std::vector<Change> found_;
};

}  // namespace

ClusterRequest with_sequence(ClusterRequest request, int64_t sequence) {
  const int64_t tokens = request.batch * request.sequence;
  request.batch = std::max<int64_t>(1, (tokens + sequence - 1) / sequence);
  request.sequence = sequence;
  return request;
}

std::string suggest_fitting_changes(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache) {
  return FittingChanges(source, request, cache).text();
}

}  // namespace shadowgraph
