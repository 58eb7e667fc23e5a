// Estimates the memory of a recorded training step with another dtype, optimizer, accumulation, checkpoint policy or
// ZeRO stage, from the graph alone: the model is not run again.
//
// Takes the lifetimes of the step's storages from the graph and changes their bytes (dtype, ZeRO), existence
// (optimizer) and lifetime (accumulation). Checkpoints are applied by the pass of shadowgraph/passes/recompute.h to a
// copy. An optimizer's allocations are recorded from its step over fake parameters of the same sizes. See
// docs/memory.md#what-if for the accuracy of each option.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/memory.h"

namespace SHADOWGRAPH_API shadowgraph {

struct WhatIf {
  // Dtype that replaces float32 for parameters and everything derived from them: BFloat16 or Half.
  std::optional<c10::ScalarType> dtype;
  // "none", "sgd", "sgd_momentum", "adam", "adamw": as implemented by libtorch, per parameter. "": as recorded.
  std::string optimizer;
  int64_t accumulate = 1;  // micro-batches per step, each of the recorded batch size
  std::string checkpoint;  // modules, in the syntax of the pass `checkpoint`; "": as recorded
  int zero_stage = 0;      // sharded over the ranks: 1: optimizer state, 2: also gradients, 3: also parameters
  int64_t ranks = 1;
  std::optional<c10::Device> device;  // default as for profile()
};

struct WhatIfResult {
  // Live bytes per rank.
  int64_t peak_before = 0;  // of the recorded step
  int64_t peak = 0;         // of the same step, first or steady, with the changes
  BytesByKind by_kind{};    // at that peak
  std::string phase;        // at that peak
  // With another optimizer: peaks of the first step, which creates its state, and of later steps.
  std::optional<int64_t> first_step_peak, steady_peak;
  // Bytes by kind at the end of the step.
  BytesByKind held_before{}, held{};
  int64_t flops_before = 0, flops = 0;  // of matrix products, for one micro-batch and the optimizer
  std::vector<std::string> changes;     // descriptions of the changes, with bytes
  std::vector<std::string> ignored;     // effects not included in the result
};

// Throws Error for
//
//   - a graph that is not a training step;
//   - an unknown optimizer, dtype or stage;
//   - accumulate or ranks below 1, or a ZeRO stage with fewer than 2 ranks;
//   - a dtype for a step without float32 parameters.
//
// Also throws the errors of the checkpoint pass.
WhatIfResult what_if(const Graph& graph, const WhatIf& change);

nlohmann::json to_json(const WhatIfResult& answer);
std::string to_text(const WhatIfResult& answer);

}  // namespace shadowgraph
