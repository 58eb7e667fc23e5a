// Automatic sharding of a captured step: search for a plan, its application, and reports.
//
//     split_mean_losses(step.graph);           // before shard(); shard_step() does so itself
#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
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

// Rewrites mean losses: aten::nll_loss_forward with reduction "mean" becomes reduction "sum" and a division by the
// total weight. The loss is then a partial sum if the batch is sharded, with any ignored targets and class weights.
// Only the division needs the reduced total weight. Returns the number of rewritten losses.
int64_t split_mean_losses(Graph& graph);

// Rewrites aten::_log_softmax and its backward as maxima, exponentials and sums, which may be partial. A loss over a
// sharded vocabulary then communicates a maximum and two sums per row, whereas the operator itself requires all logits
// of a row on each device. On a single device, the rewrite moves more memory. Returns the number of rewrites.
int64_t split_log_softmaxes(Graph& graph);

// Summary of a sharding: utilization of the devices, and suggestions.
struct ShardingVerdict {
  double efficiency = 0;                 // speedup divided by the number of devices, 0 to 1
  std::vector<std::string> unused_axes;  // axes of two or more devices over which nothing is sharded
  // Axes whose size does not divide the batch, so that they cannot shard it.
  std::vector<std::string> undivided_axes;
  std::optional<int64_t> batch;    // common dimension 0 of all inputs, if any
  bool overlap_pays = true;        // whether a second stream makes the step faster than the plan without one
  bool fits = true;                // whether a device is within the limit or, without one, within its memory
  std::vector<std::string> tries;  // suggestions
};

// Shards a step over a mesh in one call: creates the assignment problem (problem.h), solves it (solver.h), applies the
// plan to one device's graph (apply.h), and reports the result. Call them individually to export problems.

// Communication of one kind of redistribution over one axis in one phase.
struct RedistributionTraffic {
  std::string phase;
  std::string kind;  // "all_gather", "slice", ...
  std::string axis;
  int64_t calls = 0;
  int64_t bytes = 0;  // of tensors after the redistribution, per device
  double seconds = 0;
};

// A standard plan (data parallel, fully sharded, tensor parallel) for comparison, of minimum cost given its pins.
struct ParallelismCost {
  std::string name;
  std::optional<double> seconds;  // std::nullopt: impossible
  std::optional<int64_t> peak;    // bytes per device, by the problem's memory model
  std::string why_not;
};

// A strategy of a variable, and the resulting time of the step: ShardOptions::explain.
struct Alternative {
  std::string strategy;           // layouts of operands and results
  double own = 0;                 // seconds of the nodes themselves
  std::optional<double> seconds;  // of the step with this strategy and the best others; std::nullopt: impossible
  bool chosen = false;
};
struct Explanation {
  std::string name;
  int64_t nodes = 0;                      // number of nodes of the variable
  std::vector<Alternative> alternatives;  // chosen first, then by seconds
};

struct ShardingResult {
  GraphLayouts plan;
  AssignmentSolution solution;
  std::string title;  // "llama3_8b on x=8,y=8"
  int64_t nodes = 0;  // nodes with tensors
  int64_t variables = 0, edges = 0;
  double problem_seconds = 0, solver_seconds = 0;
  double compute = 0, communication = 0;  // seconds per step
  double bound = 0;                       // lower bound in seconds for all plans of this problem
  double alone = 0;                       // seconds of the step on one device
  // Seconds of the applied graph with communication on a second stream (OverlappedStep), and its exposed communication.
  double overlapped = 0, exposed = 0;
  bool folded = true;
  // If layers were decided individually: seconds of the best plan found with equal layers.
  std::optional<double> folded_seconds;
  int64_t memory = kNoLimit;         // the limit
  int64_t peak = 0;                  // peak live bytes on a device, of the applied graph
  int64_t assumed_peak = 0;          // the problem's estimate of it, from local bytes of storages
  std::optional<ShardedGraph> rank;  // the applied graph of ShardOptions::rank
  std::vector<PlaceholderLayout> placeholders;
  std::vector<RedistributionTraffic> traffic;
  std::vector<ParallelismCost> compared;
  std::vector<Explanation> explanations;
  RuleCoverage coverage;
  ShardingVerdict verdict;
  bool given = false;                      // the plan is ShardOptions::plan or choice: no search
  std::optional<Parallelism> parallelism;  // ShardOptions::parallelism
  double seconds() const { return compute + communication; }
};

struct ShardOptions {
  bool compare = false;                    // compare with standard plans
  std::vector<std::string> explain;        // names of placeholders, or "n329"
  int64_t rank = 0;                        // rank whose graph is returned and measured
  const GraphLayouts* plan = nullptr;      // evaluate this plan instead of searching, even if it exceeds the memory
  std::optional<AssignmentChoice> choice;  // evaluate this choice of the problem instead of searching
  std::optional<Parallelism> parallelism;  // use this standard plan; layouts it leaves open are chosen for minimum cost
  SolveOptions solve;
  // Called with the graph of each device, in order of ranks, for export.
  std::function<void(const ShardedGraph&)> each_rank = {};
  // Returns a choice to use instead of searching, or std::nullopt.
  std::function<std::optional<std::vector<uint32_t>>(const ShardingProblem&)> custom_solver = {};
  // Called with the problem before it is solved, for export.
  std::function<void(const ShardingProblem&)> problem = {};
};

// Throws InfeasibleError, and the errors of ShardingProblem::of. Mean losses should be split first (split_mean_losses),
// as otherwise the batch is gathered for them; shard_step() does that itself.
//
// With a limit, a plan is rejected if its applied graph exceeds the limit. The limit is then lowered, a few times.
ShardingResult shard(const Graph& graph, const ShardingOptions& sharding, const ShardOptions& options = {});

