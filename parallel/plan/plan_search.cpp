// Searches for the best plan: branch and bound over estimates, then simulation of the best candidates.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "parallel/plan/candidate.h"
#include "parallel/plan/layer_chain.h"
#include "parallel/plan/plan_space.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/recompute.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/shard/shard.h"
#include "shadowgraph/units.h"
#include "support/stopwatch.h"
#include "support/threads.h"

namespace shadowgraph {

class LayerCosts {
 public:
  // All arguments must outlive this object.
  LayerCosts(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache)
      : source_(source), request_(request), cache_(cache) {}

  // The layouts of the request that the step supports, with one expert rank. Their costs are cached.
  const std::vector<LayoutSizes>& layouts() {
    if (layouts_) return *layouts_;
    try {
      layouts_ = all_layouts();
    } catch (const LayersDiffer&) {
      cache_.units.clear();
      cache_.layouts.clear();
      cache_.flops = 0;
      cache_.layers_differ = true;
      cache_.notes = {"layers differ: all of them were captured"};
      layouts_ = all_layouts();
    }
    return *layouts_;
  }

  // Returns nullptr if the step cannot be sharded this way.
  const LayoutCosts* of(const LayoutSizes& sizes) {
    try {
      return costs_of(sizes);
    } catch (const LayersDiffer&) {  // with this layout only
      return nullptr;
    }
  }

  std::vector<int64_t> expert_ranks(const ExpertLayers& layers) const {
    std::vector<int64_t> sizes = expert_sizes(request_, std::max<int64_t>(1, layers.experts));
    std::erase_if(sizes, [&](int64_t ranks) { return layers.rows % ranks != 0; });
    return sizes;
  }

 private:
  struct LayersDiffer {};
  struct StepLevel {
    Recompute what;
    bool on_host;
    Graph step;
    std::vector<std::string> keeps = {};
  };

  std::vector<std::string> layers() const {
    std::vector<std::string> layers = cache_.units;
    std::erase_if(layers, [](const std::string& unit) { return number_in_path(unit).second == 0; });
    return layers;
  }

  // 0: all layers.
  int64_t layers_captured() const { return cache_.layers_differ ? 0 : representative_layers(source_); }

  int64_t more_layers() const {
    const int64_t captured = layers_captured();
    return captured > 0 ? source_.layers - captured : 0;
  }

  StageOptions stage_options() const {
    return {.spec = &request_.device, .interconnect = &request_.links, .gathers_once = false};
  }

  // Throws LayersDiffer.
  LayerChain chain(const Graph& step, const ExpertRanks& experts) const {
    const Graph rank = shard_experts_over(clone(step), experts);
    const LayerChain few(rank, cache_.units, stage_options(), request_.state);
    std::optional<LayerChain> all = few.with_more_layers(more_layers(), source_.first_layers);
    if (!all) throw LayersDiffer{};
    return std::move(*all);
  }

  // Unless expert parallelism was requested, experts that do not support it are replicated on each rank.
  ExpertLayers experts_of(const Graph& step, int64_t tensor) {
    const bool requested = std::ranges::any_of(request_.experts, [](int64_t ranks) { return ranks > 1; });
    ExpertLayers layers;
    try {
      layers = expert_layers(step);
    } catch (const Error& error) {
      if (requested && tensor == 1) throw;
      const std::string with = tensor > 1 ? fmt::format(" with tensor-parallel degree {}", tensor) : "";
      const std::string note = fmt::format("experts are replicated on each rank{}: {}", with, error.what());
      if (std::ranges::find(cache_.notes, note) == cache_.notes.end()) cache_.notes.push_back(note);
      return layers;
    }
    if (requested && layers.experts == 0) {
      throw Error(
          source_.name +
          " has no experts that support expert parallelism: they must use grouped matmuls (torch._grouped_mm; in "
          "transformers experts_implementation=\"grouped_mm\")");
    }
    return layers;
  }

