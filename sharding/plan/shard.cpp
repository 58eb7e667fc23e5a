#include "shadowgraph/shard/shard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/shard/problem.h"
#include "shadowgraph/units.h"
#include "sharding/plan/problem_nodes.h"
#include "sharding/solver/assignment.h"
#include "support/stopwatch.h"

namespace shadowgraph {

// Returns the lines below the title, each ending with a newline.
std::string text_of_verdict(const ShardingResult& answer) {
  const ShardingVerdict& verdict = answer.verdict;
  std::string text = fmt::format("verdict: {} device{} at {:.0f} % of {} peak throughput", answer.plan.mesh.size(),
                                 answer.plan.mesh.size() == 1 ? "" : "s", verdict.efficiency * 100,
                                 answer.plan.mesh.size() == 1 ? "its" : "their");
  if (!verdict.unused_axes.empty()) {
    text += fmt::format("; axis {} is unused: its devices do the same work", fmt::join(verdict.unused_axes, ", "));
  }
  if (!verdict.undivided_axes.empty()) {
    text += fmt::format("; the batch of {} is not divisible by {}", *verdict.batch,
                        fmt::join(verdict.undivided_axes, ", "));
  }
  if (!verdict.overlap_pays) text += "; overlapping communication does not help";
  if (!verdict.fits) text += "; does not fit into memory";
  text += "\n";
  for (const std::string& attempt : verdict.tries) text += "  try " + attempt + "\n";
  return text;
}

namespace {

constexpr double kGoodEfficiency = 0.9;  // efficiency above which no speedups are suggested
constexpr double kNotableShare = 0.05;   // fraction of the step time

struct AxisUse {
  std::vector<bool> anything;    // some tensor is sharded or partial
  std::vector<bool> vocabulary;  // log_softmax is sharded
  std::vector<bool> batch;       // dimension 0 of some input is sharded
  bool has_log_softmax = false;
  bool random_whole = false;  // a random operator is replicated
  std::optional<int64_t> batch_size;
};

bool is_batch(const Graph& graph, const Effects& effects, NodeId node) {
  if (graph.node(node).target != target_of(Builtin::kInput)) return false;
  const ValueId value = graph.results(node)[0].ref.value;
  // Inputs that the step writes to are state.
  return !graph.sizes(value).empty() && effects.final_version(graph.value(value).storage) == 0;
}

AxisUse use_of(const Graph& graph, const GraphLayouts& plan) {
  const size_t axes = plan.mesh.axes.size();
  AxisUse use{
      .anything = std::vector<bool>(axes), .vocabulary = std::vector<bool>(axes), .batch = std::vector<bool>(axes)};
  const Effects effects = Effects::of(graph);
  bool one_batch = true;
  for (const NodeId node : graph.nodes()) {
    const NodeLayouts& layouts = plan.nodes[node];
    const bool log_softmax = graph.target(node).name() == "aten::_log_softmax";
    use.has_log_softmax |= log_softmax;
    bool whole = true;
    for (const std::vector<Layout>* list : {&layouts.operands, &layouts.results}) {
      for (const Layout& layout : *list) {
        for (size_t a = 0; a < axes; ++a) {
          if (layout[a].is_replicate()) continue;
          whole = false;
          use.anything[a] = true;
          if (log_softmax) use.vocabulary[a] = true;
        }
      }
    }
    if (!layouts.results.empty() && whole && graph.target(node).facts().random) {
      use.random_whole |= graph.numel(graph.results(node)[0].ref.value) > 1;
    }
    if (!graph.is_placeholder(node) || layouts.results.empty() || !is_batch(graph, effects, node)) continue;
    const int64_t size = graph.sizes(graph.results(node)[0].ref.value)[0];
    one_batch &= !use.batch_size || *use.batch_size == size;
    use.batch_size = size;
    for (size_t a = 0; a < axes; ++a) {
      if (layouts.results[0][a] == Placement::shard(0)) use.batch[a] = true;
    }
  }
  if (!one_batch) use.batch_size.reset();
  return use;
}

std::string axis_text(const MeshAxis& axis) { return fmt::format("{}={}", axis.name, axis.size); }

void add_suggestions(const AxisUse& use, const ShardingOptions& sharding, const ShardingResult& answer,
                     ShardingVerdict& verdict) {
  std::vector<std::string>& tries = verdict.tries;
  int64_t devices_in_use = 1;
  std::string mesh;
  for (size_t a = 0; a < answer.plan.mesh.axes.size(); ++a) {
    const MeshAxis& axis = answer.plan.mesh.axes[a];
    if (use.anything[a]) {
      devices_in_use *= axis.size;
      mesh += fmt::format("{}{}", mesh.empty() ? "" : ",", axis_text(axis));
    }
    if (std::ranges::find(verdict.undivided_axes, axis.name) != verdict.undivided_axes.end()) {
      tries.push_back(fmt::format("a batch size of {}: {} does not divide the batch of {}",
                                  (*verdict.batch / axis.size + 1) * axis.size, axis_text(axis), *verdict.batch));
    }
  }
  if (!verdict.unused_axes.empty()) {
    tries.push_back(fmt::format("--mesh {}: as fast with {} of the {} devices", mesh.empty() ? "1" : mesh,
                                devices_in_use, answer.plan.mesh.size()));
  }
  const RuleCoverage& coverage = answer.coverage;
  if (coverage.seconds_without_a_rule > kNotableShare * answer.seconds()) {
    const auto most = std::ranges::max_element(coverage.without_a_rule, {}, [](const auto& row) { return row.second; });
    tries.push_back(fmt::format("--rules with a line for {}: operators without a rule take {} on each device",
                                most->first, human_seconds(coverage.seconds_without_a_rule)));
  }
  if (!verdict.fits) {
    tries.push_back(fmt::format("--memory {0}: the plan needs {1} per device, which has {0}",
                                human_bytes(answer.memory == kNoLimit ? sharding.device->memory : answer.memory),
                                human_bytes(answer.peak)));
  }
  if (verdict.efficiency >= kGoodEfficiency) return;
  const double gap = answer.seconds() > 0 && answer.bound > 0 ? 1 - answer.bound / answer.seconds() : 0;
  if (!answer.solution.optimal && gap > kNotableShare) {
    tries.push_back(fmt::format("a longer --time-limit: this plan may be {:.0f} % slower than the best", gap * 100));
  }
  if (answer.communication > answer.compute) {
    tries.push_back(fmt::format("a larger batch: communication takes {:.1f} times as long as compute",
                                answer.communication / answer.compute));
  }
  if (use.random_whole && !sharding.shard_random)
    tries.push_back("--shard-random: random operators are replicated on all devices");
  const bool vocabulary_whole = std::ranges::any_of(answer.plan.mesh.axes, [&](const MeshAxis& axis) {
    const auto a = static_cast<size_t>(&axis - answer.plan.mesh.axes.data());
    return axis.size > 1 && use.anything[a] && !use.vocabulary[a];
  });
  if (use.has_log_softmax && vocabulary_whole)
    tries.push_back("--shard-vocabulary: log_softmax is replicated over some axis");
}

std::vector<RedistributionTraffic> traffic_of(const Graph& graph, const GraphLayouts& plan,
                                              const ShardingProblem& problem) {
  std::map<std::tuple<uint32_t, RedistributionKind, uint8_t>, RedistributionTraffic> sums;
  for (const LayoutChange& copy : layout_changes(graph, plan, problem.planner())) {
    for (const RedistributionStep& step : copy.path.steps) {
      RedistributionTraffic& sum = sums[{copy.phase.index, step.kind, step.axis}];
      sum.phase = copy.phase.index < graph.phase_count() ? graph.phase_name(copy.phase) : "optimizer";
      sum.kind = to_string(step.kind);
      sum.axis = plan.mesh.axes[step.axis].name;
      ++sum.calls;
      int64_t bytes = static_cast<int64_t>(c10::elementSize(graph.value(copy.value).dtype));
      const auto sizes = local_sizes(graph.sizes(copy.value), step.after, plan.mesh);
      for (const int64_t size : sizes.value_or(std::vector<int64_t>{0})) bytes *= size;
      sum.bytes += bytes;
    }
    if (!copy.path.steps.empty()) {
      const RedistributionStep& step = copy.path.steps.front();
      sums[{copy.phase.index, step.kind, step.axis}].seconds += seconds_of(copy.path.picoseconds);
    }
  }
  std::vector<RedistributionTraffic> traffic;
  for (auto& [key, sum] : sums) traffic.push_back(std::move(sum));
  return traffic;
}

Explanation explain(const Graph& graph, const ShardingProblem& problem, const ShardingResult& answer,
                    const std::string& name, const SolveOptions& solve_options) {
  std::optional<uint32_t> variable;
  for (const NodeId node : nodes_named(graph, name)) {
    if (!variable) variable = problem.variable_of(node);
  }
  if (!variable)
    throw Error(fmt::format("cannot explain '{}': no placeholder or node with tensors has this name", name));
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
  return {.rules = sharding.rules, .planner = &problem.planner(), .shard_random = sharding.shard_random};
}

// Returns a given plan or choice as a solution; its memory may exceed the limit.
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
  if (!solution.feasible) solution.why_infeasible = "The given plan does not belong to this problem.";
  return solution;
}

// Finds a plan whose applied graph fits into memory. The solver may underestimate the peak of that graph; the problem's
// limit is then lowered by the difference and solved again, up to five times.
void solve_within_memory(const Graph& graph, const ShardingProblem& problem, const ShardingOptions& sharding,
                         const ShardOptions& options, ShardingResult& answer) {
  AssignmentProblem assignment = options.parallelism
                                     ? problem.pinned(pins_of(*options.parallelism, graph, problem, sharding.mesh))
                                     : problem.assignment();
  SolveOptions solving = options.solve;
  solving.pins = problem.pins();
  for (int attempt = 0;; ++attempt) {
    answer.solution = answer.given ? solution_of(problem, options) : solve(assignment, solving);
    if (!answer.solution.feasible) {
      throw InfeasibleError(fmt::format(
          "{}: no plan {}. {}", answer.title,
          sharding.memory == kNoLimit ? "is possible" : "fits into " + human_bytes(sharding.memory) + " per device",
          answer.solution.why_infeasible));
    }
    answer.plan = problem.plan(answer.solution.choice);
    answer.rank = apply(graph, answer.plan, options.rank, options_of_apply(problem, sharding));
    answer.peak = peak_of_live_bytes(answer.rank->graph);
    answer.assumed_peak = static_cast<int64_t>(answer.solution.peak);
    if (sharding.memory == kNoLimit || answer.peak <= sharding.memory || answer.given) return;
    if (attempt == 5) {
      throw InfeasibleError(fmt::format("{}: the best plan found needs {} per device; the limit is {}", answer.title,
                                        human_bytes(answer.peak), human_bytes(sharding.memory)));
    }
    assignment.usage_limit -= answer.peak - sharding.memory;
    if (assignment.usage_limit <= 0) {
      throw InfeasibleError(
          fmt::format("{}: no plan fits into {} per device", answer.title, human_bytes(sharding.memory)));
    }
  }
}

void give_each_rank(const Graph& graph, const ShardingProblem& problem, const ShardingOptions& sharding,
                    const ShardOptions& options, const ShardingResult& answer) {
  for (int64_t rank = 0; options.each_rank && rank < sharding.mesh.size(); ++rank) {
    if (rank == options.rank) {
      options.each_rank(*answer.rank);
    } else {
      options.each_rank(apply(graph, answer.plan, rank, options_of_apply(problem, sharding)));
    }
  }
}

// Fills in the step time of the plan, of a single device, and of the plan with communication overlapped.
void measure_plan(const Graph& graph, const ShardingProblem& problem, const ShardingOptions& sharding,
                  ShardingResult& answer) {
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

// Returns the step time of the best plan with identical layouts for identical layers; nullopt without one.
std::optional<double> seconds_with_identical_layers(const Graph& graph, const ShardingOptions& sharding,
                                                    const SolveOptions& solving) {
  ShardingOptions alike = sharding;
  alike.unfold = false;
  const AssignmentSolution folded = solve(ShardingProblem::of(graph, alike).assignment(), solving);
  return folded.feasible ? std::optional(seconds_of(folded.cost)) : std::nullopt;
}

// Evaluates a preset plan, with the reason if it exceeds the memory limit; without one, solves the free problem.
ParallelismCost compare_with(std::optional<Parallelism> hand, const Graph& graph, const ShardingProblem& problem,
                             const DeviceMesh& mesh, const SolveOptions& solving) {
  ParallelismCost compared{.name = hand ? std::string(to_string(*hand)) : "best found"};
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

std::string table(const std::vector<std::vector<std::string>>& rows, int limit, const char* rest) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (limit > 0 && r > static_cast<size_t>(limit)) {
      return text + fmt::format("  ... {} more {} (--rows 0)\n", rows.size() - r, rest);
    }
    std::string line;
    for (size_t i = 0; i < rows[r].size(); ++i) {
      line += fmt::format("  {:<{}}", rows[r][i], i + 1 == rows[r].size() ? 0 : widths[i]);
    }
    text += line + "\n";
  }
  return text;
}

std::string placeholder_table(const ShardingResult& answer, int rows) {
  // Tensors whose names differ only by numbers and that have the same layout share a line.
  struct Alike {
    int64_t count = 0, bytes = 0, local = 0;
  };
  std::vector<std::pair<std::string, std::string>> order;
  std::map<std::pair<std::string, std::string>, Alike> alike;
  int64_t bytes = 0, local = 0;
  for (const PlaceholderLayout& tensor : answer.placeholders) {
    const auto key = std::pair(without_numbers(tensor.name), to_string(tensor.layout));
    const auto [at, is_new] = alike.try_emplace(key);
    if (is_new) order.push_back(key);
    ++at->second.count;
    at->second.bytes += tensor.bytes;
    at->second.local += tensor.local_bytes;
    bytes += tensor.bytes;
    local += tensor.local_bytes;
  }
  std::vector<std::vector<std::string>> lines{{"LAYOUT", "PER DEVICE", "TOTAL", "COUNT", "PARAMETER, BUFFER OR INPUT"}};
  for (const auto& key : order) {
    const Alike& a = alike.at(key);
    lines.push_back({key.second, human_bytes(a.local), human_bytes(a.bytes), fmt::format("{}", a.count), key.first});
  }
  return table(lines, rows, "rows") +
         fmt::format("  {} of {} on each device\n", human_bytes(local), human_bytes(bytes));
}

std::string text_of_step(const ShardingResult& answer) {
  const int64_t devices = answer.plan.mesh.size();
  std::string text = fmt::format(
      "{}: {} devices\n{} per step: {} compute, {} communication; a single device takes {}, {:.2f} times as "
      "long\n",
      answer.title, devices, human_seconds(answer.seconds()), human_seconds(answer.compute),
      human_seconds(answer.communication), human_seconds(answer.alone),
      answer.seconds() > 0 ? answer.alone / answer.seconds() : 0.0);
  if (answer.communication > 0) {
    text += fmt::format("{} with communication overlapped{}; {} of communication are exposed\n",
                        human_seconds(answer.overlapped), answer.verdict.overlap_pays ? "" : ", which is slower",
                        human_seconds(answer.exposed));
  }
  text += text_of_verdict(answer);
  if (answer.given) text += "evaluated the given plan, without a search\n";
  if (answer.parallelism)
    text += fmt::format("preset plan {}, completed by the solver\n", to_string(*answer.parallelism));
  if (answer.bound > 0) {
    const double gap = answer.seconds() > 0 ? 1 - answer.bound / answer.seconds() : 0;
    text += fmt::format(
        "lower bound for {}plans{}: {}; {}\n", answer.parallelism ? "such " : "",
        answer.folded ? " with identical layouts for identical layers" : "", human_seconds(answer.bound),
        !answer.solution.optimal                 ? fmt::format("this plan is within {:.3f} % of it", gap * 100)
        : answer.coverage.without_a_rule.empty() ? "this plan is optimal"
                                                 : "no plan that replicates nodes without a rule is better");
  }
  if (answer.folded_seconds) {
    text += fmt::format("{} with identical layouts for identical layers, {:.3f} % slower\n",
                        human_seconds(*answer.folded_seconds),
                        answer.seconds() > 0 ? (*answer.folded_seconds / answer.seconds() - 1) * 100 : 0.0);
  }
  return text;
}

}  // namespace

