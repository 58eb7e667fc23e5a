// Measures symbolic graphs: time of capturing, fitting, instantiating and rewriting in place. Also shape propagation
// and decomposition of real models in us per node.
//
//     build/bench/symbolic [model ...]          by default resnet50, bert_base, llama3_8b
#include "shadowgraph/passes/symbolic.h"

#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdio>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/passes/shapes.h"
#include "shadowgraph/profile/fits.h"
#include "shadowgraph/profile/profile.h"

namespace {

using namespace shadowgraph;

template <class F>
double milliseconds(int rounds, F&& f) {
  double best = 1e300;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * 1e3);
  }
  return best;
}

// A training step with AdamW on simulated CUDA.
Graph capture(const std::string& name, int64_t batch) {
  const FakeTensorMode mode({.device = c10::kCUDA});
  const models::BuiltModel model = models::build(name, {.batch = batch});
  torch::optim::AdamW adamw(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  return capture_training_step(models::program_of(model, &adamw)).graph;
}

void measure(const std::string& name) {
  double capture_ms = 0;
  std::vector<SizedGraph> captures;
  for (const int64_t batch : {2, 3, 5, 7}) {
    const double ms = milliseconds(1, [&] { captures.push_back({{{"batch", batch}}, capture(name, batch)}); });
    capture_ms = batch == 2 ? ms : std::min(capture_ms, ms);
  }
  const Graph graph = clone(captures[0].graph);
  const double nodes = graph.node_count();
  std::optional<SymbolicGraph> symbolic;
  const double fit_ms = milliseconds(1, [&] { symbolic = SymbolicGraph::fit(std::move(captures)); });
  const double instantiate_ms = milliseconds(5, [&] { (void)symbolic->instantiate({{"batch", 64}}); });
  SymbolicGraph::Instance instance(*symbolic);
  const double rewrite_ms = milliseconds(20, [&] { instance.at({{"batch", 64}}); });
  std::optional<SizeSweep> sweep;
  const double sweep_ms =
      milliseconds(1, [&] { sweep.emplace(*symbolic, DeviceMemoryOptions{.device = c10::Device("cuda:0")}); });
  const double answer_ms = milliseconds(20, [&] { sweep->at({{"batch", 64}}); });
  const double shape_ms = milliseconds(3, [&] { (void)ShapePropagation::of(graph); });
  const auto rewritten = [&](auto&& pass) {
    Graph copy = clone(graph);
    return milliseconds(1, [&] { pass(copy); });
  };
  const double decompose_ms = rewritten([](Graph& g) { decompose(g, {.to = OperatorSet::named("basic")}); });
  const double split_ms = rewritten([](Graph& g) { split_bias(g); });
  std::printf(
      "%-12s %7.0f nodes, %4zu polynomials | model and capture %8.2f ms | fit of 4 %7.2f | instantiate %6.2f | in "
      "place "
      "%6.3f | sweep %6.2f, per size %6.3f | us per node: shape-prop %.2f, decompose %.2f, split-bias %.2f\n",
      name.c_str(), nodes, symbolic->polynomials().size(), capture_ms, fit_ms, instantiate_ms, rewrite_ms, sweep_ms,
      answer_ms, shape_ms * 1e3 / nodes, decompose_ms * 1e3 / nodes, split_ms * 1e3 / nodes);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) names = {"resnet50", "bert_base", "llama3_8b"};
  for (const std::string& name : names) measure(name);
  return 0;
}
