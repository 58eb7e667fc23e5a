#include "parallel/export/planned_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "ir/analysis/module_tree.h"
#include "ir/analysis/operand_source.h"
#include "parallel/plan/layer_chain.h"
#include "parallel/stages/forward_line.h"
#include "parallel/stages/stage_parts.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/shard/problem.h"
#include "sharding/ranks/ranks.h"

namespace shadowgraph {

// Returns the layer that contains a module, or the module itself.
static std::string entry_of(const std::string& module) {
  const auto [at, length] = number_in_path(module);
  return length > 0 ? module.substr(0, at + length) : module;
}

static bool is_in(const std::string& path, const std::string& module) {
  if (module.empty()) return true;
  return path.starts_with(module) && (path.size() == module.size() || path[module.size()] == '.');
}

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

void check_megatron_layout(const TrainingPlan& plan, std::string_view engine) {
  if (plan.layout == TensorParallelLayout::kMegatron) return;
  throw UnsupportedError(fmt::format(
      "{} uses its own tensor-parallel layouts: plan with --layout megatron, or apply parameter_layouts.json with "
      "`shadowgraph shard`",
      engine));
}

void check_no_curve(const TrainingPlan& plan, std::string_view engine) {
  if (plan.in_part.empty()) return;
  throw UnsupportedError(
      fmt::format("{} cannot keep individual results of a layer: plan with --recompute selective,full", engine));
}

void check_no_offload(const TrainingPlan& plan, std::string_view engine) {
  if (plan.offloaded.empty()) return;
  throw UnsupportedError(
      fmt::format("{} cannot offload activations: plan without --offload, or with --offload optimizer", engine));
}

void note_offload(const TrainingPlan& plan, std::vector<std::string>& differs) {
  if (!plan.optimizer_on_host) return;
  differs.emplace_back("optimizer offload: FSDP2 copies parameters in float32 whenever they are gathered");
  if (plan.zero >= 2 && plan.pipeline == 1 && plan.microbatches > 1) {
    differs.emplace_back("optimizer offload: gradients of each micro-batch are copied to CPU and accumulated there");
  }
}

void note_zero(const TrainingPlan& plan, std::vector<std::string>& differs, std::string_view more) {
  if (plan.zero != 1 && plan.zero != 2) return;
  differs.push_back(
      fmt::format("ZeRO {}: FSDP2 with parameters that stay unsharded from forward to backward{}", plan.zero, more));
}

void note_batch(const TrainingPlan& plan, const PlanExportOptions& request, std::vector<std::string>& differs) {
  if (request.batch == 0 || samples_of(plan) <= request.batch) return;
  differs.push_back(
      fmt::format("batch: {} samples per step, since {} do not divide evenly", samples_of(plan), request.batch));
}

int64_t samples_of(const TrainingPlan& plan) { return plan.data * plan.micro_batch * plan.microbatches; }

bool is_layer(const std::string& module) {
  const auto [at, length] = number_in_path(module);
  return length > 0 && at + length == module.size();
}

std::string with_wildcard(const std::string& path) {
  const auto [at, length] = number_in_path(path);
  return length > 0 ? path.substr(0, at) + "*" + path.substr(at + length) : path;
}

PlannedModel PlannedModel::of(const Graph& step) {
  std::set<std::string> entries;
  for (const PlannedParameter& parameter : parameters_of(step)) {
    const std::string owner = module_above(parameter.name);
    entries.insert(entry_of(owner));
    // A head that is tied to the embedding also counts.
    step.for_each_use(step.results(parameter.node)[0].ref.value, [&](NodeId user) {
      const std::string module = module_path(step, user);
      if (step.node(user).phase == Graph::kForward && !is_in(owner, module)) entries.insert(entry_of(module));
    });
  }
  const ProgramCosts costs(step);
  const ForwardLine line(costs);
  PlannedModel model;
  const auto add = [](std::vector<std::string>& names, const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (int32_t i = 0; i < line.length(); ++i) {
    // The innermost entry, since "model" may also have a parameter.
    std::string entry = entry_of(module_path(step, line.node(i)));
    while (!entry.empty() && !entries.contains(entry)) entry = module_above(entry);
    if (!entries.contains(entry)) continue;
    add(model.modules, entry);
    add(model.order, with_wildcard(entry));
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
      throw UnsupportedError(fmt::format("stage {} begins at {}, which has no parameters; it must begin at one of {}",
                                         stage + 1, plan.stages[stage + 1].begins, fmt::join(model.order, ", ")));
    }
    const auto next = static_cast<size_t>(end - model.modules.begin());
    if (next <= at) throw UnsupportedError(fmt::format("stage {} has no module with parameters", stage));
    stages.emplace_back(model.modules.begin() + static_cast<ptrdiff_t>(at), end);
    at = next;
  }
  return stages;
}

std::vector<std::string> check_cuts(const Graph& step, const PlannedModel& model, const TrainingPlan& plan) {
  std::vector<std::string> tied;
  if (plan.stages.size() < 2) return tied;
  for (const std::string& outer : model.modules) {
    const auto inside = [&](const std::string& name) { return name != outer && is_in(name, outer); };
    if (outer.empty() || std::ranges::any_of(model.modules, inside)) {
      throw UnsupportedError(
          fmt::format("{} has direct parameters besides its submodules, so it cannot be split over stages",
                      outer.empty() ? "the model" : outer));
    }
  }
  modules_of_stages(model, plan);
  std::vector<std::string> begins;
  for (size_t stage = 1; stage < plan.stages.size(); ++stage) begins.push_back(plan.stages[stage].begins);
  const PipelineStages stages = PipelineStages::at_modules(step, begins);
  for (const TiedParameter& parameter : stages.tied()) tied.push_back(parameter.name);
  for (size_t stage = 1; stage < plan.stages.size(); ++stage) {
    const size_t tensors = stages.parts().stages[stage].received.size();
    if (tensors > 1) {
      throw UnsupportedError(
          fmt::format("{} tensors are passed to the stage that begins at {}: it can begin there only if the module "
                      "takes a single tensor",
                      tensors, plan.stages[stage].begins));
    }
  }
  return tied;
}

namespace {

bool calls(const Graph& step, NodeId node, std::string_view name) {
  return step.node(node).phase == Graph::kForward && step.target(node).name() == name;
}

void for_each_product(const Graph& step, ValueId weight, const auto& visit) {
  step.for_each_use(weight, [&](NodeId user) {
    if (calls(step, user, "aten::mm") || calls(step, user, "aten::addmm")) visit(user);
  });
}

// Returns whether the weight has the shape [inputs, outputs], as in transformers' Conv1D, unlike nn.Linear.
bool is_transposed(const Graph& step, ValueId weight) {
  bool found = false;
  for_each_product(step, weight, [&](NodeId) { found = true; });
  return found;
}

[[noreturn]] void refuse_fused(const std::string& module, const std::string& why) {
  throw UnsupportedError(fmt::format(
      "{} has fused queries, keys and values, and {}: use a model with separate layers, or plan with --tensor 1",
      with_wildcard(module), why));
}

// Throws UnsupportedError unless the layer's output is split into three equal parts.
void check_thirds(const Graph& step, const std::string& module, ValueId weight, int64_t third) {
  std::vector<ValueId> outputs;
  const auto add = [&](NodeId product) { outputs.push_back(step.results(product)[0].ref.value); };
  for_each_product(step, weight, add);
  step.for_each_use(weight, [&](NodeId user) {
    if (calls(step, user, "aten::t")) for_each_product(step, step.results(user)[0].ref.value, add);
  });
  bool split = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    step.for_each_use(outputs[i], [&](NodeId user) {
      if (step.node(user).phase != Graph::kForward) return;
      int64_t thirds = 0, others = 0;
      ValueId whole;
      step.for_each_output(user, [&](ValueId value) {
        const int64_t size = step.sizes(value).back();
        (size == third ? thirds : others) += 1;
        if (size == 3 * third) whole = value;
      });
      if (thirds == 3 && others == 0) {
        split = true;
      } else if (whole.valid() && step.facts(user).is_view) {
        outputs.push_back(whole);
      } else {
        refuse_fused(module, fmt::format("{} uses them, but only split and chunk into three equal parts are supported",
                                         step.target(user).name()));
      }
    });
  }
  if (!split) refuse_fused(module, "they are not split");
}

// Head size by the module that calls scaled_dot_product_attention. Unfused attention is not included.
std::map<std::string, int64_t> widths_of_heads(const Graph& step) {
  std::map<std::string, int64_t> widths;
  for (const NodeId node : step.nodes()) {
    if (step.is_placeholder(node) || step.node(node).phase != Graph::kForward) continue;
    if (step.target(node).name().find("scaled_dot_product") == std::string::npos) continue;
    const Argument* query = step.find_argument(node, "query");
    if (query != nullptr) widths[module_path(step, node)] = step.sizes(query->ref.value).back();
  }
  return widths;
}

struct Linear {
  std::string module;
  LinearSharding cut = LinearSharding::kNone;
  bool fused = false, transposed = false, divides = false;
};

std::string style_of(const Linear& linear, bool columns, bool rows) {
  const bool is_columns = linear.cut == LinearSharding::kColumns;
  if ((linear.fused || linear.transposed) && !(columns && rows)) {
    throw UnsupportedError(fmt::format(
        "{} is sharded without its counterpart, which is supported only for nn.Linear: plan with --tensor 1",
        with_wildcard(linear.module)));
  }
  if (linear.fused) return "columns of three";
  if (linear.transposed) return is_columns ? "columns of Conv1D" : "rows of Conv1D";
  return is_columns ? (rows ? "columns" : "columns, gathered") : (columns ? "rows" : "rows of a whole input");
}

}  // namespace

