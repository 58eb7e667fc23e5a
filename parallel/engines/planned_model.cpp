#include "parallel/engines/planned_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ir/analysis/module_tree.h"
#include "parallel/plan/unit_names.h"
#include "parallel/stages/forward_line.h"
#include "parallel/stages/stage_parts.h"
#include "shadowgraph/parallel/engines.h"

namespace shadowgraph {
namespace {

// The layer that a module is in, or itself.
std::string entry_of(const std::string& module) {
  const auto [at, length] = number_in_path(module);
  return length > 0 ? module.substr(0, at + length) : module;
}

bool lies_in(const std::string& path, const std::string& module) {
  if (module.empty()) return true;
  return path.starts_with(module) && (path.size() == module.size() || path[module.size()] == '.');
}

}  // namespace

std::string module_above(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::vector<PlannedParameter> parameters_of(const Graph& step) {
  std::vector<PlannedParameter> parameters;
  for (const NodeId node : step.nodes()) {
    if (!step.is_placeholder(node)) break;
    if (step.node(node).target != target_of(Builtin::kParameter)) continue;
    const auto sizes = step.sizes(step.results(node)[0].ref.value);
    parameters.push_back({node, placeholder_name(step, node), {sizes.begin(), sizes.end()}});
  }
  return parameters;
}

void check_laid_out_by_hand(const TrainingPlan& plan, std::string_view engine) {
  if (plan.layout == TensorLayout::kMegatron) return;
  throw CannotExpressError(fmt::format(
      "{} lays tensors out by its own rules: plan with --layout megatron, or run layout.json by `shadowgraph shard`",
      engine));
}

void check_no_curve(const TrainingPlan& plan, std::string_view engine) {
  if (plan.in_part.empty()) return;
  throw CannotExpressError(fmt::format(
      "{} has no words for results of a layer that are kept: plan with --recompute selective,whole", engine));
}

void check_layers_are_on_device(const TrainingPlan& plan, std::string_view engine) {
  if (plan.offloaded.empty()) return;
  throw CannotExpressError(fmt::format(
      "{} keeps what layers keep on the device: plan without --offload, or with --offload optimizer", engine));
}

void say_what_is_on_host(const TrainingPlan& plan, std::vector<std::string>& differs) {
  if (!plan.optimizer_on_host) return;
  differs.emplace_back("optimizer on the host: FSDP2 copies parameters in float32, whenever they are gathered");
  if (plan.zero >= 2 && plan.pipeline == 1 && plan.microbatches > 1) {
    differs.emplace_back("optimizer on the host: gradients of each micro-batch are copied, and added up there");
  }
}

bool is_layer(const std::string& module) {
  const auto [at, length] = number_in_path(module);
  return length > 0 && at + length == module.size();
}

std::string with_star(const std::string& path) {
  const auto [at, length] = number_in_path(path);
  return length > 0 ? path.substr(0, at) + "*" + path.substr(at + length) : path;
}

PlannedModel PlannedModel::of(const Graph& step) {
  std::set<std::string> entries;
  for (const PlannedParameter& parameter : parameters_of(step)) {
    const std::string owner = module_above(parameter.name);
    entries.insert(entry_of(owner));
    // A head whose weight is the embedding's has a parameter, too.
    step.for_each_use(step.results(parameter.node)[0].ref.value, [&](NodeId user) {
      const std::string module = module_path(step, user);
      if (step.node(user).phase == Graph::kForward && !lies_in(owner, module)) entries.insert(entry_of(module));
    });
  }
  const ProgramCosts costs(step);
  const ForwardLine line(costs);
  PlannedModel model;
  const auto add = [](std::vector<std::string>& names, const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (int32_t i = 0; i < line.length(); ++i) {
    // The innermost entry: "model" may hold a parameter, too.
    std::string entry = entry_of(module_path(step, line.node(i)));
    while (!entry.empty() && !entries.contains(entry)) entry = module_above(entry);
    if (!entries.contains(entry)) continue;
    add(model.modules, entry);
    add(model.order, with_star(entry));
  }
  return model;
}

std::vector<std::vector<std::string>> modules_of_stages(const PlannedModel& model, const TrainingPlan& plan) {
  std::vector<std::vector<std::string>> stages;
  size_t at = 0;
  for (size_t stage = 0; stage < std::max<size_t>(plan.stages.size(), 1); ++stage) {
    const bool last = stage + 1 >= plan.stages.size();
    const auto end = last ? model.modules.end() : std::ranges::find(model.modules, plan.stages[stage + 1].begins);
    if (!last && end == model.modules.end()) {
      throw CannotExpressError(fmt::format("stage {} begins at {}, which has no parameters; those that do are {}",
                                           stage + 1, plan.stages[stage + 1].begins, fmt::join(model.order, ", ")));
    }
    const auto next = static_cast<size_t>(end - model.modules.begin());
    if (next <= at) throw CannotExpressError(fmt::format("stage {} has no module with parameters", stage));
    stages.emplace_back(model.modules.begin() + static_cast<ptrdiff_t>(at), end);
    at = next;
  }
  return stages;
}

std::vector<std::string> check_cuts(const Graph& step, const PlannedModel& model, const TrainingPlan& plan) {
  std::vector<std::string> tied;
  if (plan.stages.size() < 2) return tied;
  for (const std::string& outer : model.modules) {
    const auto inside = [&](const std::string& name) { return name != outer && lies_in(name, outer); };
    if (outer.empty() || std::ranges::any_of(model.modules, inside)) {
      throw CannotExpressError(
          fmt::format("{} has parameters of its own beside the modules in it, so no stage can be without it",
                      outer.empty() ? "the model" : outer));
    }
  }
  modules_of_stages(model, plan);
  std::vector<std::string> begins;
  for (const PlannedStage& stage : plan.stages) begins.push_back(stage.begins);
  begins.erase(begins.begin());
  const PipelineStages stages = PipelineStages::at_modules(step, begins);
  for (const TiedParameter& parameter : stages.tied()) tied.push_back(parameter.name);
  for (size_t stage = 1; stage < plan.stages.size(); ++stage) {
    const size_t tensors = stages.parts().stages[stage].received.size();
    if (tensors > 1) {
      throw CannotExpressError(
          fmt::format("{} tensors go to the stage that begins at {}: forward can be cut there only if the module is "
                      "given all of them as one",
                      tensors, plan.stages[stage].begins));
    }
  }
  return tied;
}

}  // namespace shadowgraph
