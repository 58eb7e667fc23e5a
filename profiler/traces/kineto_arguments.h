// Writes what torch.profiler's traces say of a call, and of a collective, so that tools for them read ours.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "shadowgraph/graph.h"
#include "shadowgraph/profile/communication.h"

namespace shadowgraph {

// Adds "Input Dims", "Input Strides", "Input type" and "Concrete Inputs", as record_shapes=True does.
void add_kineto_inputs(const Graph& graph, NodeId node, nlohmann::json& into);
// Adds "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size", "Process Group Name" and "Process
// Group Ranks". Elements are bytes.
void add_kineto_collective(const Collective& sent, const ProcessGroupInfo& group, nlohmann::json& into);

}  // namespace shadowgraph
