// Prints, parses, verifies and profiles generated graphs of 10k, 100k and 1M nodes. Prints us per node and the scaling
// factor (aim: 1M nodes take at most 12 x as long as 100k).
//
// The graph is a chain of blocks like those of a captured network: mul, add with an older value, relu_, view, with
// allocations, frees, saved tensors, and a region per block.
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

Graph generate(int64_t nodes) {
  Graph graph;
  const TargetId mul = graph.intern_operator("aten::mul.Tensor");
  const TargetId add = graph.intern_operator("aten::add.Tensor");
  const TargetId relu = graph.intern_operator("aten::relu_");
  const TargetId view = graph.intern_operator("aten::view");
  const int64_t sizes[] = {8, 16};
  const int64_t strides[] = {16, 1};
  const int64_t flat[] = {128};
  const int64_t one[] = {1};
  const auto storage = [&](NodeId born) {
    Storage s;
    s.bytes = 512;
    s.born = born;
    return graph.add_storage(s);
  };
  const auto result = [&](NodeId node, StorageId s, bool is_flat = false) {
    return graph.add_tensor_result(node, {.sizes = is_flat ? std::span<const int64_t>(flat) : sizes,
                                          .strides = is_flat ? std::span<const int64_t>(one) : strides,
                                          .storage = s});
  };
  const Argument name[] = {graph.string_argument("x")};
  const NodeId input = graph.append(target_of(Builtin::kInput), name);
  StorageId current_storage = storage(input);
  graph.set_storage_kind(current_storage, StorageKind::kInput);
  ValueId current = result(input, current_storage);
  const ValueId x = current;
  while (graph.node_count() < nodes) {
    Region region;
    region.kind = RegionKind::kModule;
    region.parent = Graph::kRootRegion;
    region.name = graph.intern("layer." + std::to_string(graph.region_count()));
    region.class_name = graph.intern("Block");
    const RegionId id = graph.add_region(region);
    const Argument product[] = {Argument::of_value(current), Argument::of_float(0.5)};
    const NodeId m = graph.append(mul, product);
    const StorageId ms = storage(m);
    const ValueId mv = result(m, ms);
    const Argument sum[] = {Argument::of_value(mv), Argument::of_value(x), Argument::of_int(1)};
    const NodeId a = graph.append(add, sum);
    const StorageId as = storage(a);
    const ValueId av = result(a, as);
    const Argument rectified[] = {Argument::of_value(av)};
    const NodeId r = graph.append(relu, rectified);
    const ValueId rv = result(r, as);
    const Argument viewed[] = {Argument::of_value(rv), graph.int_list(flat)};
    const NodeId v = graph.append(view, viewed);
    result(v, as, true);
    for (const NodeId node : {m, a, r, v}) graph.set_region(node, id);
    const SavedTensor saved[] = {{.value = mv, .role = SavedRole::kResult}};
    graph.set_saved(m, saved);
    const StorageId freed[] = {ms};
    graph.set_frees(v, freed);
    current = rv;
  }
  const Argument value[] = {Argument::of_value(current)};
  const Argument outputs[] = {graph.make_list(value)};
  graph.append(target_of(Builtin::kOutput), outputs);
  return graph;
}

template <class F>
void measure(benchmark::State& state, F&& f) {
  const Graph graph = generate(state.range(0));
  const std::string text = to_text(graph);
  for (auto _ : state) f(graph, text);
  state.counters["us/node"] =
      benchmark::Counter(static_cast<double>(state.range(0)) / 1e6,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_Print(benchmark::State& state) {
  measure(state, [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(to_text(graph).size()); });
}
void BM_Parse(benchmark::State& state) {
  measure(state, [](const Graph&, const std::string& text) { benchmark::DoNotOptimize(parse(text).node_count()); });
}
void BM_Verify(benchmark::State& state) {
  measure(state, [](const Graph& graph, const std::string&) { verify(graph); });
}
void BM_Effects(benchmark::State& state) {
  measure(state, [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(Effects::of(graph)); });
}
void BM_Timeline(benchmark::State& state) {
  measure(state, [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(MemoryTimeline::of(graph)); });
}
void BM_Profile(benchmark::State& state) {
  measure(state, [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(profile(graph)); });
}
void BM_DeviceMemory(benchmark::State& state) {
  measure(state, [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(device_memory(graph)); });
}
void BM_StaticPlan(benchmark::State& state) {
  measure(state, [](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(memory_layout(graph)); });
}
void BM_StepTime(benchmark::State& state) {
  const DeviceSpec spec = DeviceSpec::named("h100");
  measure(state, [&](const Graph& graph, const std::string&) { benchmark::DoNotOptimize(StepTime::of(graph, spec)); });
}

#define SIZES Arg(10000)->Arg(100000)->Arg(1000000)->Unit(benchmark::kMillisecond)
BENCHMARK(BM_Print)->SIZES;
BENCHMARK(BM_Parse)->SIZES;
BENCHMARK(BM_Verify)->SIZES;
BENCHMARK(BM_Effects)->SIZES;
BENCHMARK(BM_Timeline)->SIZES;
BENCHMARK(BM_Profile)->SIZES;
BENCHMARK(BM_DeviceMemory)->SIZES;
BENCHMARK(BM_StaticPlan)->SIZES;
BENCHMARK(BM_StepTime)->SIZES;

}  // namespace

int main(int argc, char** argv) { return shadowgraph::bench::report_growth(argc, argv); }
