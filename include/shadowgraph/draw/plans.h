// Plans as pictures: of a sharding plan, of a pipeline's run, of a cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/layout.h"

namespace SHADOWGRAPH_API shadowgraph {

struct RecomputeCurve;  // shadowgraph/profile/recompute.h

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

// A pipeline's run as a picture: what each rank does when, and the bytes that it holds meanwhile.
//
//     write_file("pipeline.svg", pipeline_svg(run, {.memory = 80'000'000'000}));
//     write_file("pipeline.html", pipeline_html(run, {.title = "llama3_70b"}));     // with tables, one file, no script
//
// Each rank has a row of boxes, coloured by F, B, I and W and shaded by micro-batch in turn. Below it are the
// live bytes, all on one scale. Boxes have their action, seconds and bytes as tooltips.

class PipelineRun;  // shadowgraph/plan/pipeline.h

struct PipelinePictureOptions {
  std::string title;
  std::optional<int64_t> memory;  // bytes of a device: a line across each rank's bytes
};
std::string pipeline_svg(const PipelineRun& run, const PipelinePictureOptions& options = {});
std::string pipeline_html(const PipelineRun& run, const PipelinePictureOptions& options = {});

// A plan of a cluster as a page: plans by seconds and bytes, what other values of a knob cost, what ranks do and hold.
//
//     write_file("report.html", plan_html(plan_training(source, request)));

struct PlanAnswer;  // shadowgraph/plan/training_plan.h

// One file that loads nothing from outside.
std::string plan_html(const PlanAnswer& answer);

// Peak, downwards, against recomputed FLOPs: a staircase, since between two points the cheaper one is taken, and the other
// policies as marks. The same text on every machine; no fonts are measured.
std::string to_svg(const RecomputeCurve& curve, const std::string& title);

}  // namespace shadowgraph
