#include "parallel/stages/sharded_parameters.h"

#include "parallel/stages/parameter_sources.h"

namespace shadowgraph {

ShardedParameters::ShardedParameters(const ProgramCosts& costs, const StageAssignment& assignment,
                                     const Communication& communication, bool gathers_once) {
  const ParameterSources sources(costs);
  for (const Collective& collective : communication.collectives()) {
    const NodeId n = collective.node;
    const bool scatters = gathers_once && collective.kind == CollectiveKind::kReduceScatter;
    const bool adds = scatters || collective.kind == CollectiveKind::kAllReduce;
    const bool gathers = gathers_once && collective.kind == CollectiveKind::kAllGather;
    if (gathers && sources.reads_parameters_alone(n)) gathers_[n] = 1;
    if (adds && assignment.piece(n) == Piece::kWeightGradient) reduces_[n] = 1;
  }
}

}  // namespace shadowgraph
