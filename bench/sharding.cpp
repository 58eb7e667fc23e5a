// Measures automatic sharding of a captured training step (AdamW, bf16) of Llama models on meshes of H100s. Then the
// construction of the problem for graphs of 100k and 1M nodes.
#include <cstdio>
#include <string>
#include <utility>

#include "bench/growth.h"
#include "bench/measure.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/shard.h"

namespace {

using namespace shadowgraph;

Graph step_of(const std::string& name) { return bench::adamw_step(name, {.batch = 64, .dtype = c10::kBFloat16}); }

void measure(const Graph& graph, const std::string& name, const char* mesh, const DeviceSpec& device,
             const Interconnect& links, const char* aim) {
  Graph copy = clone(graph);
  const long before = bench::peak_resident_kib();
  const ShardingResult answer =
      shard_step(std::move(copy), {.mesh = DeviceMesh::parse(mesh), .device = device, .links = links, .compare = true})
          .result;
  double by_hand = 0;
  for (const ParallelismCost& plan : answer.compared) {
    if (plan.seconds && (by_hand == 0 || *plan.seconds < by_hand)) by_hand = *plan.seconds;
  }
  std::printf("| %s, %s | %ld | %ld | %.2f | %.2f | %.3f %% | %.3f | %.3f | %.0f | %s |\n", name.c_str(), mesh,
              static_cast<long>(answer.nodes), static_cast<long>(answer.variables), answer.problem_seconds,
              answer.solver_seconds, 100 * answer.solution.gap(), answer.seconds(), by_hand,
              static_cast<double>(bench::peak_resident_kib() - before) / 1024, aim);
  std::fflush(stdout);
}

// A chain of matrix products and activations with the given number of nodes.
Graph chain(int64_t nodes) {
  Graph graph;
  const TargetId mm = graph.intern_operator("aten::mm"), relu = graph.intern_operator("aten::relu");
  const int64_t sizes[] = {64, 64}, strides[] = {64, 1};
  const auto result = [&](NodeId n) {
    const StorageId storage = graph.add_storage({.bytes = 16384, .born = n});
    return graph.add_tensor_result(n, {.sizes = sizes, .strides = strides, .storage = storage});
  };
  const auto placeholder = [&](Builtin kind, const char* name) {
    return result(graph.append(target_of(kind), {graph.string_argument(name)}));
  };
  const ValueId weight = placeholder(Builtin::kParameter, "w");
  ValueId current = placeholder(Builtin::kInput, "x");
  while (graph.node_count() < nodes) {
    current = result(graph.append(mm, {Argument::of_value(current), Argument::of_value(weight)}));
    current = result(graph.append(relu, {Argument::of_value(current)}));
  }
  const Argument value[] = {Argument::of_value(current)};
  graph.append(target_of(Builtin::kOutput), {graph.make_list(value)});
  return graph;
}

void problem_of_a_chain(benchmark::State& state) {
  const Graph graph = chain(state.range(0));
  const DeviceSpec device = DeviceSpec::named("h100");
  const Interconnect links = Interconnect::named("h100");
  for (auto _ : state) {
    const ShardingProblem problem = ShardingProblem::of(
        graph, {.mesh = DeviceMesh::parse("2x2"), .device = &device, .interconnect = &links, .unfold = true});
    benchmark::DoNotOptimize(problem.assignment().edges.size());
  }
}
BENCHMARK(problem_of_a_chain)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  const DeviceSpec device = DeviceSpec::named("h100");
  const Interconnect links = Interconnect::named("h100");
  std::printf(
      "| step, mesh | nodes | variables | problem s | solve and apply s | gap | step s | best by hand s | "
      "MB more | aim |\n|---|---|---|---|---|---|---|---|---|---|\n");
  {
    const Graph graph = step_of("llama3_8b");
    measure(graph, "llama3_8b", "8x8", device, links, "1 s, 200 MB");
    measure(graph, "llama3_8b", "4x4x4", device, links, "10 s");
  }
  measure(step_of("llama3_70b"), "llama3_70b", "8x8", device, links, "2 s");
  return bench::report_growth(argc, argv);
}
