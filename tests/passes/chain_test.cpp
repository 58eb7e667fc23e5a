// The dynamic program for chains against an enumeration of all schedules, and its schedules against an independent
// simulation.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <queue>
#include <random>

#include "shadowgraph/error.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {
namespace {

constexpr int kNotKept = -1;

// One step of executing a plan.
struct ChainOperation {
  enum class Kind : uint8_t {
    kForwardDrop,  // run the stage, then drop its input unless it is kept for another use
    kForwardMark,  // run the stage and keep its input
    kForwardKeep,  // run the stage and save the tensors of the option
    kBackward,     // run the backward and drop what was saved for it
  };
  Kind kind = Kind::kForwardDrop;
  size_t stage = 0;
  size_t option = 0;  // used by kForwardKeep
  friend bool operator==(const ChainOperation&, const ChainOperation&) = default;
};

// Expands a plan into the operations of forward and backward.
std::vector<ChainOperation> schedule(std::span<const ChainStage> stages, const ChainSchedule& plan) {
  using Kind = ChainOperation::Kind;
  std::vector<ChainOperation> steps;
  // Stack of pending work, next item last: a range of stages from their forward on (without the enclosing segment), or
  // the backward of one stage.
  struct Work {
    size_t first = 0, last = 0;
    size_t inside = 0;  // index of the first segment that may be nested in it
    bool backward = false;
  };
  std::vector<Work> work;
  if (!stages.empty()) work.push_back({0, stages.size() - 1, 0, false});
  while (!work.empty()) {
    const Work now = work.back();
    work.pop_back();
    if (now.backward) {
      steps.push_back({Kind::kBackward, now.first, 0});
      continue;
    }
    size_t segment = now.inside;
    for (size_t k = now.first; k <= now.last; ++k) {
      while (segment < plan.segments.size() && plan.segments[segment].first < k) ++segment;
      if (segment < plan.segments.size() && plan.segments[segment].first == k) {
        const ChainSegment& found = plan.segments[segment++];
        work.push_back({found.first, found.last, segment, false});
        for (; k <= found.last; ++k) {
          steps.push_back({k == found.first ? Kind::kForwardMark : Kind::kForwardDrop, k, 0});
        }
        --k;
      } else {
        steps.push_back({Kind::kForwardKeep, k, plan.option[k]});
        work.push_back({k, k, 0, true});
      }
    }
  }
  return steps;
}

std::vector<ChainStage> random_chain(uint32_t seed, size_t length) {
  std::mt19937 random(seed);
  const auto number = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  std::vector<ChainStage> stages;
  int64_t left_behind = 0;
  for (size_t i = 0; i < length; ++i) {
    ChainStage stage{.name = std::to_string(i)};
    stage.forward = number(1, 20);
    stage.recompute = stage.forward - number(0, stage.forward / 2);
    stage.output = number(1, 5);
    const int64_t full = stage.output + number(0, 12);
    stage.forward_peak = stage.output + number(0, 4);
    stage.keeping_peak = std::max(stage.forward_peak, full + number(0, 3));
    stage.options = {{full, 0}};
    if (number(0, 1) == 1) {
      stage.options.push_back({stage.output + (full - stage.output) / 2, number(1, stage.forward)});
    }
    if (number(0, 1) == 1) stage.options.push_back({stage.output, stage.recompute});
    stage.backward_peak = full + number(1, 8);
    stages.push_back(stage);
  }
  for (size_t i = length; i-- > 0;) {
    stages[i].resident = (i + 1 < length ? stages[i].output : 0) + left_behind;
    left_behind += number(0, 1);
    stages[i].backward_peak += left_behind;
  }
  return stages;
}

// Tracks live tensors while a schedule runs.
struct Memory {
  std::vector<int> kept;    // by stage: the option with which it is saved
  std::vector<bool> input;  // by stage: whether its input is kept
  int head = 0;             // the stage whose input is in memory; -1: none
  int backward = 0;         // the next stage to run backward
  int reached = 0;          // number of stages that have run
  auto operator<=>(const Memory&) const = default;
};

struct Outcome {
  Memory after;
  int64_t cost = 0;
  int64_t bytes = 0;
};

bool has_input(const Memory& memory, int stage) {
  return stage == 0 || memory.input[size_t(stage)] || memory.kept[size_t(stage) - 1] != kNotKept;
}

int64_t bytes_in(const std::vector<ChainStage>& stages, const Memory& memory) {
  int64_t bytes = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (memory.kept[i] != kNotKept) bytes += stages[i].options[size_t(memory.kept[i])].saved;
    const bool in_kept = i == 0 || memory.kept[i - 1] != kNotKept;
    if (!in_kept && (memory.input[i] || memory.head == int(i))) bytes += stages[i - 1].output;
  }
  return bytes;
}

