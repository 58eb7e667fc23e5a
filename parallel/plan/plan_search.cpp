#include "parallel/plan/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <span>

#include "shadowgraph/units.h"
#include "support/on_two_threads.h"

namespace shadowgraph {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

}  // namespace

// Least bound first.
std::vector<Candidate> PlanSearch::candidates_with(const std::vector<Recompute>& allowed, bool host_allowed) {
  std::vector<Candidate> candidates;
  for (LayoutSizes sizes : tables_.layouts()) {
    const LayoutTables* tables = tables_.of(sizes);
    for (const int64_t ranks : tables_.expert_ranks(tables->experts)) {
      const WaysDown& ways = ways_.emplace_back(tables->chains.at(ranks), allowed, host_allowed);
      sizes.experts = ranks;
      for (TrainingPlan& plan : plans_of(request(), sizes, ways.kept().size())) {
        candidates.emplace_back(std::move(plan), ways, request());
      }
    }
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::bound);
  return candidates;
}

void PlanSearch::make_candidates() {
  const auto begin = Clock::now();
  candidates_ = candidates_with(request().recompute);
  answer_.notes = kept_.notes;
  answer_.flops = kept_.flops;
  answer_.table_seconds = seconds_since(begin);
}

// Works out all that may be within `near` times the best, since a simulation may find that the best does not fit.
void PlanSearch::search(double near) {
  const auto begin = Clock::now();
  constexpr size_t kAtOnce = 4;  // of which the later ones do not know yet how good the earlier ones are
  for (size_t first = 0; first < candidates_.size(); first += kAtOnce) {
    const auto some = std::span(candidates_).subspan(first, std::min(kAtOnce, candidates_.size() - first));
    const auto work_out = [&, enough = near * best_estimate_](size_t i) {
      some[i].estimate(schedules_, answer_.memory, enough);
    };
    const auto is_near = [&](const Candidate& candidate) { return candidate.bound() < near * best_estimate_; };
    if (std::ranges::any_of(some, is_near)) on_two_threads(some.size(), work_out);
    for (Candidate& candidate : some) {
      const Estimate* estimate = candidate.estimate(schedules_, answer_.memory, near * best_estimate_);
      if (candidate.fits()) answer_.bound = std::min(answer_.bound, candidate.bound());
      if (estimate == nullptr || !seen_.insert(&candidate).second) continue;
      best_estimate_ = std::min(best_estimate_, estimate->seconds);
      tried_.push_back({&candidate, *estimate, answer_.memory});
    }
  }
  answer_.search_seconds += seconds_since(begin);
}

void PlanSearch::push(Tried tried) {
  tried_.push_back(std::move(tried));
  std::ranges::push_heap(tried_, kSlower);
}

PlanSearch::Tried PlanSearch::pop() {
  std::ranges::pop_heap(tried_, kSlower);
  Tried tried = std::move(tried_.back());
  tried_.pop_back();
  return tried;
}

void PlanSearch::try_with(Tried tried, int64_t memory) {
  constexpr int kMostTries = 7;
  std::optional<Estimate> less;
  if (++tried.tries < kMostTries) less = tried.candidate->with_less(schedules_, memory, kForever, tried.spend_spare);
  // A rank that is packed to its last byte leaves no room for what a simulation finds.
  if (!less && tried.spend_spare && tried.candidate->plan().stages_per_rank > 1) {
    tried.spend_spare = false;
    tried.tries = 1;
    memory = answer_.memory;
    less = tried.candidate->with_less(schedules_, memory, kForever, false);
  }
  tried.candidate->learn(less);
  if (!less) return;
  tried.estimate = std::move(*less);
  tried.memory = memory;
  push(std::move(tried));
}

SimulatedPlan PlanSearch::simulated(const Candidate& candidate, const Estimate& estimate) {
  SimulatedPlan made = kept_.simulator.of(source_, request(), candidate.with(estimate));
  made.estimated = estimate.seconds;
  made.estimated_bytes = estimate.bytes;
  ++answer_.counted["simulated"];
  return made;
}

