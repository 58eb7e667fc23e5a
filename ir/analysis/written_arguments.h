// Arguments that a schema says are written, and that a call leaves alone.
#pragma once

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Says whether this call writes the argument at `position`, one of OperatorFacts::written, if it writes anything
// (writes_now, ir/operators/operator_facts.h). The gradients of _fused_adamw_ are written where a scaler is given.
bool writes_argument(const Graph& graph, NodeId node, size_t position);

}  // namespace shadowgraph
