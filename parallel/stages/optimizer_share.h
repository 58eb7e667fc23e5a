// Says which parameters a storage of the optimizer's step belongs to: state, averages, temporaries of lists.
#pragma once

#include <vector>

#include "profiler/program_costs.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

class OptimizerShare {
 public:
  explicit OptimizerShare(const ProgramCosts& costs);
  // Storages of parameters; empty: none in particular, such as a norm of all gradients.
  const std::vector<StorageId>& parameters_of(StorageId storage) const;

 private:
  uint32_t root(uint32_t storage) const;
  void join(StorageId a, StorageId b);
  void join_node(const Graph& graph, NodeId node);

  mutable std::vector<uint32_t> parent_;
  std::vector<std::vector<StorageId>> by_root_;
};

}  // namespace shadowgraph
