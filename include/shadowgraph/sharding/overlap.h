// Collectives of tensor parallel beside products, in the program of one rank.
//
//     Graph rank = apply(step.graph, plan, 0).graph;           // waits for each collective where it stands
//     overlap_collectives(rank, CollectiveOverlap::kBackward);
//
// A linear layer that is cut by columns has its input gradient summed over the ranks. Its weight gradient needs nothing
// of that sum, so engines compute it meanwhile:
//
//     dW = mm(dY^T, X)                              X'  = all_gather(x)        x: this rank's part of X
//     dX = mm(dY, W)                   ->           dX  = mm(dY, W)
//     dx = reduce_scatter(dX)                       dx  = reduce_scatter(dX)
//     wait(dx)                                      dW  = mm(dY^T, wait(X'))
//                                                   wait(dx)
//
// Values stay what they are, and what writes to memory keeps its order (shadowgraph/analysis/dependences.h). All ranks of
// a plan change alike, so collectives keep one order among them.
#pragma once

#include <cstdint>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class CollectiveOverlap : uint8_t {
  // Each collective is waited for where it stands: DTensor, and so torchtitan by default.
  kNone,
  // Waits stand before first uses. Weight gradients are computed while the input gradient is summed. The input that
  // forward gathered is not kept, but gathered again while the input gradient is computed. So does Megatron-LM with
  // sequence parallel, always.
  kBackward,
  // That, and products go in as many pieces as there are ranks, where they read what was gathered or make what is
  // scattered. The collective of a piece runs beside the product of another. So do Megatron-LM with --tp-comm-overlap
  // (TransformerEngine's userbuffers) and PyTorch's asynchronous tensor parallel. The graph has notes "pieces" alone;
  // what they mean in seconds says docs/time.md.
  kPieces,
};
std::string_view to_string(CollectiveOverlap overlap);  // "none", "backward", "pieces"
// Throws Error that names them.
CollectiveOverlap collective_overlap(std::string_view name);

struct OverlapResult {
  int64_t sums_hidden = 0;     // collectives of input gradients with weight gradients behind them
  int64_t gathered_again = 0;  // inputs
  int64_t in_pieces = 0;       // collectives
};
// Linear in the graph, but for what is moved. A collective that nothing can hide stays as it is.
OverlapResult overlap_collectives(Graph& rank, CollectiveOverlap overlap);

}  // namespace shadowgraph
