// Makes one graph of two, for a picture of what differs. It is the later graph, with the nodes that only the earlier
// one has put in where they were.
#pragma once

#include <string>
#include <vector>

#include "shadowgraph/draw.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

struct MergedGraph {
  // A tensor that a node read before and reads no more.
  struct LostUse {
    NodeId user;
    ValueId value;
  };
  Graph graph;  // ids of `after` mean the same in it
  IdMap<NodeId, ViewMark> marks{ViewMark::kNone};
  IdMap<NodeId, uint32_t> number;  // of each node: its place in program order of the graph that it is from
  std::vector<LostUse> lost_uses;
  size_t added = 0, removed = 0, changed = 0;

  static MergedGraph of(const Graph& before, const Graph& after);
};

}  // namespace shadowgraph
