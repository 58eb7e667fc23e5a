// Looks for the plan of a cluster: tables of layers, the search over them, and simulations of what looks best.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_set>

#include "ir/analysis/module_tree.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/placement.h"
#include "parallel/plan/plan_space.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/unit_names.h"
#include "parallel/plan/what_would_fit.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/profile/device_assumptions.h"
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

class Planner {
 public:
  Planner(const StepSource& source, const ClusterRequest& request, KeptTables& kept)
      : source_(source), kept_(kept), units_(kept.units), chains_(kept.chains), schedules_(kept.schedules) {
    check(request);
    check_links(request);
    answer_.name = source.name;
    answer_.request = request;
    answer_.memory = memory_of(request);
    answer_.bound = best_estimate_;
  }

  // Nothing is simulated where nothing fits.
  PlanAnswer run(bool neighbours) {
    make_candidates();
    simulate_best();
    if (answer_.simulated.empty()) return std::move(answer_);
    if (neighbours) look_around();
    write_down();
    return std::move(answer_);
  }

  std::optional<FittingPlan> first_that_fits(int64_t memory) {
    make_candidates();
    constexpr double kForever = std::numeric_limits<double>::infinity();
    for (Candidate& candidate : candidates_) {
      if (auto estimate = candidate.with_less(schedules_, memory, kForever)) {
        return FittingPlan{candidate.with(estimate->stages), std::move(*estimate)};
      }
    }
    return std::nullopt;
  }

 private:
  struct Tried {
    Candidate* candidate;
    Estimate estimate;
    int64_t memory;  // that it was looked for with
    int tries = 0;
  };

  const ClusterRequest& request() const { return answer_.request; }
  LayerChain chain(int64_t tensor, int64_t micro_batch, bool again);
  void check_layers(int64_t wanted) const;
  const LayoutChains* chains_of(int64_t tensor, int64_t micro_batch);
  void make_candidates();
  void search(double near);
  void simulate_best();
  void count();
  void look_around();
  PlanNeighbour best_of(const std::string& knob, const std::string& value, const std::vector<Candidate*>& candidates);
  void write_down();

  const StepSource& source_;
  PlanAnswer answer_;
  KeptTables& kept_;
  std::vector<std::string>& units_;  // where they begin, in the model that tables are made from
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<LayoutChains>>& chains_;
  std::vector<Candidate> candidates_;
  std::vector<Tried> tried_;
  std::unordered_set<const Candidate*> seen_;
  double best_estimate_ = std::numeric_limits<double>::infinity();
  PlanSchedules& schedules_;
};

constexpr int64_t kLayersOfTables = 4;

LayerChain Planner::chain(int64_t tensor, int64_t micro_batch, bool again) {
  const bool fewer = source_.layers > kLayersOfTables;
  StepSize size{.micro_batch = micro_batch, .layers = fewer ? kLayersOfTables : 0};
  if (again) {
    for (const std::string& unit : units_) {
      if (number_in_path(unit).second > 0) size.recomputed.push_back(unit);
    }
  }
  const Graph step = rank_of_step(source_.capture(size), tensor, request());
  if (units_.empty()) units_ = UnitNames::of(step).begins;
  const StageOptions options{.spec = &request().device, .interconnect = &request().links};
  if (fewer) check_layers(kLayersOfTables);
  const LayerChain few(step, units_, options, request().state);
  return few.with_more_layers(fewer ? source_.layers - kLayersOfTables : 0);
}

// A source that makes more layers than it was asked for would be counted twice.
void Planner::check_layers(int64_t wanted) const {
  std::map<std::string, int64_t> lists;
  for (const std::string& unit : units_) {
    const auto [at, length] = number_in_path(unit);
    if (length > 0) ++lists[unit.substr(0, at)];
  }
  for (const auto& [list, layers] : lists) {
    if (layers <= wanted) continue;
    throw Error(
        fmt::format("{} was to be made with {} layers and has {} in '{}': its source cannot make fewer; say so, "
                    "and it is captured whole (StepSource::layers 0, layers=(0, ...) in Python)",
                    source_.name, wanted, layers, list));
  }
}

