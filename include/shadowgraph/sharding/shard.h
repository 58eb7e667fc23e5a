// Lays a step out over a mesh in one call. It makes the assignment problem (problem.h), solves it (solver.h), applies
// the plan to one device's graph (apply.h), and reports what that comes to. The tool's `shard` and Python's sg.shard
// are this call; who exports problems or brings a solver takes the steps one by one.
//
//     const ShardingAnswer answer = shard(graph, {.mesh = DeviceMesh::parse("8x8"), .device = &h100,
//                                                 .interconnect = &links, .memory = int64_t{80} << 30});
//     std::puts(to_text(answer).c_str());
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/apply.h"
#include "shadowgraph/sharding/given_answer.h"
#include "shadowgraph/sharding/hand_plans.h"
#include "shadowgraph/sharding/plan.h"
#include "shadowgraph/sharding/problem.h"
#include "shadowgraph/sharding/solver.h"
#include "shadowgraph/sharding/verdict.h"

namespace SHADOWGRAPH_API shadowgraph {

// No plan keeps within the memory, or the pins contradict each other. what() says which tensors are in the way.
class NoPlanError : public Error {
 public:
  using Error::Error;
};

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
// (shadowgraph/sharding/split_losses.h), or the batch is gathered for it. plan_step() does so itself.
//
// With a limit, a plan is not taken if its applied graph holds more than the limit. The problem's limit is then lowered
// by what was missing, a few times.
ShardingAnswer shard(const Graph& graph, const ShardingOptions& sharding, const ShardOptions& options = {});

// For people; at most `rows` lines of a table (0: all).
std::string to_text(const ShardingAnswer& answer, int rows = 40);
// Without the plan, which has a file of its own.
nlohmann::json to_json(const ShardingAnswer& answer);

}  // namespace shadowgraph
