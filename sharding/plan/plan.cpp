#include "shadowgraph/sharding/plan.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>

#include "shadowgraph/text.h"
#include "sharding/plan/node_strategies.h"

namespace shadowgraph {

namespace {

constexpr const char* kPlanFormat = "shadowgraph-sharding-plan";
constexpr int kPlanVersion = 1;

nlohmann::json texts_of(std::span<const Layout> layouts) {
  nlohmann::json texts = nlohmann::json::array();
  for (const Layout& layout : layouts) texts.push_back(to_string(layout));
  return texts;
}

[[noreturn]] void refuse_plan(const std::string& why) { throw ParseError("sharding plan: " + why, 0, 0); }

const nlohmann::json& member_of(const nlohmann::json& object, const char* key, nlohmann::json::value_t type) {
  const auto found = object.find(key);
  const bool number = type == nlohmann::json::value_t::number_integer;
  if (found == object.end() || (number ? !found->is_number_integer() : found->type() != type)) {
    refuse_plan(fmt::format("\"{}\" is missing or of another type", key));
  }
  return *found;
}

std::vector<Layout> layouts_in(const nlohmann::json& texts, size_t count, const DeviceMesh& mesh,
                               const std::string& where) {
  std::vector<Layout> layouts;
  for (const nlohmann::json& text : texts) {
    if (!text.is_string()) refuse_plan(where + " has a layout that is no text");
    try {
      layouts.push_back(Layout::parse(text.get<std::string>()));
    } catch (const Error& error) {
      refuse_plan(fmt::format("{}: {}", where, error.what()));
    }
    if (layouts.back().size() != mesh.axes.size()) {
      refuse_plan(fmt::format("{}: {} is no layout on {}", where, text.get<std::string>(), mesh.to_string()));
    }
  }
  if (layouts.size() != count) {
    refuse_plan(fmt::format("{} has {} tensors, the plan has {} layouts for them", where, count, layouts.size()));
  }
  return layouts;
}

}  // namespace

nlohmann::json to_json(const ShardingPlan& plan, const Graph& graph) {
  nlohmann::json json{{"format", kPlanFormat}, {"version", kPlanVersion}};
  for (const MeshAxis& axis : plan.mesh.axes) json["mesh"].push_back({{"name", axis.name}, {"size", axis.size}});
  json["nodes"] = nlohmann::json::array();
  const Numbering numbering = Numbering::of(graph);
  for (const NodeId node : graph.nodes()) {
    const NodeLayouts& layouts = plan.nodes[node];
    if (layouts.operands.empty() && layouts.results.empty()) continue;
    json["nodes"].push_back({{"node", numbering.of(node)},
                             {"name", graph.target(node).name()},
                             {"operands", texts_of(layouts.operands)},
                             {"results", texts_of(layouts.results)}});
  }
  return json;
}

ShardingPlan sharding_plan_from_json(const nlohmann::json& json, const Graph& graph) {
  using Type = nlohmann::json::value_t;
  if (!json.is_object() || json.value("format", "") != kPlanFormat) refuse_plan("this is none");
  if (member_of(json, "version", Type::number_integer) != kPlanVersion) {
    refuse_plan(fmt::format("of another version than {}", kPlanVersion));
  }
  ShardingPlan plan;
  std::string mesh;
  for (const nlohmann::json& axis : member_of(json, "mesh", Type::array)) {
    if (!axis.is_object()) refuse_plan("an axis of the mesh is no object");
    mesh += fmt::format("{}{}={}", mesh.empty() ? "" : ",", member_of(axis, "name", Type::string).get<std::string>(),
                        member_of(axis, "size", Type::number_integer).get<int64_t>());
  }
  plan.mesh = DeviceMesh::parse(mesh);
  const Numbering numbering = Numbering::of(graph);
  for (const nlohmann::json& entry : member_of(json, "nodes", Type::array)) {
    if (!entry.is_object()) refuse_plan("a node is no object");
    const int64_t number = member_of(entry, "node", Type::number_integer).get<int64_t>();
    const std::string name = member_of(entry, "name", Type::string).get<std::string>();
    if (number < 0 || number >= static_cast<int64_t>(numbering.nodes().size())) {
      refuse_plan(fmt::format("n{} is not in the graph", number));
    }
    const NodeId node = numbering.nodes()[static_cast<size_t>(number)];
    const std::string where = fmt::format("n{} {}", number, name);
    if (graph.target(node).name() != name) {
      refuse_plan(fmt::format("{} is {} in this graph", where, graph.target(node).name()));
    }
    const NodeTensors tensors = NodeTensors::of(graph, node);
    plan.nodes[node] = {
        layouts_in(member_of(entry, "operands", Type::array), tensors.operands.size(), plan.mesh, where),
        layouts_in(member_of(entry, "results", Type::array), tensors.results.size(), plan.mesh, where)};
  }
  for (const NodeId node : graph.nodes()) {
    const NodeTensors tensors = NodeTensors::of(graph, node);
    const NodeLayouts& layouts = std::as_const(plan.nodes)[node];
    if (tensors.operands.size() != layouts.operands.size() || tensors.results.size() != layouts.results.size()) {
      refuse_plan(fmt::format("n{} {} is not in it", numbering.of(node), graph.target(node).name()));
    }
  }
  return plan;
}

std::vector<PlannedCopy> copies_of(const Graph& graph, const ShardingPlan& plan, const RedistributionPlanner& planner) {
  std::map<std::tuple<ValueId, uint32_t, std::string>, bool> made;
  IdMap<ValueId, const Layout*> layout_of;
  std::vector<PlannedCopy> copies;
  for (const NodeId node : graph.nodes()) {
    const NodeTensors tensors = NodeTensors::of(graph, node);
    const NodeLayouts& layouts = plan.nodes[node];
    const PhaseId phase = phase_of_copies(graph, node);
    for (size_t i = 0; i < tensors.operands.size(); ++i) {
      const ValueId value = tensors.operands[i];
      const Layout* from = std::as_const(layout_of)[value];
      if (from == nullptr || *from == layouts.operands[i]) continue;
      if (!made.try_emplace({value, phase.index, to_string(layouts.operands[i])}).second) continue;
      PlannedCopy copy{.value = value, .phase = phase, .from = *from, .to = layouts.operands[i], .before = node};
      copy.way = planner.way(graph.sizes(value), static_cast<int64_t>(c10::elementSize(graph.value(value).dtype)),
                             copy.from, copy.to);
      if (!copy.way.possible) {
        throw Error(fmt::format("{} cannot get an operand as {} that lies as {}", graph.target(node).name(),
                                to_string(copy.to), to_string(copy.from)));
      }
      copies.push_back(std::move(copy));
    }
    for (size_t i = 0; i < tensors.results.size(); ++i) layout_of[tensors.results[i]] = &layouts.results[i];
  }
  return copies;
}

}  // namespace shadowgraph
