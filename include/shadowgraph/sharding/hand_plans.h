// Plans as people write them by hand: pins of parameters and inputs, after which the rest follows at least cost. What
// divides by no axis stays whole.
//
//     const AssignmentProblem pinned = problem.pinned(pins_of(HandPlan::kFullySharded, graph, problem, mesh));
//     const AssignmentSolution by_hand = solve(pinned);                         // what the best plan is compared with
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/problem.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class HandPlan : uint8_t {
  kDataParallel,        // parameters whole, inputs cut along dimension 0, over all axes
  kFullySharded,        // parameters cut as well: ZeRO 3, FSDP
  kTensorParallel,      // over the last axis, parameters of linear layers cut by columns and rows in turn (Megatron)
  kMegatron,            // the same, and products with those parameters send activations, never weights
  kDataTensorParallel,  // inputs cut over the other axes
  kFullyShardedTensor,  // and parameters
};
std::string_view to_string(HandPlan plan);  // "data parallel", ...
// As to_string writes it, or with "-" between words. Throws Error that names those of the mesh.
HandPlan hand_plan(std::string_view name, const DeviceMesh& mesh);
// Those that a plan is compared with: with one axis the first three, with more all but those of one axis. `megatron` is
// asked for by name, since some models cannot be laid out so.
std::vector<HandPlan> hand_plans(const DeviceMesh& mesh);
// How tensor parallel cuts a linear layer of this name: by columns (outputs) or by rows (inputs).
enum class LinearCut : uint8_t { kNone, kColumns, kRows };
LinearCut linear_cut(std::string_view module);

// Products with a bias that tensor parallel cuts by rows: their sum goes over ranks, and the bias behind it. Without this
// such a model has no plan `megatron`. Gives how many changed.
int64_t put_biases_behind_sums(Graph& graph);

std::vector<ShardingPin> pins_of(HandPlan plan, const Graph& graph, const ShardingProblem& problem,
                                 const DeviceMesh& mesh);

}  // namespace shadowgraph
