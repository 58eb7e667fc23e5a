// Rewrites of losses, so that they may be cut: what is an average or whole becomes sums that may be partial.
//
//     split_mean_losses(step.graph);           // before shard(); plan_step() does so itself
#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/options.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/problem.h"
#include "shadowgraph/shard/solver.h"

namespace SHADOWGRAPH_API shadowgraph {

// Rewrites averages of losses as sums that are divided: aten::nll_loss_forward with reduction "mean" becomes one with
// "sum" and a division by its total weight. The loss is then a partial sum where the batch is cut, whatever targets are
// ignored and however classes weigh. The division waits for the total weight. Returns how many there were.
int64_t split_mean_losses(Graph& graph);

// Rewrites aten::_log_softmax and its backward as maxima, exponentials and sums, which may be partial. A loss over a
// vocabulary that is cut then exchanges a maximum and two sums a row. The operator by itself wants all logits of a row
// on each device. On one device the rewrite moves more memory. Returns how many there were.
int64_t split_log_softmaxes(Graph& graph);

// What a plan is worth, in short: how much of the devices it uses, what stays idle, and what to try next.
//
//     const ShardingVerdict& verdict = answer.verdict;
//     verdict.efficiency;       // 0.61: eight devices are 4.9 times as fast as one
//     verdict.unused_axes;      // {"tp"}: along it every device does the same
//     verdict.tries;            // {"a batch of 8: dp=4 does not divide the batch of 6"}

struct ShardingVerdict {
  double efficiency = 0;                 // speed-up over devices, 0 to 1
  std::vector<std::string> unused_axes;  // of two devices or more, over which nothing is cut
  // Axes of a size that does not divide the batch, so that none of them can cut it.
  std::vector<std::string> undivided_axes;
  std::optional<int64_t> batch;  // dimension 0 of all inputs, if they have one in common
  bool overlap_pays = true;      // whether a second stream makes the step shorter than the plan without one
  bool fits = true;              // whether a device holds at most the limit, or its memory where there is no limit
  std::vector<std::string> tries;
};

// Lays a step out over a mesh in one call. It makes the assignment problem (problem.h), solves it (solver.h), applies
// the plan to one device's graph (apply.h), and reports what that comes to. The tool's `shard` and Python's sg.shard
// are this call; who exports problems or brings a solver takes the steps one by one.
//
//     const ShardingAnswer answer = shard(graph, {.mesh = DeviceMesh::parse("8x8"), .device = &h100,
//                                                 .interconnect = &links, .memory = int64_t{80} << 30});
//     std::puts(to_text(answer).c_str());

// What one kind of redistribution sends over one axis in one phase of the step.
struct PlannedTraffic {
  std::string phase;
  std::string kind;  // "all_gather", "slice", ...
  std::string axis;
  int64_t calls = 0;
  int64_t bytes = 0;  // of tensors after the step, a device
  double seconds = 0;
};

// A plan that people make by hand (data parallel, fully sharded, tensor parallel), for comparison. Its pins say what it
// fixes; everything else is chosen at least cost.
struct ComparedPlan {
  std::string name;
  std::optional<double> seconds;  // nothing: no such plan
  std::optional<int64_t> peak;    // bytes a device by the problem's memory
  std::string why_not;
};

// One strategy that a variable could have, and what the step would then take: ShardOptions::explain.
struct Alternative {
  std::string strategy;           // layouts of operands and results
  double own = 0;                 // seconds of the nodes themselves
  std::optional<double> seconds;  // of the whole step with this strategy and the best of all else; nothing: impossible
  bool chosen = false;
};
struct Explanation {
  std::string name;
  int64_t nodes = 0;                      // that the variable decides over
  std::vector<Alternative> alternatives;  // chosen first, then by seconds
};

struct ShardingAnswer {
  ShardingPlan plan;
  AssignmentSolution solution;
  std::string title;  // "llama3_8b on x=8,y=8"
  int64_t nodes = 0;  // with tensors
  int64_t variables = 0, edges = 0;
  double problem_seconds = 0, solver_seconds = 0;
  double compute = 0, communication = 0;  // seconds of a step
  double bound = 0;                       // seconds that no plan of this problem is below
  double alone = 0;                       // seconds of the step on one device
  // What the applied graph takes, where a second stream communicates while the first computes (OverlappedStep), and
  // what of its communication nothing hides.
  double overlapped = 0, exposed = 0;
  bool folded = true;
  // Where layers were decided one by one: seconds of the best plan found that treats them alike.
  std::optional<double> folded_seconds;
  int64_t memory = kNoLimit;         // asked for
  int64_t peak = 0;                  // most bytes live at once on one device, of the graph that runs there
  int64_t assumed_peak = 0;          // what the problem took for it, from local bytes of storages alone
  std::optional<ShardedGraph> rank;  // the applied graph of ShardOptions::rank
  std::vector<PlannedTensor> placeholders;
  std::vector<PlannedTraffic> traffic;
  std::vector<ComparedPlan> compared;
  std::vector<Explanation> explanations;
  RuleCoverage coverage;
  ShardingVerdict verdict;
  bool given = false;               // the plan is ShardOptions::plan or choice: nothing was searched
  std::optional<HandPlan> by_hand;  // ShardOptions::by_hand
  double seconds() const { return compute + communication; }
};

struct ShardOptions {
  bool compare = false;                // with plans by hand
  std::vector<std::string> explain;    // names of placeholders, or "n329"
  int64_t rank = 0;                    // whose graph is written and measured
  const ShardingPlan* plan = nullptr;  // measure this one, within the memory or not, and solve nothing
  std::optional<GivenChoice> choice;   // the same for a choice of the problem
  std::optional<HandPlan> by_hand;     // this plan by hand; what it leaves open is chosen at least cost
  SolveOptions solve;
  // Called with the graph of each device, in order of ranks: to write them.
  std::function<void(const ShardedGraph&)> each_rank = {};
  // Asked for a choice of the problem in place of a search; nothing: it is searched.
  std::function<std::optional<std::vector<uint32_t>>(const ShardingProblem&)> decided = {};
  // Called with the problem before it is solved: to export it.
  std::function<void(const ShardingProblem&)> problem = {};
};

// Solves for a plan. Throws NoPlanError, and what ShardingProblem::of throws. Split a loss that is a mean first
// (shadowgraph/shard/shard.h), or the batch is gathered for it. plan_step() does so itself.
//
// With a limit, a plan is not taken if its applied graph holds more than the limit. The problem's limit is then lowered
// by what was missing, a few times.
ShardingAnswer shard(const Graph& graph, const ShardingOptions& sharding, const ShardOptions& options = {});

// For people; at most `rows` lines of a table (0: all).
std::string to_text(const ShardingAnswer& answer, int rows = 40);
// Without the plan, which has a file of its own.
nlohmann::json to_json(const ShardingAnswer& answer);

// Sharding and computing again, together: a step that fits into a device's memory by both, at least time.
//
//     const PlannedStep found = shard_and_recompute(graph, {.mesh = ..., .memory = int64_t{20} << 30});
//     found.graph;             // the step with what is computed again, which found.answer.plan is of
//     to_text(found);          // what each round brought, then the plan
//
// Either alone may waste what the other has for less: cutting more costs communication, keeping less costs computing.
// They are taken in turns. Sharding gets the graph in which something is computed again. Recomputing gets the plan. It
// takes the least of the curve (shadowgraph/passes/recompute.h) whose applied graph is within the memory; nodes that
// are added lie as those that they repeat. Both are asked alone first, and sharding for some points of the curve in
// between. Every peak is that of the graph that one device runs, counted on its timeline; none of it is an estimate.
//
// The answer is never worse than sharding alone, or than the plan without a limit with the least recomputing that makes
// it fit. Both are among the rounds.

// One plan that was tried.
struct RecomputeRound {
  std::string what;  // "sharding alone", "recomputing alone", "sharding again", ...
  bool fits = false;
  double seconds = 0;        // of a step
  double communication = 0;  // of them
  int64_t peak = 0;          // bytes a device, of the applied graph
  int64_t segments = 0;      // that are computed again
  int64_t flops = 0;         // products that are, of the whole step
  std::string why_not;       // no plan: why. Figures are 0 then.
  bool best = false;
};

struct RecomputeAndShardOptions {
  ShardOptions shard = {};
  int turns = 3;   // at most, of recomputing and sharding
  int probes = 3;  // points of the curve between nothing and what recomputing alone takes, that sharding is asked for
};

// The plan of a graph for one in which some of its nodes are computed again: those lie as what they repeat.
ShardingPlan with_repeated(const ShardingPlan& plan, const Graph& rewritten);

// A plan of a captured step in one call: what must be so before shard(), and what a request leaves open.
//
//     StepRequest request{.mesh = DeviceMesh::parse("dp=8,tp=8"), .memory = 80'000'000'000};
//     const PlannedStep planned = plan_step(std::move(capture.graph), request);
//     std::fputs(to_text(planned).c_str(), stdout);
//
// `shadowgraph shard` and Python's `shard` are this function, with words parsed. shard() is for a graph whose losses
// are split already, and for figures that are at hand.
//
// What is done, in this order:
//   1. Losses that are means are split, since a mean of means is wrong where devices count unequal targets.
//      `cut_vocabulary` splits log_softmax as well. By hand as Megatron-LM, biases are added behind sums over ranks.
//   2. The device's figures and its links are looked up, where the request has none.
//   3. The step is sharded; with `recompute` sharded and computed again in turns.

struct StepRequest {
  DeviceMesh mesh;  // needed

