// Rewrites of losses, so that they may be cut: what is an average or whole becomes sums that may be partial.
//
//     split_mean_losses(step.graph);           // before shard(); plan_step() does so itself
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

// Rewrites averages of losses as sums that are divided: aten::nll_loss_forward with reduction "mean" becomes one with
// "sum" and a division by its total weight. The loss is then a partial sum where the batch is cut, whatever targets are
// ignored and however classes weigh. The division waits for the total weight. Returns how many there were.
int64_t split_mean_losses(Graph& graph);

// Rewrites aten::_log_softmax and its backward as maxima, exponentials and sums, which may be partial. A loss over a
// vocabulary that is cut then exchanges a maximum and two sums a row. The operator by itself wants all logits of a row
// on each device. On one device the rewrite moves more memory. Returns how many there were.
int64_t split_log_softmaxes(Graph& graph);

}  // namespace shadowgraph