// Formats a report with at most `rows` lines per table (0: all).
std::string to_text(const ShardingResult& answer, int rows = 40);
// Does not include the plan, which is written to a separate file.
nlohmann::json to_json(const ShardingResult& answer);

// Joint sharding and recompute: finds the fastest step that fits in a device's memory.
//
// More sharding costs communication, more recompute costs FLOPs, and either alone may be more expensive than both. They
// are optimized alternately: sharding is solved for the graph with recompute, then recompute for that plan, using the
// cheapest point of the curve (shadowgraph/passes/recompute.h) whose applied graph fits; recomputed nodes have the
// layouts of the original ones. First, either is tried alone, and sharding with some points of the curve in between.
// All peaks are those of the graph of one device, measured on its timeline.
//
// The result is never worse than sharding alone, or the unlimited plan with the least recompute that makes it fit.

struct RecomputeRound {
  std::string what;  // "sharding alone", "recomputing alone", "sharding again", ...
  bool fits = false;
  double seconds = 0;        // per step
  double communication = 0;  // seconds per step
  int64_t peak = 0;          // bytes per device, of the applied graph
  int64_t segments = 0;      // number of recomputed segments
  int64_t flops = 0;         // recomputed FLOPs of matrix products, for the whole step
  std::string why_not;       // reason if there is no plan; numbers are 0 then
  bool best = false;
};

struct RecomputeAndShardOptions {
  ShardOptions shard = {};
  int turns = 3;   // maximum rounds of recompute and sharding
  int probes = 3;  // points of the curve, up to that of recompute alone, for which sharding is solved
};

// Extends a plan to a graph with recompute: recomputed nodes have the layouts of the original ones.
GraphLayouts with_repeated(const GraphLayouts& plan, const Graph& rewritten);

// Plans a captured step in one call: prepares the graph for shard() and fills in defaults of the request.
//
// Steps:
//   1. Splits mean losses, since a mean of means is wrong for unequal numbers of targets. `shard_vocabulary`
//      also splits log_softmax. For the standard plan of Megatron-LM, moves biases after reductions over ranks.
//   2. Looks up device specs and interconnect, if not given.
//   3. Shards the step, or with `recompute`, alternates sharding and recompute.

struct ShardingRequest {
  DeviceMesh mesh;  // required

  // Device, interconnect, and memory of each device. Default: Machine::find for the graph's device, which is a CUDA
  // device unless specified, and the default interconnect of the device. shard_step() throws Error if none is known.
  std::optional<DeviceSpec> device;
  std::optional<Interconnect> links;
  std::optional<int64_t> memory;  // bytes for the step; std::nullopt: no limit

  std::vector<ShardingPin> pins;
  ShardingRules rules;            // built-in rules; extend with add()
  bool unfold = false;            // decide repeated layers individually
  bool shard_random = false;      // devices may draw different random numbers
  bool shard_vocabulary = false;  // losses may be sharded along the vocabulary; see split_log_softmaxes for the cost
  CollectiveOverlap overlap = CollectiveOverlap::kNone;  // ShardingOptions::overlap
  double seconds_per_parameter_byte = 0;                 // ShardingOptions::seconds_per_parameter_byte
  double seconds_per_kept_byte = 0;                      // ShardingOptions::seconds_per_kept_byte
  double layer_repeats = 1;                              // ShardingOptions::layer_repeats
  bool recompute = false;  // use recompute where cheaper than more sharding; requires `memory`

  // A plan to evaluate instead of searching (given_answer.h): its JSON, and the file name for messages.
  std::string solution, solution_name = "the solution";
  std::string parallelism;  // name of a standard plan, see parse_parallelism(); "": none

  double time_limit = 20;     // seconds
  std::optional<double> gap;  // relative gap at which to stop; std::nullopt: 0.001 with a memory limit, otherwise 0
  AssignmentSolver solver = AssignmentSolver::kBuiltin;
  std::string highs;                                                 // SolveOptions::highs
  std::string device_advice = "give some: ShardingRequest::device";  // end of the message if the device is unknown

  // Optional results, see ShardOptions.
  bool compare = false;
  std::vector<std::string> explain;
  int64_t rank = 0;
  std::function<void(const ShardedGraph&)> each_rank = {};
  std::function<std::optional<std::vector<uint32_t>>(const ShardingProblem&)> custom_solver = {};
  std::function<void(const ShardingProblem&)> problem = {};

  // Options except mesh, device and answer.
  static const OptionTable<ShardingRequest>& table();
};

// Throws Error for an invalid request, independent of a graph. Also called by shard_step().
void check(const ShardingRequest& request);

struct Sharding {
  Graph graph;  // the planned step, with split losses and possibly recompute
  ShardingResult result;
  // With ShardingRequest::recompute: recomputed segments, and the rounds of the search.
  std::vector<CheckpointSegment> segments;
  std::vector<RecomputeRound> rounds;
  DeviceSpec device;
  Interconnect links;

  // Returns a planner of redistributions, for layout_changes() and pictures.
  RedistributionPlanner planner() const;
};

// Requires `sharding.memory`. Throws InfeasibleError if nothing fits, and the errors of shard().
Sharding shard_and_recompute(const Graph& graph, const ShardingOptions& sharding,
                             const RecomputeAndShardOptions& options = {});

// Consumes the graph: pass clone(graph) to keep it. Throws Error, InfeasibleError, and the errors of shard().
Sharding shard_step(Graph graph, const ShardingRequest& request);

// Formats the rounds, if any, then the answer.
std::string to_text(const Sharding& planned, int rows = 40);
// Does not include the plan, which is written to a separate file.
nlohmann::json to_json(const Sharding& planned);

}  // namespace shadowgraph
