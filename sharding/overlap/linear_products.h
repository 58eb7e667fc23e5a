// Finds products of linear layers around collectives. Internal to sharding/overlap.
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

// A sum over ranks of input gradients, and the weight gradients that have the same gradients of outputs.
struct InputGradientSum {
  NodeId collective;                     // reduce_scatter or all_reduce
  std::vector<NodeId> products;          // dX = dY W, of which it is the sum
  std::vector<NodeId> weight_gradients;  // dW = dY^T X
};
std::vector<InputGradientSum> input_gradient_sums(const Graph& graph);

// The all_gather that made an operand of a product, views between; invalid: none.
NodeId gather_behind(const Graph& graph, ValueId operand);
// A collective and the product that goes with it piece by piece. It is the first by rows of what was gathered, or the one
// whose rows are scattered. `others` read what was gathered, too, as a whole.
struct ProductInPieces {
  NodeId collective, product;
  int64_t pieces = 0;
  std::vector<NodeId> others;
};
std::vector<ProductInPieces> products_in_pieces(const Graph& graph, const std::vector<InputGradientSum>& hidden);

}  // namespace shadowgraph
