#include <fmt/format.h>

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "parallel/stages/balanced_cuts.h"
#include "parallel/stages/stage_memory.h"
#include "parallel/stages/stage_parts.h"
#include "parallel/stages/stage_seconds.h"
#include "shadowgraph/error.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph {

class StageCutting {
 public:
  StageCutting(const Graph& step, const StageOptions& options)
      : costs_(of_one_microbatch(step)),
        line_(costs_),
        spec_(given_or_usual_spec(options.spec, step)),
        seconds_(costs_, spec_, options.interconnect),
        gathers_once_(options.gathers_once) {}

  std::vector<int32_t> at_modules(std::span<const std::string> modules) const {
    std::vector<int32_t> cuts;
    for (const std::string& module : modules) {
      const int32_t at = first_of(module);
      if (at == ForwardLine::kNowhere) {
        throw Error(
            fmt::format("the module {} does not run in forward; give a module such as {}", module, some_module()));
      }
      if (at <= (cuts.empty() ? 0 : cuts.back())) {
        throw Error(fmt::format(
            "a stage cannot begin at {}: the module does not run after {}; give modules in the order in which they run",
            module, cuts.empty() ? "the first node" : "the previous cut"));
      }
      cuts.push_back(at);
    }
    return cuts;
  }

  std::vector<int32_t> balanced(int32_t stages) const {
    if (stages < 1) throw Error("a pipeline must have at least one stage");
    std::vector<double> costs(static_cast<size_t>(line_.length()), 0);
    for (const NodeId n : costs_.nodes) {
      if (line_.position(n) != ForwardLine::kNowhere) costs[static_cast<size_t>(line_.position(n))] += seconds_.of(n);
    }
    const std::vector<CutPlace> places = places_for(stages, costs);
    if (static_cast<int32_t>(places.size()) + 1 < stages) {
      throw Error(fmt::format("the forward can be split at {} places, into at most {} stages, not {}; use fewer stages",
                              places.size(), places.size() + 1, stages));
    }
    return balanced_cuts(costs, places, stages);
  }

  PipelineStages cut(std::vector<int32_t> cuts) const {
    PipelineStages stages;
    const StageAssignment assignment(costs_, line_, cuts);
    cuts.insert(cuts.begin(), 0);
    for (const int32_t cut : cuts) stages.figures_.push_back({.begins = module_path(costs_.graph(), line_.node(cut))});
    StageMemory memory(costs_, line_, assignment);
    StageParts parts = memory.parts(stages.figures_, stages.notes_);
    stages.tied_ = memory.tied();
    add_segments(costs_, assignment, seconds_, parts);
    parts.nodes = nodes_by_stage(costs_, assignment);
    parts.step_nodes = costs_.graph().node_count();
    parts.workspace = DeviceAssumptions::of(spec_).workspace();
    const ShardedParameters sharded(costs_, assignment, seconds_.communication(), gathers_once_);
    add_seconds(costs_, assignment, memory, seconds_, sharded, spec_, parts.nodes, stages.figures_);
    stages.parts_ = std::make_shared<const StageParts>(std::move(parts));
    return stages;
  }

 private:
  static const Graph& of_one_microbatch(const Graph& step) {
    const auto several = step.metadata.other.find("accumulate");
    if (several == step.metadata.other.end()) return step;
    throw Error("a pipeline needs the step of a single micro-batch, but this one accumulates gradients over " +
                several->second + ": capture it without gradient accumulation");
  }

  int32_t first_of(const std::string& module) const {
    for (int32_t i = 0; i < line_.length(); ++i) {
      const std::string path = module_path(costs_.graph(), line_.node(i));
      if (path == module || path.starts_with(module + ".")) return i;
    }
    return ForwardLine::kNowhere;
  }
  std::string some_module() const {
    std::string path = module_path(costs_.graph(), line_.node(line_.length() / 2));
    return path.empty() ? "layers.1" : path;
  }

