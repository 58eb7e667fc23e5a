// Finds products that can overlap with collectives, before the collectives are known. The cost of a collective is then
// its exposed part. shadowgraph/shard/apply.h describes which products these are.
#pragma once

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/shard/apply.h"

namespace shadowgraph {

class HiddenCollectives {
 public:
  // Seconds of products that overlap with collectives of one value: an all_reduce, a reduce_scatter by rows, an
  // all_gather of its rows, and a repeated one in backward; 0: no such collective. `weight_gradient`: seconds of
  // products that overlap with the reduction of a weight gradient.
  struct Products {
    double reduce = 0, scatter = 0, gather = 0, gather_again = 0, weight_gradient = 0;
  };

  // `time`: of the graph on one device; the time of a product sharded over `ranks` is divided by their number. Linear.
  HiddenCollectives(const Graph& graph, const StepTime& time, CollectiveOverlap overlap, int64_t ranks);

  const Products& beside(ValueId value) const { return beside_[value]; }

 private:
  void find_weight_gradients();
  void find_sums();
  void find_gathers();
  double seconds(NodeId product) const { return time_.of(product).seconds / ranks_; }
  // One piece does not overlap.
  double seconds_in_pieces(NodeId product) const { return seconds(product) * (1 - 1 / ranks_); }

  const Graph& graph_;
  const StepTime& time_;
  const bool in_pieces_;
  const double ranks_;
  IdMap<ValueId, double> of_weights_;  // by output gradient: time of products that compute weight gradients from it
  IdMap<ValueId, Products> beside_;
};

}  // namespace shadowgraph