  void count_flops(const Graph& step, int64_t tensor, int64_t micro_batch) {
    const LayerChain plain = chain(step, {});
    cache_.flops = static_cast<double>(plain.flops(0, plain.size())) * static_cast<double>(tensor) /
                   static_cast<double>(micro_batch);
  }

  // Unless context parallelism was requested, sequences that do not support it are not sharded.
  std::vector<int64_t> contexts() {
    std::vector<int64_t> sizes = context_sizes(request_);
    const auto is_cut = [](int64_t context) { return context > 1; };
    const auto first = std::ranges::find_if(sizes, is_cut);
    if (first == sizes.end()) return sizes;
    try {
      const StepSize size{.layers = layers_captured(), .attention = attention_kernels(request_).front()};
      const Graph whole = source_.capture(size);
      check_sequence_shards(whole, sequence_shard(source_, request_, *first).capture(size), *first);
      if (cache_.units.empty()) cache_.units = UnitNames::of(whole).begins;
      count_flops(whole, 1, size.micro_batch);
    } catch (const Error& error) {
      if (!request_.context.empty()) throw;
      cache_.notes.push_back(fmt::format("no context parallelism: {}", error.what()));
      std::erase_if(sizes, is_cut);
    }
    return sizes;
  }

  bool by_curve() const { return std::ranges::find(request_.recompute, Recompute::kCurve) != request_.recompute.end(); }

  std::vector<StepLevel> levels_of(const Graph& kept) const {
    std::vector<StepLevel> levels;
    const std::vector<std::string> names = layers();
    levels.push_back({Recompute::kNone, false, clone(kept)});
    levels.push_back({Recompute::kSelective, false, clone(kept)});
    apply_recompute(levels.back().step, {}, names);
    levels.push_back({Recompute::kFull, false, clone(kept)});
    apply_recompute(levels.back().step, names, {});
    if (by_curve()) {
      for (KeptResults& option : kept_result_options(kept, names[names.size() / 2], stage_options())) {
        levels.push_back({Recompute::kCurve, false, clone(kept), option});
        const PartialRecompute part{names, std::move(option)};
        apply_recompute(levels.back().step, {}, {}, {&part, 1});
      }
    }
    const size_t on_device = levels.size();
    for (size_t level = 0; request_.may_offload(Offload::kActivations) && level < on_device; ++level) {
      levels.push_back({levels[level].what, true, clone(levels[level].step), levels[level].keeps});
      apply_offload(levels.back().step, names);
    }
    return levels;
  }

  // Returns nullptr if the step cannot be sharded this way. Throws LayersDiffer.
  const LayoutCosts* costs_of(const LayoutSizes& sizes) {
    const int64_t tensor = sizes.tensor;
    std::tuple key{sizes, request_.may_offload(Offload::kActivations), by_curve()};
    std::get<0>(key).experts = 1;
    const auto known = cache_.layouts.find(key);
    if (known != cache_.layouts.end()) {
      const LayoutCosts* costs = known->second.get();
      const auto is_computed = [&](int64_t ranks) { return costs->chains.contains(ranks); };
      if (costs == nullptr || std::ranges::all_of(expert_ranks(costs->experts), is_computed)) return costs;
    }
    try {
      const Graph kept = rank_of_step(source_, layers_captured(), sizes, request_);
      if (cache_.units.empty()) cache_.units = UnitNames::of(kept).begins;
      if (layers_captured() > 0) check_layers(cache_.units, layers_captured(), source_.name);
      const std::vector<StepLevel> steps = levels_of(kept);
      auto& costs = cache_.layouts[key];
      if (!costs) costs = std::make_unique<LayoutCosts>(LayoutCosts{.experts = experts_of(kept, tensor)});
      for (const int64_t ranks : expert_ranks(costs->experts)) {
        if (costs->chains.contains(ranks)) continue;
        const ExpertRanks over{.ranks = ranks, .apart = tensor, .capacity = request_.expert_capacity};
        std::vector<RecomputeLevel> levels;
        for (const auto& [what, on_host, step, keeps] : steps) {
          levels.push_back({what, on_host, keeps, std::make_shared<LayerChain>(chain(step, over))});
        }
        costs->chains[ranks] = std::move(levels);
      }
      if (cache_.flops == 0) count_flops(kept, tensor, sizes.micro_batch);
      return costs.get();
    } catch (const UnsupportedError& error) {
      cache_.notes.push_back(fmt::format("no tensor parallelism of degree {}: {}", tensor, error.what()));
    } catch (const InfeasibleError& error) {
      cache_.notes.push_back(fmt::format("no tensor parallelism of degree {}: {}", tensor, error.what()));
    }
    cache_.layouts[key] = nullptr;
    return nullptr;
  }

