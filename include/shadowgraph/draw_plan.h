// A sharding plan as a picture.
#pragma once

#include "shadowgraph/draw.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/plan.h"
#include "shadowgraph/sharding/redistribution.h"

namespace SHADOWGRAPH_API shadowgraph {

// Boxes are coloured by how a node's first result lies, inputs among them; parameters are named in them. Edges on which a
// tensor is redistributed are red, with the steps and the bytes that a device has after the last of them. A copy that
// several nodes share is on the edge to each.
//
//     write_file("plan.svg", render_svg(write_dot(view_of_plan(graph, answer.plan, planner))));
//
// `options.colors` and `.edge_note` are the picture's own. Throws as ViewModel::of does, and Error
// where the plan asks for what is not possible.
ViewModel view_of_plan(const Graph& graph, const ShardingPlan& plan, const RedistributionPlanner& planner,
                       const ViewOptions& options = {});

}  // namespace shadowgraph
