// Names a graph without keeping it: what is worked out of a graph holds this, and finds out when the graph is gone.
//
//     const WeakGraph weak(graph);
//     weak.get("profile");      // the graph, also after it was moved; throws Error once it is destroyed
//
// A graph may have a million nodes, so nothing that reads it copies it, and most graphs are plain values that nobody
// shares. So each graph owns a token that says where it is. Asking costs a look at that token.
#pragma once

#include <memory>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

class Graph;

class WeakGraph {
 public:
  WeakGraph() = default;
  explicit WeakGraph(const Graph& graph);

  // Throws Error: "the graph of this `owner` is gone; ...".
  const Graph& get(const char* owner) const;

 private:
  std::weak_ptr<const Graph*> place_;
};

}  // namespace shadowgraph