  std::vector<LayoutSizes> all_layouts() {
    std::vector<LayoutSizes> all;
    for (const int64_t context : contexts()) {
      for (const int64_t tensor : tensor_sizes(request_)) {
        if (request_.devices % (tensor * context) != 0) continue;
        for (const int64_t micro_batch : micro_batches(request_, context)) {
          LayoutSizes sizes{.tensor = tensor,
                            .context = context,
                            .micro_batch = micro_batch,
                            .overlap = overlap_of(request_, tensor)};
          bool any = false;
          for (const AttentionKernel attention : attention_kernels(request_)) {
            for (const TensorParallelLayout layout : tensor_layouts(request_, tensor)) {
              sizes.attention = attention;
              sizes.layout = layout;
              if (costs_of(sizes) == nullptr) continue;
              all.push_back(sizes);
              any = true;
            }
          }
          if (!any) break;
        }
      }
    }
    return all;
  }

  const StepSource& source_;
  const ClusterRequest& request_;
  LayerCostCache& cache_;
  std::optional<std::vector<LayoutSizes>> layouts_;
};

class PlanSearch {
 public:
  PlanSearch(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache)
      : source_(source),
        answer_{.name = source.name, .request = request},
        cache_(cache),
        costs_(source, answer_.request, cache),
        schedules_(cache.schedules) {
    check(request);
    check_links(request);
    answer_.memory = usable_memory(request);
    answer_.bound = best_estimate_;
  }

  ClusterPlan run(bool neighbors) {
    make_candidates();
    simulate_best();
    if (answer_.simulated.empty()) return std::move(answer_);
    if (neighbors) {
      add_neighbors();
      add_overlap_neighbors();
      add_recompute_neighbors();
      simulate_worst_routing();
    }
    finish();
    return std::move(answer_);
  }

  std::optional<FittingPlan> first_fitting_plan(int64_t memory) {
    make_candidates();
    return first_fitting(memory);
  }

 private:
  std::optional<FittingPlan> first_fitting(int64_t memory) {
    for (Candidate& candidate : candidates_) {
      if (auto estimate = candidate.estimate_within(schedules_, memory, kForever)) {
        return FittingPlan{candidate.with(*estimate), std::move(*estimate)};
      }
    }
    return std::nullopt;
  }

  struct Trial {
    Candidate* candidate;
    Estimate estimate;
    int64_t memory;  // limit of the estimate
    int tries = 0;
    bool spend_spare = true;
  };

  static bool is_slower(const Trial& a, const Trial& b) { return a.estimate.seconds > b.estimate.seconds; }
  static constexpr auto kSlower = is_slower;
  static constexpr double kForever = std::numeric_limits<double>::infinity();

