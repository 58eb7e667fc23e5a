// Calls of functions that carry what they stand for (core/replay/body_function.h), with that in their place.
#pragma once

#include <optional>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct SHADOWGRAPH_API CodegenOptions;

struct InlinedBodies {
  Graph graph;
  std::vector<RegionId> functions;  // one for each body: what is in it
  std::vector<ValueId> only;        // what CodegenOptions::only are there
};

// nullopt if no call has a body, but for those that the options name a function for. Bodies in bodies too. Throws
// CodegenError for a body that is no graph, or that does not fit its call. Linear in the graph and the bodies.
std::optional<InlinedBodies> inline_bodies(const Graph& graph, const CodegenOptions& options);

}  // namespace shadowgraph
