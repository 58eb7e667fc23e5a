#include "parallel/stages/sharded_parameters.h"

#include "parallel/stages/parameter_sources.h"

namespace shadowgraph {

ShardedParameters::ShardedParameters(const ProgramCosts& costs, const StageAssignment& assignment,
                                     const Communication& communication) {
  const ParameterSources sources(costs);
  for (const Collective& collective : communication.collectives()) {
    const NodeId n = collective.node;
    const bool adds =
        collective.kind == CollectiveKind::kReduceScatter || collective.kind == CollectiveKind::kAllReduce;
    if (collective.kind == CollectiveKind::kAllGather && sources.reads_parameters_alone(n)) gathers_[n] = 1;
    if (adds && assignment.piece(n) == Piece::kWeightGradient) reduces_[n] = 1;
  }
}

}  // namespace shadowgraph