  const ClusterRequest& request() const { return answer_.request; }
  std::vector<Candidate> candidates_with(const std::vector<Recompute>& allowed, bool host_allowed = true) {
    std::vector<Candidate> candidates;
    for (LayoutSizes sizes : costs_.layouts()) {
      const LayoutCosts* costs = costs_.of(sizes);
      for (const int64_t ranks : costs_.expert_ranks(costs->experts)) {
        const RecomputeLadders& ladders = ladders_.emplace_back(costs->chains.at(ranks), allowed, host_allowed);
        sizes.experts = ranks;
        for (TrainingPlan& plan : plans_of(request(), sizes, ladders.kept().size())) {
          candidates.emplace_back(std::move(plan), ladders, request());
        }
      }
    }
    std::ranges::stable_sort(candidates, {}, &Candidate::bound);
    return candidates;
  }

  void make_candidates() {
    const Stopwatch watch;
    candidates_ = candidates_with(request().recompute);
    answer_.notes = cache_.notes;
    answer_.flops = cache_.flops;
    answer_.table_seconds = watch.seconds();
  }

  // Estimates all candidates whose bound is within `near` times the best, since the best may turn out not to fit.
  void search(double near) {
    const Stopwatch watch;
    constexpr size_t kAtOnce = 4;  // estimated in parallel, with the same limit
    for (size_t first = 0; first < candidates_.size(); first += kAtOnce) {
      const auto some = std::span(candidates_).subspan(first, std::min(kAtOnce, candidates_.size() - first));
      const auto estimate = [&, enough = near * best_estimate_](size_t i) {
        some[i].estimate(schedules_, answer_.memory, enough);
      };
      const auto is_near = [&](const Candidate& candidate) { return candidate.bound() < near * best_estimate_; };
      if (std::ranges::any_of(some, is_near)) for_each_parallel(some.size(), estimate);
      for (Candidate& candidate : some) {
        const Estimate* estimate = candidate.estimate(schedules_, answer_.memory, near * best_estimate_);
        if (candidate.fits()) answer_.bound = std::min(answer_.bound, candidate.bound());
        if (estimate == nullptr || !seen_.insert(&candidate).second) continue;
        best_estimate_ = std::min(best_estimate_, estimate->seconds);
        trials_.push_back({&candidate, *estimate, answer_.memory});
      }
    }
    answer_.search_seconds += watch.seconds();
  }

  // A plan that turns out too large in simulation is estimated again with a lower memory limit. The same applies in
  // advance to plans that would be too large if they exceeded their estimates as much as others did.
  void simulate_best() {
    const Stopwatch watch;
    constexpr double kNearest = 1.05, kWider = 1.3, kFarthest = 4;
    double near = kNearest;
    const auto search_within = [&](double times) {
      search(near = times);
      std::ranges::make_heap(trials_, kSlower);
    };
    search_within(near);
    std::map<TensorParallelLayout, double> excess;  // minimum ratio of simulated to estimated bytes
    while (std::ssize(answer_.simulated) < request().simulated) {
      if (trials_.empty()) {
        if (!answer_.simulated.empty() || near > kFarthest) break;
        search_within(near * kWider);
        continue;
      }
      // Lower memory limits make plans slower, possibly slower than candidates not estimated yet.
      const double quickest = trials_.front().estimate.seconds / best_estimate_;
      if (quickest > near) search_within(1.001 * quickest);
      std::ranges::pop_heap(trials_, kSlower);
      Trial trial = std::move(trials_.back());
      trials_.pop_back();
      const auto estimated = static_cast<double>(trial.estimate.bytes);
      const auto memory = static_cast<double>(answer_.memory);
      const auto known = excess.find(trial.candidate->plan().layout);
      if (trial.tries == 0 && known != excess.end() && estimated * known->second > memory) {
        retry_within(std::move(trial), static_cast<int64_t>(memory / known->second));
        continue;
      }
      if (schedules_.full(trial.candidate->plan()) == nullptr) continue;  // the full schedule does not exist
      SimulatedPlan result = simulate(trial.candidate->with(trial.estimate), trial.estimate);
      double& least = excess.try_emplace(result.plan.layout, kForever).first->second;
      least = std::min(least, static_cast<double>(result.bytes()) / estimated);
      if (fits(result)) {
        use_spare_memory(std::move(trial), std::move(result));
        continue;
      }
      ++answer_.counted["simulated, but too large"];
      if (result.bytes() <= answer_.memory) {  // host memory exceeded
        trial.candidate->learn(std::nullopt);
        continue;
      }
      // Reduced further each time: recomputing a layer may free less than expected, because allocator blocks are large.
      const int64_t over = std::max(result.bytes() - answer_.memory, answer_.memory / 200) * (trial.tries + 1);
      const int64_t less = std::min(trial.memory, trial.estimate.bytes) - over;
      retry_within(std::move(trial), less);
    }
    if (answer_.simulated.empty()) simulate_over_limit();
    std::ranges::stable_sort(answer_.simulated, {}, [](const SimulatedPlan& result) { return result.run.seconds(); });
    answer_.simulation_seconds = watch.seconds() - answer_.search_seconds;
    count();
  }

