#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <map>
#include <tuple>

#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/problem.h"
#include "sharding/plan/problem_nodes.h"
#include "sharding/solver/assignment.h"
#include "support/json.h"

namespace shadowgraph {
namespace {

constexpr const char* kPlanFormat = "shadowgraph-layouts";
constexpr int kPlanVersion = 1;

nlohmann::json layout_texts(std::span<const Layout> layouts) {
  nlohmann::json texts = nlohmann::json::array();
  for (const Layout& layout : layouts) texts.push_back(to_string(layout));
  return texts;
}

Layout layout_in(const JsonPlace& place, std::string_view problem) {
  const std::string& text = place.text();
  try {
    return Layout::parse(text);
  } catch (const Error& error) {
    place.fail(fmt::format("{}: {}", problem, error.what()));
  }
}

std::vector<Layout> layouts_in(const JsonPlace& texts, size_t count, const DeviceMesh& mesh) {
  if (texts.size() != count) {
    texts.fail(fmt::format("must have {} layouts, one for each tensor of the node, not {}", count, texts.size()));
  }
  std::vector<Layout> layouts;
  for (const JsonPlace& text : texts.elements()) {
    layouts.push_back(layout_in(text, "is invalid"));
    if (layouts.back().size() != mesh.axes.size())
      text.fail("does not have one placement per axis of mesh " + mesh.to_string());
  }
  return layouts;
}

constexpr const char* kSolutionFormat = "shadowgraph-assignment-solution";

std::vector<uint32_t> choice_in(const JsonPlace& list) {
  std::vector<uint32_t> choice;
  for (const JsonPlace& strategy : list.elements()) {
    choice.push_back(static_cast<uint32_t>(strategy.integer(0, std::numeric_limits<uint32_t>::max())));
  }
  return choice;
}

std::optional<AssignmentChoice> choice_of(const nlohmann::json& json, const std::string& name) {
  const JsonPlace place(json, name);
  if (place.is_list()) return AssignmentChoice{.choice = choice_in(place), .cost = "", .name = name};
  if (!place.is_object() || place.text_or("format", "") != kSolutionFormat) return std::nullopt;
  if (place["version"].integer() != 1)
    place["version"].fail(fmt::format("must be 1, not {}", place["version"].integer()));
  if (const auto why = place.find("why_infeasible"); why && !why->text().empty()) {
    throw Error(fmt::format("{} has no solution: {}", name, why->text()));
  }
  AssignmentChoice choice{.choice = choice_in(place["choice"]), .cost = place.text_or("cost", ""), .name = name};
  for (const char* unused : {"feasible", "optimal", "stopped", "lower_bound", "peak", "peak_at"}) place.find(unused);
  place.refuse_other_keys("a solution");
  return choice;
}

std::vector<ShardingPin> layouts_by_name(const JsonPlace& place) {
  std::vector<ShardingPin> pins;
  for (const auto& [name, layout] : place.members()) {
    if (!layout.is_text()) {
      layout.fail(
          fmt::format("must be a layout such as \"S(0),R\". Accepted files: a plan.json, a solution ({}), a list of "
                      "strategies, or layouts by name",
                      kSolutionFormat));
    }
    pins.push_back({.name = name, .layout = layout_in(layout, "is not a layout")});
  }
  if (pins.empty()) place.fail("must not be empty");
  return pins;
}

}  // namespace

nlohmann::json to_json(const GraphLayouts& plan, const Graph& graph) {
  nlohmann::json json{{"format", kPlanFormat}, {"version", kPlanVersion}};
  for (const MeshAxis& axis : plan.mesh.axes) json["mesh"].push_back({{"name", axis.name}, {"size", axis.size}});
  json["nodes"] = nlohmann::json::array();
  const Numbering numbering = Numbering::of(graph);
  for (const NodeId node : graph.nodes()) {
    const NodeLayouts& layouts = plan.nodes[node];
    if (layouts.operands.empty() && layouts.results.empty()) continue;
    json["nodes"].push_back({{"node", numbering.of(node)},
                             {"name", graph.target(node).name()},
                             {"operands", layout_texts(layouts.operands)},
                             {"results", layout_texts(layouts.results)}});
  }
  return json;
}

GraphLayouts graph_layouts_from_json(const nlohmann::json& json, const Graph& graph, const std::string& name) {
  const JsonPlace place(json, name);
  if (place["format"].text() != kPlanFormat)
    place["format"].fail(fmt::format("must be {}, not {}", kPlanFormat, place["format"].text()));
  if (place["version"].integer() != kPlanVersion)
    place["version"].fail(fmt::format("must be {}, not {}", kPlanVersion, place["version"].integer()));
  GraphLayouts plan;
  std::string mesh;
  for (const JsonPlace& axis : place["mesh"].elements()) {
    mesh += fmt::format("{}{}={}", mesh.empty() ? "" : ",", axis["name"].text(), axis["size"].integer());
    axis.refuse_other_keys("a mesh axis");
  }
  plan.mesh = DeviceMesh::parse(mesh);
  const Numbering numbering = Numbering::of(graph);
  for (const JsonPlace& entry : place["nodes"].elements()) {
    const auto number = static_cast<uint64_t>(entry["node"].integer());
    if (number >= numbering.nodes().size())
      entry["node"].fail(fmt::format("is {}, which is not in the graph", entry["node"].integer()));
    const NodeId node = numbering.nodes()[number];
    if (graph.target(node).name() != entry["name"].text()) {
      entry["name"].fail(
          fmt::format("is {}, but n{} is {} in this graph", entry["name"].text(), number, graph.target(node).name()));
    }
    const NodeTensors tensors = NodeTensors::of(graph, node);
    plan.nodes[node] = {layouts_in(entry["operands"], tensors.operands.size(), plan.mesh),
                        layouts_in(entry["results"], tensors.results.size(), plan.mesh)};
    entry.refuse_other_keys("a node");
  }
  place.refuse_other_keys("a sharding plan");
  for (const NodeId node : graph.nodes()) {
    const NodeTensors tensors = NodeTensors::of(graph, node);
    const NodeLayouts& layouts = std::as_const(plan.nodes)[node];
    if (tensors.operands.size() != layouts.operands.size() || tensors.results.size() != layouts.results.size()) {
      place["nodes"].fail(fmt::format("lacks n{} {}", numbering.of(node), graph.target(node).name()));
    }
  }
  return plan;
}

std::vector<LayoutChange> layout_changes(const Graph& graph, const GraphLayouts& plan,
                                         const RedistributionPlanner& planner) {
  std::map<std::tuple<ValueId, uint32_t, std::string>, bool> made;
  IdMap<ValueId, const Layout*> layout_of;
  std::vector<LayoutChange> copies;
  for (const NodeId node : graph.nodes()) {
    const NodeTensors tensors = NodeTensors::of(graph, node);
    const NodeLayouts& layouts = plan.nodes[node];
    const PhaseId phase = phase_of_layout_changes(graph, node);
    for (size_t i = 0; i < tensors.operands.size(); ++i) {
      const ValueId value = tensors.operands[i];
      const Layout* from = std::as_const(layout_of)[value];
      if (from == nullptr || *from == layouts.operands[i]) continue;
      if (!made.try_emplace({value, phase.index, to_string(layouts.operands[i])}).second) continue;
      LayoutChange copy{.value = value, .phase = phase, .from = *from, .to = layouts.operands[i], .before = node};
      copy.path = planner.path(graph.sizes(value), static_cast<int64_t>(c10::elementSize(graph.value(value).dtype)),
                               copy.from, copy.to);
      if (!copy.path.possible) {
        throw Error(fmt::format("{} needs an operand with layout {}, which cannot be made from {}",
                                graph.target(node).name(), to_string(copy.to), to_string(copy.from)));
      }
      copies.push_back(std::move(copy));
    }
    for (size_t i = 0; i < tensors.results.size(); ++i) layout_of[tensors.results[i]] = &layouts.results[i];
  }
  return copies;
}

AssignmentCost AssignmentChoice::of(const AssignmentProblem& problem) const {
  if (choice.size() != problem.nodes.size()) {
    throw Error(fmt::format("{} has choices for {} nodes, but the problem has {}; it belongs to another problem", name,
                            choice.size(), problem.nodes.size()));
  }
  for (size_t i = 0; i < choice.size(); ++i) {
    if (choice[i] < problem.nodes[i].costs.size()) continue;
    throw Error(fmt::format("{}: choice[{}] is {}, and {} has {} strategies", name, i, choice[i], problem.nodes[i].name,
                            problem.nodes[i].costs.size()));
  }
  const AssignmentCost found = evaluate(problem, choice);
  if (!found.allowed) throw Error(fmt::format("{} violates the problem's constraints", name));
  if (!cost.empty() && cost != text_of(found.cost)) {
    throw Error(fmt::format("{} states a cost of {}, but evaluates to {}; it belongs to another problem", name, cost,
                            text_of(found.cost)));
  }
  return found;
}

AssignmentChoice read_assignment_choice(std::string_view text, const std::string& name) {
  const nlohmann::json json = parse_json(text, name);
  if (auto choice = choice_of(json, name)) return std::move(*choice);
  throw ParseError(fmt::format("{}: expected a list of strategies or a {}", name, kSolutionFormat), 0, 0);
}

ImportedSolution read_solution(std::string_view text, const std::string& name, const Graph& graph) {
  const nlohmann::json json = parse_json(text, name);
  ImportedSolution answer;
  answer.choice = choice_of(json, name);
  if (answer.choice) return answer;
  const JsonPlace place(json, name);
  if (!place.is_object()) place.fail("must be an object or a list of strategies");
  if (place.find("format")) {
    answer.plan = graph_layouts_from_json(json, graph, name);
  } else {
    answer.layouts = layouts_by_name(place);
  }
  return answer;
}

}  // namespace shadowgraph
