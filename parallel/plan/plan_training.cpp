// Looks for the plan of a cluster: tables of layers, the search over them, and simulations of what looks best.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_set>

#include "ir/analysis/module_tree.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/plan_space.h"
#include "parallel/plan/unit_names.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/profile/device_assumptions.h"
#include "shadowgraph/sharding/expert_ranks.h"
#include "shadowgraph/sharding/plan_step.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// One rank's graph of a step that `tensor` ranks share: as Megatron lays it out, where that can be.
Graph rank_of_step(Graph step, int64_t tensor, const ClusterRequest& request) {
  if (tensor == 1) return step;
  StepRequest layout{.mesh = DeviceMesh::parse(fmt::format("tp={}", tensor)),
                     .device = request.device,
                     .links = request.links,
                     .cut_vocabulary = true,
                     .by_hand = "megatron"};
  try {
    return std::move(plan_step(clone(step), layout).answer.rank->graph);
  } catch (const NoPlanError&) {
    layout.by_hand = "tensor-parallel";
    return std::move(plan_step(std::move(step), layout).answer.rank->graph);
  }
}

int64_t memory_of(const ClusterRequest& request) {
  const DeviceAssumptions assumed = DeviceAssumptions::of(request.device);
  const int64_t all = request.memory.value_or(request.device.memory);
  // Groups of tensor parallel, of data parallel, of the pipeline, and of everyone.
  const int64_t beside = assumed.context + 4 * assumed.nccl_group;
  if (all <= beside) {
    throw NoTrainingPlanError(
        fmt::format("a device of {} has no room for a program: its context and NCCL's buffers take {}",
                    human_bytes(all), human_bytes(beside)));
  }
  return all - beside;
}

class Planner {
 public:
  Planner(const StepSource& source, const ClusterRequest& request) : source_(source) {
    check(request);
    answer_.name = source.name;
    answer_.request = request;
    answer_.memory = memory_of(request);
    answer_.bound = best_estimate_;
  }

  PlanAnswer run() {
    try {
      make_candidates();
    } catch (const LayersDiffer&) {
      layers_differ_ = true;
      answer_.notes.clear();
      answer_.notes.emplace_back("layers differ: tables are of all of them");
      candidates_.clear();
      chains_.clear();
      units_.clear();
      make_candidates();
    }
    simulate_best();
    look_around();
    route_badly();
    return std::move(answer_);
  }

 private:
  struct Tried {
    Candidate* candidate;
    Estimate estimate;
    int64_t memory;  // that it was looked for with
    int tries = 0;
  };

  struct LayersDiffer {};

  const ClusterRequest& request() const { return answer_.request; }
  Graph step_of_tables(int64_t tensor, int64_t micro_batch, bool again);
  int64_t more_layers() const;
  LayerChain chain(const Graph& step, const ExpertRanks& experts);
  ExpertLayers experts_of(const Graph& step, int64_t tensor);
  void make_candidates(int64_t tensor, int64_t micro_batch);
  void make_candidates();
  void search(double near);
  void simulate_best();
  void count();
  void look_around();
  void route_badly();
  PlanNeighbour best_of(const std::string& knob, const std::string& value, const std::vector<Candidate*>& candidates);
  [[noreturn]] void refuse();

  const StepSource& source_;
  PlanAnswer answer_;
  std::vector<std::string> units_;  // where they begin, in the model that tables are made from
  bool layers_differ_ = false;
  // By tensor parallel, micro-batch, ranks that share experts.
  std::map<std::array<int64_t, 3>, std::unique_ptr<LayoutChains>> chains_;
  std::vector<Candidate> candidates_;
  std::vector<Tried> tried_;
  std::unordered_set<const Candidate*> seen_;
  double best_estimate_ = std::numeric_limits<double>::infinity();
  PlanSchedules schedules_;
};

constexpr int64_t kLayersOfTables = 4;  // of the kind that most layers are of