  void retry_within(Trial trial, int64_t memory) {
    constexpr int kMostTries = 7;
    std::optional<Estimate> less;
    if (++trial.tries < kMostTries)
      less = trial.candidate->estimate_within(schedules_, memory, kForever, trial.spend_spare);
    // If spare memory is not used, it can absorb errors of the estimate.
    if (!less && trial.spend_spare && trial.candidate->plan().stages_per_rank > 1) {
      trial.spend_spare = false;
      trial.tries = 1;
      memory = answer_.memory;
      less = trial.candidate->estimate_within(schedules_, memory, kForever, false);
    }
    trial.candidate->learn(less);
    if (!less) return;
    trial.estimate = std::move(*less);
    trial.memory = memory;
    trials_.push_back(std::move(trial));
    std::ranges::push_heap(trials_, kSlower);
  }

  SimulatedPlan simulate(TrainingPlan plan, const Estimate& estimate) {
    SimulatedPlan result = cache_.simulator.of(source_, request(), std::move(plan));
    result.estimated = estimate.seconds;
    result.estimated_bytes = estimate.bytes;
    ++answer_.counted["simulated"];
    return result;
  }

  bool fits(const SimulatedPlan& result) const {
    return result.bytes() <= answer_.memory && result.on_host <= host_memory_of(request().device);
  }
  // A plan estimated with a lower limit may leave memory unused: tries again with the difference.
  void use_spare_memory(Trial trial, SimulatedPlan result) {
    constexpr double kWorthIt = 0.995;
    const double seconds = result.run.seconds();
    const int64_t left = answer_.memory - result.bytes();
    trial.estimate.seconds = seconds;
    answer_.simulated.push_back(std::move(result));
    if (trial.tries > 0) {
      std::optional<Estimate> more =
          trial.candidate->estimate_within(schedules_, trial.memory + left, kForever, trial.spend_spare);
      if (more && more->seconds < kWorthIt * seconds) {
        SimulatedPlan faster = simulate(trial.candidate->with(*more), *more);
        if (fits(faster) && faster.run.seconds() < seconds) {
          more->seconds = faster.run.seconds();
          trial.estimate = std::move(*more);
          answer_.simulated.back() = std::move(faster);
        }
      }
    }
    trial.candidate->learn(std::move(trial.estimate));
  }

  // A plan whose estimate is slightly too large may still fit in simulation.
  void simulate_over_limit() {
    for (const double excess : {1.02, 1.05, 1.1}) {
      const auto found = first_fitting(static_cast<int64_t>(excess * static_cast<double>(answer_.memory)));
      if (!found || schedules_.full(found->plan) == nullptr) continue;
      SimulatedPlan result = simulate(found->plan, found->estimate);
      if (!fits(result)) continue;
      answer_.bound = std::min(answer_.bound, found->estimate.seconds);
      answer_.simulated.push_back(std::move(result));
      return;
    }
  }

