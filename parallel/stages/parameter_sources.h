// Which nodes read what comes from parameters alone: weight.t(), weight.to(bf16), FSDP's all_gather and what is before it.
#pragma once

#include "profiler/program_costs.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

class ParameterSources {
 public:
  explicit ParameterSources(const ProgramCosts& costs);
  // Something from parameters, and nothing from elsewhere. Fresh memory comes from nowhere.
  bool reads_parameters_alone(NodeId node) const { return alone_[node] != 0; }

 private:
  IdMap<NodeId, char> alone_{0};
};

}  // namespace shadowgraph
