#include "shadowgraph/sharding/overlap.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "shadowgraph/error.h"
#include "sharding/overlap/gather_again.h"
#include "sharding/overlap/issue_order.h"
#include "sharding/overlap/linear_products.h"

namespace shadowgraph {
namespace {

// Memory that is sent must not be given away before the wait.
void keep_what_is_sent(Graph& graph) {
  for (const NodeId wait : nodes_calling(graph, "_c10d_functional::wait_tensor")) {
    const NodeId collective = graph.value(graph.arguments(wait)[0].ref.value).producer;
    if (graph.is_placeholder(collective)) continue;
    std::vector<StorageId> sent;
    graph.for_each_input(collective, [&](ValueId v) { sent.push_back(graph.value(v).storage); });
    for (const StorageId storage : sent) graph.extend_life(storage, wait);
  }
}

}  // namespace

std::string_view to_string(CollectiveOverlap overlap) {
  constexpr std::array kNames{"none", "backward", "pieces"};
  return kNames[static_cast<size_t>(overlap)];
}

CollectiveOverlap collective_overlap(std::string_view name) {
  for (const auto overlap : {CollectiveOverlap::kNone, CollectiveOverlap::kBackward, CollectiveOverlap::kPieces}) {
    if (to_string(overlap) == name) return overlap;
  }
  throw Error(fmt::format("there is no overlap of collectives '{}'; there are none, backward, pieces", name));
}

OverlapResult overlap_collectives(Graph& rank, CollectiveOverlap overlap) {
  OverlapResult result;
  if (overlap == CollectiveOverlap::kNone) return result;
  const std::vector<InputGradientSum> sums = input_gradient_sums(rank);
  result.sums_hidden = std::ssize(sums);
  result.gathered_again = gather_again(rank, sums);
  std::vector<HeldBack> held;
  for (const InputGradientSum& sum : sums) {
    for (const NodeId weights : sum.weight_gradients) held.push_back({weights, sum.collective});
  }
  if (overlap == CollectiveOverlap::kPieces) {
    for (const ProductInPieces& one : products_in_pieces(rank, sums)) {
      const std::string pieces = std::to_string(one.pieces);
      rank.set_note(one.collective, "pieces", pieces);
      rank.set_note(one.product, "pieces", pieces);
      ++result.in_pieces;
      // What needs all that was gathered comes behind what does not.
      for (const NodeId other : one.others) {
        if (rank.is_before(other, one.product)) held.push_back({other, one.product});
      }
    }
  }
  put_in_issue_order(rank, held);
  keep_what_is_sent(rank);
  return result;
}

}  // namespace shadowgraph
