// Arguments that a schema says are written, and that a call leaves alone.
#pragma once

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Whether the argument at `position`, one of OperatorFacts::written, is written by this call, if anything is
// (writes_now, ir/operators/operator_facts.h): the gradients of _fused_adamw_ are where a scaler is given.
bool writes_argument(const Graph& graph, NodeId node, size_t position);

}  // namespace shadowgraph
