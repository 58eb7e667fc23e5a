#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "sharding/plan/problem_builder.h"
#include "sharding/plan/problem_nodes.h"
#include "support/suggestion.h"

namespace shadowgraph {

ShardingProblem::ShardingProblem() = default;
ShardingProblem::~ShardingProblem() = default;
ShardingProblem::ShardingProblem(ShardingProblem&&) noexcept = default;
ShardingProblem& ShardingProblem::operator=(ShardingProblem&&) noexcept = default;

static std::vector<NodeId> nodes_of_pin(const Graph& graph, const ShardingPin& pin, const DeviceMesh& mesh) {
  if (pin.layout.size() != mesh.axes.size()) {
    throw Error(fmt::format("pin {}={} does not match mesh {}", pin.name, to_string(pin.layout), mesh.to_string()));
  }
  std::vector<NodeId> nodes = pin.node.valid() ? std::vector{pin.node} : nodes_named(graph, pin.name);
  if (nodes.empty()) {
    std::vector<std::string> names;
    for (const NodeId node : graph.nodes()) {
      if (graph.is_placeholder(node)) names.push_back(placeholder_name(graph, node));
    }
    const std::string near = closest(pin.name, names);
    throw Error(fmt::format("pin {}={}: no placeholder or node has this name{}", pin.name, to_string(pin.layout),
                            near.empty() ? near : fmt::format(" (did you mean {}?)", near)));
  }
  return nodes;
}

// Puts pinned nodes into separate classes, since a pin may cover only part of a class.
void ShardingProblemBuilder::split_pinned_classes() {
  if (options_.pins.empty()) return;
  for (const ShardingPin& pin : options_.pins) {
    std::map<uint32_t, uint32_t> split;
    for (const NodeId node : nodes_of_pin(graph_, pin, options_.mesh)) {
      const auto [at, is_new] = split.try_emplace(classes_.class_of[node], classes_.count);
      if (is_new) ++classes_.count;
      classes_.class_of[node] = at->second;
    }
  }
}

std::map<uint32_t, size_t> ShardingProblem::variables_of(std::span<const ShardingPin> pins) const {
  std::map<NodeId, size_t> pin_of;
  for (size_t p = 0; p < pins.size(); ++p) {
    for (const NodeId node : nodes_of_pin(*graph_, pins[p], mesh_)) pin_of[node] = p;
  }
  std::map<uint32_t, size_t> last;  // by variable
  for (const auto& [node, p] : pin_of) {
    const std::optional<uint32_t> variable = variable_of(node);
    if (!variable)
      throw Error(fmt::format("pin {}: the node has no tensors; pin a node with a tensor result", pins[p].name));
    const std::vector<NodeId>& alike = variables_[*variable].nodes;
    const auto same = [&](NodeId other) {
      const auto pin = pin_of.find(other);
      return pin != pin_of.end() && pins[pin->second].layout == pins[p].layout;
    };
    if (!std::ranges::all_of(alike, same)) {
      throw Error(
          fmt::format("pin {}={} covers only some of the {} nodes that share a variable ({}); pass it in the options "
                      "of the problem instead",
                      pins[p].name, to_string(pins[p].layout), alike.size(), assignment_.nodes[*variable].name));
    }
    last[*variable] = p;
  }
  return last;
}

AssignmentProblem ShardingProblem::pinned(std::span<const ShardingPin> pins) const {
  AssignmentProblem pinned = assignment_;
  for (const auto& [v, p] : variables_of(pins)) {
    const Variable& variable = variables_[v];
    AssignmentNode& node = pinned.nodes[v];
    std::vector<std::string> possible;
    bool found = false;
    for (uint32_t s = 0; s < node.costs.size(); ++s) {
      const Layout& layout = layouts_[variable.layout(s, variable.results > 0 ? variable.operands : 0)];
      if (layout == pins[p].layout) {
        found = true;
        continue;
      }
      node.costs[s] = kForbidden;
      if (std::ranges::find(possible, to_string(layout)) == possible.end()) possible.push_back(to_string(layout));
    }
    if (!found) {
      throw Error(fmt::format("pin {}={} is not possible; layouts of {}: {}", pins[p].name, to_string(pins[p].layout),
                              node.name, fmt::join(possible, "  ")));
    }
  }
  return pinned;
}

std::optional<uint32_t> ShardingProblem::variable_of(NodeId node) const {
  const uint32_t variable = variable_of_[node];
  if (variable == 0) return std::nullopt;
  return variable - 1;
}

std::vector<ShardingProblem::TensorOf> ShardingProblem::tensors_of(NodeId node) const {
  std::vector<TensorOf> tensors;
  const uint32_t number = variable_of_[node];
  if (number == 0) return tensors;
  const auto places = places_.find(node);
  if (places == places_.end()) {
    const Variable& variable = variables_[number - 1];
    for (uint32_t i = 0; i < variable.operands + variable.results; ++i) tensors.push_back({number - 1, i});
    return tensors;
  }
  size_t operands = 0;
  for (const Place& place : places->second) operands += place.operands.size();
  for (const Place& place : places->second) {
    tensors.resize(std::max(tensors.size(), operands + place.results.size()));
    const uint32_t own = static_cast<uint32_t>(place.operands.size());
    for (uint32_t i = 0; i < own; ++i) tensors[place.operands[i]] = {place.variable, i};
    for (uint32_t i = 0; i < place.results.size(); ++i) {
      const size_t at = operands + place.results[i];
      tensors.resize(std::max(tensors.size(), at + 1));
      tensors[at] = {place.variable, own + i};
    }
  }
  return tensors;
}

std::span<const NodeId> ShardingProblem::nodes_of(uint32_t variable) const { return variables_[variable].nodes; }

GraphLayouts ShardingProblem::plan(std::span<const uint32_t> choice) const {
  if (choice.size() != assignment_.nodes.size()) {
    throw Error(fmt::format("got {} choices for {} variables", choice.size(), assignment_.nodes.size()));
  }
  GraphLayouts plan;
  plan.mesh = mesh_;
  for (const NodeId node : graph_->nodes()) {
    const std::vector<TensorOf> tensors = tensors_of(node);
    const size_t operands = NodeTensors::of(*graph_, node).operands.size();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto [variable, tensor] = tensors[i];
      NodeLayouts& layouts = plan.nodes[node];
      (i < operands ? layouts.operands : layouts.results)
          .push_back(layouts_[variables_[variable].layout(choice[variable], tensor)]);
    }
  }
  return plan;
}

