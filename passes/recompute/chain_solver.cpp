// Dynamic programming as in rotor; the header has the recurrence, its source and its cost.
//
// A row of the table is the minimum cost of stages first..last for every number of memory slots. A row of a longer
// range is the sum of two rows of shorter ones, one of them shifted by the memory that is held meanwhile. That is a
// branch-free loop over adjacent numbers, which takes all the time. It skips slots at both ends: too few for any
// solution, and enough to keep everything. For short ranges these are most.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "shadowgraph/error.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {
namespace {

constexpr double kNever = 1e300;    // the sum of two still compares greater than any valid cost
constexpr double kTooMuch = 1e299;  // less than any sum with kNever
constexpr double kMaxCost = 4.e15;  // half of the largest integers that a double represents exactly

void check_stage(const ChainStage& stage) {
  const auto refuse = [&](const char* what) {
    throw Error(fmt::format("stage '{}' of a chain: {}", stage.name, what));
  };
  if (stage.options.empty() || stage.options[0].cost != 0)
    refuse("its first option must have cost 0, that is keep everything");
  for (const int64_t figure : {stage.forward, stage.recompute, stage.output, stage.forward_peak, stage.keeping_peak,
                               stage.backward_peak, stage.resident}) {
    if (figure < 0) refuse("it has a negative value");
  }
  for (const ChainOption& option : stage.options) {
    if (option.cost < 0 || option.saved < stage.output)
      refuse("it has an option with negative cost, or one that saves less than the output");
  }
}

// Returns the memory needed while a stage runs forward for the last time before its backward.
int64_t forward_need(const ChainStage& stage, size_t option) {
  return option == 0 ? stage.keeping_peak
                     : std::min(stage.keeping_peak, stage.forward_peak + stage.options[option].saved);
}

// Returns the memory needed for the stage's backward with an option, including recomputation.
int64_t backward_need(const ChainStage& stage, size_t option) {
  return option == 0 ? stage.backward_peak : std::max(stage.backward_peak, stage.keeping_peak + stage.resident);
}

}  // namespace

// Memory is rounded up to slots, costs up to units in which sums are exact in doubles.
ChainSolver::ChainSolver(std::span<const ChainStage> stages, int64_t bytes, int64_t slots)
    : stages_(stages.begin(), stages.end()), count_(stages.size()) {
  if (slots < 1 || bytes < 0) throw Error("the number of memory slots must be at least 1 and the bytes non-negative");
  double most = 0;
  for (const ChainStage& stage : stages_) {
    check_stage(stage);
    most += static_cast<double>(stage.forward);
    for (const ChainOption& option : stage.options) most += static_cast<double>(option.cost);
  }
  while (most * static_cast<double>(count_) / unit_ > kMaxCost) unit_ *= 2;
  slot_ = std::max<int64_t>(1, (bytes + slots - 1) / slots);
  width_ = static_cast<size_t>(bytes / slot_) + 1;
  costs_.assign(count_ * count_ * width_, kNever);
  fewest_.assign(count_ * count_, width_);
  for (size_t length = 1; length <= count_; ++length) {
    for (size_t first = 0; first + length <= count_; ++first) {
      const size_t last = first + length - 1;
      solve(first, last);
      const double* costs = row(first, last);
      fewest_[first * count_ + last] =
          static_cast<size_t>(std::find_if(costs, costs + width_, [](double c) { return c < kTooMuch; }) - costs);
    }
  }
}

double ChainSolver::units_of(int64_t cost) const { return std::ceil(static_cast<double>(cost) / unit_); }

size_t ChainSolver::slots_of(int64_t bytes) const { return static_cast<size_t>((bytes + slot_ - 1) / slot_); }

// Fills one row. Rows of shorter ranges are complete, since ranges are solved in order of length.
void ChainSolver::solve(size_t first, size_t last) {
  double* best = row(first, last);
  const ChainStage& stage = stages_[first];
  const int64_t resident = stages_[last].resident;
  if (first == last) {
    const size_t need = slots_of(std::max(stage.keeping_peak + resident, stage.backward_peak));
    for (size_t m = need; m < width_; ++m) best[m] = 0;
    return;
  }
  for (size_t o = 0; o < stage.options.size(); ++o) {
    const size_t saved = slots_of(stage.options[o].saved);
    const size_t need =
        std::max({saved, slots_of(forward_need(stage, o) + resident), slots_of(backward_need(stage, o))});
    const double cost = units_of(stage.options[o].cost);
    const double* rest = row(first + 1, last);
    for (size_t m = need; m < width_; ++m) best[m] = std::min(best[m], cost + rest[m - saved]);
  }
  if (!stage.droppable) return;
  const auto enough = static_cast<size_t>(std::find(best, best + width_, 0.0) - best);
  int64_t running = 0;  // peak bytes while the dropped stages run
  double forward = 0;
  for (size_t next = first + 1; next <= last; ++next) {
    const ChainStage& end = stages_[next - 1];
    running = std::max(running, (next - 1 > first ? stages_[next - 2].output : 0) + end.forward_peak);
    const double cost = forward + units_of(end.recompute);
    forward += units_of(end.forward);
    if (!end.droppable) continue;
    const size_t kept = slots_of(end.output);
    const double* after = row(next, last) - kept;
    const double* before = row(first, next - 1);
    const size_t need = std::max(
        {kept + fewest_[next * count_ + last], fewest_[first * count_ + next - 1], slots_of(running + resident)});
    for (size_t m = need; m < enough; ++m) {
      const double sum = cost + after[m] + before[m];
      best[m] = sum < best[m] ? sum : best[m];
    }
  }
}

