// Process groups of a graph that is being rewritten: said by a node, and there while its operators run on fakes. Internal to
// sharding/apply.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// 0, apart, 2 * apart, ..
std::vector<int64_t> ranks_of_group(int64_t ranks, int64_t apart);
// Behind the placeholders.
void say_group(Graph& graph, const ProcessGroupInfo& group);

// Groups that the graph names are in this process while it lives.
class GroupsOfGraph {
 public:
  explicit GroupsOfGraph(const Graph& graph);
  ~GroupsOfGraph();
  GroupsOfGraph(const GroupsOfGraph&) = delete;
  GroupsOfGraph& operator=(const GroupsOfGraph&) = delete;

 private:
  std::vector<std::string> names_;
};

// Puts a step's experts on several ranks: each has some of them, and tokens go to the ranks of their experts and back.
//
//     const Graph rank = with_experts_over(std::move(step), {.ranks = 64});
//
// Experts are the products of rows that lie one after another by their group (aten::_grouped_mm), with a parameter
// [experts, ..]. What is computed between two products of a module is computed where the experts are. Rows that go
// there, forward and backward, are sent by an all_to_all and sorted by expert; rows that come from there go back so:
//
//     rows -> [padded] -> all_to_all -> sorted -> products .. products -> sorted -> all_to_all -> [cut] -> rows
//
// Each rank sends as many rows to every other. So it has as many rows as before, of fewer experts; `capacity` times as
// many where experts have room for more than the mean.

struct ExpertLayers {
  int64_t experts = 0;  // of a layer; 0: the step has none
  int64_t rows = 0;     // of all experts of a layer, a micro-batch
};
// Throws Error if layers differ in them, or if experts' weights are no parameters.
ExpertLayers expert_layers(const Graph& step);

struct ExpertRanks {
  int64_t ranks = 1;
  int64_t apart = 1;    // ranks of tensor parallel are neighbours
  double capacity = 1;  // rows of a rank over the mean
};
// Throws Error if the experts do not divide.
Graph with_experts_over(Graph step, const ExpertRanks& over);

// Whether a placeholder is a parameter that with_experts_over() has cut.
bool is_of_experts(const Graph& graph, NodeId placeholder);

// Cuts sequences over several ranks (context parallel): each rank has a part of the tokens, and attends to all of them.
//
//     const Graph step = capture({.tokens = 131072 / 16});                       // of one rank's tokens
//     const Graph rank = with_context_over(step, {.ranks = 16, .rank = 8});
//
// A sequence is 2 * ranks chunks, of which rank r has chunk r and chunk 2 * ranks - 1 - r. So causal attention is as
// much work on each rank:
//
//     all its queries    to its own keys          causal, as captured; keys and values of others arrive meanwhile
//     all its queries    to first chunks of ranks before it
//     its last chunk     to both chunks of ranks behind it
//
// Results are put together by their log-sum-exps. Backward gathers again, and gradients of others' keys are summed by a
// reduce_scatter. So Llama 3 and Megatron-LM (--cp-comm-type all_gather) do it; the work is that of PyTorch's ring.
// Heads that keys are repeated for are not sent.
//
// What is known: aten's fused attention (flash, efficient, cuDNN's, of CPUs), without a mask and without dropout. An
// arange of as many numbers as a rank has tokens counts as their positions. Losses stay means over a rank's tokens:
// gradients are averaged over ranks, as over data ranks. A model that shifts its labels does so within chunks.

struct ContextRanks {
  int64_t ranks = 1;
  int64_t rank = 0;   // in the group
  int64_t apart = 1;  // ranks of tensor parallel are neighbours
};
// `step`: of a rank's tokens, of one device or one rank of tensor parallel. Throws Error for attention that is not known, by
// name and module, and for tokens that are no two equal chunks.
Graph with_context_over(Graph step, const ContextRanks& over);

// Throws Error if a step on `ranks` times as many tokens is not `part` so many times, but for attention. Such a model mixes
// tokens elsewhere, and its sequences cannot be cut.
void check_tokens_are_apart(const Graph& whole, const Graph& part, int64_t ranks);

}  // namespace shadowgraph