std::optional<std::vector<uint32_t>> ShardingProblem::choice_of(const GraphLayouts& plan) const {
  std::vector<std::optional<uint32_t>> found(variables_.size());
  for (const NodeId node : graph_->nodes()) {
    const std::vector<TensorOf> tensors = tensors_of(node);
    if (tensors.empty()) continue;
    const NodeLayouts& layouts = plan.nodes[node];
    const size_t operands = layouts.operands.size();
    if (operands + layouts.results.size() != tensors.size()) return std::nullopt;
    const auto lies = [&](size_t i) -> const Layout& {
      return i < operands ? layouts.operands[i] : layouts.results[i - operands];
    };
    std::map<uint32_t, std::vector<size_t>> of_variable;  // its tensors
    for (size_t i = 0; i < tensors.size(); ++i) of_variable[tensors[i].variable].push_back(i);
    for (const auto& [v, own] : of_variable) {
      const Variable& variable = variables_[v];
      const auto fits = [&](uint32_t strategy) {
        return std::ranges::all_of(
            own, [&](size_t i) { return layouts_[variable.layout(strategy, tensors[i].tensor)] == lies(i); });
      };
      if (found[v]) {
        if (!fits(*found[v])) return std::nullopt;
        continue;
      }
      const uint32_t count = static_cast<uint32_t>(assignment_.nodes[v].costs.size());
      for (uint32_t s = 0; s < count && !found[v]; ++s) {
        if (assignment_.nodes[v].costs[s] != kForbidden && fits(s)) found[v] = s;
      }
      if (!found[v]) return std::nullopt;
    }
  }
  // The other variables follow from their neighbors: copies from producers and users, other results from the first.
  std::vector<std::vector<AssignmentCost::Wide>> costs(variables_.size());
  for (size_t v = 0; v < found.size(); ++v) {
    if (!found[v]) costs[v].assign(assignment_.nodes[v].costs.size(), 0);
  }
  for (const AssignmentEdge& edge : assignment_.edges) {
    const CostMatrix& matrix = assignment_.matrices[edge.matrix];
    for (const bool first : {true, false}) {
      const uint32_t open = first ? edge.a : edge.b;
      const uint32_t other = first ? edge.b : edge.a;
      if (found[open] || !found[other]) continue;
      for (uint32_t s = 0; s < costs[open].size(); ++s) {
        const int64_t cost = first ? matrix.at(s, *found[other]) : matrix.at(*found[other], s);
        costs[open][s] += AssignmentCost::Wide{cost} * edge.times;
      }
    }
  }
  std::vector<uint32_t> choice;
  for (size_t v = 0; v < found.size(); ++v) {
    choice.push_back(found[v] ? *found[v]
                              : static_cast<uint32_t>(std::ranges::min_element(costs[v]) - costs[v].begin()));
  }
  return choice;
}

ShardingProblem::Cost ShardingProblem::cost(std::span<const uint32_t> choice) const {
  Cost cost;
  for (size_t v = 0; v < assignment_.nodes.size(); ++v) {
    const AssignmentNode& node = assignment_.nodes[v];
    cost.compute += AssignmentCost::Wide{node.costs[choice[v]]} * node.times;
  }
  for (const AssignmentEdge& edge : assignment_.edges) {
    cost.communication +=
        AssignmentCost::Wide{assignment_.matrices[edge.matrix].at(choice[edge.a], choice[edge.b])} * edge.times;
  }
  return cost;
}

std::vector<Layout> ShardingProblem::layouts_of(NodeId placeholder) const {
  std::vector<Layout> layouts;
  const std::optional<uint32_t> number = variable_of(placeholder);
  if (!number) return layouts;
  const Variable& variable = variables_[*number];
  for (uint32_t s = 0; s < assignment_.nodes[*number].costs.size(); ++s) {
    layouts.push_back(layouts_[variable.layout(s, variable.operands)]);
  }
  return layouts;
}

std::vector<PlaceholderLayout> ShardingProblem::placeholders(const GraphLayouts& plan) const {
  std::vector<PlaceholderLayout> found;
  for (const NodeId node : graph_->nodes()) {
    if (!graph_->is_placeholder(node)) break;
    const NodeLayouts& layouts = plan.nodes[node];
    if (layouts.results.empty()) continue;
    const ValueId value = graph_->results(node)[0].ref.value;
    PlaceholderLayout tensor{.name = placeholder_name(*graph_, node),
                             .node = node,
                             .layout = layouts.results[0],
                             .bytes = graph_->logical_bytes(value)};
    tensor.local_bytes = tensor.bytes / parts_of(tensor.layout, mesh_);
    found.push_back(std::move(tensor));
  }
  return found;
}

}  // namespace shadowgraph
