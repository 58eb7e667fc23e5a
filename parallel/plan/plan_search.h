// The search of one request: plans by their bounds, simulations of what looks best, and the best with other knobs.
#pragma once

#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "parallel/plan/candidate.h"
#include "parallel/plan/layer_tables.h"
#include "parallel/plan/placement.h"
#include "parallel/plan/plan_space.h"
#include "parallel/plan/planner.h"
#include "shadowgraph/parallel/training_plan.h"

namespace shadowgraph {

class PlanSearch {
 public:
  PlanSearch(const StepSource& source, const ClusterRequest& request, KeptTables& kept)
      : source_(source),
        answer_{.name = source.name, .request = request},
        kept_(kept),
        tables_(source, answer_.request, kept),
        schedules_(kept.schedules) {
    check(request);
    check_links(request);
    answer_.memory = memory_of(request);
    answer_.bound = best_estimate_;
  }

  // Nothing is simulated where nothing fits.
  PlanAnswer run(bool neighbours) {
    make_candidates();
    simulate_best();
    if (answer_.simulated.empty()) return std::move(answer_);
    if (neighbours) {
      look_around();
      look_at_overlaps();
      look_at_recomputing();
      route_badly();
    }
    write_down();
    return std::move(answer_);
  }

  std::optional<FittingPlan> first_that_fits(int64_t memory) {
    make_candidates();
    return first_of(memory);
  }

 private:
  std::optional<FittingPlan> first_of(int64_t memory) {
    for (Candidate& candidate : candidates_) {
      if (auto estimate = candidate.with_less(schedules_, memory, kForever)) {
        return FittingPlan{candidate.with(*estimate), std::move(*estimate)};
      }
    }
    return std::nullopt;
  }

  struct Tried {
    Candidate* candidate;
    Estimate estimate;
    int64_t memory;  // that it was looked for with
    int tries = 0;
    bool spend_spare = true;
  };

  static bool is_slower(const Tried& a, const Tried& b) { return a.estimate.seconds > b.estimate.seconds; }
  static constexpr auto kSlower = is_slower;
  static constexpr double kForever = std::numeric_limits<double>::infinity();

  const ClusterRequest& request() const { return answer_.request; }
  std::vector<Candidate> candidates_with(const std::vector<Recompute>& allowed, bool host_allowed = true);
  void make_candidates();
  void search(double near);
  void simulate_best();
  void push(Tried tried);
  Tried pop();
  void try_with(Tried tried, int64_t memory);
  SimulatedPlan simulated(const Candidate& candidate, const Estimate& estimate);
  bool fits(const SimulatedPlan& made) const {
    return made.bytes() <= answer_.memory && made.on_host <= host_memory_of(request().device);
  }
  void use_what_is_left(Tried tried, SimulatedPlan made);
  void simulate_above();
  void count();
  void look_around();
  void look_at_overlaps();
  void look_at_recomputing();
  void route_badly();
  std::optional<Estimate> fitting(Candidate& candidate, double enough);
  PlanNeighbour best_of(const std::string& knob, const std::string& value, const std::vector<Candidate*>& candidates);
  void write_down();

  const StepSource& source_;
  PlanAnswer answer_;
  KeptTables& kept_;
  LayerTables tables_;
  std::deque<WaysDown> ways_;  // of candidates
  std::vector<Candidate> candidates_;
  std::vector<Tried> tried_;
  std::unordered_set<const Candidate*> seen_;
  double best_estimate_ = std::numeric_limits<double>::infinity();
  PlanSchedules& schedules_;
};

}  // namespace shadowgraph
