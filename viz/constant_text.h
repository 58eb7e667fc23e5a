// What a call is given beside tensors, as text.
#pragma once

#include <functional>
#include <string>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// "stride=[2, 2], groups=1". Cut after 2,000 characters. `number_of` says which number a value in a list has.
std::string constant_text(const Graph& graph, NodeId node, const std::function<uint32_t(ValueId)>& number_of);

}  // namespace shadowgraph
