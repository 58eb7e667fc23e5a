// The order in which one rank issues its program, where waits stand before first uses. Internal to sharding/overlap.
#pragma once

#include <span>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct HeldBack {
  NodeId node;
  NodeId behind;  // comes later in the program; `node` and what needs it are issued right behind it
};

// Program order, but for what is held back, and for waits of collectives: these, and views of what they give, come
// before their first use. What a node needs comes before it in any case. Memory dies where it did, or after the last
// use. Linear.
void put_in_issue_order(Graph& graph, std::span<const HeldBack> held);

}  // namespace shadowgraph