ShardingVerdict verdict_of(const Graph& graph, const ShardingOptions& sharding, const ShardingResult& answer) {
  const AxisUse use = use_of(graph, answer.plan);
  ShardingVerdict verdict{.batch = use.batch_size};
  const auto devices = static_cast<double>(answer.plan.mesh.size());
  if (answer.seconds() > 0) verdict.efficiency = answer.alone / answer.seconds() / devices;
  for (size_t a = 0; a < answer.plan.mesh.axes.size(); ++a) {
    const MeshAxis& axis = answer.plan.mesh.axes[a];
    if (axis.size > 1 && !use.anything[a]) verdict.unused_axes.push_back(axis.name);
    if (use.batch_size && !use.batch[a] && *use.batch_size % axis.size != 0)
      verdict.undivided_axes.push_back(axis.name);
  }
  verdict.overlap_pays = answer.communication <= 0 || answer.overlapped <= answer.seconds();
  const int64_t room = answer.memory != kNoLimit ? answer.memory : sharding.device->memory;
  verdict.fits = room <= 0 || answer.peak <= room;
  add_suggestions(use, sharding, answer, verdict);
  return verdict;
}

nlohmann::json json_of_verdict(const ShardingVerdict& verdict) {
  nlohmann::json json{{"efficiency", verdict.efficiency},
                      {"unused_axes", verdict.unused_axes},
                      {"undivided_axes", verdict.undivided_axes},
                      {"overlap_pays", verdict.overlap_pays},
                      {"fits", verdict.fits},
                      {"try", verdict.tries}};
  if (verdict.batch) json["batch"] = *verdict.batch;
  return json;
}

