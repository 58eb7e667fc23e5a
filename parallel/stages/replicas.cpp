#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "parallel/stages/stage_parts.h"
#include "shadowgraph/error.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph {
namespace {

constexpr double kGradientWrites = 3;  // reads the captured gradient, reads and writes the buffer

// Parameters replicated on `ranks` ranks. Experts are replicated on fewer ranks than other parameters.
struct KindOfWeights {
  int64_t parameters = 0, weights = 0, gradients = 0, ranks = 1;
};

int64_t part_of(double share, int64_t bytes) { return static_cast<int64_t>(share * static_cast<double>(bytes)); }

std::array<KindOfWeights, 2> kinds_of(const StageCosts& stage, const Replicas& replicas) {
  const int64_t gradients = replicas.state.gradient ? stage.weights * *replicas.state.gradient : stage.gradients;
  const double share =
      stage.weights > 0 ? static_cast<double>(stage.expert_weights) / static_cast<double>(stage.weights) : 0;
  const int64_t of_experts = part_of(share, gradients);
  return {{{stage.parameters - stage.expert_parameters, stage.weights - stage.expert_weights, gradients - of_experts,
            replicas.count},
           {stage.expert_parameters, stage.expert_weights, of_experts, replicas.count / replicas.experts}}};
}

// Fraction of a stage's parameters in a bucket.
double share_of_bucket(const StageCosts& stage, const Replicas& replicas) {
  if (replicas.bucket <= 0 || replicas.bucket >= stage.parameters) return 1;
  return static_cast<double>(replicas.bucket) / static_cast<double>(stage.parameters);
}

}  // namespace

ReplicaMemory replica_memory(const StageCosts& stage, const Replicas& replicas) {
  ReplicaMemory held;
  const double bucket = share_of_bucket(stage, replicas);
  for (const KindOfWeights& kind : kinds_of(stage, replicas)) {
    const auto ranks = [&](int zero) { return replicas.zero >= zero ? kind.ranks : 1; };
    held.parameters += share_of(kind.parameters, ranks(3));
    if (ranks(3) > 1) held.gathered += part_of(std::min(1.0, 2 * bucket), kind.parameters);
    held.gradients += share_of(kind.gradients, ranks(2));
    if (ranks(2) > 1) held.whole_gradients += part_of(bucket, kind.gradients + kind.parameters);
    if (replicas.state.optimizer) held.state += share_of(kind.weights * *replicas.state.optimizer, ranks(1));
  }
  if (replicas.optimizer_on_host) {
    held.state = 0;
  } else if (!replicas.state.optimizer) {
    held.state = share_of(stage.optimizer_state, replicas.zero >= 1 ? replicas.count : 1);
  }
  return held;
}

class ReplicatedStages {
 public:
  ReplicatedStages(PipelineStages stages, const Replicas& replicas, const DeviceSpec& spec, const Interconnect* links)
      : replicas_(replicas), spec_(spec), links_(links), of_(std::move(stages)) {
    for (const int64_t apart : {int64_t{1}, replicas.experts}) {  // in the order of kinds_of()
      ProcessGroupInfo& group = groups_.emplace_back(ProcessGroupInfo{.name = "dp", .size = replicas.count / apart});
      for (size_t r = 0; r < replicas.ranks.size(); r += static_cast<size_t>(apart)) {
        group.ranks.push_back(replicas.ranks[r]);
      }
    }
  }

  PipelineStages take() {
    auto parts = std::make_shared<StageParts>(of_.parts());
    for (size_t s = 0; s < of_.figures_.size(); ++s) {
      if (replicas_.experts > 1 && !replicas_.state.optimizer && of_.figures_[s].optimizer_state > 0) {
        throw Error("expert parallelism needs the optimizer state size per element: remove --captured-state");
      }
      kinds_ = kinds_of(of_.figures_[s], replicas_);
      bucket_ = share_of_bucket(of_.figures_[s], replicas_);
      hold(of_.figures_[s], parts->stages[s]);
      // Stages made from costs have a single gradient tensor, while a buffer accumulates gradients one by one.
      if (parts->nodes.empty() && parts->stages[s].gradient_buffer > 0) drop_gradients(parts->stages[s]);
      send(of_.figures_[s]);
    }
    of_.parts_ = std::move(parts);
    return std::move(of_);
  }