  // The device, and what each one has. Without figures: those that Machine::find has for the graph's device, which is a
  // CUDA device unless the graph says otherwise. Without links: those of the device; plan_step() throws Error if none
  // are known.
  std::optional<DeviceSpec> device;
  std::optional<Interconnect> links;
  std::optional<int64_t> memory;  // bytes for the step; nothing: no limit

  // What a plan may be.
  std::vector<ShardingPin> pins;
  ShardingRules rules;          // the built-in ones; add() to them
  bool unfold = false;          // layers that repeat are decided one by one
  bool cut_random = false;      // each device may draw random numbers of its own
  bool cut_vocabulary = false;  // losses may be cut along the vocabulary; split_log_softmaxes says what that costs
  CollectiveOverlap overlap = CollectiveOverlap::kNone;  // ShardingOptions::overlap
  double parameter_byte = 0;                             // ShardingOptions::parameter_byte
  double kept_byte = 0;                                  // ShardingOptions::kept_byte
  double layer_times = 1;                                // ShardingOptions::layer_times
  bool recompute = false;  // computes again what costs less so than cutting more; needs `memory`

  // An answer that is measured in place of a search (given_answer.h): its JSON, and its file's name for messages.
  std::string answer, answer_name = "the answer";
  std::string by_hand;  // a plan that people make, as hand_plan() takes it; "": none