std::optional<Outcome> run(const std::vector<ChainStage>& stages, Memory memory, ChainOperation step) {
  using Kind = ChainOperation::Kind;
  const int k = int(step.stage);
  const ChainStage& stage = stages[step.stage];
  Outcome outcome;
  if (step.kind == Kind::kBackward) {
    const int option = memory.kept[step.stage];
    if (memory.backward != k || option == kNotKept) return std::nullopt;
    memory.kept[step.stage] = kNotKept;
    memory.head = -1;
    outcome.bytes = bytes_in(stages, memory) + stage.backward_peak;
    if (option != 0) {
      outcome.bytes = std::max(outcome.bytes, bytes_in(stages, memory) + stage.keeping_peak + stage.resident);
    }
    memory.input[step.stage] = false;
    --memory.backward;
    outcome.after = memory;
    return outcome;
  }
  if (memory.head != k && !has_input(memory, k)) return std::nullopt;
  if (memory.kept[step.stage] != kNotKept || k > memory.backward) return std::nullopt;
  if (k >= memory.reached) {
    memory.reached = k + 1;
  } else {
    outcome.cost = k == memory.backward ? stage.recompute : stage.forward;
  }
  memory.head = k;
  if (step.kind != Kind::kForwardDrop) memory.input[step.stage] = true;
  const int64_t resident = stages[size_t(memory.backward)].resident;
  if (step.kind == Kind::kForwardKeep) {
    const ChainOption& option = stage.options[step.option];
    const int64_t need =
        step.option == 0 ? stage.keeping_peak : std::min(stage.keeping_peak, stage.forward_peak + option.saved);
    outcome.bytes = bytes_in(stages, memory) + need + resident;
    outcome.cost += option.cost;
    memory.kept[step.stage] = int(step.option);
  } else {
    outcome.bytes = bytes_in(stages, memory) + stage.forward_peak + resident;
  }
  memory.head = k + 1 < int(stages.size()) ? k + 1 : -1;
  outcome.after = memory;
  return outcome;
}

Memory at_the_beginning(size_t stages) {
  return {std::vector<int>(stages, kNotKept), std::vector<bool>(stages, false), 0, int(stages) - 1, 0};
}

// Tries all schedules that keep saved tensors until their backward has run.
std::optional<int64_t> least_cost(const std::vector<ChainStage>& stages, int64_t bytes) {
  using Kind = ChainOperation::Kind;
  std::map<Memory, int64_t> best;
  std::priority_queue<std::pair<int64_t, Memory>, std::vector<std::pair<int64_t, Memory>>, std::greater<>> open;
  open.emplace(0, at_the_beginning(stages.size()));
  while (!open.empty()) {
    const auto [cost, memory] = open.top();
    open.pop();
    if (memory.backward < 0) return cost;
    if (const auto [entry, added] = best.try_emplace(memory, cost); !added) continue;
    const auto go = [&](ChainOperation step) {
      const auto outcome = run(stages, memory, step);
      if (outcome && outcome->bytes <= bytes) open.emplace(cost + outcome->cost, outcome->after);
    };
    for (size_t k = 0; k < stages.size(); ++k) {
      go({Kind::kForwardDrop, k, 0});
      go({Kind::kForwardMark, k, 0});
      for (size_t o = 0; o < stages[k].options.size(); ++o) go({Kind::kForwardKeep, k, o});
      go({Kind::kBackward, k, 0});
    }
  }
  return std::nullopt;
}

