// What a captured pass takes in an inference engine: kernels one after another, elementwise ones fused, weights as they
// are stored. Attention is told apart, since an engine's reads another cache than the captured program's.
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/serving/stored_weights.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/serving.h"

namespace shadowgraph {

struct PassTime {
  double seconds = 0;                    // of all but attention
  double attention = 0;                  // seconds of attention as it was captured
  std::vector<int64_t> attention_flops;  // of each of its calls
  c10::ScalarType attention_dtype = c10::kFloat;

  // Notes the groups of fused nodes in the graph.
  static PassTime of(Graph& graph, const StoredWeights& weights, const ServingOptions& options);
};

}  // namespace shadowgraph