LinearCuts linear_cuts(const Graph& step, int64_t tensor) {
  LinearCuts cuts;
  if (tensor == 1) return cuts;
  std::map<std::string, std::vector<Linear>> by_parent;
  const std::map<std::string, int64_t> widths = widths_of_heads(step);
  for (const PlannedParameter& parameter : parameters_of(step)) {
    Linear linear{.module = module_above(parameter.name)};
    linear.cut = linear_sharding(linear.module);
    if (linear.cut == LinearSharding::kNone || parameter.sizes.size() != 2 || !parameter.name.ends_with(".weight"))
      continue;
    const ValueId weight = step.results(parameter.node)[0].ref.value;
    const std::string parent = module_above(linear.module);
    linear.transposed = is_transposed(step, weight);
    linear.fused = linear.module.ends_with("c_attn") || linear.module.ends_with("in_proj");
    int64_t size = parameter.sizes[(linear.cut == LinearSharding::kColumns) != linear.transposed ? 0 : 1];
    if (linear.fused) {
      if (size % 3 != 0) refuse_fused(linear.module, "they are not three equal parts");
      check_thirds(step, linear.module, weight, size / 3);
      if (!widths.contains(parent)) {
        refuse_fused(linear.module, "its module does not call scaled_dot_product_attention");
      }
      if (size % (3 * widths.at(parent)) != 0) refuse_fused(linear.module, "attention uses another head size");
      size /= 3 * widths.at(parent);
    }
    linear.divides = size % tensor == 0;
    by_parent[parent].push_back(linear);
  }
  for (const auto& [parent, linears] : by_parent) {
    if (!std::ranges::all_of(linears, &Linear::divides)) continue;
    const auto is_columns = [](const Linear& linear) { return linear.cut == LinearSharding::kColumns; };
    const bool columns = std::ranges::any_of(linears, is_columns);
    const bool rows = !std::ranges::all_of(linears, is_columns);
    for (const Linear& linear : linears) {
      cuts.styles[with_wildcard(linear.module)] = style_of(linear, columns, rows);
      if (linear.fused) cuts.widths[with_wildcard(parent)] = widths.at(parent);
    }
  }
  return cuts;
}

