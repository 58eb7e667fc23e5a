// Compares deferred initialization and materialization of models with eager construction.
//
//   deferred              all models, each in a separate process, as a table
//   deferred MODEL        one model: only deferred initialization
//   deferred MODEL --materialize
//                         also materialization and eager construction; requires memory for one model at a time
//
// "on meta" is construction in a fake mode on the meta device, without recording.
#include "shadowgraph/deferred/deferred.h"

#include <torch/torch.h>

#include <cstdio>
#include <cstring>

#include "bench/measure.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/graph/graph.h"

namespace {

using namespace shadowgraph;
using bench::seconds;

int measure(const std::string& name, bool materialize) {
  { const FakeTensorMode warm_up; }
  const long before = bench::peak_resident_kib();
  at::manual_seed(1);
  models::BuiltModel model;
  const double cold = seconds([&] { model = deferred_init([&] { return models::build(name); }); });
  const long resident = bench::peak_resident_kib() - before;
  double warm = 1e9, meta = 1e9;
  for (int i = 0; i < 5; ++i) {
    meta = std::min(meta, seconds([&] {
                      const FakeTensorMode mode({.device = at::kMeta});
                      models::build(name);
                    }));
    warm = std::min(warm, seconds([&] { model = deferred_init([&] { return models::build(name); }); }));
  }
  const Graph& graph = deferred_graph(model.module->parameters().front());
  const auto nodes = static_cast<double>(graph.node_count());
  std::printf("| %s | %u | %.2f | %.2f | %.2f | %.2f | %.2f | %zu | %.1f |", name.c_str(), graph.node_count(),
              cold * 1e3, warm * 1e3, meta * 1e3, warm / meta, warm * 1e6 / nodes,
              graph.allocated_bytes() / graph.node_count(), static_cast<double>(resident) / 1024);
  if (materialize) {
    double eager = 1e9, ours = 1e9;
    for (int i = 0; i < 3; ++i) {
      model = {};
      eager = std::min(eager, seconds([&] { model = models::build(name); }));
      model = deferred_init([&] { return models::build(name); });
      ours = std::min(ours, seconds([&] { materialize_module(*model.module); }));
    }
    std::printf(" %.3f | %.3f | %.2f |", eager, ours, ours / eager);
  } else {
    std::printf(" | | |");
  }
  std::printf("\n");
  std::fflush(stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return measure(argv[1], argc > 2 && std::strcmp(argv[2], "--materialize") == 0);
  std::printf(
      "| model | nodes | deferred cold ms | warm ms | on meta ms | warm / meta | us per node | bytes per node | "
      "resident MiB | eager s | materialized s | ratio |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  return shadowgraph::bench::run_each_model(
      argv[0], [](const auto& info) { return info.parameters < 500'000'000 ? "--materialize" : nullptr; });
}