 private:
  int64_t cut_from(int zero) const { return replicas_.zero >= zero ? replicas_.count : 1; }

  void hold(StageCosts& of, StagePart& part) {
    const ReplicaMemory held = replica_memory(of, replicas_);
    hold_state(of, part, held);
    if (replicas_.state.gradient) {
      const double element = of.weights > 0 ? static_cast<double>(of.parameters) / static_cast<double>(of.weights) : 0;
      const auto width = static_cast<double>(*replicas_.state.gradient);
      if (element > 0) of.accumulate *= (element + 2 * width) / (kGradientWrites * element);
    }
    if (replicas_.state.gradient || cut_from(2) > 1) part.gradient_buffer = held.gradients;
    of.gradients = held.gradients;
    if (cut_from(3) > 1) {
      for (int64_t& bytes : part.resident) bytes = share_of(bytes, kinds_[0].ranks);
      for (int64_t& bytes : part.experts) bytes = share_of(bytes, kinds_[1].ranks);
    }
    if (held.whole_gradients > 0) part.resident.push_back(held.whole_gradients);
    if (held.gathered > 0) part.resident.push_back(held.gathered);
    of.parameters = held.parameters + held.gathered;
  }

  // Bytes per rank over all kinds of parameters.
  double share(int64_t KindOfWeights::*bytes, int64_t width = 1) const {
    double all = 0;
    for (const KindOfWeights& kind : kinds_) {
      all += static_cast<double>(kind.*bytes * width) / static_cast<double>(replicas_.zero >= 1 ? kind.ranks : 1);
    }
    return all;
  }

  // The optimizer step reads gradients, reads and writes the state, and writes parameters. If it is offloaded,
  // gradients and parameters are copied.
  double step_seconds() const {
    const double passed = share(&KindOfWeights::gradients) + share(&KindOfWeights::parameters);
    const double moved = passed + 2 * share(&KindOfWeights::weights, *replicas_.state.optimizer);
    if (!replicas_.optimizer_on_host) return moved / spec_.bandwidth;
    return passed / spec_.host->link + moved / spec_.host->bandwidth;
  }

  void hold_state(StageCosts& of, StagePart& part, const ReplicaMemory& held) {
    if (replicas_.state.optimizer) {
      part.state = {held.state};
      part.optimizer.clear();
      of.optimizer = step_seconds();
    } else {
      for (int64_t& bytes : part.state) bytes = share_of(bytes, cut_from(1));
      of.optimizer /= static_cast<double>(cut_from(1));
    }
    of.optimizer_state = std::reduce(part.state.begin(), part.state.end());
  }

  static void drop_gradients(StagePart& part) {
    const auto gradient = [&](const PieceEvent& event) {
      return event.slot != PieceEvent::kScratch && part.is_gradient[event.slot] != 0;
    };
    std::erase_if(part.pieces.backward, gradient);
    std::erase_if(part.pieces.weight_gradient, gradient);
  }

  // Time added by a transfer of `seconds` that overlaps with `compute` seconds.
  double cost(double seconds, double compute) const {
    const double exposed = std::min(seconds, std::max(seconds * bucket_, seconds - compute));
    return exposed + links_->device_share * (seconds - exposed);
  }
  // Time of a collective, called once per bucket, over the replicas of each kind of parameters.
  double collective(CollectiveKind collective, int64_t KindOfWeights::*bytes) {
    const double calls = std::max(1.0, 1 / bucket_);
    double seconds = 0;
    for (size_t k = 0; k < kinds_.size(); ++k) {
      if (kinds_[k].*bytes == 0 || kinds_[k].ranks == 1) continue;
      const auto each = static_cast<int64_t>(static_cast<double>(kinds_[k].*bytes) / calls);
      const auto [known, is_new] = calls_.try_emplace({collective, k, each});
      if (is_new) known->second = collective_cost(collective, each, groups_[k], *links_).seconds();
      seconds += calls * known->second;
    }
    return seconds;
  }

