// What layers keep for backward in the program of a rank: in part, nothing, on the host.
#pragma once

#include <span>
#include <string>

#include "shadowgraph/graph.h"
#include "shadowgraph/parallel/training_plan.h"

namespace shadowgraph {

// Backward computes modules again: some whole, some but for what the plan keeps. The selective ones keep what products
// with weights, convolutions, attention and recurrent layers give, or its sum over ranks. So norms, activations, rotations
// and scores of attention by hand run twice. What ranks gather is gathered twice in all of them.
// As in torch, all that is kept is held until the module's backward is through. Throws Error for unknown modules.
void compute_again(Graph& rank, std::span<const std::string> whole, std::span<const std::string> selective,
                   std::span<const PartlyKept> in_part = {});

// What these modules keep then waits for backward on the host. Throws Error for unknown ones.
void keep_on_host(Graph& rank, std::span<const std::string> modules);

// "nothing", or what there is of "selective", "curve" and "whole": "curve and whole".
std::string recomputing_of(const TrainingPlan& plan);

}  // namespace shadowgraph
