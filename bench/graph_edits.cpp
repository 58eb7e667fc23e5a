// Measures edits, copies, searches and comparisons of generated graphs of 100k and 1M nodes.
#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <utility>

#include "bench/growth.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/verify.h"
#include "shadowgraph/passes/structure.h"

namespace {

using namespace shadowgraph;

// A chain of mul, add with the input, and relu_, with allocations, frees and in-place writes.
Graph generate(int64_t nodes) {
  Graph graph;
  const TargetId mul = graph.intern_operator("aten::mul.Tensor"), add = graph.intern_operator("aten::add.Tensor"),
                 relu = graph.intern_operator("aten::relu_");
  const int64_t sizes[] = {8, 16}, strides[] = {16, 1};
  const auto result = [&](NodeId n, StorageId s) {
    if (!s.valid()) s = graph.add_storage({.bytes = 512, .born = n});
    return graph.add_tensor_result(n, {.sizes = sizes, .strides = strides, .storage = s});
  };
  const ValueId x = result(graph.append(target_of(Builtin::kInput), {graph.string_argument("x")}), {});
  ValueId current = x;
  while (graph.node_count() < nodes) {
    const ValueId product = result(graph.append(mul, {Argument::of_value(current), Argument::of_float(0.5)}), {});
    const NodeId a = graph.append(add, {Argument::of_value(product), Argument::of_value(x), Argument::of_int(1)});
    const ValueId sum = result(a, {});
    const StorageId freed[] = {graph.value(product).storage};
    graph.set_frees(a, freed);
    current = result(graph.append(relu, {Argument::of_value(sum)}), graph.value(sum).storage);
  }
  const Argument value[] = {Argument::of_value(current)};
  graph.append(target_of(Builtin::kOutput), {graph.make_list(value)});
  return graph;
}

const Graph& sample(int64_t nodes) {
  static std::map<int64_t, Graph> graphs;
  const auto [entry, added] = graphs.try_emplace(nodes);
  if (added) entry->second = generate(nodes);
  return entry->second;
}

template <class F>
auto reading(F f) {
  return [f](benchmark::State& state) {
    const Graph& graph = sample(state.range(0));
    for (auto _ : state) f(graph);
    bench::count_nodes(state);
  };
}

// Runs f on a new copy each time, without timing the copy.
template <class F>
auto editing(F f) {
  return [f](benchmark::State& state) {
    for (auto _ : state) {
      state.PauseTiming();
      Graph graph = clone(sample(state.range(0)));
      state.ResumeTiming();
      f(graph);
      state.PauseTiming();
      { const Graph gone = std::move(graph); }
      state.ResumeTiming();
    }
    bench::count_nodes(state);
  };
}

const std::pair<const char*, std::function<void(benchmark::State&)>> kBenchmarks[] = {
    {"BM_Clone", reading([](const Graph& graph) { benchmark::DoNotOptimize(clone(graph).node_count()); })},
    {"BM_Dependences",
     reading([](const Graph& graph) { benchmark::DoNotOptimize(Dependences::of(graph).before(graph.last()).size()); })},
    {"BM_TopologicalOrder", reading([](const Graph& graph) { topological_order(graph, Dependences::of(graph)); })},
    {"BM_FindMatches", reading([](const Graph& graph) {
       static const Pattern pattern = Pattern::parse(
           "%p = aten::mul.Tensor(self=%x, other=$c)\n%y = aten::add.Tensor(self=%p, other=%b)\nreturn %y\n");
       benchmark::DoNotOptimize(find_matches(graph, pattern).size());
     })},
    {"BM_Diff",
     [](benchmark::State& state) {
       Graph other = clone(sample(state.range(0)));
       for (int i = 1; i < 50; ++i) {
         const NodeId n(static_cast<uint32_t>(state.range(0) / 50 * i));
         InsertionPoint(other, n).insert(other.node(NodeId(1)).target,
                                         {Argument::of_value(ValueId(0)), Argument::of_float(2)});
       }
       reading([&](const Graph& graph) { benchmark::DoNotOptimize(GraphDiff::of(graph, other).same); })(state);
     }},
    {"BM_ProposePartition", reading([](const Graph& graph) {
       propose_partition(graph, [&](NodeId n) { return graph.node(n).target != graph.node(NodeId(2)).target; });
     })},
    {"BM_InsertBeforeEach", editing([](Graph& graph) {
       const TargetId mul = graph.node(NodeId(1)).target;
       for (NodeId n : graph.nodes()) {
         if (!graph.is_placeholder(n))
           InsertionPoint(graph, n).insert(mul, {Argument::of_value(ValueId(0)), Argument::of_float(2)});
       }
     })},
    {"BM_InsertAndMoveEach", editing([](Graph& graph) {
       const TargetId mul = graph.node(NodeId(1)).target;
       for (NodeId n : graph.nodes()) {
         if (graph.is_placeholder(n) || graph.is_placeholder(graph.node(n).previous)) continue;
         const NodeId made =
             InsertionPoint(graph, n).insert(mul, {Argument::of_value(ValueId(0)), Argument::of_float(2)});
         graph.move_before(made, graph.node(made).previous);
       }
     })},
    // Replaces each product by the input.
    {"BM_ReplaceUses", editing([](Graph& graph) {
       for (uint32_t n = 1; n + 3 < graph.node_capacity(); n += 3) graph.replace_all_uses_with(ValueId(n), ValueId(0));
     })},
    {"BM_EraseOneByOne", editing([](Graph& graph) {
       for (NodeId n = graph.last(); n.valid();) {
         const NodeId previous = graph.node(n).previous;
         graph.erase(n);
         n = previous;
       }
     })},
    {"BM_EraseAtOnce", editing([](Graph& graph) {
       const std::vector<NodeId> all(graph.nodes().begin(), graph.nodes().end());
       graph.erase(all);
     })},
    {"BM_Splice",
     [](benchmark::State& state) {
       editing([&](Graph& graph) {
         const ValueId inputs[] = {ValueId(0)};
         splice(graph, NodeId(), sample(state.range(0)), inputs);
       })(state);
     }},
    {"BM_ReplaceByCalls", editing([](Graph& graph) {
       std::vector<GroupCall> groups;
       for (uint32_t n = 1; n + 3 < graph.node_capacity(); n += 3) {
         groups.push_back({.nodes = {NodeId(n), NodeId(n + 1), NodeId(n + 2)},
                           .schema = "my::block(Tensor x, Tensor y) -> Tensor",
                           .arguments = {Argument::of_value(ValueId(n - 1)), Argument::of_value(ValueId(0))}});
       }
       replace_by_calls(graph, groups);
     })},
};

}  // namespace

int main(int argc, char** argv) {
  for (const auto& [name, run] : kBenchmarks) {
    benchmark::RegisterBenchmark(name, run)->Arg(100000)->Arg(1000000)->Unit(benchmark::kMillisecond);
  }
  return bench::report_growth(argc, argv);
}
