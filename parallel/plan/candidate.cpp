#include "parallel/plan/candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "parallel/plan/layer_chain.h"
#include "parallel/plan/stage_split.h"
#include "parallel/schedule/known_schedules.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph {

static std::vector<InFlight> in_flight_at_peak(const PipelineSchedule& schedule) {
  std::vector<InFlight> at_peak(static_cast<size_t>(schedule.stages())), now(at_peak);
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    std::vector<size_t> own;
    for (int32_t s = 0; s < schedule.stages(); ++s) {
      if (schedule.rank_of(s) == rank) own.push_back(static_cast<size_t>(s));
    }
    int64_t all = 0, most = 0;
    for (const PipelineAction& a : schedule.of(rank)) {
      InFlight& of = now[static_cast<size_t>(a.stage)];
      int64_t& waits = at_peak[static_cast<size_t>(a.stage)].weights;
      const bool ends = a.work == PipelineWork::kBackward || a.work == PipelineWork::kWeightGradient;
      const int64_t step = a.work == PipelineWork::kForward ? 1 : ends ? -1 : 0;
      if (a.work == PipelineWork::kInputGradient) waits = std::max(waits, ++of.weights);
      if (a.work == PipelineWork::kWeightGradient) --of.weights;
      of.gradients += step;
      all += step;
      if (all <= most) continue;
      most = all;
      for (const size_t s : own) at_peak[s].gradients = now[s].gradients;
    }
  }
  return at_peak;
}

PipelineSchedule schedule_of(const TrainingPlan& plan, int64_t microbatches) {
  return PipelineSchedule::named(plan.schedule, {.ranks = static_cast<int32_t>(plan.pipeline),
                                                 .stages_per_rank = static_cast<int32_t>(plan.stages_per_rank),
                                                 .microbatches = static_cast<int32_t>(microbatches)});
}

const PlanSchedules::Entry* PlanSchedules::of(const TrainingPlan& plan, int64_t microbatches, bool shorter) {
  std::string key =
      fmt::format("{} {} {} {} {}", plan.schedule, plan.pipeline, plan.stages_per_rank, microbatches, shorter);
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end()) return found->second.get();
  std::unique_ptr<Entry> entry;
  try {
    const PipelineSchedule schedule = schedule_of(plan, microbatches);
    entry = std::make_unique<Entry>(
        Entry{with_gradient_reduction(schedule).with_transfers(), std::nullopt, in_flight_at_peak(schedule)});
    if (shorter)
      entry->shorter = with_gradient_reduction(schedule_of(plan, microbatches - plan.pipeline)).with_transfers();
  } catch (const Error&) {  // not defined for these sizes
  }
  return entries_.emplace(std::move(key), std::move(entry)).first->second.get();
}

const PlanSchedules::Entry* PlanSchedules::shortened(const TrainingPlan& plan) {
  // Schedules with several stages per rank, or with split backward, take more rounds to become periodic.
  const int64_t rounds = known_schedule(plan.schedule).steady_rounds;
  if (plan.microbatches <= (rounds + 1) * plan.pipeline) return full(plan);
  return of(plan, rounds * plan.pipeline + plan.microbatches % plan.pipeline, true);
}

int64_t rank_stride(const TrainingPlan& plan) {
  return plan.tensor * plan.context * (plan.data_outermost ? 1 : plan.data);
}

Replicas replicas_of(const TrainingPlan& plan, const ClusterRequest& request, int64_t bucket) {
  Replicas replicas{.count = plan.replicas(),
                    .zero = plan.zero,
                    .experts = plan.experts,
                    .optimizer_on_host = plan.optimizer_on_host,
                    .bucket = bucket,
                    .state = request.state};
  const int64_t apart = plan.tensor * plan.context * (plan.data_outermost ? plan.pipeline : 1);
  for (int64_t d = 0; d < plan.data; ++d) {
    for (int64_t c = 0; c < plan.context; ++c) replicas.ranks.push_back(d * apart + c * plan.tensor);
  }
  return replicas;
}

int64_t state_on_host(const StageCosts& stage, Replicas replicas) {
  return std::exchange(replicas.optimizer_on_host, false) ? replica_memory(stage, replicas).state : 0;
}

