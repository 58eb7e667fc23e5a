// An argument of a call by its formal's name.
#pragma once

#include <string_view>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Returns nullptr if the call has none of this name.
inline const Argument* argument_named(const Graph& graph, NodeId node, std::string_view name) {
  const auto position = graph.target(node).signature().position_of(name);
  const auto arguments = graph.arguments(node);
  return position && *position < arguments.size() ? &arguments[*position] : nullptr;
}

}  // namespace shadowgraph
