// Sharding and computing again, together: a step that fits into a device's memory by both, at least time.
//
//     const RecomputedSharding found = shard_and_recompute(graph, {.mesh = ..., .memory = int64_t{20} << 30});
//     found.graph;             // the step with what is computed again, which found.answer.plan is of
//     to_text(found);          // what each round brought, then the plan
//
// Either alone may waste what the other has for less: cutting more costs communication, keeping less costs computing.
// They are taken in turns. Sharding gets the graph in which something is computed again. Recomputing gets the plan. It
// takes the least of the curve (shadowgraph/passes/checkpoint_curve.h) whose applied graph is within the memory; nodes that
// are added lie as those that they repeat. Both are asked alone first, and sharding for some points of the curve in
// between. Every peak is that of the graph that one device runs, counted on its timeline; none of it is an estimate.
//
// The answer is never worse than sharding alone, or than the plan without a limit with the least recomputing that makes
// it fit. Both are among the rounds.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/checkpoint.h"
#include "shadowgraph/sharding/shard.h"

namespace SHADOWGRAPH_API shadowgraph {

// One plan that was tried.
struct RecomputeRound {
  std::string what;  // "sharding alone", "recomputing alone", "sharding again", ...
  bool fits = false;
  double seconds = 0;        // of a step
  double communication = 0;  // of them
  int64_t peak = 0;          // bytes a device, of the applied graph
  int64_t segments = 0;      // that are computed again
  int64_t flops = 0;         // products that are, of the whole step
  std::string why_not;       // no plan: why. Figures are 0 then.
  bool best = false;
};

struct RecomputedSharding {
  Graph graph;  // with what is computed again
  std::vector<CheckpointSegment> segments;
  ShardingAnswer answer;
  std::vector<RecomputeRound> rounds;
};

struct RecomputeAndShardOptions {
  ShardOptions shard = {};
  int turns = 3;   // at most, of recomputing and sharding
  int probes = 3;  // points of the curve between nothing and what recomputing alone takes, that sharding is asked for
};

// `sharding.memory` is needed. Throws NoPlanError if nothing fits, and what shard() throws.
RecomputedSharding shard_and_recompute(const Graph& graph, const ShardingOptions& sharding,
                                       const RecomputeAndShardOptions& options = {});

// The plan of a graph for one in which some of its nodes are computed again: those lie as what they repeat.
ShardingPlan with_repeated(const ShardingPlan& plan, const Graph& rewritten);

std::string to_text(const RecomputedSharding& found, int rows = 40);
nlohmann::json to_json(const RecomputedSharding& found);

}  // namespace shadowgraph