namespace {

struct ExpertModule {
  std::vector<NodeId> products;
  std::set<NodeId> parameters;
};

using ExpertModules = std::map<std::string, ExpertModule>;

ExpertModules expert_modules(const Graph& step) {
  ExpertModules modules;
  for (const NodeId node : nodes_calling(step, "aten::_grouped_mm")) {
    if (step.node(node).phase != Graph::kForward) continue;
    ExpertModule& module = modules[module_path(step, node)];
    module.products.push_back(node);
    module.parameters.insert(
        parameter_of_operand(step, step.find_argument(node, "mat2")->ref.value, LookThrough::kViews));
  }
  return modules;
}

// Checks that the module's matmuls can run on the ranks of the experts: operators between them must only use rows of
// experts, and all matmuls except the last must read the rows that are sent.
void check_chain(const Graph& step, const std::string& name, const ExpertModule& module, int64_t rows) {
  const auto refuse = [&](const std::string& why) {
    throw UnsupportedError(fmt::format(
        "{} {}: experts must be two grouped matmuls, or three of which two read the same rows; plan with --experts 1",
        name, why));
  };
  const auto operand = [&](NodeId node, const char* argument) { return step.find_argument(node, argument)->ref.value; };
  const NodeId last = module.products.back();
  std::set<NodeId> there;  // forward nodes that run on the ranks of the experts
  for (const NodeId node : module.products) {
    if (operand(node, "offs") != operand(last, "offs")) refuse("has matmuls with different groups");
    if (node == last) continue;
    if (operand(node, "self") != operand(module.products.front(), "self"))
      refuse("has more than two matmuls in sequence");
    there.insert(node);
  }
  const auto is_there = [&](ValueId value) { return there.contains(step.value(value).producer); };
  const auto is_rows = [&](ValueId value) { return !step.sizes(value).empty() && step.sizes(value)[0] == rows; };
  for (NodeId node = module.products.front(); node != last; node = step.node(node).next) {
    if (there.contains(node) || step.node(node).phase != Graph::kForward) continue;
    bool some = false, all = true;
    step.for_each_input(node, [&](ValueId value) {
      some |= is_there(value);
      all &= is_there(value) || !is_rows(value);
    });
    if (!some) continue;
    if (!all || module_path(step, node).rfind(name, 0) != 0) {
      refuse(fmt::format("computes {} on rows of tokens between its matmuls", step.target(node).name()));
    }
    there.insert(node);
  }
  if (module.products.size() > 1 && !is_there(operand(last, "self")))
    refuse("has a last matmul that reads rows of tokens");
  for (const NodeId node : there) {
    step.for_each_output(node, [&](ValueId value) {
      step.for_each_use(value, [&](NodeId user) {
        if (step.node(user).phase != Graph::kForward || user == last || there.contains(user)) return;
        refuse(fmt::format("passes intermediate results between its matmuls to {}", step.target(user).name()));
      });
    });
  }
}

}  // namespace

