// Says what a recorded training step would hold with another dtype, optimizer, accumulation, checkpoint policy or ZeRO
// stage. It is worked out from the graph alone: the model is not run again.
//
//     const WhatIfAnswer answer = what_if(graph, {.dtype = c10::ScalarType::BFloat16, .optimizer = "adamw"});
//     answer.peak_before; answer.peak; answer.steady_peak;    // live bytes
//     for (const std::string& line : answer.ignored) ...      // what is not in it
//
// The lives of the step's storages are taken from the graph and changed: their bytes (dtype, ZeRO), which exist
// (optimizer), how long they live (accumulation). Checkpoints are the pass of shadowgraph/passes/recompute.h on a
// copy. An optimizer's own allocations come from its step over fake parameters of the graph's sizes, a few operators a
// tensor. docs/memory.md#what-if says what each answer was held against and how near it came.
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
  // The type of parameters and what follows from them, in place of float32: BFloat16 or Half.
  std::optional<c10::ScalarType> dtype;
  // "none", "sgd", "sgd_momentum", "adam", "adamw": of libtorch, a parameter at a time. Empty: as recorded.
  std::string optimizer;
  int64_t accumulate = 1;  // micro-batches a step, each as the recorded batch
  std::string checkpoint;  // modules, as the pass `checkpoint` takes them; empty: none more than recorded
  int zero_stage = 0;      // 1: optimizer state, 2: and gradients, 3: and parameters are spread over the ranks
  int64_t ranks = 1;
  std::optional<c10::Device> device;  // as profile()'s
};

struct WhatIfAnswer {
  // Live bytes of a rank.
  int64_t peak_before = 0;  // of the step as it is
  int64_t peak = 0;         // of that step, first or steady, as it would be
  BytesByKind by_kind{};    // there
  std::string phase;        // there
  // With an optimizer asked for: of a first step, which makes its state, and of later ones, which find it.
  std::optional<int64_t> first_step_peak, steady_peak;
  // All bytes of a kind that a step ends with.
  BytesByKind held_before{}, held{};
  int64_t flops_before = 0, flops = 0;  // of matrix products and the like, in a micro-batch and the optimizer
  std::vector<std::string> changes;     // in words, with bytes
  std::vector<std::string> ignored;     // what the answer leaves out
};

// Throws Error for
//
//   - a graph that is no training step;
//   - an optimizer, dtype or stage that there is none of;
//   - accumulate or ranks below 1, or a ZeRO stage with fewer than 2 ranks;
//   - a dtype for a step without float32 parameters.
//
// Also throws what the checkpoint pass throws.
WhatIfAnswer what_if(const Graph& graph, const WhatIf& change);

nlohmann::json to_json(const WhatIfAnswer& answer);
std::string to_text(const WhatIfAnswer& answer);

}  // namespace shadowgraph
