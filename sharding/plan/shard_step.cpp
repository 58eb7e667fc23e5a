#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/recompute.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/shard/shard.h"
#include "shadowgraph/units.h"
#include "sharding/plan/problem_nodes.h"

namespace shadowgraph {

// Returns a table of the rounds; `memory` is the limit per device, in bytes.
std::string text_of_rounds(std::span<const RecomputeRound> rounds, int64_t memory) {
  std::string text = "rounds within " + human_bytes(memory) + " per device, * is the best:\n";
  text += fmt::format("  {:1} {:22} {:>10} {:>13} {:>12} {:>8} {:>10}\n", "", "ROUND", "STEP TIME", "COMMUNICATION",
                      "PEAK", "SEGMENTS", "RECOMPUTE");
  for (const RecomputeRound& round : rounds) {
    const bool none = round.seconds == 0;
    text += fmt::format("  {:1} {:22} {:>10} {:>13} {:>12} {:>8} {:>10}{}\n", round.best ? "*" : "", round.what,
                        none ? "-" : human_seconds(round.seconds), none ? "-" : human_seconds(round.communication),
                        none ? "-" : human_bytes(round.peak), round.segments, human_count(round.flops),
                        none         ? "  no plan"
                        : round.fits ? ""
                                     : "  does not fit");
  }
  return text;
}

// {"rounds": [...], "segments": [...]}.
nlohmann::json json_of_rounds(std::span<const RecomputeRound> rounds, std::span<const CheckpointSegment> segments) {
  nlohmann::json json;
  json["rounds"] = nlohmann::json::array();
  for (const RecomputeRound& round : rounds) {
    nlohmann::json entry{{"what", round.what},
                         {"fits", round.fits},
                         {"seconds", round.seconds},
                         {"communication_seconds", round.communication},
                         {"peak", round.peak},
                         {"segments", round.segments},
                         {"recomputed_flops", round.flops},
                         {"taken", round.best}};
    if (!round.why_not.empty()) entry["why_not"] = round.why_not;
    json["rounds"].push_back(std::move(entry));
  }
  json["segments"] = nlohmann::json::array();
  for (const CheckpointSegment& segment : segments) json["segments"].push_back(segment.name);
  return json;
}

GraphLayouts with_repeated(const GraphLayouts& plan, const Graph& rewritten) {
  GraphLayouts more;
  more.mesh = plan.mesh;
  for (const NodeId node : rewritten.nodes()) {
    const NodeTensors tensors = NodeTensors::of(rewritten, node);
    if (tensors.size() == 0) continue;
    const auto is_planned = [&](NodeId n) {
      const NodeLayouts& layouts = plan.nodes[n];
      return layouts.operands.size() == tensors.operands.size() && layouts.results.size() == tensors.results.size();
    };
    NodeId as = node;
    while (as.valid() && !is_planned(as)) as = rewritten.node(as).forward;
    if (as.valid()) {
      more.nodes[node] = plan.nodes[as];
    } else {
      // Nodes without a counterpart in the plan are those of generator states, which are never sharded.
      const Layout whole(plan.mesh.axes.size());
      more.nodes[node] = {std::vector<Layout>(tensors.operands.size(), whole),
                          std::vector<Layout>(tensors.results.size(), whole)};
    }
  }
  return more;
}

namespace {

// Evaluates a given plan. One with different layouts for identical layers, of which some may be recomputed, needs a
// separate variable for each.
ShardingResult measured(const Graph& graph, ShardingOptions sharding, const ShardOptions& options) {
  if (options.plan->mesh.to_string() != sharding.mesh.to_string()) {
    throw Error(fmt::format("the given plan is for mesh {}, not {}", options.plan->mesh.to_string(),
                            sharding.mesh.to_string()));
  }
  try {
    return shard(graph, sharding, options);
  } catch (const InfeasibleError&) {
    if (sharding.unfold) throw;
    sharding.unfold = true;
    return shard(graph, sharding, options);
  }
}

class AlternatingSearch {
 public:
  AlternatingSearch(const Graph& graph, const ShardingOptions& sharding, const RecomputeAndShardOptions& options)
      : graph_(graph),
        sharding_(sharding),
        options_(options),
        time_(StepTime::of(graph, *sharding.device)),
        curve_(CheckpointCurve::of(graph, {}, {.chain = {.cost = nanoseconds(time_)}})) {
    // Rounds skip comparisons and explanations, which are computed for the best plan at the end.
    trial_ = options.shard;
    trial_.compare = false;
    trial_.explain.clear();
    trial_.each_rank = {};
    trial_.problem = {};
  }

