// What an operator does to its arguments, worked out: its schema, the rows of operator_table.h, the tags that it has in
// this process. Everybody asks Target::facts() or Graph::facts(), which keep the answer.
#pragma once

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Whether the write of `facts.written` happens at this node.
bool writes_now(const Graph& graph, NodeId node, const OperatorFacts& facts);

// Whether the argument at `position` is written as a whole, whatever it held.
bool is_overwritten(const OperatorFacts& facts, size_t position);

}  // namespace shadowgraph
