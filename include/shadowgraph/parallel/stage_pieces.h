// The pieces of a stage as graphs.
//
//     const Subgraph forward = stage_piece(step.graph, stages, 2, PipelineWork::kForward);
//     forward.graph;                      // to print, verify, profile, replay, emit
//     forward.inputs; forward.outputs;    // values of the step, in the order of the graph's inputs and outputs
//
// What a piece reads is an input: parameters, what other stages hand on, what its own forward has kept. The note
// "parameter" has a parameter's name. What others read or keep is an output. Run in the order F, then I and W of the last stage, of
// the one before, ..., they give the step's gradients.
#pragma once

#include <cstdint>

#include "shadowgraph/edit/copy.h"
#include "shadowgraph/export.h"
#include "shadowgraph/parallel/schedule.h"
#include "shadowgraph/parallel/stages.h"

namespace SHADOWGRAPH_API shadowgraph {

// `work`: kForward, kBackward, kInputGradient or kWeightGradient. `step` is the graph that the stages were cut from, as
// it was. Throws Error for others, for stages of figures alone, and for a stage that is not there. Linear.
Subgraph stage_piece(const Graph& step, const PipelineStages& stages, int32_t stage, PipelineWork work);

}  // namespace shadowgraph