std::optional<ChainSchedule> ChainSolver::schedule(int64_t bytes) const {
  if (count_ == 0) return bytes < 0 ? std::nullopt : std::make_optional<ChainSchedule>();
  if (bytes < 0) return std::nullopt;
  const size_t memory = std::min(static_cast<size_t>(bytes / slot_), width_ - 1);
  const double* all = row(0, count_ - 1);
  if (all[memory] > kTooMuch) return std::nullopt;
  // The minimum memory for this cost.
  size_t least = memory;
  while (least > 0 && all[least - 1] == all[memory]) --least;
  return trace(least);
}

// Returns one plan for each distinct cost, the largest memory first. Each costs only a trace of the table.
std::vector<ChainSchedule> ChainSolver::curve() const {
  std::vector<ChainSchedule> plans;
  if (count_ == 0) return plans;
  const double* all = row(0, count_ - 1);
  for (size_t m = width_; m-- > 0;) {
    if (all[m] > kTooMuch) break;
    if (m == 0 || all[m - 1] > all[m]) plans.push_back(trace(m));
  }
  return plans;
}

// Backtracks the choices with minimum cost, from all stages to single ones.
ChainSchedule ChainSolver::trace(size_t memory) const {
  struct Range {
    size_t first, last, memory;
  };
  ChainSchedule plan{.cost = 0,
                     .bytes = static_cast<int64_t>(memory) * slot_,
                     .option = std::vector<size_t>(count_, 0),
                     .segments = {}};
  std::vector<Range> open{{0, count_ - 1, memory}};
  const auto decide = [&](const Range& range) {
    const double least = row(range.first, range.last)[range.memory];
    const ChainStage& stage = stages_[range.first];
    const int64_t resident = stages_[range.last].resident;
    for (size_t o = 0; o < stage.options.size(); ++o) {
      const size_t saved = slots_of(stage.options[o].saved);
      const size_t need =
          std::max({saved, slots_of(forward_need(stage, o) + resident), slots_of(backward_need(stage, o))});
      if (range.memory < need) continue;
      const double cost = units_of(stage.options[o].cost) + row(range.first + 1, range.last)[range.memory - saved];
      if (cost != least) continue;
      plan.option[range.first] = o;
      plan.cost += stage.options[o].cost;
      open.push_back({range.first + 1, range.last, range.memory - saved});
      return;
    }
    int64_t running = 0;
    double forward = 0;
    for (size_t next = range.first + 1; next <= range.last; ++next) {
      const ChainStage& end = stages_[next - 1];
      running = std::max(running, (next - 1 > range.first ? stages_[next - 2].output : 0) + end.forward_peak);
      const double cost = forward + units_of(end.recompute);
      forward += units_of(end.forward);
      const size_t kept = slots_of(end.output);
      if (!end.droppable || range.memory < std::max(kept, slots_of(running + resident))) continue;
      const double sum = cost + row(next, range.last)[range.memory - kept] + row(range.first, next - 1)[range.memory];
      if (sum != least) continue;
      plan.segments.push_back({range.first, next - 1});
      for (size_t k = range.first; k + 1 < next; ++k) plan.cost += stages_[k].forward;
      plan.cost += end.recompute;
      open.push_back({range.first, next - 1, range.memory});
      open.push_back({next, range.last, range.memory - kept});
      return;
    }
  };
  while (!open.empty()) {
    const Range range = open.back();
    open.pop_back();
    if (range.first < range.last) decide(range);
  }
  std::sort(plan.segments.begin(), plan.segments.end(), [](const ChainSegment& a, const ChainSegment& b) {
    return a.first != b.first ? a.first < b.first : a.last > b.last;
  });
  return plan;
}

int64_t exposed_transfer(int64_t bytes, double bytes_per_unit, int64_t hidden_out, int64_t hidden_back) {
  const double one_way = static_cast<double>(bytes) / bytes_per_unit;
  const double exposed = std::max(0.0, one_way - static_cast<double>(hidden_out)) +
                         std::max(0.0, one_way - static_cast<double>(hidden_back));
  return static_cast<int64_t>(std::ceil(std::min(exposed, 1e16)));  // sums of a chain stay whole numbers
}

}  // namespace shadowgraph
