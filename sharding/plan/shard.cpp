#include "shadowgraph/sharding/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <tuple>

#include "shadowgraph/passes/checkpoint.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/overlapped_step.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/units.h"
#include "sharding/plan/named_nodes.h"
#include "sharding/plan/picoseconds.h"
#include "sharding/plan/verdict.h"

namespace shadowgraph {

namespace {

class Watch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::vector<PlannedTraffic> traffic_of(const Graph& graph, const ShardingPlan& plan, const ShardingProblem& problem) {
  std::map<std::tuple<uint32_t, RedistributionKind, uint8_t>, PlannedTraffic> sums;
  for (const PlannedCopy& copy : copies_of(graph, plan, problem.planner())) {
    for (const RedistributionStep& step : copy.way.steps) {
      PlannedTraffic& sum = sums[{copy.phase.index, step.kind, step.axis}];
      sum.phase = copy.phase.index < graph.phase_count() ? graph.phase_name(copy.phase) : "optimizer";
      sum.kind = to_string(step.kind);
      sum.axis = plan.mesh.axes[step.axis].name;
      ++sum.calls;
      int64_t bytes = static_cast<int64_t>(c10::elementSize(graph.value(copy.value).dtype));
      const auto sizes = local_sizes(graph.sizes(copy.value), step.after, plan.mesh);
      for (const int64_t size : sizes.value_or(std::vector<int64_t>{0})) bytes *= size;
      sum.bytes += bytes;
    }
    if (!copy.way.steps.empty()) {
      const RedistributionStep& step = copy.way.steps.front();
      sums[{copy.phase.index, step.kind, step.axis}].seconds += seconds_of(copy.way.picoseconds);
    }
  }
  std::vector<PlannedTraffic> traffic;
  for (auto& [key, sum] : sums) traffic.push_back(std::move(sum));
  return traffic;
}

Explanation explain(const Graph& graph, const ShardingProblem& problem, const ShardingAnswer& answer,
                    const std::string& name, const SolveOptions& solve_options) {
  std::optional<uint32_t> variable;
  for (const NodeId node : nodes_named(graph, name)) {
    if (!variable) variable = problem.variable_of(node);
  }
  if (!variable) throw Error(fmt::format("nothing to explain: no placeholder or node with tensors is called {}", name));
  const AssignmentNode& node = problem.assignment().nodes[*variable];
  Explanation explanation{.name = node.name == name ? name : fmt::format("{}, decided with {}", name, node.name),
                          .nodes = node.times};
  for (uint32_t s = 0; s < node.costs.size(); ++s) {
    Alternative alternative{.strategy = s < node.strategies.size() ? node.strategies[s] : fmt::format("{}", s),
                            .chosen = answer.solution.choice[*variable] == s};
    if (node.costs[s] != kForbidden) {
      alternative.own = seconds_of(AssignmentCost::Wide{node.costs[s]} * node.times);
      AssignmentProblem pinned = problem.assignment();
      pinned.nodes[*variable].pinned = static_cast<int32_t>(s);
      const AssignmentSolution solution = solve(pinned, solve_options);
      if (solution.feasible) alternative.seconds = seconds_of(solution.cost);
    }
    explanation.alternatives.push_back(std::move(alternative));
  }
  std::stable_sort(
      explanation.alternatives.begin(), explanation.alternatives.end(), [](const Alternative& a, const Alternative& b) {
        const auto key = [](const Alternative& x) { return std::tuple(!x.chosen, !x.seconds, x.seconds.value_or(0)); };
        return key(a) < key(b);
      });
  return explanation;
}

ApplyOptions options_of_apply(const ShardingProblem& problem, const ShardingOptions& sharding) {
  return {.rules = sharding.rules, .planner = &problem.planner(), .random_parts = sharding.cut_random};
}

// Returns a given plan or choice as a solution; its memory may be above the limit.
AssignmentSolution solution_of(const ShardingProblem& problem, const ShardOptions& options) {
  const std::optional<std::vector<uint32_t>> choice =
      options.plan != nullptr ? problem.choice_of(*options.plan) : std::optional(options.choice->choice);
  AssignmentSolution solution;
  if (choice) {
    const AssignmentCost cost =
        options.plan != nullptr ? evaluate(problem.assignment(), *choice) : options.choice->of(problem.assignment());
    solution.choice = *choice;
    solution.feasible = cost.allowed;
    solution.cost = cost.cost;
    solution.peak = cost.peak;
    solution.peak_at = cost.peak_at;
  }
  if (!solution.feasible) solution.why_infeasible = "The plan that is given is none of this problem.";
  return solution;
}

// Finds a plan whose applied graph is within the memory. What the solver takes for the peak may be less than what that
// graph holds. The problem's limit is then lowered by the difference, a few times.
void solve_within_memory(const Graph& graph, const ShardingProblem& problem, const ShardingOptions& sharding,
                         const ShardOptions& options, ShardingAnswer& answer) {
  AssignmentProblem assignment =
      options.by_hand ? problem.pinned(pins_of(*options.by_hand, graph, problem, sharding.mesh)) : problem.assignment();
  SolveOptions solving = options.solve;
  solving.pins = problem.pins();
  for (int attempt = 0;; ++attempt) {
    answer.solution = answer.given ? solution_of(problem, options) : solve(assignment, solving);
    if (!answer.solution.feasible) {
      throw NoPlanError(fmt::format(
          "{}: no plan {}. {}", answer.title,
          sharding.memory == kNoLimit ? "is possible" : "keeps within " + human_bytes(sharding.memory) + " a device",
          answer.solution.why_infeasible));
    }
    answer.plan = problem.plan(answer.solution.choice);
    answer.rank = apply(graph, answer.plan, options.rank, options_of_apply(problem, sharding));
    answer.peak = peak_of_live_bytes(answer.rank->graph);
    answer.assumed_peak = static_cast<int64_t>(answer.solution.peak);
    if (sharding.memory == kNoLimit || answer.peak <= sharding.memory || answer.given) return;
    if (attempt == 5) {
      throw NoPlanError(fmt::format("{}: the plan found holds {} a device, {} are allowed", answer.title,
                                    human_bytes(answer.peak), human_bytes(sharding.memory)));
    }
    assignment.usage_limit -= answer.peak - sharding.memory;
    if (assignment.usage_limit <= 0) {
      throw NoPlanError(
          fmt::format("{}: no plan keeps within {} a device", answer.title, human_bytes(sharding.memory)));
    }
  }
}

void give_each_rank(const Graph& graph, const ShardingProblem& problem, const ShardingOptions& sharding,
                    const ShardOptions& options, const ShardingAnswer& answer) {
  for (int64_t rank = 0; options.each_rank && rank < sharding.mesh.size(); ++rank) {
    if (rank == options.rank) {
      options.each_rank(*answer.rank);
    } else {
      options.each_rank(apply(graph, answer.plan, rank, options_of_apply(problem, sharding)));
    }
  }
}

// Fills in the seconds of the plan, of one device alone, and of the applied graph with a second stream.
void measure_plan(const Graph& graph, const ShardingProblem& problem, const ShardingOptions& sharding,
                  ShardingAnswer& answer) {
  const ShardingProblem::Cost cost = problem.cost(answer.solution.choice);
  answer.compute = seconds_of(cost.compute);
  answer.communication = seconds_of(cost.communication);
  answer.bound = seconds_of(answer.solution.lower_bound);
  const StepTime alone = StepTime::of(graph, *sharding.device);
  for (const NodeId node : graph.nodes()) answer.alone += alone.of(node).seconds;
  const Graph& local = answer.rank->graph;
  const OverlappedStep step = OverlappedStep::of(
      local, Communication::of(local, {.interconnect = sharding.interconnect}), StepTime::of(local, *sharding.device));
  answer.overlapped = step.seconds();
  answer.exposed = step.exposed();
}

// Returns the seconds of the best plan that treats layers alike; nothing if there is none.
std::optional<double> seconds_of_layers_alike(const Graph& graph, const ShardingOptions& sharding,
                                              const SolveOptions& solving) {
  ShardingOptions alike = sharding;
  alike.unfold = false;
  const AssignmentSolution folded = solve(ShardingProblem::of(graph, alike).assignment(), solving);
  return folded.feasible ? std::optional(seconds_of(folded.cost)) : std::nullopt;
}

// A plan by hand that is above the memory is shown all the same, with why it is not taken. Without one the problem is
// solved as it is.
ComparedPlan compare_with(std::optional<HandPlan> hand, const Graph& graph, const ShardingProblem& problem,
                          const DeviceMesh& mesh, const SolveOptions& solving) {
  ComparedPlan compared{.name = hand ? std::string(to_string(*hand)) : "the best found"};
  AssignmentProblem pinned = hand ? problem.pinned(pins_of(*hand, graph, problem, mesh)) : problem.assignment();
  AssignmentSolution solution = solve(pinned, solving);
  if (!solution.feasible && pinned.usage_limit != kNoLimit) {
    compared.why_not = solution.why_infeasible;
    pinned.usage_limit = kNoLimit;
    solution = solve(pinned, solving);
  }
  if (solution.feasible) {
    compared.seconds = seconds_of(solution.cost);
    compared.peak = static_cast<int64_t>(evaluate(pinned, solution.choice).peak);
  } else {
    compared.why_not = solution.why_infeasible;
  }
  return compared;
}

}  // namespace

ShardingAnswer shard(const Graph& graph, const ShardingOptions& sharding, const ShardOptions& asked) {
  ShardOptions options = asked;
  ShardingAnswer answer;
  Watch watch;
  const ShardingProblem problem = ShardingProblem::of(graph, sharding);
  answer.problem_seconds = watch.seconds();
  if (options.problem) options.problem(problem);
  if (options.decided) {
    if (auto choice = options.decided(problem)) options.choice = GivenChoice{.choice = std::move(*choice)};
  }
  answer.title = problem.assignment().name;
  answer.nodes = problem.tensor_nodes();
  answer.variables = static_cast<int64_t>(problem.assignment().nodes.size());
  answer.edges = static_cast<int64_t>(problem.assignment().edges.size());
  answer.folded = !sharding.unfold;
  answer.memory = sharding.memory;
  answer.given = options.plan != nullptr || options.choice;
  answer.by_hand = options.by_hand;
  answer.coverage = problem.coverage();
  watch = Watch();
  solve_within_memory(graph, problem, sharding, options, answer);
  answer.solver_seconds = watch.seconds();
  give_each_rank(graph, problem, sharding, options, answer);
  measure_plan(graph, problem, sharding, answer);
  answer.placeholders = problem.placeholders(answer.plan);
  if (sharding.unfold && !answer.given && !options.by_hand) {
    answer.folded_seconds = seconds_of_layers_alike(graph, sharding, options.solve);
  }
  answer.traffic = traffic_of(graph, answer.plan, problem);
  answer.verdict = verdict_of(graph, sharding, answer);
  if (options.compare && (answer.given || options.by_hand)) {
    answer.compared.push_back(compare_with(std::nullopt, graph, problem, sharding.mesh, options.solve));
  }
  if (options.compare) {
    for (const HandPlan hand : hand_plans(sharding.mesh)) {
      answer.compared.push_back(compare_with(hand, graph, problem, sharding.mesh, options.solve));
    }
  }
  for (const std::string& name : options.explain) {
    answer.explanations.push_back(explain(graph, problem, answer, name, options.solve));
  }
  return answer;
}

}  // namespace shadowgraph
