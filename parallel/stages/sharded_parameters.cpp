#include "parallel/stages/sharded_parameters.h"

namespace shadowgraph {
namespace {

// Where what a storage holds comes from. Fresh memory comes from nowhere.
enum class Source : char { kNowhere, kParameters, kElsewhere };

Source sum(Source a, Source b) {
  return a == Source::kNowhere ? b : b == Source::kNowhere || a == b ? a : Source::kElsewhere;
}

}  // namespace

ShardedParameters::ShardedParameters(const ProgramCosts& costs, const StageAssignment& assignment,
                                     const Communication& communication) {
  const Graph& graph = costs.graph();
  IdMap<StorageId, Source> sources(Source::kNowhere);
  for (const NodeId n : costs.nodes) {
    Source read = Source::kNowhere;
    const auto look = [&](ValueId v) {
      if (const StorageId s = graph.value(v).storage; s.valid()) read = sum(read, sources[s]);
    };
    const auto make = [&](ValueId v) {
      if (const StorageId s = graph.value(v).storage; s.valid()) sources[s] = sum(sources[s], read);
    };
    if (graph.is_placeholder(n)) {
      graph.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph.value(v).storage;
        if (s.valid()) {
          sources[s] = costs.kinds[s] == StorageKind::kParameter ? Source::kParameters : Source::kElsewhere;
        }
      });
      continue;
    }
    if (is_end(graph.node(n).target)) continue;
    graph.for_each_input(n, look);
    graph.for_each_output(n, make);
    for (const uint16_t at : graph.facts(n).written) {
      if (at < graph.arguments(n).size()) graph.for_each_value(graph.arguments(n).subspan(at, 1), make);
    }
    const Collective* collective = communication.find(n);
    if (collective == nullptr) continue;
    const bool gathers = collective->kind == CollectiveKind::kAllGather;
    const bool adds =
        collective->kind == CollectiveKind::kReduceScatter || collective->kind == CollectiveKind::kAllReduce;
    if (gathers && read == Source::kParameters) gathers_[n] = 1;
    if (adds && assignment.piece(n) == Piece::kWeightGradient) reduces_[n] = 1;
  }
}

}  // namespace shadowgraph
