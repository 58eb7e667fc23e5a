// Writes a training step for others' solvers: as a chain, and as the statistics of modules that PyTorch's
// selective-checkpoint ILP takes.
//
//     write_file("chain.json", chain_json(graph, curve.chain(), &time).dump(2));
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/checkpoint_curve.h"

namespace SHADOWGRAPH_API shadowgraph {

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