  // How it is looked for.
  double time_limit = 20;     // seconds of the solver
  std::optional<double> gap;  // good enough, relative; nothing: 0.001 with a limit of memory, which is hard, else 0
  AssignmentSolver solver = AssignmentSolver::kOwn;
  std::string highs;                                             // SolveOptions::highs
  std::string device_advice = "give some: StepRequest::device";  // if none are known of the graph's device

  // What the answer has besides the plan: as ShardOptions.
  bool compare = false;
  std::vector<std::string> explain;
  int64_t rank = 0;
  std::function<void(const ShardedGraph&)> each_rank = {};
  std::function<std::optional<std::vector<uint32_t>>(const ShardingProblem&)> decided = {};
  std::function<void(const ShardingProblem&)> problem = {};

  // What is said in words beside the mesh, the device and an answer.
  static const OptionTable<StepRequest>& table();
};

// Throws Error for what is wrong with a request whatever the graph. plan_step() asks first, too.
void check(const StepRequest& request);

struct PlannedStep {
  Graph graph;  // the step that the plan is of: losses are split, and some of it may be computed again
  ShardingAnswer answer;
  // With StepRequest::recompute, else empty: what is computed again, and what was tried.
  std::vector<CheckpointSegment> segments;
  std::vector<RecomputeRound> rounds;
  // What it was planned for.
  DeviceSpec device;
  Interconnect links;

  // The planner of its redistributions, for copies_of() and pictures.
  RedistributionPlanner planner() const;
};

// `sharding.memory` is needed. Throws NoPlanError if nothing fits, and what shard() throws.
PlannedStep shard_and_recompute(const Graph& graph, const ShardingOptions& sharding,
                                const RecomputeAndShardOptions& options = {});

// Takes the graph over: give clone(graph) to keep one. Throws Error, NoPlanError, and what shard() throws.
PlannedStep plan_step(Graph graph, const StepRequest& request);

// For people: the rounds, if there were any, then as to_text(ShardingAnswer).
std::string to_text(const PlannedStep& planned, int rows = 40);
// Without the plan, which has a file of its own.
nlohmann::json to_json(const PlannedStep& planned);

}  // namespace shadowgraph
