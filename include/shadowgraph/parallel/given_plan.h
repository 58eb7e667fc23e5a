// A plan that somebody else made, to be simulated beside one's own.
//
//     const TrainingPlan plan = given_plan(text, source, request);
//     simulate(source, request, plan);
//
// {"tensor": 8, "pipeline": 16, "stages_per_rank": 8, "schedule": "interleaved", "zero": 1, "micro_batch": 1}
//
// Keys are those of to_json(TrainingPlan), in which plan.json has its plans. These may be less than that:
//   data, microbatches  what devices and batch leave
//   overlap             that of the request
//   stages              numbers of units, such as [9, 8, 8, 7], or where each begins; without it all have equally many, the
//                       first ones one more
//   recomputed          names of layers; "all": all of them; or how many of each stage, its first ones: [4, 4, 0, 0]
//   selective           the same, of layers that are not in `recomputed`
#pragma once

#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/parallel/training_plan.h"

namespace SHADOWGRAPH_API shadowgraph {

// Throws ParseError for unknown keys, for values that make no sense, and for stages and layers that are not the model's.
// Throws Error for more ranks than devices or more stages than units.
TrainingPlan given_plan(std::string_view text, const StepSource& source, const ClusterRequest& request);
// The same of a plan whose step is at hand. There is one of all that it leaves out.
TrainingPlan given_plan(std::string_view text, const Graph& step);

}  // namespace shadowgraph
