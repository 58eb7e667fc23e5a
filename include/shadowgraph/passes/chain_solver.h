// Chooses which stages of a chain to keep, to keep in part, or to compute again in backward. Recomputing then costs
// least within a number of bytes. Only numbers are needed, no graph; shadowgraph/passes/checkpoint.h makes them of one.
//
//     std::vector<ChainStage> stages = ...;                  // forward runs 0, 1, ..., backward the other way
//     const ChainSolver solver(stages, 8'000'000'000);       // bytes; once for all smaller budgets, too
//     const std::optional<ChainPlan> plan = solver.plan(4'000'000'000);
//     plan->cost;                                            // of what is computed again
//     for (const ChainOperation& step : schedule(stages, *plan)) ...
//
// The dynamic programme is rotor's (Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, "Optimal checkpointing
// for heterogeneous chains"). A stage may be kept in more than one way, as in Rockmate (Zhao et al. 2023). For the
// stages s..t, with the input of s in memory and m bytes besides, the least cost is the least of
//
//     keep       an option o of s:    cost of o  +  least(s+1, t, m - saved of o)
//     drop       s .. k-1 run, and leave but the input of k:
//                forward of s .. k-1  +  least(k, t, m - that input)  +  least(s, k-1, m)
//
// It is the least among schedules that, once they keep something for backward, keep it until backward has been there.
// tests/passes/chain_test.cpp holds it against an enumeration of all of these.
//
// Memory is counted in slots, each a part of the budget, with every size rounded up to whole ones. So a plan never
// needs more than it was made for, and may cost a little more than it would have to. Time: slots x stages^3 / 6; 100
// stages and 500 slots take tens of milliseconds. Memory: 8 x slots x stages^2 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// One way to keep a stage from its forward to its backward.
struct ChainOption {
  int64_t saved = 0;      // bytes on the device, the stage's output included
  int64_t cost = 0;       // of what is then missing: to compute it again, or the seconds of a link that nothing hides
  int64_t offloaded = 0;  // bytes that are on the host meanwhile
  friend bool operator==(const ChainOption&, const ChainOption&) = default;
};

// Bytes are those besides the stage's input; costs are whole numbers of any one unit.
struct ChainStage {
  std::string name;
  int64_t forward = 0;        // cost of running it again with all that it hands on
  int64_t backward = 0;       // cost of its backward; no plan depends on it
  int64_t again = 0;          // cost of running it again for its own backward alone: no more than `forward`
  int64_t output = 0;         // bytes that it hands to the next stage
  int64_t forward_peak = 0;   // most bytes in forward if nothing but the output is kept
  int64_t keeping_peak = 0;   // if everything is kept
  int64_t backward_peak = 0;  // most bytes in its backward, with all that it saved and all that later stages left
                              // behind (gradients of parameters)
  int64_t resident = 0;       // bytes that are there when it has to be run again, without its forward: the gradient of
                              // its output, what later stages left behind
  std::vector<ChainOption> options;  // the first keeps everything at no cost
  // What is dropped may begin and end here. A stage between others that are run again is run again in any case.
  bool droppable = true;
  friend bool operator==(const ChainStage&, const ChainStage&) = default;
};

// Stages that are run a first time without keeping anything, and again as a whole when backward comes to them.
struct ChainSegment {
  size_t first = 0;
  size_t last = 0;
  friend bool operator==(const ChainSegment&, const ChainSegment&) = default;
};

struct ChainPlan {
  int64_t cost = 0;                    // of all that is computed again
  int64_t bytes = 0;                   // that it needs at most, in whole slots
  std::vector<size_t> option;          // by stage: the way it is kept the last time that it is run before its backward
  std::vector<ChainSegment> segments;  // outer ones before those within
  friend bool operator==(const ChainPlan&, const ChainPlan&) = default;
};

class ChainSolver {
 public:
  // For budgets up to `bytes`. Throws Error for stages without options or with negative figures, and for no slots.
  ChainSolver(std::span<const ChainStage> stages, int64_t bytes, int64_t slots = 500);

  // Empty if no plan fits.
  std::optional<ChainPlan> plan(int64_t bytes) const;
  // One plan for each cost that there is, the cheapest first: each needs less memory than those before it.
  std::vector<ChainPlan> curve() const;

 private:
  const double* row(size_t first, size_t last) const { return costs_.data() + (first * count_ + last) * width_; }
  double* row(size_t first, size_t last) { return costs_.data() + (first * count_ + last) * width_; }
  size_t slots_of(int64_t bytes) const;
  double units_of(int64_t cost) const;
  void solve(size_t first, size_t last);
  ChainPlan trace(size_t memory) const;

  std::vector<ChainStage> stages_;
  size_t count_ = 0;
  int64_t slot_ = 1;  // bytes of one
  double unit_ = 1;   // of costs: more than 1 where their sums would pass 2^53
  size_t width_ = 1;  // slots, and none
  // Whole numbers: processors of today compare doubles, not integers of this size, several at once.
  std::vector<double> costs_;   // least cost by first and last stage and memory
  std::vector<size_t> fewest_;  // slots with which the range can be done at all
};

// What a plan does, one step after the other.
struct ChainOperation {
  enum class Kind : uint8_t {
    kForwardDrop,  // run it; its input goes, unless it is kept for something else
    kForwardMark,  // run it; its input stays
    kForwardKeep,  // run it, and keep what the option keeps
    kBackward,     // what it kept goes
  };
  Kind kind = Kind::kForwardDrop;
  size_t stage = 0;
  size_t option = 0;  // of kForwardKeep
  friend bool operator==(const ChainOperation&, const ChainOperation&) = default;
};
std::vector<ChainOperation> schedule(std::span<const ChainStage> stages, const ChainPlan& plan);

// Returns the cost of tensors that go to the host in forward and come back in backward: what computing does not hide.
// Each direction runs beside `hidden_out` and `hidden_back` of computing, in the same unit. `bytes_per_unit` is what
// the link carries in one unit.
int64_t exposed_transfer(int64_t bytes, double bytes_per_unit, int64_t hidden_out, int64_t hidden_back);

}  // namespace shadowgraph
