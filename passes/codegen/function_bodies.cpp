// Puts the bodies of calls in their place before code is written, each in a region of its own.
//
//     %2 = my::block(%1) | note("body"="...")     becomes the body's nodes, in a scope or module that is a function
//
// Copies the graph once if any call has a body, and is linear in the bodies.
#include "passes/codegen/function_bodies.h"

#include <algorithm>
#include <set>

#include "core/replay/body_function.h"
#include "ir/records.h"
#include "shadowgraph/codegen/options.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

bool has_body(const Graph& graph, NodeId node, const CodegenOptions& options) {
  return graph.target(node).kind() == TargetKind::kFunction && !graph.note(node, kBodyNote).empty() &&
         !options.functions.contains(graph.target(node).name());
}

// Where the nodes of the body go: a module, if the pass collapse made the call of one, or else a scope.
RegionId add_function_region(Graph& graph, NodeId call) {
  const std::string path(graph.note(call, "module"));
  const std::string class_name(graph.note(call, "class"));
  Region region;
  region.kind = path.empty() ? RegionKind::kScope : RegionKind::kModule;
  region.name = graph.intern(path.empty() ? graph.target(call).name() : path);
  region.class_name = graph.intern(class_name);
  region.parent = graph.node(call).region;
  const Region& around = graph.region(region.parent);
  // The call may stand in the region of the very module that it calls; that is not nested in itself.
  if (around.kind == RegionKind::kModule && graph.text_or_empty(around.name) == path) region.parent = around.parent;
  return graph.add_region(region);
}

// The modules around the call, which a body that was cut out of its graph has too.
void drop_outer_regions(Graph& body, const Graph& graph, RegionId around) {
  std::set<std::pair<RegionKind, std::string_view>> outer;
  for (; around.valid(); around = graph.region(around).parent) {
    outer.emplace(graph.region(around).kind, graph.text_or_empty(graph.region(around).name));
  }
  std::vector<RegionId> now(body.region_count(), Graph::kRootRegion);
  for (uint32_t i = 1; i < body.region_count(); ++i) {  // parents come first
    Region& region = mutable_region(body, RegionId(i));
    region.parent = now[region.parent.index];
    const bool known =
        region.parent == Graph::kRootRegion && outer.contains({region.kind, body.text_or_empty(region.name)});
    now[i] = known ? Graph::kRootRegion : RegionId(i);
  }
  for (const NodeId node : body.nodes()) {
    RegionId& region = mutable_node(body, node).region;
    if (region.valid()) region = now[region.index];
  }
}

void inline_body(InlinedBodies& inlined, NodeId call) {
  Graph& graph = inlined.graph;
  try {
    Graph body = parse(graph.note(call, kBodyNote));
    std::vector<ValueId> inputs;
    std::vector<ValueId> results;
    graph.for_each_input(call, [&](ValueId value) { inputs.push_back(value); });
    graph.for_each_output(call, [&](ValueId value) { results.push_back(value); });
    const RegionId region = add_function_region(graph, call);
    drop_outer_regions(body, graph, region);
    // Spliced nodes take over the region of the call.
    mutable_node(graph, call).region = region;
    inlined.functions.push_back(region);
    // Remembered, so that the nodes between it and the call are those that came from the body.
    const NodeId before = graph.node(call).previous;
    const std::vector<ValueId> made = splice(graph, call, body, inputs);
    if (made.size() != results.size() || !std::ranges::all_of(made, [](ValueId value) { return value.valid(); })) {
      refuse_node(graph, call,
                  "its body gives " + std::to_string(made.size()) + " values where the call has " +
                      std::to_string(results.size()) + ", or None for one of them");
    }
    for (NodeId node = graph.node(call).previous; node.valid() && node != before; node = graph.node(node).previous) {
      mutable_node(graph, node).phase = graph.node(call).phase;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      graph.replace_all_uses_with(results[i], made[i]);
      std::ranges::replace(inlined.only, results[i], made[i]);
    }
    graph.erase(call);
  } catch (const CodegenError&) {
    throw;
  } catch (const Error& error) {
    refuse_node(graph, call, std::string("its body cannot take its place: ") + error.what());
  }
}

}  // namespace

std::optional<InlinedBodies> inline_bodies(const Graph& graph, const CodegenOptions& options) {
  const auto calls_of = [&options](const Graph& in) {
    std::vector<NodeId> calls;
    for (const NodeId node : in.nodes()) {
      if (has_body(in, node, options)) calls.push_back(node);
    }
    return calls;
  };
  std::vector<NodeId> calls = calls_of(graph);
  if (calls.empty()) return std::nullopt;
  // The caller's graph is only read, so the bodies go into a copy.
  InlinedBodies inlined{.graph = clone(graph), .functions = {}, .only = options.only};
  // A body may hold calls with bodies; each stands inside its caller's text, so this ends.
  for (; !calls.empty(); calls = calls_of(inlined.graph)) {
    for (const NodeId call : calls) inline_body(inlined, call);
  }
  return inlined;
}

}  // namespace shadowgraph