Graph Planner::step_of_tables(int64_t tensor, int64_t micro_batch, bool again) {
  StepSize size{.micro_batch = micro_batch, .layers = more_layers() > 0 ? source_.first_layers + kLayersOfTables : 0};
  if (again) {
    for (const std::string& unit : units_) {
      if (number_in_path(unit).second > 0) size.recomputed.push_back(unit);
    }
  }
  Graph step = rank_of_step(source_.capture(size), tensor, request());
  if (units_.empty()) units_ = UnitNames::of(step).begins;
  return step;
}

int64_t Planner::more_layers() const {
  return layers_differ_ ? 0 : std::max<int64_t>(0, source_.layers - source_.first_layers - kLayersOfTables);
}

LayerChain Planner::chain(const Graph& step, const ExpertRanks& experts) {
  const Graph rank = with_experts_over(clone(step), experts);
  const StageOptions options{.spec = &request().device, .interconnect = &request().links};
  const LayerChain few(rank, units_, options, request().state);
  std::optional<LayerChain> all = few.with_more_layers(more_layers(), source_.first_layers);
  if (!all) throw LayersDiffer{};
  return std::move(*all);
}

// Where nobody asks for several ranks, experts that cannot be on them stay on each.
ExpertLayers Planner::experts_of(const Graph& step, int64_t tensor) {
  const bool asked = std::ranges::any_of(request().experts, [](int64_t ranks) { return ranks > 1; });
  ExpertLayers layers;
  try {
    layers = expert_layers(step);
  } catch (const Error& error) {
    if (asked && tensor == 1) throw;
    const std::string with = tensor > 1 ? fmt::format(" of tensor parallel of {}", tensor) : "";
    const std::string note = fmt::format("experts are whole on each rank{}: {}", with, error.what());
    if (std::ranges::find(answer_.notes, note) == answer_.notes.end()) answer_.notes.push_back(note);
    return layers;
  }
  if (asked && layers.experts == 0) {
    throw Error(source_.name +
                " has no experts that could be on several ranks: experts are products of rows by group "
                "(torch._grouped_mm; in transformers experts_implementation=\"grouped_mm\")");
  }
  return layers;
}

// Throws LayersDiffer.
void Planner::make_candidates(int64_t tensor, int64_t micro_batch) {
  const Graph kept = step_of_tables(tensor, micro_batch, false), again = step_of_tables(tensor, micro_batch, true);
  const ExpertLayers layers = experts_of(kept, tensor);
  for (const int64_t experts : expert_sizes(request(), std::max<int64_t>(1, layers.experts))) {
    if (layers.rows % experts != 0) continue;
    const ExpertRanks over{.ranks = experts, .apart = tensor, .capacity = request().expert_capacity};
    auto& chains = chains_[{tensor, micro_batch, experts}];
    chains = std::make_unique<LayoutChains>(LayoutChains{chain(kept, over), chain(again, over)});
    for (TrainingPlan& plan : plans_of(request(), tensor, micro_batch, experts, chains->kept.size())) {
      candidates_.emplace_back(std::move(plan), *chains, request());
    }
  }
  if (answer_.flops > 0 || candidates_.empty()) return;
  const LayerChain plain = chain(kept, {});
  answer_.flops = static_cast<double>(plain.flops(0, plain.size())) * static_cast<double>(tensor) /
                  static_cast<double>(micro_batch);
}

void Planner::make_candidates() {
  const auto begin = Clock::now();
  for (const int64_t tensor : tensor_sizes(request())) {
    try {
      for (const int64_t micro_batch : micro_batches(request())) make_candidates(tensor, micro_batch);
    } catch (const ShardingError& error) {
      answer_.notes.push_back(fmt::format("no tensor parallel of {}: {}", tensor, error.what()));
    } catch (const NoPlanError& error) {
      answer_.notes.push_back(fmt::format("no tensor parallel of {}: {}", tensor, error.what()));
    }
  }
  std::ranges::stable_sort(candidates_, {}, &Candidate::bound);
  answer_.table_seconds = seconds_since(begin);
}