  void count() {
    answer_.counted["plans in the search space"] = std::ssize(candidates_);
    for (const Candidate& candidate : candidates_) {
      ++answer_.counted[seen_.contains(&candidate) ? "estimated"
                        : candidate.fits()         ? "pruned by their bounds"
                                                   : "too large, or without a schedule"];
    }
  }

  // For each option, finds the best plan for every other value.
  void add_neighbors() {
    const auto look = [&](const std::string& name, const auto& knob) {
      const std::string chosen = knob(answer_.best().plan);
      std::map<std::string, std::vector<Candidate*>> values;  // least bound first
      for (Candidate& candidate : candidates_) values[knob(candidate.plan())].push_back(&candidate);
      for (const auto& [value, candidates] : values) {
        if (value != chosen) answer_.neighbors.push_back(best_of(name, value, candidates));
      }
    };
    look("optimizer on", [](const TrainingPlan& plan) { return plan.optimizer_on_host ? "host" : "device"; });
    for (const auto& row : TrainingPlan::table().rows()) {
      if (row.group == kNeighbors)
        look(row.flag().substr(2), [&](const TrainingPlan& plan) { return row.print(plan).front(); });
    }
    look("schedule", [](const TrainingPlan& plan) {
      return plan.pipeline == 1 ? "none" : fmt::format("{} x {}", plan.schedule, plan.stages_per_rank);
    });
  }

  // The same sizes with other overlap of tensor-parallel collectives.
  void add_overlap_neighbors() {
    const TrainingPlan& best = answer_.best().plan;
    for (const auto other : {CollectiveOverlap::kNone, CollectiveOverlap::kBackward, CollectiveOverlap::kPieces}) {
      if (best.tensor == 1 || other == best.overlap) continue;
      TrainingPlan plan = best;
      plan.overlap = other;
      const LayoutCosts* costs = costs_.of(LayoutSizes::of(plan));
      if (costs == nullptr) continue;
      plan.stages.clear();
      plan.in_part.clear();
      for (auto* const layers : {&plan.recomputed, &plan.selective, &plan.offloaded}) layers->clear();
      const RecomputeLadders& ladders =
          ladders_.emplace_back(costs->chains.at(best.experts), request().recompute, true);
      Candidate candidate(std::move(plan), ladders, request());
      answer_.neighbors.push_back(best_of("overlap", std::string(to_string(other)), {&candidate}));
    }
  }

  // The best plans with each single recompute level, and without offloaded activations.
  void add_recompute_neighbors() {
    const auto best_with = [&](const char* knob, std::string_view value, std::vector<Candidate> others) {
      std::vector<Candidate*> all;
      for (Candidate& candidate : others) all.push_back(&candidate);
      answer_.neighbors.push_back(best_of(knob, std::string(value), all));
    };
    if (!answer_.best().plan.offloaded.empty()) {
      best_with("activations on", "device", candidates_with(request().recompute, false));
    }
    if (recompute_summary(answer_.best().plan) == to_string(Recompute::kNone)) return;  // the other levels include it
    using enum Recompute;
    const std::vector<Recompute>& allowed = request().recompute;
    for (const Recompute what :
         allowed.empty() ? std::vector{kNone, kSelective, kFull} : std::vector{kNone, kSelective, kFull, kCurve}) {
      if (to_string(what) == recompute_summary(answer_.best().plan)) continue;
      if (what != Recompute::kNone && !allowed.empty() && std::ranges::find(allowed, what) == allowed.end()) continue;
      best_with("recompute", to_string(what), candidates_with({what}));
    }
  }

  // Worst case: one rank receives the rows of all ranks of its group.
  void simulate_worst_routing() {
    const TrainingPlan& plan = answer_.best().plan;
    if (plan.experts == 1) return;
    ClusterRequest worst = request();
    worst.expert_capacity = static_cast<double>(plan.experts);
    const SimulatedPlan result = cache_.simulator.of(source_, worst, plan);
    answer_.worst_routing = {result.run.seconds(), result.bytes()};
  }