int64_t host_memory_of(const DeviceSpec& device) {
  return device.host && device.host->memory > 0 ? device.host->memory : std::numeric_limits<int64_t>::max();
}

int64_t other_streams(const TrainingPlan& plan, const ClusterRequest& request, int64_t outside, int64_t weights) {
  const int64_t groups =
      ((plan.experts > 1 ? 2 : 0) + (plan.context > 1 ? 1 : 0)) * DeviceAssumptions::of(request.device).nccl_group;
  if (plan.zero < 2 || plan.replicas() == 1 || weights == 0) return groups;
  return groups + outside + weights * request.state.gradient.value_or(outside / weights);
}

int64_t Candidate::other_streams() const {
  const LayerChain& kept = ladders_->kept();
  int64_t outside = 0, weights = 0;
  for (int64_t unit = 0; unit < kept.size(); ++unit) {
    if (number_in_path(kept.begins(unit)).second > 0) continue;
    outside += kept.parameters(unit, unit + 1);
    weights += kept.weights(unit, unit + 1);
  }
  return ::shadowgraph::other_streams(plan_, *request_, outside, weights);
}

Candidate::Candidate(TrainingPlan plan, const RecomputeLadders& ladders, const ClusterRequest& request)
    : plan_(std::move(plan)), ladders_(&ladders), request_(&request) {
  const double all = ladders.kept().seconds(0, ladders.kept().size()).all();
  const auto ranks = static_cast<double>(plan_.pipeline), times = static_cast<double>(plan_.microbatches);
  // A rank with at least the mean share computes it for every micro-batch; the first and last also pass all others.
  const bool one_by_one = plan_.stages_per_rank == 1 && !known_schedule(plan_.schedule).splits_backward;
  bound_ = one_by_one ? all * (1 + (times - 1) / ranks) : all * times / ranks;
}

// Returns the memory assigned to each stage of a rank: resident bytes of the mean stage, plus a share of the rest that
// is proportional to its micro-batches in flight.
std::vector<int64_t> Candidate::shares(const RecomputeLadder& ladder, const PipelineSchedule& schedule,
                                       const SplitLimits& limits, int64_t memory) const {
  const int64_t stages = schedule.stages(), units = ladder.units();
  const StageUnits whole{0, units, max_recompute_steps(ladder, 0, units)};
  const int64_t resident = (bytes_of(ladder, whole, {}, limits) - transient_of(ladder, whole)) / stages;
  std::vector<int64_t> of_rank(static_cast<size_t>(schedule.ranks()), 0), all;
  for (int32_t s = 0; s < stages; ++s) {
    of_rank[static_cast<size_t>(schedule.rank_of(s))] += limits.in_flight[static_cast<size_t>(s)].gradients;
  }
  const int64_t rest = memory - resident * plan_.stages_per_rank;
  for (int32_t s = 0; s < stages; ++s) {
    const auto part = static_cast<double>(limits.in_flight[static_cast<size_t>(s)].gradients) /
                      static_cast<double>(of_rank[static_cast<size_t>(schedule.rank_of(s))]);
    all.push_back(rest <= 0 ? memory / plan_.stages_per_rank
                            : resident + static_cast<int64_t>(part * static_cast<double>(rest)));
  }
  return all;
}

// Lower bound of the compute time of all ranks for one micro-batch, without host copies. Takes levels in order of cost
// per byte until the total fits in the memory of all ranks, assuming the lowest number of micro-batches in flight
// everywhere.
double Candidate::min_compute_seconds(const RecomputeLadder& ladder, const SplitLimits& limits) const {
  struct Point {
    double bytes, seconds;
  };
  const int64_t units = ladder.units();
  const InFlight in_flight{.gradients = std::ranges::min(limits.in_flight, {}, &InFlight::gradients).gradients};
  const int64_t all = std::reduce(limits.memory.begin(), limits.memory.end());
  std::vector<Point> points;  // lower convex hull of the levels
  for (const RecomputeLevel& level : ladder.levels()) {
    const StageUnits stage{0, units, units * (&level - ladder.levels().data())};
    const Point point{static_cast<double>(bytes_of(ladder, stage, in_flight, limits) - transient_of(ladder, stage)),
                      level.chain->seconds(0, units).computing()};
    const auto price = [](const Point& from, const Point& to) {
      return (to.seconds - from.seconds) / std::max(1.0, from.bytes - to.bytes);
    };
    while (points.size() > 1 && price(points.back(), point) <= price(points[points.size() - 2], points.back())) {
      points.pop_back();
    }
    points.push_back(point);
  }
  double seconds = points.front().seconds;
  double over = points.front().bytes - static_cast<double>(all);
  for (size_t p = 1; p < points.size() && over > 0; ++p) {
    const double saved = points[p - 1].bytes - points[p].bytes;
    if (saved > 0) seconds += std::min(1.0, over / saved) * std::max(0.0, points[p].seconds - points[p - 1].seconds);
    over -= saved;
  }
  return seconds;
}