// Works out all that may be within `near` times the best, since a simulation may find that the best does not fit.
void Planner::search(double near) {
  const auto begin = Clock::now();
  for (Candidate& candidate : candidates_) {
    const Estimate* estimate = candidate.estimate(schedules_, answer_.memory, near * best_estimate_);
    if (candidate.fits()) answer_.bound = std::min(answer_.bound, candidate.bound());
    if (estimate == nullptr || !seen_.insert(&candidate).second) continue;
    best_estimate_ = std::min(best_estimate_, estimate->seconds);
    tried_.push_back({&candidate, *estimate, answer_.memory});
  }
  answer_.search_seconds += seconds_since(begin);
}

// What is too large once it is simulated is looked for again, with as much less memory. The same goes for what would be
// too large if it exceeds its estimate as others did.
void Planner::simulate_best() {
  const auto begin = Clock::now();
  constexpr int kMostTries = 7;
  constexpr double kNearest = 1.05, kWider = 1.3, kFarthest = 4;
  const auto slower = [](const Tried& a, const Tried& b) { return a.estimate.seconds > b.estimate.seconds; };
  double near = kNearest;
  search(near);
  std::ranges::make_heap(tried_, slower);
  double excess = std::numeric_limits<double>::infinity();  // least of simulated bytes over estimated ones
  const auto try_with = [&](Tried tried, int64_t memory) {
    if (++tried.tries == kMostTries) return;
    auto less = tried.candidate->with_less(schedules_, memory, std::numeric_limits<double>::infinity());
    if (!less) return;
    tried.estimate = std::move(*less);
    tried.memory = memory;
    tried_.push_back(std::move(tried));
    std::ranges::push_heap(tried_, slower);
  };
  while (std::ssize(answer_.simulated) < request().simulated) {
    if (tried_.empty()) {
      if (!answer_.simulated.empty() || near > kFarthest) break;
      search(near *= kWider);
      std::ranges::make_heap(tried_, slower);
      continue;
    }
    // With less memory a plan may be slower than others that were not looked at yet.
    if (tried_.front().estimate.seconds > near * best_estimate_) {
      search(near = 1.001 * tried_.front().estimate.seconds / best_estimate_);
      std::ranges::make_heap(tried_, slower);
    }
    std::ranges::pop_heap(tried_, slower);
    Tried tried = std::move(tried_.back());
    tried_.pop_back();
    const auto estimated = static_cast<double>(tried.estimate.bytes);
    const auto memory = static_cast<double>(answer_.memory);
    if (tried.tries == 0 && std::isfinite(excess) && estimated * excess > memory) {
      try_with(std::move(tried), static_cast<int64_t>(memory / excess));
      continue;
    }
    SimulatedPlan made = simulate(source_, request(), tried.candidate->with(tried.estimate.stages));
    made.estimated = tried.estimate.seconds;
    made.estimated_bytes = tried.estimate.bytes;
    excess = std::min(excess, static_cast<double>(made.bytes()) / estimated);
    ++answer_.counted["simulated"];
    if (made.bytes() <= answer_.memory) {
      answer_.simulated.push_back(std::move(made));
      continue;
    }
    ++answer_.counted["simulated, and too large"];
    // More each time, since a layer computed again may free less than it should: blocks of the allocator are large.
    const int64_t over = std::max(made.bytes() - answer_.memory, answer_.memory / 200) * (tried.tries + 1);
    const int64_t less = std::min(tried.memory, tried.estimate.bytes) - over;
    try_with(std::move(tried), less);
  }
  if (answer_.simulated.empty()) refuse();
  std::ranges::stable_sort(answer_.simulated, {}, [](const SimulatedPlan& made) { return made.run.seconds(); });
  answer_.simulation_seconds = seconds_since(begin) - answer_.search_seconds;
  count();
}

