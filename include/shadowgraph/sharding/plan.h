// A plan: how every tensor of a captured step lies on a mesh, and the changes of layout that follow from it.
//
//     for (const PlannedCopy& copy : copies_of(graph, plan, planner)) ...      // S(0) -> R before %12, an all_gather
//
// ShardingProblem (shadowgraph/sharding/problem.h) makes plans; apply() (shadowgraph/sharding/apply.h) writes one
// device's graph of a plan.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/interconnect.h"
#include "shadowgraph/sharding/assignment.h"
#include "shadowgraph/sharding/layout.h"
#include "shadowgraph/sharding/redistribution.h"

namespace SHADOWGRAPH_API shadowgraph {

// How a node takes and gives its tensors, in the order of for_each_input and for_each_output, values that are no
// tensors left out.
struct NodeLayouts {
  std::vector<Layout> operands;
  std::vector<Layout> results;
};

// Where a result and an operand that uses it differ, the tensor is redistributed before the first node that needs it
// so. The copy serves all nodes of the same phase that need that layout, as long as nothing writes to the tensor. It
// dies after the last of them. No copy can stand for an operand that a node writes to. Nor can one stand for a view
// whose memory is written to while it is in use. Those have the layout of the tensor that is meant.
struct ShardingPlan {
  DeviceMesh mesh;
  IdMap<NodeId, NodeLayouts> nodes;  // sg::input and its like have results, sg::output operands
};

// Writes nodes by the numbers of the graph's text:
//
//     {"format": "shadowgraph-sharding-plan", "version": 1, "mesh": [{"name": "x", "size": 8}],
//      "nodes": [{"node": 329, "name": "aten::mm", "operands": ["S(0)", "R"], "results": ["S(0)"]}]}
//
// Reading throws ParseError for what is no plan of this graph.
nlohmann::json to_json(const ShardingPlan& plan, const Graph& graph);
ShardingPlan sharding_plan_from_json(const nlohmann::json& json, const Graph& graph);

// One change of layout that a plan makes: what serves how many operands.
struct PlannedCopy {
  ValueId value;
  PhaseId phase;
  Layout from, to;
  NodeId before;  // the first node that takes it
  Redistribution way;
};
// In program order of the nodes that first need them. Throws Error where a plan asks for what is not possible.
std::vector<PlannedCopy> copies_of(const Graph& graph, const ShardingPlan& plan, const RedistributionPlanner& planner);

// The phase that a node's copies belong to: its own, but sg::gradient is of the optimizer, where there is one.
PhaseId phase_of_copies(const Graph& graph, NodeId node);

}  // namespace shadowgraph
