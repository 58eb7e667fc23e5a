// Reports on recompute: the curve of peak memory against recomputed FLOPs as a table, JSON and a picture.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/recompute.h"

namespace SHADOWGRAPH_API shadowgraph {

class StepTime;  // shadowgraph/profile/step_time.h

// Returns the time of each node in nanoseconds, rounded up. Copies the times.
CostOfNode nanoseconds(const StepTime& time);

struct RecomputePoint {
  std::string policy;             // see CheckpointChoice
  int64_t peak = 0;               // live bytes
  int64_t flops = 0;              // recomputed FLOPs of matrix products
  double share = 0;               // fraction of the FLOPs in forward and backward without recompute
  std::optional<double> seconds;  // recompute time, without transfers
  int64_t nodes = 0;              // number of recomputed nodes
  int64_t dropped = 0;            // stages, or runs of stages, of which only the input is saved
  int64_t in_part = 0;            // stages that are saved in part
  int64_t offloaded = 0;          // bytes offloaded to CPU
  std::vector<std::string> segments;
};

struct RecomputeCurve {
  std::vector<RecomputePoint> points;  // Pareto-optimal, by cost
  std::vector<RecomputePoint> others;  // of the policies each, every 2, sqrt and budget
  int64_t flops = 0;                   // of matrix products in forward and backward
  int64_t elsewhere = 0;               // bytes that no schedule affects
  std::vector<std::string> not_a_chain;

  // Without `time`, points have no seconds.
  static RecomputeCurve of(const Graph& graph, const CheckpointCurve& curve, const StepTime* time = nullptr);
};

std::string to_text(const RecomputeCurve& curve);
nlohmann::json to_json(const RecomputeCurve& curve);

// Exports a step for external solvers: as a chain, and for PyTorch's selective activation checkpointing ILP.

// Returns {"schema": "shadowgraph-chain/1", "linear": ..., "why_not_a_chain": [...], "stages": [...]}, with FLOPs, and
// seconds if `time` is given. See docs/chain.schema.json, docs/checkpoints.md.
nlohmann::json chain_json(const Graph& graph, const CheckpointChain& chain, const StepTime* time = nullptr);

// Returns the ModuleInfo of torch.distributed._tools.ilp_utils, the input of parse_module_info and sac_milp:
// "mod_order" and "mod_stats", with the same names, units (bytes, milliseconds) and meanings. Module paths are prefixed
// by `root` and a dot. Modules that are not called exactly once are listed in "left_out".
//
// Memory against recompute (by increasing time per byte) is approximated by at most `segments` linear pieces.
nlohmann::json sac_ilp_module_info(const Graph& graph, const StepTime& time, const std::string& root = "Model",
                                   size_t segments = 4);

}  // namespace shadowgraph
