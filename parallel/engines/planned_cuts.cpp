#include <fmt/format.h>

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "parallel/engines/planned_model.h"
#include "shadowgraph/parallel/engines.h"
#include "shadowgraph/sharding/hand_plans.h"

namespace shadowgraph {
namespace {

bool calls(const Graph& step, NodeId node, std::string_view name) {
  return step.node(node).phase == Graph::kForward && step.target(node).name() == name;
}

void for_each_product(const Graph& step, ValueId weight, const auto& visit) {
  step.for_each_use(weight, [&](NodeId user) {
    if (calls(step, user, "aten::mm") || calls(step, user, "aten::addmm")) visit(user);
  });
}

// [inputs, outputs] as transformers' Conv1D has it, and not as nn.Linear.
bool is_transposed(const Graph& step, ValueId weight) {
  bool found = false;
  for_each_product(step, weight, [&](NodeId) { found = true; });
  return found;
}

[[noreturn]] void refuse_fused(const std::string& module, const std::string& why) {
  throw CannotExpressError(
      fmt::format("{} has queries, keys and values in one, and {}: use a model with a layer for "
                  "each, or plan with --tensor 1",
                  with_star(module), why));
}

// Throws for a layer whose output is not split into three equal parts.
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
        refuse_fused(module, fmt::format("{} takes them, where a script knows split and chunk into three equal parts",
                                         step.target(user).name()));
      }
    });
  }
  if (!split) refuse_fused(module, "they are not split");
}

// How wide heads are in attention, by the module that calls it. Attention that is written out is not there.
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
  LinearCut cut = LinearCut::kNone;
  bool fused = false, transposed = false, divides = false;
};

std::string style_of(const Linear& linear, bool columns, bool rows) {
  const bool is_columns = linear.cut == LinearCut::kColumns;
  if ((linear.fused || linear.transposed) && !(columns && rows)) {
    throw CannotExpressError(
        fmt::format("{} is cut without its other half, which a script does for nn.Linear alone: plan with --tensor 1",
                    with_star(linear.module)));
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
    linear.cut = linear_cut(linear.module);
    if (linear.cut == LinearCut::kNone || parameter.sizes.size() != 2 || !parameter.name.ends_with(".weight")) continue;
    const ValueId weight = step.results(parameter.node)[0].ref.value;
    const std::string parent = module_above(linear.module);
    linear.transposed = is_transposed(step, weight);
    linear.fused = linear.module.ends_with("c_attn") || linear.module.ends_with("in_proj");
    int64_t size = parameter.sizes[(linear.cut == LinearCut::kColumns) != linear.transposed ? 0 : 1];
    if (linear.fused) {
      if (size % 3 != 0) refuse_fused(linear.module, "they are no three equal parts");
      check_thirds(step, linear.module, weight, size / 3);
      if (!widths.contains(parent)) {
        refuse_fused(linear.module, "no scaled_dot_product_attention is called beside it");
      }
      if (size % (3 * widths.at(parent)) != 0) refuse_fused(linear.module, "attention sees heads of another width");
      size /= 3 * widths.at(parent);
    }
    linear.divides = size % tensor == 0;
    by_parent[parent].push_back(linear);
  }
  for (const auto& [parent, linears] : by_parent) {
    if (!std::ranges::all_of(linears, &Linear::divides)) continue;
    const auto is_columns = [](const Linear& linear) { return linear.cut == LinearCut::kColumns; };
    const bool columns = std::ranges::any_of(linears, is_columns);
    const bool rows = !std::ranges::all_of(linears, is_columns);
    for (const Linear& linear : linears) {
      cuts.styles[with_star(linear.module)] = style_of(linear, columns, rows);
      if (linear.fused) cuts.widths[with_star(parent)] = widths.at(parent);
    }
  }
  return cuts;
}

}  // namespace shadowgraph