  void send(StageCosts& of) {
    if (replicas_.count == 1 || links_ == nullptr) return;
    const double forward = of.forward, backward = of.backward();
    const double gather = replicas_.zero == 0 ? 0 : collective(CollectiveKind::kAllGather, &KindOfWeights::parameters);
    const double sum = collective(replicas_.zero == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter,
                                  &KindOfWeights::gradients);
    if (replicas_.zero < 3) of.unshard += cost(gather, forward);
    if (replicas_.zero < 2) of.reduce_gradients += cost(sum, backward);
    if (replicas_.zero == 3) add(&PieceSeconds::forward, of, cost(gather, forward));
    if (replicas_.zero < 2) return;
    const double both = cost(sum + (replicas_.zero == 3 ? gather : 0), backward);
    // Zero-bubble schedules gather before the input gradient, and reduce after the weight gradient.
    const double before = replicas_.zero == 3 ? cost(gather, of.input_gradient) : 0;
    add(&PieceSeconds::backward, of, both);
    add(&PieceSeconds::input_gradient, of, before);
    add(&PieceSeconds::weight_gradient, of, std::max(0.0, both - before));
  }

  static void add(double PieceSeconds::*piece, StageCosts& of, double seconds) {
    of.exposed.*piece += seconds;
    of.exposed_unsharded.*piece += seconds;
    if (piece == &PieceSeconds::forward) of.forward += seconds;
    if (piece == &PieceSeconds::input_gradient) of.input_gradient += seconds;
    if (piece == &PieceSeconds::weight_gradient) of.weight_gradient += seconds;
  }

  const Replicas& replicas_;
  const DeviceSpec& spec_;
  const Interconnect* links_;
  PipelineStages of_;
  std::vector<ProcessGroupInfo> groups_;  // by kind of parameters
  // Cache of seconds, since most stages send the same.
  std::map<std::tuple<CollectiveKind, size_t, int64_t>, double> calls_;
  // The current stage before sharding, and the fraction of it in a bucket.
  std::array<KindOfWeights, 2> kinds_;
  double bucket_ = 1;
};

PipelineStages replicated(PipelineStages stages, const Replicas& replicas, const DeviceSpec& spec,
                          const Interconnect* links) {
  if (replicas.count < 1) throw Error(fmt::format("the number of replicas must be at least 1, not {}", replicas.count));
  if (replicas.zero < 0 || replicas.zero > 3) {
    throw Error(fmt::format("the ZeRO stage must be 0 to 3, not {}", replicas.zero));
  }
  if (replicas.experts < 1 || replicas.count % replicas.experts != 0) {
    throw Error(
        fmt::format("the expert-parallel degree {1} does not divide {0} replicas", replicas.count, replicas.experts));
  }
  if (replicas.optimizer_on_host && (!spec.host || spec.host->bandwidth <= 0)) {
    throw Error(fmt::format(
        "offloading the optimizer needs the host's bandwidth: {} has no host.bandwidth; use a spec file that has it",
        spec.title));
  }
  if (replicas.optimizer_on_host && !replicas.state.optimizer) {
    throw Error("offloading the optimizer needs its state size per element: remove --captured-state");
  }
  return ReplicatedStages(std::move(stages), replicas, spec, links).take();
}

PipelineSchedule with_gradient_reduction(const PipelineSchedule& schedule) {
  PipelineSchedule::Rows rows;
  std::vector<int32_t> actions(static_cast<size_t>(schedule.stages()), 0), done(actions.size(), 0);
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    for (const PipelineAction& a : schedule.of(rank)) {
      if (computes(a)) ++actions[static_cast<size_t>(a.stage)];
    }
  }
  for (int32_t rank = 0; rank < schedule.ranks(); ++rank) {
    auto& row = rows.emplace_back();
    const auto actions_of = schedule.of(rank);
    for (size_t i = 0; i < actions_of.size();) {
      size_t end = i + 1;  // end of a group of overlapping actions, which must stay adjacent
      while (actions_of[end - 1].overlaps_next) ++end;
      const auto together = actions_of.subspan(i, end - i);
      for (const PipelineAction& a : together) {
        if (computes(a) && done[static_cast<size_t>(a.stage)] == 0) {
          row.push_back({.work = PipelineWork::kUnshard, .stage = a.stage});
        }
      }
      row.insert(row.end(), together.begin(), together.end());
      for (const PipelineAction& a : together) {
        const auto stage = static_cast<size_t>(a.stage);
        if (computes(a) && ++done[stage] == actions[stage]) {
          row.push_back({.work = PipelineWork::kReduceGradients, .stage = a.stage});
        }
      }
      i = end;
    }
  }
  return {schedule.name(), std::move(rows)};
}

}  // namespace shadowgraph
