// Puts recomputing into figures: the curve of peak against recomputed FLOPs as a table, JSON and a picture.
//
//     const StepTime time = StepTime::of(graph, DeviceSpec::named("h100"));
//     const CheckpointCurve curve = CheckpointCurve::of(graph, {}, {.chain = {.cost = nanoseconds(time)}});
//     const RecomputeCurve figures = RecomputeCurve::of(graph, curve, &time);
//     std::cout << to_text(figures);
//     write_file("curve.svg", to_svg(figures, "GPT-2"));
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

// What a node takes, rounded up; the times are copied.
CostOfNode nanoseconds(const StepTime& time);

struct RecomputePoint {
  std::string made_by;            // as of CheckpointChoice
  int64_t peak = 0;               // live bytes
  int64_t flops = 0;              // of products that are computed again
  double share = 0;               // of the step's, of forward and backward, without anything again
  std::optional<double> seconds;  // of what is computed again; transfers are not among them
  int64_t nodes = 0;              // that run again
  int64_t dropped = 0;            // stages, or runs of them, of which nothing but the input is kept
  int64_t in_part = 0;            // stages of which something is kept
  int64_t offloaded = 0;          // bytes that wait on the host
  std::vector<std::string> segments;
};

struct RecomputeCurve {
  std::vector<RecomputePoint> points;  // the best, by what they cost
  std::vector<RecomputePoint> others;  // of the policies each, every 2, sqrt and budget
  int64_t flops = 0;                   // of products in forward and backward
  int64_t elsewhere = 0;               // bytes that no plan changes
  std::vector<std::string> not_a_chain;

  // Without times: no seconds.
  static RecomputeCurve of(const Graph& graph, const CheckpointCurve& curve, const StepTime* time = nullptr);
};

std::string to_text(const RecomputeCurve& curve);
nlohmann::json to_json(const RecomputeCurve& curve);

// Writes a training step for others' solvers: as a chain, and as the statistics of modules that PyTorch's
// selective-checkpoint ILP takes.
//
//     write_file("chain.json", chain_json(graph, curve.chain(), &time).dump(2));

class StepTime;  // shadowgraph/profile/step_time.h

// {"schema": "shadowgraph-chain/1", "linear": ..., "why_not_a_chain": [...], "stages": [...]}: docs/chain.schema.json,
// docs/checkpoints.md. Seconds where times are given, FLOPs in any case.
nlohmann::json chain_json(const Graph& graph, const CheckpointChain& chain, const StepTime* time = nullptr);

// Returns the ModuleInfo of torch.distributed._tools.ilp_utils, which parse_module_info takes, and sac_milp then. It
// has "mod_order" and "mod_stats", with the names, units (bytes, milliseconds) and meanings that they have there. A
// module's path comes after `root` and a dot. Modules that are called more than once, or not at all, are listed as
// "left_out" instead.
//
// The curve of memory against recomputing drops, one after the other, what takes the least time for its bytes. It is a
// convex function of `segments` lines, exactly where it has no more.
nlohmann::json sac_ilp_module_info(const Graph& graph, const StepTime& time, const std::string& root = "Model",
                                   size_t segments = 4);

}  // namespace shadowgraph