struct Simulated {
  int64_t cost = 0;
  int64_t peak = 0;
};

Simulated simulate(const std::vector<ChainStage>& stages, const std::vector<ChainOperation>& steps) {
  Memory memory = at_the_beginning(stages.size());
  Simulated done;
  for (const ChainOperation& step : steps) {
    const auto outcome = run(stages, memory, step);
    EXPECT_TRUE(outcome.has_value()) << "stage " << step.stage << " cannot do step " << int(step.kind);
    if (!outcome) return done;
    memory = outcome->after;
    done.cost += outcome->cost;
    done.peak = std::max(done.peak, outcome->bytes);
  }
  EXPECT_EQ(memory.backward, -1) << "the schedule ends before backward does";
  return done;
}

int64_t enough_for(const std::vector<ChainStage>& stages) {
  int64_t bytes = 0;
  for (const ChainStage& stage : stages) {
    bytes += stage.options[0].saved + stage.keeping_peak + stage.backward_peak + stage.resident;
  }
  return bytes;
}

TEST(Chain, CostsWhatTheBestOfAllSchedulesCosts) {
  int feasible = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const auto stages = random_chain(seed, 2 + seed % 3);
    const int64_t most = enough_for(stages);
    const ChainSolver solver(stages, most, most);  // one slot per byte
    int64_t full = 0;
    for (const ChainStage& stage : stages) full += stage.options[0].saved;
    for (int64_t bytes = 0; bytes <= full + 20; bytes += 1 + bytes / 16) {
      const auto plan = solver.schedule(bytes);
      const auto expected = least_cost(stages, bytes);
      ASSERT_EQ(plan.has_value(), expected.has_value()) << "seed " << seed << ", " << bytes << " bytes";
      if (!plan) continue;
      ++feasible;
      EXPECT_EQ(plan->cost, *expected) << "seed " << seed << ", " << bytes << " bytes";
    }
  }
  EXPECT_GT(feasible, 400);
}

TEST(Chain, SchedulesCostAndHoldWhatThePlanSays) {
  for (uint32_t seed = 100; seed < 130; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto stages = random_chain(seed, 5 + seed % 20);
    const int64_t most = enough_for(stages);
    for (const int64_t slots : {most, int64_t{100}, int64_t{17}}) {
      const ChainSolver solver(stages, most, slots);
      int64_t cost = -1;
      int64_t bytes = most + 1;
      for (const ChainSchedule& plan : solver.curve()) {
        EXPECT_GT(plan.cost, cost);
        EXPECT_LT(plan.bytes, bytes);
        cost = plan.cost;
        bytes = plan.bytes;
        const Simulated real = simulate(stages, schedule(stages, plan));
        EXPECT_EQ(real.cost, plan.cost);
        EXPECT_LE(real.peak, plan.bytes);
      }
      EXPECT_GE(cost, 0) << "no schedule fits in a sufficient budget";
    }
  }
}

TEST(Chain, ACheaperPlanNeverNeedsLess) {
  const auto stages = random_chain(7, 12);
  const int64_t most = enough_for(stages);
  const ChainSolver solver(stages, most);
  int64_t cost = 0;
  for (int64_t bytes = most; bytes > 0; bytes -= most / 97) {
    const auto plan = solver.schedule(bytes);
    if (!plan) break;
    EXPECT_LE(plan->bytes, bytes);
    EXPECT_GE(plan->cost, cost);
    cost = plan->cost;
  }
  EXPECT_GT(cost, 0);
  EXPECT_FALSE(solver.schedule(0));
  EXPECT_FALSE(solver.schedule(-1));
}

