#include "shadowgraph/graph/weak_graph.h"

#include <string>

#include "shadowgraph/error.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// The graph holds one pointer to itself, which moves along with it. It dies with the graph, so lock() tells both.
WeakGraph::WeakGraph(const Graph& graph) : place_(graph.place_) {}

const Graph& WeakGraph::get(const char* owner) const {
  if (const auto place = place_.lock()) return **place;
  throw Error(std::string("the graph of this ") + owner + " is gone; keep it alive, or ask before");
}

}  // namespace shadowgraph
