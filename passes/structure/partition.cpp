// partition: the nodes of a part can run at one point.
//
//     %2 = aten::mm(...)       note("part"="0")
//     %3 = aten::relu(%2)      note("part"="0")
//     %4 = aten::nonzero(%3)                          not supported
//     %5 = aten::add(%3, %4)   note("part"="1")       not "0", since the path through nonzero would re-enter it
//
// Every node has a stage, which never decreases along an edge (value, effect, forward link:
// shadowgraph/graph/analysis.h) and increases along edges between supported and unsupported nodes. So a path that
// leaves a part through an unsupported node never returns to its stage, and all supported nodes of one stage can be a
// part (merge=all). The number of parts is minimal: a node's stage is the result of a path through each earlier stage
// and the unsupported nodes between.
//
// merge=linked: supported nodes of one stage that are connected by edges form a part (Boost's disjoint sets). Before
// that, from the end, a supported node moves up to the stage of its supported users if all its users allow that.
//
// One or two walks over the dependences, about 0.5 us per node including the dependences.
#include <boost/pending/disjoint_sets.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/structure.h"

namespace shadowgraph {

namespace {

// Connects nodes that share edges within one stage. Takes a copy of the stages to modify.
std::vector<uint32_t> linked_parts(const Graph& graph, const Dependences& dependences, const std::vector<char>& inside,
                                   std::vector<int32_t> stage) {
  for (NodeId n : graph.nodes_reversed()) {
    if (!inside[n.index]) continue;
    int32_t latest = INT32_MAX;
    bool joins = false;
    for (NodeId a : dependences.after(n)) {
      const int32_t allowed = stage[a.index] - (inside[a.index] ? 0 : 1);
      if (allowed < latest) joins = false;
      latest = std::min(latest, allowed);
      joins = joins || (inside[a.index] && allowed == latest);
    }
    if (joins) stage[n.index] = latest;
  }
  const uint32_t count = graph.node_capacity();
  std::vector<uint32_t> ranks(count), parents(count), roots(count);
  boost::disjoint_sets sets(ranks.data(), parents.data());
  for (uint32_t i = 0; i < count; ++i) sets.make_set(i);
  for (NodeId n : graph.nodes()) {
    if (!inside[n.index]) continue;
    for (NodeId b : dependences.before(n)) {
      if (inside[b.index] && stage[b.index] == stage[n.index]) sets.union_set(b.index, n.index);
    }
  }
  for (NodeId n : graph.nodes()) roots[n.index] = sets.find_set(n.index);
  return roots;
}

}  // namespace

PartOf propose_partition(const Graph& graph, const std::function<bool(NodeId)>& supported, size_t min_nodes,
                         PartitionMerge merge) {
  const Effects effects = Effects::of(graph);
  const Dependences dependences = Dependences::of(graph, effects);
  const uint32_t count = graph.node_capacity();
  std::vector<char> inside(count);
  std::vector<int32_t> stage(count);  // odd for supported nodes
  for (NodeId n : graph.nodes()) {
    const bool builtin = graph.is_placeholder(n) || is_end(graph.node(n).target);
    inside[n.index] = !builtin && !effects.host_read(n) && !effects.unknown(n) && supported(n);
    stage[n.index] = inside[n.index];
    for (NodeId b : dependences.before(n)) {
      stage[n.index] = std::max(stage[n.index], stage[b.index] + (inside[b.index] != inside[n.index] ? 1 : 0));
    }
  }
  // By node: a number shared by the nodes of its part.
  std::vector<uint32_t> roots(stage.begin(), stage.end());
  if (merge == PartitionMerge::kLinked) roots = linked_parts(graph, dependences, inside, std::move(stage));

  std::vector<size_t> sizes(count + 1);
  for (NodeId n : graph.nodes()) {
    if (inside[n.index]) ++sizes[roots[n.index]];
  }
  PartOf parts(-1);
  std::vector<int32_t> number(count + 1, -1);
  int32_t next = 0;
  for (NodeId n : graph.nodes()) {
    if (!inside[n.index]) continue;
    const uint32_t root = roots[n.index];
    if (sizes[root] < min_nodes) continue;
    if (number[root] < 0) number[root] = next++;
    parts[n] = number[root];
  }
  return parts;
}

// Each part becomes a separate graph, and one call of a function in the parent.
PartitionedGraph split(const Graph& graph, const PartOf& part_of, const std::string& prefix) {
  std::map<int32_t, std::vector<NodeId>> parts;
  for (NodeId n : graph.nodes()) {
    if (part_of[n] >= 0) parts[part_of[n]].push_back(n);
  }
  PartitionedGraph result;
  result.parent = clone(graph);
  std::vector<GroupCall> groups;
  const Effects effects = Effects::of(graph);
  for (auto& [number, nodes] : parts) {
    Subgraph piece = extract(graph, nodes);
    PartitionedGraph::Part part;
    part.number = number;
    part.function = fmt::format("{}::p{}", prefix, number);
    // The same boundary, except for constants, which the part contains itself.
    part.schema = schema_of(graph, nodes, part.function, effects);
    const Boundary boundary = boundary_of(graph, nodes);
    part.graph = std::move(piece.graph);
    part.inputs = boundary.inputs;
    part.outputs = boundary.outputs;
    groups.push_back({.nodes = std::move(nodes), .schema = part.schema});
    result.parts.push_back(std::move(part));
  }
  const std::vector<NodeId> calls = replace_by_calls(result.parent, groups);
  std::vector<size_t> order(calls.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return result.parent.is_before(calls[a], calls[b]); });
  std::vector<PartitionedGraph::Part> sorted;
  for (const size_t i : order) sorted.push_back(std::move(result.parts[i]));
  result.parts = std::move(sorted);
  return result;
}

