// Finds products that run beside collectives, before it is known which collectives there are. What a collective costs is
// then what they do not hide. Which products are meant says shadowgraph/shard/apply.h.
#pragma once

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/shard/apply.h"

namespace shadowgraph {

class HiddenCollectives {
 public:
  // Seconds of products beside collectives of one value. These are its sum, its sum scattered by rows, a gather of its
  // rows, and the same again in backward (0: that is not done). A weight gradient is summed beside what comes behind it.
  struct Products {
    double reduce = 0, scatter = 0, gather = 0, gather_again = 0, weight_gradient = 0;
  };

  // `time`: of the graph on one device. A product that is cut over `ranks` takes its part of that. Linear.
  HiddenCollectives(const Graph& graph, const StepTime& time, CollectiveOverlap overlap, int64_t ranks);

  const Products& beside(ValueId value) const { return beside_[value]; }

 private:
  void find_weight_gradients();
  void find_sums();
  void find_gathers();
  double seconds(NodeId product) const { return time_.of(product).seconds / ranks_; }
  // One piece is alone.
  double seconds_in_pieces(NodeId product) const { return seconds(product) * (1 - 1 / ranks_); }

  const Graph& graph_;
  const StepTime& time_;
  const bool in_pieces_;
  const double ranks_;
  IdMap<ValueId, double> of_weights_;  // by gradient of an output: products that make weight gradients of it
  IdMap<ValueId, Products> beside_;
};

}  // namespace shadowgraph