ShardingResult shard(const Graph& graph, const ShardingOptions& sharding, const ShardOptions& asked) {
  ShardOptions options = asked;
  ShardingResult answer;
  Stopwatch watch;
  const ShardingProblem problem = ShardingProblem::of(graph, sharding);
  answer.problem_seconds = watch.seconds();
  if (options.problem) options.problem(problem);
  if (options.custom_solver) {
    if (auto choice = options.custom_solver(problem)) options.choice = AssignmentChoice{.choice = std::move(*choice)};
  }
  answer.title = problem.assignment().name;
  answer.nodes = problem.tensor_nodes();
  answer.variables = static_cast<int64_t>(problem.assignment().nodes.size());
  answer.edges = static_cast<int64_t>(problem.assignment().edges.size());
  answer.folded = !sharding.unfold;
  answer.memory = sharding.memory;
  answer.given = options.plan != nullptr || options.choice;
  answer.parallelism = options.parallelism;
  answer.coverage = problem.coverage();
  watch = Stopwatch();
  solve_within_memory(graph, problem, sharding, options, answer);
  answer.solver_seconds = watch.seconds();
  give_each_rank(graph, problem, sharding, options, answer);
  measure_plan(graph, problem, sharding, answer);
  answer.placeholders = problem.placeholders(answer.plan);
  if (sharding.unfold && !answer.given && !options.parallelism) {
    answer.folded_seconds = seconds_with_identical_layers(graph, sharding, options.solve);
  }
  answer.traffic = traffic_of(graph, answer.plan, problem);
  answer.verdict = verdict_of(graph, sharding, answer);
  if (options.compare && (answer.given || options.parallelism)) {
    answer.compared.push_back(compare_with(std::nullopt, graph, problem, sharding.mesh, options.solve));
  }
  if (options.compare) {
    for (const Parallelism hand : parallelisms(sharding.mesh)) {
      answer.compared.push_back(compare_with(hand, graph, problem, sharding.mesh, options.solve));
    }
  }
  for (const std::string& name : options.explain) {
    answer.explanations.push_back(explain(graph, problem, answer, name, options.solve));
  }
  return answer;
}