void Planner::count() {
  answer_.counted["plans in the space"] = std::ssize(candidates_);
  for (const Candidate& candidate : candidates_) {
    ++answer_.counted[seen_.contains(&candidate) ? "worked out"
                      : candidate.fits()         ? "slower by their bounds"
                                                 : "without a schedule, or too large"];
  }
}

// Says with how much memory something fits, by the figures of layers.
void Planner::refuse() {
  std::string why = fmt::format("no plan of {} fits into {} of each of {} devices", source_.name,
                                human_bytes(answer_.memory), request().devices);
  if (candidates_.empty())
    throw NoTrainingPlanError(why +
                              ": no size of tensor parallel, pipeline, micro-batch and ranks that share experts "
                              "goes with these devices and this batch");
  constexpr double kForever = std::numeric_limits<double>::infinity();
  const auto fits = [&](int64_t memory) -> const Candidate* {
    for (Candidate& candidate : candidates_) {
      if (candidate.with_less(schedules_, memory, kForever)) return &candidate;
    }
    return nullptr;
  };
  // Twice as much until something fits, then halfway between, to a hundredth.
  int64_t least = answer_.memory, most = least;
  const Candidate* found = fits(least);
  if (found != nullptr) {
    throw NoTrainingPlanError(fmt::format(
        "{}: {} would by the figures of its layers, and does not once it is simulated", why, to_string(found->plan())));
  }
  for (int doublings = 0; found == nullptr && doublings < 20; ++doublings) found = fits(most *= 2);
  while (found != nullptr && most - least > most / 100) {
    const int64_t middle = least + (most - least) / 2;
    const Candidate* nearer = fits(middle);
    (nearer != nullptr ? most : least) = middle;
    if (nearer != nullptr) found = nearer;
  }
  if (found != nullptr) {
    why += fmt::format("; {} would do, for {}: take devices with more memory, more devices, or shorter sequences",
                       human_bytes(most), to_string(found->plan()));
  }
  throw NoTrainingPlanError(why);
}

// The best plan of each other value of a knob, all other knobs free.
void Planner::look_around() {
  const auto look = [&](const char* name, const auto& knob) {
    const std::string chosen = knob(answer_.best().plan);
    std::map<std::string, std::vector<Candidate*>> values;  // least bound first
    for (Candidate& candidate : candidates_) values[knob(candidate.plan())].push_back(&candidate);
    for (const auto& [value, candidates] : values) {
      if (value != chosen) answer_.neighbours.push_back(best_of(name, value, candidates));
    }
  };
  const auto number = [](int64_t TrainingPlan::*knob) {
    return [knob](const TrainingPlan& plan) { return fmt::format("{}", plan.*knob); };
  };
  look("tensor", number(&TrainingPlan::tensor));
  look("pipeline", number(&TrainingPlan::pipeline));
  look("micro-batch", number(&TrainingPlan::micro_batch));
  look("experts", number(&TrainingPlan::experts));
  look("zero", [](const TrainingPlan& plan) { return fmt::format("{}", plan.zero); });
  look("schedule", [](const TrainingPlan& plan) {
    return plan.pipeline == 1 ? "none" : fmt::format("{} x {}", plan.schedule, plan.stages_per_rank);
  });
}

// Each rank may have rows of all ranks of its group, as many of each token as it has experts for.
void Planner::route_badly() {
  const TrainingPlan& plan = answer_.best().plan;
  if (plan.experts == 1) return;
  ClusterRequest worst = request();
  worst.expert_capacity = static_cast<double>(plan.experts);
  const SimulatedPlan made = simulate(source_, worst, plan);
  answer_.worst_routing = {made.run.seconds(), made.bytes()};
}

