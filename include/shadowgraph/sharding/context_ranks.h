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
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

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
