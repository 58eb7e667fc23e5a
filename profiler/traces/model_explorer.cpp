#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/profile/traces.h"

namespace shadowgraph {
namespace {

using nlohmann::json;

std::string shape_of(const Graph& graph, ValueId value) {
  if (graph.value(value).kind != ValueKind::kTensor) return "number";
  return fmt::format("{}[{}]", dtype_word(graph.value(value).dtype), fmt::join(graph.sizes(value), ","));
}

json pair_of(const std::string& key, const std::string& value) { return {{"key", key}, {"value", value}}; }

}  // namespace

// Writes the adapter format of github.com/google-ai-edge/model-explorer ("Develop adapter extension"): graphs of nodes
// with slash-separated namespaces, incoming edges by node and output index, and output metadata.
json model_explorer(const Profile& profile) {
  const Graph& graph = profile.graph();
  const auto order = program_order(graph);
  json nodes = json::array();
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    std::string space = graph.phase_name(node.phase);
    if (std::string path = module_path(graph, id); !path.empty()) {
      std::replace(path.begin(), path.end(), '.', '/');
      space += (space.empty() ? "" : "/") + path;
    }
    std::string label = graph.target(id).name();
    if (const std::string name = placeholder_name(graph, id); !name.empty()) label += " " + name;
    json attributes = json::array();
    if (node.source.valid()) attributes.push_back(pair_of("source", graph.text(node.source)));
    if (profile.of(id).matmul > 0) attributes.push_back(pair_of("FLOPs", human_count(profile.of(id).matmul)));
    if (profile.time() != nullptr && profile.time()->of(id).seconds > 0) {
      attributes.push_back(pair_of("time", human_seconds(profile.time()->of(id).seconds)));
    }
    attributes.push_back(pair_of("live bytes", human_bytes(profile.timeline().total(order[id]))));
    json incoming = json::array();
    int64_t input = 0;
    graph.for_each_input(id, [&](ValueId value) {
      const NodeId maker = graph.value(value).producer;
      if (!maker.valid()) return;
      int64_t output = 0, found = 0;
      graph.for_each_output(maker, [&](ValueId made) {
        if (made == value) found = output;
        ++output;
      });
      incoming.push_back({{"sourceNodeId", std::to_string(order[maker])},
                          {"sourceNodeOutputId", std::to_string(found)},
                          {"targetNodeInputId", std::to_string(input++)}});
    });
    json outputs = json::array();
    int64_t output = 0;
    graph.for_each_output(id, [&](ValueId value) {
      outputs.push_back(
          {{"id", std::to_string(output++)}, {"attrs", {pair_of("tensor_shape", shape_of(graph, value))}}});
    });
    nodes.push_back({{"id", std::to_string(order[id])},
                     {"label", label},
                     {"namespace", space},
                     {"attrs", std::move(attributes)},
                     {"incomingEdges", std::move(incoming)},
                     {"outputsMetadata", std::move(outputs)}});
  }
  return {{"label", profile.model.value_or("graph")},
          {"graphs", {{{"id", profile.model.value_or("graph")}, {"nodes", std::move(nodes)}}}}};
}

}  // namespace shadowgraph