  Sharding run() {
    const CheckpointChoice& nothing = curve_.choices().front();
    try_sharding("sharding only", nothing);
    const std::optional<GraphLayouts> free = plan_without_limit();
    const CheckpointChoice* taken = nullptr;
    if (free) taken = try_recomputing("recompute only", *free);
    if (taken != &nothing) {
      const size_t most =
          taken == nullptr ? curve_.choices().size() - 1 : static_cast<size_t>(taken - curve_.choices().data());
      std::vector<size_t> asked;
      for (int i = 1; i <= options_.probes; ++i) {
        const size_t at = most * static_cast<size_t>(i) / static_cast<size_t>(options_.probes);
        if (at != 0 && (asked.empty() || asked.back() != at)) asked.push_back(at);
      }
      for (const size_t at : asked) try_sharding("partial recompute", curve_.choices()[at]);
      for (int turn = 0; turn < options_.turns && best_plan_; ++turn) {
        const double before = best_seconds_;
        const CheckpointChoice* next = try_recomputing("refined recompute", *best_plan_);
        if (next == nullptr || !try_sharding("refined sharding", *next)) break;
        if (best_seconds_ >= before) break;
      }
    }
    return finish();
  }

 private:
  Graph with(const CheckpointChoice& choice) const {
    Graph copy = clone(graph_);
    if (!choice.segments.empty()) checkpoint_segments(copy, choice.segments);
    return copy;
  }

  bool try_sharding(const char* what, const CheckpointChoice& choice) {
    if (is_known(choice)) return true;
    sharded_.push_back(&choice);
    const Graph graph = with(choice);
    try {
      note(what, choice, shard(graph, sharding_, trial_));
      return true;
    } catch (const InfeasibleError& error) {
      RecomputeRound round{.what = what, .why_not = error.what()};
      describe(round, choice);
      rounds_.push_back(std::move(round));
      return false;
    }
  }

  bool is_known(const CheckpointChoice& choice) const { return std::ranges::find(sharded_, &choice) != sharded_.end(); }

  std::optional<GraphLayouts> plan_without_limit() {
    ShardingOptions unlimited = sharding_;
    unlimited.memory = kNoLimit;
    try {
      return shard(graph_, unlimited, trial_).plan;
    } catch (const InfeasibleError&) {
      return std::nullopt;  // pins contradict each other; recompute cannot help
    }
  }

  // Returns the choice with the least recompute for which the sharded graph fits into the memory; nullptr if none does.
  const CheckpointChoice* try_recomputing(const char* what, const GraphLayouts& found) {
    // The plan covers only the original nodes: numbers of added nodes differ between graphs.
    GraphLayouts plan;
    plan.mesh = found.mesh;
    for (const NodeId node : graph_.nodes()) plan.nodes[node] = found.nodes[node];
    const std::vector<CheckpointChoice>& choices = curve_.choices();
    const auto fits = [&](size_t i) {
      const Graph graph = with(choices[i]);
      return peak_of(graph, with_repeated(plan, graph)) <= sharding_.memory;
    };
    // Peaks decrease along the curve for the unsharded step, not always for a device; the returned choice is checked.
    size_t least = 0;
    size_t most = choices.size() - 1;
    if (!fits(most)) {
      RecomputeRound round{.what = what};
      const Graph graph = with(choices[most]);
      round.why_not =
          fmt::format("{} per device with maximum recompute", human_bytes(peak_of(graph, with_repeated(plan, graph))));
      rounds_.push_back(std::move(round));
      return nullptr;
    }
    while (least < most) {
      const size_t middle = least + (most - least) / 2;
      if (fits(middle)) {
        most = middle;
      } else {
        least = middle + 1;
      }
    }
    const Graph graph = with(choices[most]);
    const GraphLayouts whole = with_repeated(plan, graph);
    ShardOptions given = trial_;
    given.plan = &whole;
    try {
      note(what, choices[most], measured(graph, sharding_, given));
    } catch (const InfeasibleError& error) {
      RecomputeRound round{.what = what, .why_not = error.what()};
      describe(round, choices[most]);
      rounds_.push_back(std::move(round));
    }
    return &choices[most];
  }

