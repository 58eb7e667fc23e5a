// Edits of single facts of nodes, values and storages, and what edits ask of the graph. Each first finds out whether it
// may, so that a throw leaves the graph as it was. Edits of uses, order and lives, in files beside this one, do the same.
#include <algorithm>

#include "ir/graph_editor.h"
#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

std::string Graph::Editor::describe(NodeId id) const { return "\n  " + to_text(graph_, id); }

// Uses come in the order in which they were made, and a node may use a value twice. Callers want each node once, in
// program order.
std::vector<NodeId> Graph::users_of(ValueId id) const {
  std::vector<NodeId> users;
  for_each_use(id, [&](NodeId n) { users.push_back(n); });
  std::sort(users.begin(), users.end(), [&](NodeId a, NodeId b) { return is_before(a, b); });
  users.erase(std::unique(users.begin(), users.end()), users.end());
  return users;
}

// Targets are asked once each, not nodes: a graph of a million nodes has a hundred targets.
std::vector<NodeId> nodes_calling(const Graph& graph, std::string_view name) {
  std::vector<bool> wanted(graph.target_count());
  for (uint32_t i = 0; i < graph.target_count(); ++i) {
    wanted[i] = stands_for(name, graph.target(TargetId(i)).name());
  }
  std::vector<NodeId> found;
  for (NodeId n : graph.nodes()) {
    if (wanted[graph.node(n).target.index]) found.push_back(n);
  }
  return found;
}

bool Graph::Editor::mentions(std::span<const Argument> arguments, ValueId id) const {
  bool found = false;
  graph_.for_each_value(arguments, [&](ValueId v) { found = found || v == id; });
  return found;
}

void Graph::set_region(NodeId id, RegionId region) {
  if (region.index >= region_count()) throw GraphEditError("no such region:" + Editor(*this).describe(id));
  nodes_[id.index].region = region;
}

void Graph::set_phase(NodeId id, PhaseId phase) {
  if (phase.index >= phase_count()) throw GraphEditError("no such phase:" + Editor(*this).describe(id));
  nodes_[id.index].phase = phase;
}

void Graph::set_flags(NodeId id, NodeFlags flags) { nodes_[id.index].flags = flags; }

// A backward node comes after the forward node that it differentiates; passes rely on it.
void Graph::set_forward(NodeId id, NodeId forward) {
  if (forward.valid() && (forward.index >= node_capacity() || is_erased(forward) || !is_before(forward, id))) {
    throw GraphEditError("the forward node of a backward node comes before it:" + Editor(*this).describe(id));
  }
  nodes_[id.index].forward = forward;
}

void Graph::set_source(NodeId id, std::string_view source) {
  nodes_[id.index].source = source.empty() ? StringId() : intern(source);
}

void Graph::set_requires_grad(ValueId id, bool requires_grad) { values_[id.index].requires_grad = requires_grad; }

void Graph::set_storage_kind(StorageId id, StorageKind kind) { storages_[id.index].kind = kind; }

// Storages only grow: a resize_ makes room, and what lies there stays.
void Graph::grow_storage(StorageId id, int64_t bytes) {
  storages_[id.index].bytes = std::max(storages_[id.index].bytes, bytes);
}

}  // namespace shadowgraph
