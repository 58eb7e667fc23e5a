// What a node makes or writes.
#pragma once

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Calls f(value) for its results and for operands that it writes, such as `out=` of an operator that returns nothing.
template <class F>
void for_each_made(const Graph& graph, NodeId node, F&& f) {
  graph.for_each_output(node, f);
  const auto arguments = graph.arguments(node);
  for (const uint16_t at : graph.facts(node).written) {
    if (at < arguments.size()) graph.for_each_value(arguments.subspan(at, 1), f);
  }
}

}  // namespace shadowgraph