  int64_t peak_of(const Graph& graph, const GraphLayouts& plan) const {
    return peak_of_live_bytes(
        apply(graph, plan, trial_.rank, {.rules = sharding_.rules, .shard_random = sharding_.shard_random}).graph);
  }

  void describe(RecomputeRound& round, const CheckpointChoice& choice) const {
    round.segments = static_cast<int64_t>(choice.segments.size());
    for (const NodeId node : choice.repeated) round.flops += product_flops(graph_, node);
  }

  void note(const char* what, const CheckpointChoice& choice, const ShardingResult& answer) {
    RecomputeRound round{.what = what,
                         .fits = answer.peak <= sharding_.memory,
                         .seconds = answer.seconds(),
                         .communication = answer.communication,
                         .peak = answer.peak};
    describe(round, choice);
    if (round.fits && (!best_plan_ || round.seconds < best_seconds_)) {
      best_seconds_ = round.seconds;
      best_plan_ = answer.plan;
      best_choice_ = &choice;
      best_solution_ = answer.solution;
      best_bound_ = answer.bound;
      best_round_ = rounds_.size();
    }
    rounds_.push_back(std::move(round));
  }

  Sharding finish() {
    if (!best_plan_) {
      std::string why;
      for (const RecomputeRound& round : rounds_) why += fmt::format("\n  {}: {}", round.what, round.why_not);
      throw InfeasibleError(fmt::format("no plan fits into {} per device, with or without recompute:{}",
                                        human_bytes(sharding_.memory), why));
    }
    rounds_[best_round_].best = true;
    Sharding found;
    found.device = *sharding_.device;
    if (sharding_.interconnect != nullptr) found.links = *sharding_.interconnect;
    found.graph = with(*best_choice_);
    found.segments = best_choice_->segments;
    const GraphLayouts plan = std::move(*best_plan_);
    ShardOptions all = options_.shard;
    all.plan = &plan;
    found.result = measured(found.graph, sharding_, all);
    // Keep the solver's solution and bound.
    found.result.solution = std::move(best_solution_);
    found.result.bound = best_bound_;
    found.rounds = std::move(rounds_);
    return found;
  }