std::string to_text(const ShardingResult& answer, int rows) {
  std::string text = text_of_step(answer);
  text += fmt::format("{} nodes, {} variables, {} edges in {}; solved in {}\n", exact_count(answer.nodes),
                      exact_count(answer.variables), exact_count(answer.edges), human_seconds(answer.problem_seconds),
                      human_seconds(answer.solver_seconds));
  text += fmt::format("peak {} per device{}; the solver estimated {}\n", human_bytes(answer.peak),
                      answer.memory == kNoLimit ? "" : fmt::format(", of {}", human_bytes(answer.memory)),
                      human_bytes(answer.assumed_peak));
  if (answer.coverage.without_a_rule.empty()) {
    text += "all nodes have a rule\n";
  } else {
    int64_t without = 0;
    for (const auto& [name, count] : answer.coverage.without_a_rule) without += count;
    text += fmt::format(
        "warning: {} of {} nodes have no rule and are replicated, which takes {} on each device:", exact_count(without),
        exact_count(answer.coverage.nodes), human_seconds(answer.coverage.seconds_without_a_rule));
    for (const auto& [name, count] : answer.coverage.without_a_rule) text += fmt::format(" {} ({})", name, count);
    text += "\n";
  }
  text += "\n";
  text += placeholder_table(answer, rows);
  std::vector<std::vector<std::string>> lines{{"PHASE", "STEP", "AXIS", "CALLS", "OUTPUT BYTES", "TIME"}};
  for (const RedistributionTraffic& sum : answer.traffic) {
    lines.push_back({sum.phase, sum.kind, sum.axis, fmt::format("{}", sum.calls), human_bytes(sum.bytes),
                     sum.seconds > 0 ? human_seconds(sum.seconds) : "combined"});
  }
  text += answer.traffic.empty() ? "\nno redistributions\n" : fmt::format("\n{}", table(lines, rows, "rows"));
  if (!answer.compared.empty()) {
    std::vector<std::vector<std::string>> plans{{"PLAN", "STEP TIME", "RELATIVE", "PEAK PER DEVICE", ""}};
    plans.push_back({"this plan", human_seconds(answer.seconds()), "1.00",
                     human_bytes(static_cast<int64_t>(answer.solution.peak)), ""});
    for (const ParallelismCost& plan : answer.compared) {
      plans.push_back({plan.name, plan.seconds ? human_seconds(*plan.seconds) : "-",
                       plan.seconds ? fmt::format("{:.2f}", *plan.seconds / answer.seconds()) : "-",
                       plan.peak ? human_bytes(*plan.peak) : "-",
                       plan.why_not.empty() ? ""
                       : plan.seconds       ? "exceeds the memory"
                                            : plan.why_not});
    }
    text += fmt::format("\n{}", table(plans, 0, "rows"));
  }
  for (const Explanation& explanation : answer.explanations) {
    text += fmt::format("\n{}, {} node{}\n", explanation.name, explanation.nodes, explanation.nodes == 1 ? "" : "s");
    std::vector<std::vector<std::string>> strategies{{"", "STEP TIME", "INCREASE", "OWN TIME", "OPERANDS -> RESULTS"}};
    for (const Alternative& alternative : explanation.alternatives) {
      strategies.push_back(
          {alternative.chosen ? "*" : "", alternative.seconds ? human_seconds(*alternative.seconds) : "impossible",
           alternative.seconds ? human_seconds(*alternative.seconds - seconds_of(answer.solution.cost)) : "-",
           human_seconds(alternative.own), alternative.strategy});
    }
    text += table(strategies, rows, "strategies");
  }
  return text;
}