  // Places where a cut splits at most `depth` nested modules: between two modules, or at a local minimum of the bytes
  // passed. Local maxima among them are left out.
  std::vector<CutPlace> places_of_depth(std::span<const std::string> paths, size_t depth) const {
    std::vector<CutPlace> all, kept;
    for (int32_t i = 1; i < line_.length(); ++i) {
      const std::string& before = paths[static_cast<size_t>(i) - 1];
      const std::string& behind = paths[static_cast<size_t>(i)];
      if ((before != behind || is_narrow(i)) && depth_of(before, behind) <= depth)
        all.push_back({i, line_.crossing(i)});
    }
    for (size_t i = 0; i < all.size(); ++i) {
      const bool rose = i == 0 || all[i - 1].bytes < all[i].bytes;
      const bool falls = i + 1 == all.size() || all[i + 1].bytes < all[i].bytes;
      if (!rose || !falls || all.size() == 1) kept.push_back(all[i]);
    }
    return kept;
  }
  // Local minima of the bytes passed, such as layer boundaries; of a constant stretch, the first position.
  bool is_narrow(int32_t i) const {
    if (i > 1 && line_.crossing(i - 1) <= line_.crossing(i)) return false;  // so that each stretch is visited once
    int32_t end = i;
    while (end + 1 < line_.length() && line_.crossing(end + 1) == line_.crossing(i)) ++end;
    return end + 1 == line_.length() || line_.crossing(end + 1) > line_.crossing(i);
  }
  // Number of nested modules that a cut between nodes of these modules splits.
  static size_t depth_of(const std::string& before, const std::string& behind) {
    const auto ends = [](const std::string& path, size_t at) { return at == path.size() || path[at] == '.'; };
    size_t depth = 0;
    for (size_t i = 0; i < std::min(before.size(), behind.size()) && before[i] == behind[i]; ++i) {
      if (ends(before, i + 1) && ends(behind, i + 1)) ++depth;
    }
    return depth;
  }
  // The places with the smallest depth that balance nearly as well as the deepest: between layers rather than inside.
  std::vector<CutPlace> places_for(int32_t stages, std::span<const double> costs) const {
    std::vector<std::string> paths;
    for (int32_t i = 0; i < line_.length(); ++i) paths.push_back(module_path(costs_.graph(), line_.node(i)));
    constexpr size_t kDeepest = 16;
    constexpr double kNearly = 1.15;
    const std::vector<CutPlace> deepest = places_of_depth(paths, kDeepest);
    if (static_cast<int32_t>(deepest.size()) + 1 < stages) return deepest;
    const double best = min_max_sum(costs, deepest, stages);
    for (size_t depth = 0; depth < kDeepest; ++depth) {
      std::vector<CutPlace> places = places_of_depth(paths, depth);
      if (static_cast<int32_t>(places.size()) + 1 < stages) continue;
      if (min_max_sum(costs, places, stages) <= kNearly * best) return places;
    }
    return deepest;
  }

  const ProgramCosts costs_;
  const ForwardLine line_;
  const DeviceSpec spec_;
  const NodeSeconds seconds_;
  const bool gathers_once_;
};

PipelineStages PipelineStages::at_modules(const Graph& step, std::span<const std::string> modules,
                                          const StageOptions& options) {
  const StageCutting cutting(step, options);
  return cutting.cut(cutting.at_modules(modules));
}

PipelineStages PipelineStages::balanced(const Graph& step, int32_t stages, const StageOptions& options) {
  const StageCutting cutting(step, options);
  return cutting.cut(cutting.balanced(stages));
}

PipelineStages PipelineStages::of_costs(std::vector<StageCosts> figures) {
  if (figures.empty()) throw Error("a pipeline must have at least one stage");
  StageParts parts;
  constexpr uint32_t kCarried = 0, kGradient = 1, kAwaiting = 2;
  for (const StageCosts& of : figures) {
    StagePart part{.resident = {of.parameters - of.expert_parameters, of.other},
                   .experts = {of.expert_parameters},
                   .state = {of.optimizer_state},
                   .inputs = {of.inputs},
                   .is_gradient = {0, 1, 0},
                   .slots = 3};
    if (of.carried > 0) part.pieces.forward.push_back({kCarried, of.carried});
    if (of.gradients > 0) part.pieces.weight_gradient.push_back({kGradient, of.gradients});
    part.pieces.weight_gradient.push_back({kCarried, 0});
    part.pieces.backward = part.pieces.weight_gradient;
    if (of.awaiting > 0) {
      part.pieces.input_gradient.push_back({kAwaiting, of.awaiting});
      part.pieces.weight_gradient.push_back({kAwaiting, 0});
    }
    part.segments = {.forward = {{.seconds = of.forward}},
                     .backward = {{.seconds = of.backward()}},
                     .input_gradient = {{.seconds = of.input_gradient}},
                     .weight_gradient = {{.seconds = of.weight_gradient}}};
    parts.stages.push_back(std::move(part));
  }
  PipelineStages stages;
  stages.figures_ = std::move(figures);
  stages.parts_ = std::make_shared<const StageParts>(std::move(parts));
  return stages;
}

Subgraph stage_piece(const Graph& step, const PipelineStages& stages, int32_t stage, PipelineWork work) {
  const StageParts& parts = stages.parts();
  if (parts.nodes.empty()) throw Error("stages made from costs have no graphs: split a captured step instead");
  if (stage < 0 || stage >= stages.count()) {
    throw Error(fmt::format("stage {} does not exist: the step has {} stages", stage, stages.count()));
  }
  if (parts.step_nodes != step.node_count()) {
    throw Error("the stages belong to another graph, or this one has changed since: split it again");
  }
  if (!computes({.work = work})) {
    throw Error("a stage has the pieces forward, backward, input gradient and weight gradient (F, B, I, W)");
  }
  Subgraph piece = extract(step, parts.nodes[static_cast<size_t>(stage)][work]);
  for (size_t i = 0; i < piece.inputs.size(); ++i) {
    const NodeId producer = step.value(piece.inputs[i]).producer;
    if (!step.is_placeholder(producer)) continue;
    const std::string name = placeholder_name(step, producer);
    if (!name.empty()) piece.graph.set_note(NodeId(static_cast<uint32_t>(i)), "parameter", name);
  }
  return piece;
}

}  // namespace shadowgraph