// Three equal stages that save 10, output 2 and need 4 to run, by hand.
//     34 = 3 x 10 + 4 in the last backward       no recompute
//     26 = 10 + 10 + 2 + 4: one stage dropped    recomputes its 4
TEST(Chain, OfThreeEqualStages) {
  ChainStage stage{.name = "s",
                   .forward = 4,
                   .recompute = 4,
                   .output = 2,
                   .forward_peak = 2,
                   .keeping_peak = 10,
                   .backward_peak = 14,
                   .options = {{10, 0}}};
  const std::vector<ChainStage> stages(3, stage);
  const ChainSolver solver(stages, 40, 40);
  EXPECT_EQ(solver.schedule(34)->cost, 0);
  EXPECT_EQ(solver.schedule(33)->cost, 4);
  EXPECT_EQ(solver.schedule(26)->cost, 4);
  EXPECT_EQ(solver.schedule(25)->cost, 8);
  EXPECT_EQ(solver.schedule(26)->segments.size(), 1U);
  // A plan reports the memory it needs, not the budget.
  EXPECT_EQ(solver.schedule(40)->bytes, 34);
  EXPECT_EQ(solver.schedule(33)->bytes, 26);
  EXPECT_EQ(solver.schedule(27)->bytes, 26);
}

// Costs whose sum a double cannot hold are scaled to a larger unit; the plan's cost is still exact.
TEST(Chain, OfLargeCosts) {
  auto stages = random_chain(5, 9);
  const int64_t most = enough_for(stages);
  const auto small = ChainSolver(stages, most, most).curve();
  const int64_t factor = int64_t{1} << 50;
  for (ChainStage& stage : stages) {
    stage.forward *= factor, stage.recompute *= factor;
    for (ChainOption& option : stage.options) option.cost *= factor;
  }
  const auto large = ChainSolver(stages, most, most).curve();
  ASSERT_EQ(large.size(), small.size());
  for (size_t i = 0; i < small.size(); ++i) EXPECT_EQ(large[i].cost, small[i].cost * factor);
}

TEST(Chain, StagesThatMayNotBeDropped) {
  auto stages = random_chain(3, 6);
  for (ChainStage& stage : stages) {
    stage.droppable = false;
    stage.options.resize(1);
  }
  const int64_t most = enough_for(stages);
  const auto curve = ChainSolver(stages, most, most).curve();
  ASSERT_EQ(curve.size(), 1U);
  EXPECT_EQ(curve[0].cost, 0);
  EXPECT_TRUE(curve[0].segments.empty());
}

TEST(Chain, RefusesWhatIsNoChain) {
  EXPECT_THROW(ChainSolver(std::vector<ChainStage>(1), 10), Error);
  auto stages = random_chain(1, 2);
  EXPECT_THROW(ChainSolver(stages, 10, 0), Error);
  stages[1].output = stages[1].options[0].saved + 1;
  EXPECT_THROW(ChainSolver(stages, 10), Error);
  EXPECT_TRUE(ChainSolver(std::vector<ChainStage>(), 10).schedule(10));
}

TEST(Chain, WhatALinkDoesNotHide) {
  // 1000 bytes at 10 per time unit take 100 units in each direction.
  EXPECT_EQ(exposed_transfer(1000, 10, 100, 200), 0);
  EXPECT_EQ(exposed_transfer(1000, 10, 40, 90), 70);
}

// The bar is 100 ms on an idle machine (bench/checkpoint); this only checks that it is far below a Python
// implementation.
TEST(Chain, AHundredStagesInFiveHundredSlots) {
  const auto stages = random_chain(11, 100);
  const auto start = std::chrono::steady_clock::now();
  const ChainSolver solver(stages, enough_for(stages) / 4, 500);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_FALSE(solver.curve().empty());
}

}  // namespace
}  // namespace shadowgraph