// A rank starts when the first micro-batch has passed all earlier stages. After it has finished, the backward of the
// last micro-batch must still pass them.
double Candidate::bound_of(const Estimate& cut, const PipelineSchedule& schedule) const {
  std::vector<double> works(static_cast<size_t>(plan_.pipeline), 0), before(works.size(), -1);
  double passed = 0, most = 0;
  for (size_t s = 0; s < cut.stages.size(); ++s) {
    const StageCosts of = figures_of(*cut.ladder, cut.stages[s]);
    const auto rank = static_cast<size_t>(schedule.rank_of(static_cast<int32_t>(s)));
    if (before[rank] < 0) before[rank] = passed;
    const PieceSeconds each = of.unsharded();
    passed += each.forward + each.input_gradient;
    works[rank] += std::max(each.forward, of.copies.forward) + std::max(each.backward, of.copies.backward);
  }
  for (size_t rank = 0; rank < works.size(); ++rank) {
    most = std::max(most, before[rank] + static_cast<double>(plan_.microbatches) * works[rank]);
  }
  return most;
}

double Candidate::seconds_of(const PipelineRun& run, const PlanSchedules::Entry& entry) const {
  if (!entry.shorter) return run.seconds();
  const PipelineRun shorter =
      PipelineRun::of(run.stages(), *entry.shorter,
                      {.interconnect = &request_->links, .rank_stride = rank_stride(plan_), .memory = false});
  const auto rounds =
      static_cast<double>(plan_.microbatches - entry.schedule.microbatches()) / static_cast<double>(plan_.pipeline);
  return run.seconds() + rounds * (run.seconds() - shorter.seconds());
}

const Estimate* Candidate::estimate(PlanSchedules& schedules, int64_t memory, double enough) {
  if (!found_ && fits_ && bound_ < enough) found_ = estimate_within(schedules, memory, enough);
  return found_ && found_->seconds < enough ? &*found_ : nullptr;
}

bool Candidate::fits_host(const RecomputeLadder& ladder, const PipelineSchedule& schedule,
                          const std::vector<StageUnits>& stages, const SplitLimits& limits) const {
  std::vector<int64_t> bytes(static_cast<size_t>(schedule.ranks()), 0);
  for (size_t s = 0; s < stages.size(); ++s) {
    int64_t& of_rank = bytes[static_cast<size_t>(schedule.rank_of(static_cast<int32_t>(s)))];
    of_rank += host_bytes_of(ladder, stages[s], limits.in_flight[s]);
    of_rank += state_on_host(ladder.kept().model_state(stages[s].first, stages[s].last), limits.replicas);
  }
  return std::ranges::max(bytes) <= host_memory_of(request_->device);
}