// nullptr: the step cannot be cut so.
const LayoutChains* Planner::chains_of(int64_t tensor, int64_t micro_batch) {
  const auto known = chains_.find({tensor, micro_batch});
  if (known != chains_.end()) return known->second.get();
  try {
    auto chains = std::make_unique<LayoutChains>();
    chains->kept = chain(tensor, micro_batch, false);
    chains->again = chain(tensor, micro_batch, true);
    return (chains_[{tensor, micro_batch}] = std::move(chains)).get();
  } catch (const ShardingError& error) {
    kept_.notes.push_back(fmt::format("no tensor parallel of {}: {}", tensor, error.what()));
  } catch (const NoPlanError& error) {
    kept_.notes.push_back(fmt::format("no tensor parallel of {}: {}", tensor, error.what()));
  }
  chains_[{tensor, micro_batch}] = nullptr;
  return nullptr;
}

void Planner::make_candidates() {
  const auto begin = Clock::now();
  for (const int64_t tensor : tensor_sizes(request())) {
    for (const int64_t micro_batch : micro_batches(request())) {
      const LayoutChains* chains = chains_of(tensor, micro_batch);
      if (chains == nullptr) break;
      for (TrainingPlan& plan : plans_of(request(), tensor, micro_batch, chains->kept.size())) {
        candidates_.emplace_back(std::move(plan), *chains, request());
      }
    }
  }
  answer_.notes = kept_.notes;
  for (const auto& [layout, chains] : chains_) {
    if (chains == nullptr) continue;
    const auto& [tensor, micro_batch] = layout;
    answer_.flops = static_cast<double>(chains->kept.flops(0, chains->kept.size())) * static_cast<double>(tensor) /
                    static_cast<double>(micro_batch);
    break;
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
    std::ranges::pop_heap(tried_, slower);
    Tried tried = std::move(tried_.back());
    tried_.pop_back();
    const auto estimated = static_cast<double>(tried.estimate.bytes);
    const auto memory = static_cast<double>(answer_.memory);
    if (tried.tries == 0 && std::isfinite(excess) && estimated * excess > memory) {
      try_with(std::move(tried), static_cast<int64_t>(memory / excess));
      continue;
    }
    if (schedules_.own(tried.candidate->plan()) == nullptr) continue;  // short ones stood for one that there is not
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

// What people compare a plan with: all that was worked out, and where estimates and simulations differ.
void Planner::write_down() {
  for (const Candidate& candidate : candidates_) {
    const Estimate* found = candidate.found();
    if (found == nullptr) continue;
    answer_.worked_out.push_back({candidate.plan(), found->seconds, found->bytes});
  }
  constexpr double kFar = 0.02;
  for (const SimulatedPlan& made : answer_.simulated) {
    const double further = made.run.seconds() / made.estimated - 1;
    if (std::abs(further) <= kFar) continue;
    answer_.notes.push_back(
        fmt::format("{} takes {:+.1f} % against its estimate of {}: figures of layers are that far off",
                    to_string(made.plan), 100 * further, human_seconds(made.estimated)));
  }
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
  look("zero", [](const TrainingPlan& plan) { return fmt::format("{}", plan.zero); });
  look("schedule", [](const TrainingPlan& plan) {
    return plan.pipeline == 1 ? "none" : fmt::format("{} x {}", plan.schedule, plan.stages_per_rank);
  });
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
  const Graph step = rank_of_step(source.capture(size), plan.tensor, request);
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

int64_t memory_of(const ClusterRequest& request) {
  const int64_t all = request.memory.value_or(request.device.memory);
  const int64_t beside = beside_program(request.device);
  if (all <= beside) {
    throw NoTrainingPlanError(
        fmt::format("a device of {} has no room for a program: its context and NCCL's buffers take {}",
                    human_bytes(all), human_bytes(beside)));
  }
  return all - beside;
}

// Groups of tensor parallel, of data parallel, of the pipeline, and of everyone.
int64_t beside_program(const DeviceSpec& device) {
  const DeviceAssumptions assumed = DeviceAssumptions::of(device);
  return assumed.context + 4 * assumed.nccl_group;
}

PlanAnswer try_plan(const StepSource& source, const ClusterRequest& request, KeptTables& kept, bool neighbours) {
  return Planner(source, request, kept).run(neighbours);
}

std::optional<FittingPlan> first_that_fits(const StepSource& source, const ClusterRequest& request, KeptTables& kept,
                                           int64_t memory) {
  return Planner(source, request, kept).first_that_fits(memory);
}

PlanAnswer plan_training(const StepSource& source, const ClusterRequest& request) {
  KeptTables kept;
  PlanAnswer answer = try_plan(source, request, kept, true);
  if (answer.simulated.empty()) throw NoTrainingPlanError(what_would_fit(source, request, kept));
  return answer;
}

}  // namespace shadowgraph
