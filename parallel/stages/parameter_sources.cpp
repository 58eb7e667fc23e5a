#include "parallel/stages/parameter_sources.h"

#include "parallel/stages/written_values.h"

namespace shadowgraph {
namespace {

// Where what a storage holds comes from.
enum class Source : char { kNowhere, kParameters, kElsewhere };

Source sum(Source a, Source b) {
  return a == Source::kNowhere ? b : b == Source::kNowhere || a == b ? a : Source::kElsewhere;
}

}  // namespace

ParameterSources::ParameterSources(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  IdMap<StorageId, Source> sources(Source::kNowhere);
  for (const NodeId n : costs.nodes) {
    if (is_end(graph.node(n).target)) continue;
    Source read = Source::kNowhere;
    const auto look = [&](ValueId v) {
      if (const StorageId s = graph.value(v).storage; s.valid()) read = sum(read, sources[s]);
    };
    const auto make = [&](ValueId v) {
      const StorageId s = graph.value(v).storage;
      if (!s.valid()) return;
      if (graph.is_placeholder(n)) {
        sources[s] = costs.kinds[s] == StorageKind::kParameter ? Source::kParameters : Source::kElsewhere;
      } else {
        sources[s] = sum(sources[s], read);
      }
    };
    graph.for_each_input(n, look);
    for_each_made(graph, n, make);
    alone_[n] = read == Source::kParameters ? 1 : 0;
  }
}

}  // namespace shadowgraph
