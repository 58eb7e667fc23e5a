// What a function that is run a second time, in backward, would do wrong.
//
// A checkpoint() of PyTorch runs its whole function again, with the inputs that it was given. That is right if these hold
// what they held, and if nobody notices what the second run writes. Internal to passes.
#pragma once

#include <span>
#include <string>
#include <unordered_set>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

struct SecondRun {
  std::string obstacle;  // "aten::add_: writes to what is made outside"; "" if there is none
  NodeId at;             // the node that it is about
  // Made outside and written here, while nothing else that is computed here depends on them: running statistics, counts
  // of batches. A second run has to write to copies of them.
  std::unordered_set<StorageId> statistics;
};

// `nodes` are those of the function, in program order; of forward. Linear in them.
SecondRun second_run(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes);

}  // namespace shadowgraph
