// A graph as torch.fx prints one: placeholder, get_attr, call_function, call_module, and what is returned.
//
//     graph():
//         %x : [num_users=1] = placeholder[target=x]
//         %conv1 : [num_users=1] = call_module[target=conv1](args = (%x,), kwargs = {})
//         %add : [num_users=1] = call_function[target=aten.add.Tensor](args = (%conv1, 1), kwargs = {})
//         return add
//
// For people who read torch.fx; it is not read back. Calls of modules are what the pass collapse makes: their own
// parameters and buffers are not shown, as they are the module's. Parameters that operators take are get_attr nodes.
#pragma once

#include <string>

#include "ir/graph.h"

namespace shadowgraph {

// Linear.
std::string fx_text(const Graph& graph);

}  // namespace shadowgraph
