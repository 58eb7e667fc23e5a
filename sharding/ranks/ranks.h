// Process groups of a graph that is being rewritten: described in the graph, and registered in this process while its
// operators run on fake tensors. Internal to sharding/apply.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Returns 0, apart, 2 * apart, ...
std::vector<int64_t> ranks_of_group(int64_t ranks, int64_t apart);
// Describes a group in the graph, after the placeholders.
void add_group_note(Graph& graph, const ProcessGroupInfo& group);

class GroupsOfGraph {
 public:
  explicit GroupsOfGraph(const Graph& graph);
  ~GroupsOfGraph();
  GroupsOfGraph(const GroupsOfGraph&) = delete;
  GroupsOfGraph& operator=(const GroupsOfGraph&) = delete;

 private:
  std::vector<std::string> names_;
};

// Expert parallelism: each rank has some of the experts, and tokens are sent to the ranks of their experts and back.
//
//     const Graph rank = shard_experts_over(std::move(step), {.ranks = 64});
//
// Experts are grouped products (aten::_grouped_mm) with a parameter [experts, ..]. Everything between two products of a
// module runs on the experts' ranks. Rows sent there, in forward and backward, go through an all_to_all and are sorted
// by expert; rows coming back take the reverse path:
//
//     rows -> [padded] -> all_to_all -> sorted -> products .. products -> sorted -> all_to_all -> [truncated] -> rows
//
// Each rank sends equally many rows to every other, so it has as many as before times the capacity factor.
struct ExpertLayers {
  int64_t experts = 0;  // per layer; 0: none
  int64_t rows = 0;     // of all experts of a layer, per micro-batch
};
// Throws Error if layers differ, or if experts' weights are not parameters.
ExpertLayers expert_layers(const Graph& step);

struct ExpertRanks {
  int64_t ranks = 1;
  int64_t apart = 1;    // stride between ranks: the size of tensor parallelism, whose ranks are adjacent
  double capacity = 1;  // capacity factor: rows of a rank over the mean
};
// Throws Error if the number of experts or rows is not divisible by the ranks.
Graph shard_experts_over(Graph step, const ExpertRanks& over);

// Returns true for a parameter that shard_experts_over() has sharded.
bool is_of_experts(const Graph& graph, NodeId placeholder);

// Context parallelism: splits sequences over ranks; each has a part of the tokens, and attends to all of them.
//
//     const Graph step = capture({.tokens = 131072 / 16});                       // one rank's tokens
//     const Graph rank = shard_sequence_over(step, {.ranks = 16, .rank = 8});
//
// A sequence is split into 2 * ranks chunks; rank r has chunks r and 2 * ranks - 1 - r. This balances causal attention:
//
//     all its queries    to its own keys          causal, as captured; overlaps with the gather of keys and values
//     all its queries    to first chunks of lower ranks
//     its last chunk     to both chunks of higher ranks
//
// Results are merged by log-sum-exp. Backward gathers again, and gradients of remote keys are reduce_scattered. Llama 3
// and Megatron-LM (--cp-comm-type all_gather) do the same; PyTorch's ring attention does the same work. Repeated key
// heads (grouped queries) are sent once.
//
// Supported: aten's fused attention (flash, efficient, cuDNN, CPU) without mask and dropout. An arange with as many
// numbers as a rank has tokens counts as positions. Losses remain means over a rank's tokens; gradients are averaged
// over ranks, as in data parallelism. A model that shifts its labels does so within chunks.
struct ContextRanks {
  int64_t ranks = 1;
  int64_t rank = 0;   // in the group
  int64_t apart = 1;  // stride between ranks: the size of tensor parallelism, whose ranks are adjacent
};
// `step`: with one rank's tokens, for one device or one rank of tensor parallelism. Throws Error for unsupported
// attention, naming operator and module, and for tokens that cannot be split into two equal chunks.
Graph shard_sequence_over(Graph step, const ContextRanks& over);

// Throws Error if the work of a step on `ranks` times as many tokens is not `ranks` times that of `part`, except for
// attention. Such a model mixes tokens elsewhere, and its sequences cannot be split.
void check_tokens_are_independent(const Graph& whole, const Graph& part, int64_t ranks);

}  // namespace shadowgraph
