// Prints, parses, verifies and profiles generated graphs of 10k, 100k and 1M nodes.
#include <benchmark/benchmark.h>

#include "bench/growth.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"
#include "shadowgraph/profile/step_time.h"

namespace {

using namespace shadowgraph;

// A chain of blocks like those of a captured network: mul, add with an older value, relu_, view, with allocations,
// frees, saved tensors, and a region per block.
Graph generate(int64_t nodes) {
  Graph graph;
  const TargetId mul = graph.intern_operator("aten::mul.Tensor"), add = graph.intern_operator("aten::add.Tensor");
  const TargetId relu = graph.intern_operator("aten::relu_"), view = graph.intern_operator("aten::view");
  const int64_t sizes[] = {8, 16}, strides[] = {16, 1}, flat[] = {128}, one[] = {1};
  const auto storage = [&](NodeId born) { return graph.add_storage({.bytes = 512, .born = born}); };
  const auto result = [&](NodeId node, StorageId s, bool is_flat = false) {
    return graph.add_tensor_result(node, {.sizes = is_flat ? std::span<const int64_t>(flat) : sizes,
                                          .strides = is_flat ? std::span<const int64_t>(one) : strides,
                                          .storage = s});
  };
  const NodeId input = graph.append(target_of(Builtin::kInput), {graph.string_argument("x")});
  StorageId current_storage = storage(input);
  graph.set_storage_kind(current_storage, StorageKind::kInput);
  ValueId current = result(input, current_storage);
  const ValueId x = current;
  while (graph.node_count() < nodes) {
    const RegionId id = graph.add_region({.kind = RegionKind::kModule,
                                          .parent = Graph::kRootRegion,
                                          .name = graph.intern("layer." + std::to_string(graph.region_count())),
                                          .class_name = graph.intern("Block")});
    const NodeId m = graph.append(mul, {Argument::of_value(current), Argument::of_float(0.5)});
    const StorageId ms = storage(m);
    const ValueId mv = result(m, ms);
    const NodeId a = graph.append(add, {Argument::of_value(mv), Argument::of_value(x), Argument::of_int(1)});
    const StorageId as = storage(a);
    const ValueId av = result(a, as);
    const NodeId r = graph.append(relu, {Argument::of_value(av)});
    const ValueId rv = result(r, as);
    const NodeId v = graph.append(view, {Argument::of_value(rv), graph.int_list(flat)});
    result(v, as, true);
    for (const NodeId node : {m, a, r, v}) graph.set_region(node, id);
    const SavedTensor saved[] = {{.value = mv, .role = SavedRole::kResult}};
    graph.set_saved(m, saved);
    const StorageId freed[] = {ms};
    graph.set_frees(v, freed);
    current = rv;
  }
  const Argument value[] = {Argument::of_value(current)};
  graph.append(target_of(Builtin::kOutput), {graph.make_list(value)});
  return graph;
}

struct Benchmark {
  const char* name;
  void (*run)(const Graph&, const std::string& text);
};
const Benchmark kBenchmarks[] = {
    {"BM_Print", [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(to_text(graph).size()); }},
    {"BM_Parse", [](const Graph&, const std::string& text) { benchmark::DoNotOptimize(parse(text).node_count()); }},
    {"BM_Verify", [](const Graph& graph, const std::string&) { verify(graph); }},
    {"BM_Effects", [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(Effects::of(graph)); }},
    {"BM_Timeline",
     [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(MemoryTimeline::of(graph)); }},
    {"BM_Profile", [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(profile(graph)); }},
    {"BM_DeviceMemory", [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(device_memory(graph)); }},
    {"BM_StaticPlan", [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(memory_layout(graph)); }},
    {"BM_StepTime",
     [](const Graph& graph, const std::string&) {
       static const DeviceSpec spec = DeviceSpec::named("h100");
       benchmark::DoNotOptimize(StepTime::of(graph, spec));
     }},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Benchmark& row : kBenchmarks) {
    const auto measure = [run = row.run](benchmark::State& state) {
      const Graph graph = generate(state.range(0));
      const std::string text = to_text(graph);
      for (auto _ : state) run(graph, text);
      bench::count_nodes(state);
    };
    benchmark::RegisterBenchmark(row.name, measure)
        ->Arg(10000)
        ->Arg(100000)
        ->Arg(1000000)
        ->Unit(benchmark::kMillisecond);
  }
  return bench::report_growth(argc, argv);
}