std::map<std::string, int64_t> grouped_products(const Graph& step, int64_t ranks) {
  std::map<std::string, int64_t> products;
  if (ranks == 1) return products;
  ExpertLayers layers;
  try {
    layers = expert_layers(step);
  } catch (const Error& error) {
    throw UnsupportedError(error.what());
  }
  if (layers.experts == 0) throw UnsupportedError("no module supports expert parallelism");
  if (layers.experts % ranks != 0) {
    throw UnsupportedError(
        fmt::format("{} experts do not divide by the expert-parallel degree {}", layers.experts, ranks));
  }
  const ExpertModules modules = expert_modules(step);
  for (const auto& [name, module] : modules) check_chain(step, name, module, layers.rows);
  for (const PlannedParameter& parameter : parameters_of(step)) {
    const auto owner = modules.find(module_above(parameter.name));
    const auto has = [&](const auto& module) { return module.second.parameters.contains(parameter.node); };
    if (owner == modules.end() ? std::ranges::none_of(modules, has) : has(*owner)) continue;
    throw UnsupportedError(
        fmt::format("parameter {}: a module with grouped matmuls must have the experts' weights, and only these, as "
                    "direct parameters",
                    parameter.name));
  }
  for (const auto& [name, module] : modules) {
    int64_t& count = products[with_wildcard(name)];
    const auto here = static_cast<int64_t>(module.products.size());
    if (count > 0 && count != here) {
      throw UnsupportedError(
          fmt::format("{} have different numbers of grouped matmuls: {} and {}", with_wildcard(name), count, here));
    }
    count = here;
  }
  return products;
}

}  // namespace shadowgraph