  // An estimate that spends spare memory may exceed the limit. It is repeated with a limit lowered by the excess.
  std::optional<Estimate> fitting(Candidate& candidate, double enough) {
    constexpr int kMostTries = 4;
    const Estimate* known = candidate.estimate(schedules_, answer_.memory, enough);
    if (known == nullptr) return std::nullopt;
    std::optional<Estimate> found = *known;
    int64_t memory = answer_.memory;
    for (int tries = 0; found && found->bytes > answer_.memory; ++tries) {
      memory -= found->bytes - answer_.memory;
      found = tries < kMostTries ? candidate.estimate_within(schedules_, memory, enough, false) : std::nullopt;
      if (found) candidate.learn(found);
    }
    return found;
  }

  PlanNeighbor best_of(const std::string& knob, const std::string& value, const std::vector<Candidate*>& candidates) {
    constexpr double kMuchSlower = 1.5;
    PlanNeighbor best{.option = knob, .value = value, .why_not = "no plan fits, or no schedule exists for its sizes"};
    std::optional<TrainingPlan> plan;
    double enough = kMuchSlower * answer_.best().run.seconds();
    for (Candidate* candidate : candidates) {
      const std::optional<Estimate> estimate = fitting(*candidate, enough);
      if (candidate->fits() && !best.seconds) best.why_not = fmt::format("none within {} times the best", kMuchSlower);
      if (!estimate) continue;
      best = {knob, value, estimate->seconds, estimate->bytes, to_string(candidate->plan()), ""};
      enough = estimate->seconds;
      plan = candidate->with(*estimate);
    }
    for (const SimulatedPlan& result : answer_.simulated) {
      if (result.plan != plan) continue;
      best.seconds = result.run.seconds();
      best.bytes = result.bytes();
    }
    return best;
  }

  // Records all estimated plans, and notes large differences between estimates and simulations.
  void finish() {
    for (const Candidate& candidate : candidates_) {
      const Estimate* found = candidate.found();
      if (found == nullptr) continue;
      answer_.estimated_plans.push_back({candidate.plan(), found->seconds, found->bytes});
    }
    constexpr double kFar = 0.02;
    for (const SimulatedPlan& result : answer_.simulated) {
      const double error = result.run.seconds() / result.estimated - 1;
      if (std::abs(error) <= kFar) continue;
      answer_.notes.push_back(fmt::format("{} takes {:+.1f} % compared with its estimate of {} from layer costs",
                                          to_string(result.plan), 100 * error, human_seconds(result.estimated)));
    }
  }

  const StepSource& source_;
  ClusterPlan answer_;
  LayerCostCache& cache_;
  LayerCosts costs_;
  std::deque<RecomputeLadders> ladders_;  // of candidates
  std::vector<Candidate> candidates_;
  std::vector<Trial> trials_;
  std::unordered_set<const Candidate*> seen_;
  double best_estimate_ = std::numeric_limits<double>::infinity();
  PlanSchedules& schedules_;
};

ClusterPlan search_plan(const StepSource& source, const ClusterRequest& request, LayerCostCache& cache,
                        bool neighbors) {
  return PlanSearch(source, request, cache).run(neighbors);
}

std::optional<FittingPlan> first_fitting_plan(const StepSource& source, const ClusterRequest& request,
                                              LayerCostCache& cache, int64_t memory) {
  return PlanSearch(source, request, cache).first_fitting_plan(memory);
}

ClusterPlan plan_training(const StepSource& source, const ClusterRequest& request) {
  LayerCostCache cache;
  ClusterPlan answer = search_plan(source, request, cache, true);
  if (answer.simulated.empty()) throw InfeasibleError(suggest_fitting_changes(source, request, cache));
  return answer;
}

}  // namespace shadowgraph