// The inverse of split: replaces each call by the nodes of its part.
Graph join(const PartitionedGraph& partitioned) {
  Graph graph = clone(partitioned.parent);
  std::map<std::string, const PartitionedGraph::Part*, std::less<>> parts;
  for (const auto& part : partitioned.parts) parts[part.function] = &part;
  std::vector<std::pair<NodeId, const PartitionedGraph::Part*>> calls;
  for (NodeId n : graph.nodes()) {
    if (graph.target(n).kind() != TargetKind::kFunction) continue;
    if (const auto found = parts.find(graph.target(n).name()); found != parts.end())
      calls.emplace_back(n, found->second);
  }
  for (const auto& [call, part] : calls) inline_call(graph, call, part->graph);
  return graph;
}

PartitionResult partition(Graph& graph, const PartitionOptions& options) {
  const std::string& wanted = options.operators;
  PartitionResult result;
  std::vector<char> supported(graph.target_count());
  for (size_t begin = 0; begin <= wanted.size();) {
    const size_t end = std::min(wanted.find('+', begin), wanted.size());
    const std::string_view name = std::string_view(wanted).substr(begin, end - begin);
    begin = end + 1;
    bool found = false;
    for (uint32_t i = kBuiltinCount; i < graph.target_count(); ++i) {
      const std::string_view target = graph.target(TargetId(i)).name();
      const bool fits =
          name == "*" || (target.starts_with(name) && (target.size() == name.size() || target[name.size()] == '.'));
      supported[i] = static_cast<char>(supported[i] || fits);
      found = found || fits;
    }
    if (!found && !name.empty()) result.missing.emplace_back(name);
  }
  result.parts = propose_partition(
      graph, [&](NodeId n) { return supported[graph.node(n).target.index] != 0; },
      static_cast<size_t>(options.min_nodes), options.merge);
  for (NodeId n : graph.nodes()) {
    const int32_t part = std::as_const(result.parts)[n];
    const std::string note = part < 0 ? "" : std::to_string(part);
    result.count = std::max<int64_t>(result.count, part + 1);
    result.nodes += part >= 0;
    if (graph.note(n, "part") == note) continue;
    graph.set_note(n, "part", note);
    result.changed = true;
  }
  return result;
}

PassResult PartitionResult::summary() const {
  PassResult summary{.changed = changed, .counters = {{"parts", count}, {"nodes_in_parts", nodes}}};
  for (const std::string& name : missing) summary.report += fmt::format("not in the graph: {}\n", name);
  return summary;
}

}  // namespace shadowgraph
