// Writes as text what a call is given beside tensors.
#pragma once

#include <functional>
#include <string>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// Writes "stride=[2, 2], groups=1", cut after 2,000 characters. `number_of` says which number a value in a list has.
std::string constant_text(const Graph& graph, NodeId node, const std::function<uint32_t(ValueId)>& number_of);

}  // namespace shadowgraph