std::optional<Estimate> Candidate::estimate_within(PlanSchedules& schedules, int64_t memory, double enough,
                                                   bool spend_spare) {
  const PlanSchedules::Entry* entry = schedules.shortened(plan_);
  fits_ = false;
  if (entry == nullptr) return std::nullopt;
  const int64_t units = ladders_->kept().size();
  const int64_t workspaces =
      2 * DeviceAssumptions::of(request_->device).workspace();  // for the forward and the backward thread
  SplitLimits limits{.in_flight = entry->in_flight,
                     .stages_per_rank = plan_.stages_per_rank,
                     .replicas = replicas_of(plan_, *request_, ladders_->kept().parameters(0, units) / units)};
  const auto share_memory = [&](const RecomputeLadder& ladder) {
    limits.memory = shares(ladder, entry->schedule, limits, memory - workspaces - other_streams());
  };
  double least = std::numeric_limits<double>::infinity();
  for (const RecomputeLadder& ladder : ladders_->ladders) {
    share_memory(ladder);
    least = std::min(least, min_compute_seconds(ladder, limits));
  }
  bound_ = std::max(bound_, least * static_cast<double>(plan_.microbatches) / static_cast<double>(plan_.pipeline));
  fits_ = true;
  if (bound_ >= enough) return std::nullopt;
  Estimate estimate;
  double quickest = std::numeric_limits<double>::infinity();
  for (const RecomputeLadder& ladder : ladders_->ladders) {
    share_memory(ladder);
    std::optional<std::vector<StageUnits>> stages = split(ladder, limits);
    if (!stages) continue;
    if (spend_spare) keep_more(ladder, limits, entry->schedule, *stages);
    if (!fits_host(ladder, entry->schedule, *stages, limits)) continue;
    double slowest = 0;
    for (const StageUnits& stage : *stages) slowest = std::max(slowest, ::shadowgraph::seconds_of(ladder, stage));
    if (slowest < quickest) {
      quickest = slowest;
      estimate = {.ladder = &ladder, .stages = std::move(*stages)};
    }
  }
  fits_ = estimate.ladder != nullptr;
  if (!fits_) return std::nullopt;
  // A bound for this split only; no other split is tried.
  bound_ = std::max(bound_, bound_of(estimate, entry->schedule));
  if (bound_ >= enough) return std::nullopt;
  std::vector<StageCosts> figures;
  for (const StageUnits& stage : estimate.stages) figures.push_back(figures_of(*estimate.ladder, stage));
  const PipelineRun run = PipelineRun::of(
      replicated(PipelineStages::of_costs(std::move(figures)), limits.replicas, request_->device, &request_->links),
      entry->schedule, {.interconnect = &request_->links, .rank_stride = rank_stride(plan_)});
  estimate.seconds = seconds_of(run, *entry);
  // The full schedule may not exist even though the shortened ones do.
  fits_ = estimate.seconds >= enough || schedules.full(plan_) != nullptr;
  if (!fits_) return std::nullopt;
  for (int32_t rank = 0; rank < run.ranks(); ++rank) {
    int64_t transient = 0;
    for (const int32_t s : run.rank(rank).stages) {
      transient = std::max(transient, transient_of(*estimate.ladder, estimate.stages[static_cast<size_t>(s)]));
    }
    estimate.bytes = std::max(estimate.bytes, run.rank(rank).peak + transient + workspaces + other_streams());
  }
  return estimate;
}

TrainingPlan Candidate::with(const Estimate& estimate) const {
  const RecomputeLadder& ladder = *estimate.ladder;
  TrainingPlan plan = plan_;
  for (const StageUnits& stage : estimate.stages) {
    PlannedStage& planned = plan.stages.emplace_back();
    planned = {.begins = ladder.kept().begins(stage.first), .units = stage.last - stage.first};
    for (int64_t unit = stage.first; unit < stage.last; ++unit) {
      const std::string& name = ladder.kept().begins(unit);
      const RecomputeLevel& level = level_of(ladder, stage, unit);
      if (number_in_path(name).second == 0) continue;
      if (level.on_host) {
        plan.offloaded.push_back(name);
        ++planned.offloaded;
      }
      if (level.what == Recompute::kNone) continue;
      if (level.what == Recompute::kCurve) {
        auto part = std::ranges::find(plan.in_part, level.keeps, &PartialRecompute::keeps);
        if (part == plan.in_part.end()) part = plan.in_part.insert(part, {.layers = {}, .keeps = level.keeps});
        part->layers.push_back(name);
        ++planned.in_part;
        continue;
      }
      (level.what == Recompute::kFull ? plan.recomputed : plan.selective).push_back(name);
      ++(level.what == Recompute::kFull ? planned.recomputed : planned.selective);
    }
  }
  return plan;
}

}  // namespace shadowgraph