nlohmann::json to_json(const ShardingResult& answer) {
  nlohmann::json json{{"format", "shadowgraph-sharding"},
                      {"version", 1},
                      {"title", answer.title},
                      {"mesh", answer.plan.mesh.to_string()},
                      {"devices", answer.plan.mesh.size()},
                      {"seconds", answer.seconds()},
                      {"compute_seconds", answer.compute},
                      {"communication_seconds", answer.communication},
                      {"one_device_seconds", answer.alone},
                      {"overlapped_seconds", answer.overlapped},
                      {"exposed_communication_seconds", answer.exposed},
                      {"lower_bound_seconds", answer.bound},
                      {"bound_is_of", answer.folded ? "plans that treat layers alike" : "all plans"},
                      {"optimal", answer.solution.optimal},
                      {"peak", answer.peak},
                      {"assumed_peak", answer.assumed_peak},
                      {"nodes", answer.nodes},
                      {"variables", answer.variables},
                      {"edges", answer.edges},
                      {"problem_seconds", answer.problem_seconds},
                      {"solver_seconds", answer.solver_seconds},
                      {"without_a_rule", answer.coverage.without_a_rule},
                      {"verdict", json_of_verdict(answer.verdict)},
                      {"given", answer.given}};
  if (answer.parallelism) json["parallelism"] = to_string(*answer.parallelism);
  if (answer.memory != kNoLimit) json["memory_limit"] = answer.memory;
  if (answer.folded_seconds) json["folded_seconds"] = *answer.folded_seconds;
  json["tensors"] = nlohmann::json::array();
  for (const PlaceholderLayout& tensor : answer.placeholders) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"layout", to_string(tensor.layout)},
                               {"bytes", tensor.bytes},
                               {"local_bytes", tensor.local_bytes}});
  }
  json["redistributions"] = nlohmann::json::array();
  for (const RedistributionTraffic& sum : answer.traffic) {
    json["redistributions"].push_back({{"phase", sum.phase},
                                       {"kind", sum.kind},
                                       {"axis", sum.axis},
                                       {"calls", sum.calls},
                                       {"bytes", sum.bytes},
                                       {"seconds", sum.seconds}});
  }
  json["compared"] = nlohmann::json::array();
  for (const ParallelismCost& plan : answer.compared) {
    nlohmann::json entry{{"name", plan.name}};
    if (plan.seconds) entry["seconds"] = *plan.seconds;
    if (plan.peak) entry["peak"] = *plan.peak;
    if (!plan.why_not.empty()) entry["why_not"] = plan.why_not;
    json["compared"].push_back(std::move(entry));
  }
  json["explanations"] = nlohmann::json::array();
  for (const Explanation& explanation : answer.explanations) {
    nlohmann::json alternatives = nlohmann::json::array();
    for (const Alternative& alternative : explanation.alternatives) {
      nlohmann::json entry{
          {"strategy", alternative.strategy}, {"own_seconds", alternative.own}, {"chosen", alternative.chosen}};
      if (alternative.seconds) entry["seconds"] = *alternative.seconds;
      alternatives.push_back(std::move(entry));
    }
    json["explanations"].push_back(
        {{"name", explanation.name}, {"nodes", explanation.nodes}, {"alternatives", std::move(alternatives)}});
  }
  return json;
}

}  // namespace shadowgraph