PlanNeighbour Planner::best_of(const std::string& knob, const std::string& value,
                               const std::vector<Candidate*>& candidates) {
  constexpr double kMuchSlower = 1.5;
  PlanNeighbour best{.knob = knob, .value = value, .why_not = "no plan fits, or no schedule is made for its sizes"};
  double enough = kMuchSlower * answer_.best().run.seconds();
  for (Candidate* candidate : candidates) {
    const Estimate* estimate = candidate->estimate(schedules_, answer_.memory, enough);
    if (candidate->fits() && !best.seconds) {
      best.why_not = fmt::format("none within {} times the best", kMuchSlower);
    }
    if (estimate == nullptr) continue;
    best = {knob, value, estimate->seconds, estimate->bytes, to_string(candidate->plan()), ""};
    enough = estimate->seconds;
  }
  return best;
}

}  // namespace

int64_t SimulatedPlan::bytes() const { return run.rank(run.worst_rank()).reserved_peak + other_streams; }

double PlanAnswer::tokens_per_second() const {
  return static_cast<double>(request.batch * request.sequence) / best().run.seconds() /
         static_cast<double>(request.devices);
}

double PlanAnswer::model_flops_share() const {
  const auto peak = request.device.matmul.find(c10::kBFloat16);
  if (peak == request.device.matmul.end()) return 0;
  return flops * static_cast<double>(request.batch) / best().run.seconds() / static_cast<double>(request.devices) /
         peak->second;
}

namespace {

// Bytes and elements of trained parameters that are in no layer.
std::pair<int64_t, int64_t> outside_layers(const Graph& step) {
  int64_t bytes = 0, weights = 0;
  for (const NodeId node : step.nodes()) {
    if (!step.is_placeholder(node)) break;
    if (step.node(node).target != target_of(Builtin::kParameter)) continue;
    if (number_in_path(placeholder_name(step, node)).second > 0) continue;
    step.for_each_output(node, [&](ValueId value) {
      if (!step.value(value).requires_grad) return;
      bytes += step.logical_bytes(value);
      weights += step.numel(value);
    });
  }
  return {bytes, weights};
}

}  // namespace

SimulatedPlan simulate(const StepSource& source, const ClusterRequest& request, TrainingPlan plan) {
  const StepSize size{.micro_batch = plan.micro_batch, .recomputed = plan.recomputed};
  const Graph step =
      with_experts_over(rank_of_step(source.capture(size), plan.tensor, request),
                        {.ranks = plan.experts, .apart = plan.tensor, .capacity = request.expert_capacity});
  std::vector<std::string> cuts;
  for (const PlannedStage& stage : plan.stages) cuts.push_back(stage.begins);
  if (!cuts.empty()) cuts.erase(cuts.begin());
  const StageOptions options{.spec = &request.device, .interconnect = &request.links};
  const PipelineStages stages = PipelineStages::at_modules(step, cuts, options);
  PlanSchedules schedules;
  const PlanSchedules::Entry* entry = schedules.own(plan);
  if (entry == nullptr) throw Error("there is no schedule of " + to_string(plan));
  int64_t units = 0;
  for (const PlannedStage& stage : plan.stages) units += stage.units;
  int64_t parameters = 0;
  for (int32_t s = 0; s < stages.count(); ++s) parameters += stages.of(s).parameters;
  const Replicas replicas = replicas_of(plan, request, units > 0 ? parameters / units : 0);
  const PipelineStages shared = replicated(stages, replicas, request.device, &request.links);
  PipelineRun run =
      PipelineRun::of(shared, entry->schedule, {.interconnect = &request.links, .ranks_apart = ranks_apart(plan)});
  const auto [outside, weights] = outside_layers(step);
  const int64_t streams = other_streams(plan, request, outside, weights);
  return {.plan = std::move(plan), .run = std::move(run), .other_streams = streams};
}

PlanAnswer plan_training(const StepSource& source, const ClusterRequest& request) {
  return Planner(source, request).run();
}

}  // namespace shadowgraph