  const Graph& graph_;
  const ShardingOptions& sharding_;
  const RecomputeAndShardOptions& options_;
  const StepTime time_;
  const CheckpointCurve curve_;
  ShardOptions trial_;
  std::vector<const CheckpointChoice*> sharded_;
  std::vector<RecomputeRound> rounds_;
  std::optional<GraphLayouts> best_plan_;
  double best_seconds_ = 0;
  AssignmentSolution best_solution_;
  double best_bound_ = 0;
  const CheckpointChoice* best_choice_ = nullptr;
  size_t best_round_ = 0;
};

// Pipelines split a step into stages, which layouts of tensors cannot express.
constexpr std::array kPipelineAxes{"pp", "pipe", "pipeline", "stage", "stages"};

}  // namespace

const OptionTable<ShardingRequest>& ShardingRequest::table() {
  static const auto table =
      OptionTable<ShardingRequest>()
          .group("Plan")
          .parsed("memory", &ShardingRequest::memory, &MemoryLimit::bytes_of, &MemoryLimit::text_of,
                  "Device memory available to the step: 24GiB, or a device name, l4", MemoryLimit::takes())
          .parsed(
              "pin", &ShardingRequest::pins,
              [](const std::string& text) {
                const size_t equals = text.rfind('=');
                if (equals == text.npos) throw Error("invalid pin '" + text + "'; expected NAME=LAYOUT");
                return ShardingPin{.name = text.substr(0, equals), .layout = Layout::parse(text.substr(equals + 1))};
              },
              [](const ShardingPin& pin) { return pin.name + "=" + to_string(pin.layout); },
              "Fix a layout: 'layers.*.q_proj.weight=R,S(0)', 'n329=S(0),R'; repeatable", {.has_commas = true})
          .add("parallelism", &ShardingRequest::parallelism,
               "Evaluate a standard plan: data-parallel, fully-sharded, tensor-parallel, ...")
          .add("unfold", &ShardingRequest::unfold, "Plan repeated layers individually instead of sharing one layout")
          .add("recompute", &ShardingRequest::recompute,
               "With --memory: recompute in backward where it is cheaper than more sharding")
          .add("shard_random", &ShardingRequest::shard_random,
               "Allow sharding of random operators: each device draws its own numbers")
          .add("shard_vocabulary", &ShardingRequest::shard_vocabulary,
               "Decompose log_softmax so that the loss can be sharded along the vocabulary")
          .group("Solver")
          .add("solver", &ShardingRequest::solver,
               "own (built-in), highs (package highspy), both (HiGHS for what own leaves unproven)")
          .add("highs", &ShardingRequest::highs,
               "Path of libhighs.so.1 or its folder (default: $SHADOWGRAPH_HIGHS, else next to libtorch)")
          .add("time_limit", &ShardingRequest::time_limit, "Solver time limit in seconds (60 with --problem)",
               {.min = 0, .above = true})
          .group("Output")
          .add("compare", &ShardingRequest::compare,
               "Also evaluate standard plans: data parallel, fully sharded, tensor parallel")
          .add("explain", &ShardingRequest::explain,
               "Show alternative layouts of a parameter, input or node 'n329'; repeatable", {.has_commas = true});
  return table;
}

// Returns the request's device and links, or else the default ones of the graph's device.
static Machine machine_of(const ShardingRequest& request, const Graph& graph) {
  const c10::Device device = graph.metadata.device.value_or(c10::Device(c10::kCUDA, 0));
  Machine machine = request.device ? Machine::of(*request.device) : Machine::find({}, {}, {}, device.type());
  if (request.links) machine.links = request.links;
  return machine;
}

static ShardOptions options_of_search(const ShardingRequest& request) {
  ShardOptions options{.compare = request.compare,
                       .explain = request.explain,
                       .rank = request.rank,
                       .each_rank = request.each_rank,
                       .custom_solver = request.custom_solver,
                       .problem = request.problem};
  options.solve.time_limit = request.time_limit;
  options.solve.gap = request.gap.value_or(request.memory ? 1e-3 : 0.0);
  options.solve.solver = request.solver;
  options.solve.highs = request.highs;
  return options;
}

static ShardingResult searched_or_given(const Graph& graph, ShardingOptions sharding, const ShardingRequest& request) {
  ShardOptions options = options_of_search(request);
  if (!request.parallelism.empty()) options.parallelism = parse_parallelism(request.parallelism, request.mesh);
  if (request.solution.empty()) return shard(graph, sharding, options);
  ImportedSolution given = read_solution(request.solution, request.solution_name, graph);
  if (given.plan) {
    options.plan = &*given.plan;
    return measured(graph, std::move(sharding), options);
  }
  options.choice = std::move(given.choice);
  sharding.pins.insert(sharding.pins.end(), given.layouts.begin(), given.layouts.end());
  return shard(graph, sharding, options);
}

Sharding shard_and_recompute(const Graph& graph, const ShardingOptions& sharding,
                             const RecomputeAndShardOptions& options) {
  if (sharding.memory == kNoLimit) {
    throw Error("recompute requires a memory limit: set ShardingOptions::memory (--memory)");
  }
  if (sharding.device == nullptr) throw Error("no device spec: set ShardingOptions::device");
  return AlternatingSearch(graph, sharding, options).run();
}

// Checks the request early, before the solver runs.
void check(const ShardingRequest& request) {
  if (request.mesh.axes.empty()) throw Error("no mesh: set ShardingRequest::mesh");
  for (const MeshAxis& axis : request.mesh.axes) {
    if (std::ranges::find(kPipelineAxes, axis.name) == kPipelineAxes.end()) continue;
    throw Error(fmt::format(
        "mesh {} has a pipeline axis, which layouts cannot express; use `shadowgraph pipeline SOURCE --ranks {}` "
        "(sg.pipeline) for pipeline stages, and give only the other axes here",
        request.mesh.to_string(), axis.size));
  }
  if (!request.solution.empty() && (request.recompute || !request.parallelism.empty() || request.problem)) {
    throw Error("a given answer cannot be combined with recompute, a preset plan or exporting the problem");
  }
  if (!request.parallelism.empty() && request.recompute) {
    throw Error("a preset plan cannot be combined with --recompute; remove one of them");
  }
  if (request.rank < 0 || request.rank >= request.mesh.size()) {
    throw Error(fmt::format("rank {} is not in mesh {}", request.rank, request.mesh.to_string()));
  }
  if (request.recompute && !request.memory) {
    throw Error("recompute requires a memory limit: set ShardingRequest::memory (--memory)");
  }
}

RedistributionPlanner Sharding::planner() const {
  const ShardingOptions options{.mesh = result.plan.mesh, .device = &device, .interconnect = &links};
  return {options.mesh, redistribution_rates(options)};
}

Sharding shard_step(Graph graph, const ShardingRequest& request) {
  check(request);
  split_mean_losses(graph);
  if (request.shard_vocabulary) split_log_softmaxes(graph);
  if (!request.parallelism.empty() && parse_parallelism(request.parallelism, request.mesh) == Parallelism::kMegatron) {
    move_biases_after_reduction(graph);
  }
  Sharding planned;
  planned.graph = std::move(graph);
  const Machine machine = machine_of(request, planned.graph);
  planned.device = machine.specs();
  planned.links = machine.network();
  ShardingOptions sharding{.mesh = request.mesh,
                           .device = &planned.device,
                           .interconnect = &planned.links,
                           .rules = &request.rules,
                           .memory = request.memory.value_or(kNoLimit),
                           .pins = request.pins,
                           .unfold = request.unfold,
                           .shard_random = request.shard_random,
                           .overlap = request.overlap,
                           .seconds_per_parameter_byte = request.seconds_per_parameter_byte,
                           .seconds_per_kept_byte = request.seconds_per_kept_byte,
                           .layer_repeats = request.layer_repeats};
  if (!request.recompute) {
    planned.result = searched_or_given(planned.graph, sharding, request);
    return planned;
  }
  return shard_and_recompute(planned.graph, sharding, {.shard = options_of_search(request)});
}

std::string to_text(const Sharding& planned, int rows) {
  std::string answer = to_text(planned.result, rows);
  answer.insert(answer.find('\n') + 1,
                fmt::format("devices: {}; links: {}\n", planned.device.title, planned.links.title));
  return planned.rounds.empty() ? answer : text_of_rounds(planned.rounds, planned.result.memory) + "\n" + answer;
}

nlohmann::json to_json(const Sharding& planned) {
  nlohmann::json json = to_json(planned.result);
  json["device"] = planned.device.title;
  json["interconnect"] = planned.links.title;
  if (!planned.rounds.empty()) json["recompute"] = json_of_rounds(planned.rounds, planned.segments);
  return json;
}

}  // namespace shadowgraph
