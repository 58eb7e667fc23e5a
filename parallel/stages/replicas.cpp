#include "shadowgraph/parallel/replicas.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/stages/stage_parts.h"
#include "shadowgraph/error.h"
#include "shadowgraph/profile/collective_cost.h"

namespace shadowgraph {
namespace {

constexpr double kGradientWrites = 3;  // a captured gradient is read, and what it is added to is read and written

}  // namespace

class ReplicatedStages {
 public:
  ReplicatedStages(const PipelineStages& stages, const Replicas& replicas, const DeviceSpec& spec,
                   const Interconnect* links)
      : replicas_(replicas), spec_(spec), links_(links), group_{.name = "dp", .size = replicas.count}, of_(stages) {
    group_.ranks = replicas.ranks;
  }

  PipelineStages made() {
    auto parts = std::make_shared<StageParts>(of_.parts());
    for (size_t s = 0; s < of_.figures_.size(); ++s) {
      hold(of_.figures_[s], parts->stages[s]);
      // Where only figures are known, a stage's gradients are one tensor. A buffer takes them in one by one.
      if (parts->nodes.empty() && parts->stages[s].gradient_buffer > 0) drop_gradients(parts->stages[s]);
      send(of_.figures_[s]);
    }
    of_.parts_ = std::move(parts);
    return std::move(of_);
  }

 private:
  int64_t cut_from(int zero) const { return replicas_.zero >= zero ? replicas_.count : 1; }
  bool sends() const { return replicas_.count > 1; }

  void hold(StageFigures& of, StagePart& part) {
    const double element = of.weights > 0 ? static_cast<double>(of.parameters) / static_cast<double>(of.weights) : 0;
    whole_ = of.parameters;
    if (replicas_.state.optimizer) {
      const int64_t bytes = of.weights * *replicas_.state.optimizer;
      const double moved = 2.0 * static_cast<double>(bytes) + static_cast<double>(of.gradients + of.parameters);
      part.state = {share_of(bytes, cut_from(1))};
      part.optimizer.clear();
      of.optimizer = moved / static_cast<double>(cut_from(1)) / spec_.bandwidth;
    } else {
      for (int64_t& bytes : part.state) bytes = share_of(bytes, cut_from(1));
      of.optimizer /= static_cast<double>(cut_from(1));
    }
    of.optimizer_state = 0;
    for (const int64_t bytes : part.state) of.optimizer_state += bytes;
    if (replicas_.state.gradient) {
      const auto width = static_cast<double>(*replicas_.state.gradient);
      if (element > 0) of.accumulate *= (element + 2 * width) / (kGradientWrites * element);
      of.gradients = of.weights * *replicas_.state.gradient;
    }
    summed_ = of.gradients;
    if (replicas_.state.gradient || cut_from(2) > 1) {
      of.gradients = share_of(of.gradients, cut_from(2));
      part.gradient_buffer = of.gradients;
    }
    const auto whole_gradients = static_cast<int64_t>(share_of_bucket() * static_cast<double>(summed_ + whole_));
    if (cut_from(3) > 1) {
      for (int64_t& bytes : part.resident) bytes = share_of(bytes, cut_from(3));
    }
    if (cut_from(2) > 1) part.resident.push_back(whole_gradients);
    if (cut_from(3) == 1) return;
    const int64_t two_buckets = std::min(2 * bucket(), whole_);
    part.resident.push_back(two_buckets);
    of.parameters = share_of(whole_, cut_from(3)) + two_buckets;
  }

  static void drop_gradients(StagePart& part) {
    const auto gradient = [&](const PieceEvent& event) {
      return event.slot != PieceEvent::kScratch && part.is_gradient[event.slot] != 0;
    };
    std::erase_if(part.backward, gradient);
    std::erase_if(part.weight_gradient, gradient);
  }

  int64_t bucket() const { return replicas_.bucket > 0 ? std::min(replicas_.bucket, whole_) : whole_; }
  double share_of_bucket() const {
    return whole_ > 0 ? static_cast<double>(bucket()) / static_cast<double>(whole_) : 1;
  }

  // What a transfer of `seconds` costs beside computing of `beside`.
  double cost(double seconds, double beside) const {
    const double exposed = std::min(seconds, std::max(seconds * share_of_bucket(), seconds - beside));
    return exposed + links_->device_share * (seconds - exposed);
  }
  // The same of a collective of all buckets, one call each.
  double collective(CollectiveKind kind, int64_t bytes) const {
    if (bytes == 0) return 0;
    const double calls = std::max(1.0, 1 / share_of_bucket());
    const auto each = static_cast<int64_t>(static_cast<double>(bytes) / calls);
    return calls * collective_cost(kind, each, group_, *links_).seconds();
  }

  void send(StageFigures& of) const {
    if (!sends() || links_ == nullptr) return;
    const double forward = of.forward, backward = of.backward();
    const double gather = replicas_.zero == 0 ? 0 : collective(CollectiveKind::kAllGather, whole_);
    const double sum =
        collective(replicas_.zero == 0 ? CollectiveKind::kAllReduce : CollectiveKind::kReduceScatter, summed_);
    if (replicas_.zero < 3) of.unshard += cost(gather, forward);
    if (replicas_.zero < 2) of.reduce_gradients += cost(sum, backward);
    if (replicas_.zero == 3) add(&PieceSeconds::forward, of, cost(gather, forward));
    if (replicas_.zero < 2) return;
    const double both = cost(sum + (replicas_.zero == 3 ? gather : 0), backward);
    // Schedules of zero bubble gather before the input's gradient, and sum up behind the weights'.
    const double before = replicas_.zero == 3 ? cost(gather, of.input_gradient) : 0;
    add(&PieceSeconds::backward, of, both);
    add(&PieceSeconds::input_gradient, of, before);
    add(&PieceSeconds::weight_gradient, of, std::max(0.0, both - before));
  }

  static void add(double PieceSeconds::*piece, StageFigures& of, double seconds) {
    of.exposed.*piece += seconds;
    of.exposed_unsharded.*piece += seconds;
    if (piece == &PieceSeconds::forward) of.forward += seconds;
    if (piece == &PieceSeconds::input_gradient) of.input_gradient += seconds;
    if (piece == &PieceSeconds::weight_gradient) of.weight_gradient += seconds;
  }

  const Replicas& replicas_;
  const DeviceSpec& spec_;
  const Interconnect* links_;
  ProcessGroupInfo group_;
  PipelineStages of_;
  int64_t whole_ = 0, summed_ = 0;  // bytes of parameters, of gradients: of the stage at hand, uncut
};

PipelineStages replicated(const PipelineStages& stages, const Replicas& replicas, const DeviceSpec& spec,
                          const Interconnect* links) {
  if (replicas.count < 1) throw Error(fmt::format("there are no {} replicas", replicas.count));
  if (replicas.zero < 0 || replicas.zero > 3) {
    throw Error(fmt::format("ZeRO has the stages 0 to 3, not {}", replicas.zero));
  }
  return ReplicatedStages(stages, replicas, spec, links).made();
}

PipelineSchedule with_sums(const PipelineSchedule& schedule) {
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
      size_t end = i + 1;  // of actions that overlap, between which nothing may stand
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