// A plan that was looked for with less memory may have been given too little: what it leaves is tried, too.
void PlanSearch::use_what_is_left(Tried tried, SimulatedPlan made) {
  constexpr double kWorthIt = 0.995;
  const double seconds = made.run.seconds();
  const int64_t left = answer_.memory - made.bytes();
  tried.estimate.seconds = seconds;
  answer_.simulated.push_back(std::move(made));
  if (tried.tries > 0) {
    std::optional<Estimate> more =
        tried.candidate->with_less(schedules_, tried.memory + left, kForever, tried.spend_spare);
    if (more && more->seconds < kWorthIt * seconds) {
      SimulatedPlan quicker = simulated(*tried.candidate, *more);
      if (fits(quicker) && quicker.run.seconds() < seconds) {
        more->seconds = quicker.run.seconds();
        tried.estimate = std::move(*more);
        answer_.simulated.back() = std::move(quicker);
      }
    }
  }
  tried.candidate->learn(std::move(tried.estimate));
}

// What is too large once it is simulated is looked for again, with as much less memory. The same goes for what would be
// too large if it exceeds its estimate as others did.
void PlanSearch::simulate_best() {
  const auto begin = Clock::now();
  constexpr double kNearest = 1.05, kWider = 1.3, kFarthest = 4;
  double near = kNearest;
  const auto search_within = [&](double times) {
    search(near = times);
    std::ranges::make_heap(tried_, kSlower);
  };
  search_within(near);
  std::map<TensorLayout, double> excess;  // least of simulated bytes over estimated ones
  while (std::ssize(answer_.simulated) < request().simulated) {
    if (tried_.empty()) {
      if (!answer_.simulated.empty() || near > kFarthest) break;
      search_within(near * kWider);
      continue;
    }
    // With less memory a plan may be slower than others that were not looked at yet.
    const double quickest = tried_.front().estimate.seconds / best_estimate_;
    if (quickest > near) search_within(1.001 * quickest);
    Tried tried = pop();
    const auto estimated = static_cast<double>(tried.estimate.bytes);
    const auto memory = static_cast<double>(answer_.memory);
    const auto known = excess.find(tried.candidate->plan().layout);
    if (tried.tries == 0 && known != excess.end() && estimated * known->second > memory) {
      try_with(std::move(tried), static_cast<int64_t>(memory / known->second));
      continue;
    }
    if (schedules_.own(tried.candidate->plan()) == nullptr) continue;  // short ones stood for one that there is not
    SimulatedPlan made = simulated(*tried.candidate, tried.estimate);
    double& least = excess.try_emplace(made.plan.layout, kForever).first->second;
    least = std::min(least, static_cast<double>(made.bytes()) / estimated);
    if (fits(made)) {
      use_what_is_left(std::move(tried), std::move(made));
      continue;
    }
    ++answer_.counted["simulated, and too large"];
    if (made.bytes() <= answer_.memory) {  // the host is full
      tried.candidate->learn(std::nullopt);
      continue;
    }
    // More each time, since a layer computed again may free less than it should: blocks of the allocator are large.
    const int64_t over = std::max(made.bytes() - answer_.memory, answer_.memory / 200) * (tried.tries + 1);
    const int64_t less = std::min(tried.memory, tried.estimate.bytes) - over;
    try_with(std::move(tried), less);
  }
  if (answer_.simulated.empty()) simulate_above();
  std::ranges::stable_sort(answer_.simulated, {}, [](const SimulatedPlan& made) { return made.run.seconds(); });
  answer_.simulation_seconds = seconds_since(begin) - answer_.search_seconds;
  count();
}

// A plan whose estimate is too large may fit once it is simulated.
void PlanSearch::simulate_above() {
  for (const double excess : {1.02, 1.05, 1.1}) {
    const auto found = first_of(static_cast<int64_t>(excess * static_cast<double>(answer_.memory)));
    if (!found || schedules_.own(found->plan) == nullptr) continue;
    SimulatedPlan made = kept_.simulator.of(source_, request(), found->plan);
    ++answer_.counted["simulated"];
    if (!fits(made)) continue;
    made.estimated = found->estimate.seconds;
    made.estimated_bytes = found->estimate.bytes;
    answer_.bound = std::min(answer_.bound, found->estimate.seconds);
    answer_.simulated.push_back(std::move(made));
    return;
  }
}

void PlanSearch::count() {
  answer_.counted["plans in the space"] = std::ssize(candidates_);
  for (const Candidate& candidate : candidates_) {
    ++answer_.counted[seen_.contains(&candidate) ? "worked out"
                      : candidate.fits()         ? "slower by their bounds"
                                                 : "without a schedule, or too large"];
  }
}

// What people compare a plan with: all that was worked out, and where estimates and simulations differ.
void PlanSearch::write_down() {
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

}  // namespace shadowgraph
