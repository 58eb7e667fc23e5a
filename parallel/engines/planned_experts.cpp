#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ir/analysis/module_tree.h"
#include "ir/analysis/operand_source.h"
#include "parallel/engines/planned_model.h"
#include "shadowgraph/parallel/engines.h"
#include "shadowgraph/sharding/expert_ranks.h"

namespace shadowgraph {
namespace {

// The grouped products of a module's forward, in order.
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
    module.parameters.insert(parameter_behind(step, step.find_argument(node, "mat2")->ref.value, Behind::kViews));
  }
  return modules;
}

// Rows of tokens are computed with where they are, and rows of experts where these are: what lies between products has
// nothing of the former. All products but the last are of the rows that are sent.
void check_chain(const Graph& step, const std::string& name, const ExpertModule& module, int64_t rows) {
  const auto refuse = [&](const std::string& why) {
    throw CannotExpressError(
        fmt::format("{} {}: the script's experts are two products, or three of which two are of "
                    "the same rows; plan with --experts 1",
                    name, why));
  };
  const auto operand = [&](NodeId node, const char* argument) { return step.find_argument(node, argument)->ref.value; };
  const NodeId last = module.products.back();
  std::set<NodeId> there;  // forward nodes that are computed where the experts are
  for (const NodeId node : module.products) {
    if (operand(node, "offs") != operand(last, "offs")) refuse("has products of rows in other groups");
    if (node == last) continue;
    if (operand(node, "self") != operand(module.products.front(), "self")) refuse("has products one behind another");
    there.insert(node);
  }
  const auto is_there = [&](ValueId value) { return there.contains(step.value(value).producer); };
  const auto is_rows = [&](ValueId value) {
    const auto sizes = step.sizes(value);
    return !sizes.empty() && sizes[0] == rows;
  };
  for (NodeId node = module.products.front(); node != last; node = step.node(node).next) {
    if (there.contains(node) || step.node(node).phase != Graph::kForward) continue;
    bool some = false, all = true;
    step.for_each_input(node, [&](ValueId value) {
      some |= is_there(value);
      all &= is_there(value) || !is_rows(value);
    });
    if (!some) continue;
    if (!all || module_path(step, node).rfind(name, 0) != 0) {
      refuse(fmt::format("computes {} with rows of tokens between its products", step.target(node).name()));
    }
    there.insert(node);
  }
  if (module.products.size() > 1 && !is_there(operand(last, "self"))) refuse("has a last product of rows of tokens");
  for (const NodeId node : there) {
    step.for_each_output(node, [&](ValueId value) {
      step.for_each_use(value, [&](NodeId user) {
        if (step.node(user).phase != Graph::kForward || user == last || there.contains(user)) return;
        refuse(fmt::format("gives {} what lies between its products", step.target(user).name()));
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
    throw CannotExpressError(error.what());
  }
  if (layers.experts == 0) throw CannotExpressError("no module has experts that could be on several ranks");
  if (layers.experts % ranks != 0) {
    throw CannotExpressError(fmt::format("{} experts do not divide by {} ranks", layers.experts, ranks));
  }
  const ExpertModules modules = expert_modules(step);
  for (const auto& [name, module] : modules) check_chain(step, name, module, layers.rows);
  for (const PlannedParameter& parameter : parameters_of(step)) {
    const auto owner = modules.find(module_above(parameter.name));
    const auto has = [&](const auto& module) { return module.second.parameters.contains(parameter.node); };
    if (owner == modules.end() ? std::ranges::none_of(modules, has) : has(*owner)) continue;
    throw CannotExpressError(
        fmt::format("{} and the module whose forward has the grouped products: experts' weights, and nothing else, are "
                    "parameters of that module in a script",
                    parameter.name));
  }
  for (const auto& [name, module] : modules) {
    int64_t& count = products[with_star(name)];
    const auto here = static_cast<int64_t>(module.products.size());
    if (count > 0 && count != here) {
      throw CannotExpressError(fmt::format("{} have {} grouped products and {}", with_star(name), count, here));
    }
    count = here;
  }
  return products;
}

}  // namespace shadowgraph
