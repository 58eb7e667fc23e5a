// Measures the overhead of replay. Calls a chain of small operators through at::, boxed, and by an Interpreter, and
// compares a replayed training step with eager. Creates the table in docs/figures.md.
//
//     build/bench/replay --benchmark_min_time=0.5
#include "shadowgraph/capture/replay.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <benchmark/benchmark.h>
#include <torch/optim.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"

namespace {

using namespace shadowgraph;

constexpr int kRounds = 250;  // four operators each

at::Tensor chain(const at::Tensor& x, const at::Tensor& y) {
  at::Tensor z = x;
  for (int i = 0; i < kRounds; ++i) {
    z = at::add(z, y);
    z = at::mul(z, y);
    z = z.view({4, 2});
    z = z.view({8});
  }
  return z;
}

Graph capture_chain() {
  const c10::NoGradGuard no_grad;
  const at::Tensor x = at::ones({8}), y = at::ones({8});
  Capture session({.guards = false});
  session.name_input(x, "x");
  session.name_input(y, "y");
  return session.finish({chain(session.mode().from_real(x), session.mode().from_real(y))});
}

void count_nodes(benchmark::State& state, int64_t nodes) {
  state.counters["ns_per_node"] = benchmark::Counter(
      static_cast<double>(nodes) * 1e-9, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void direct_calls(benchmark::State& state) {
  const c10::NoGradGuard no_grad;
  const at::Tensor x = at::ones({8}), y = at::ones({8});
  const at::AutoDispatchBelowADInplaceOrView below;
  for (auto step : state) benchmark::DoNotOptimize(chain(x, y));
  count_nodes(state, 4 * kRounds);
}

// The minimum for any interpreter: push arguments, callBoxed, pop the result.
void boxed_calls(benchmark::State& state) {
  const c10::NoGradGuard no_grad;
  const at::Tensor x = at::ones({8}), y = at::ones({8});
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto find = [](const char* name, const char* overload) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
  };
  const auto add = find("aten::add", "Tensor");
  const auto mul = find("aten::mul", "Tensor");
  const auto view = find("aten::view", "");
  const c10::IValue alpha(int64_t{1});
  const c10::IValue wide(c10::IntArrayRef{4, 2});
  const c10::IValue flat(c10::IntArrayRef{8});
  torch::jit::Stack stack;
  const auto call = [&](const c10::OperatorHandle& op, c10::IValue a, const c10::IValue& b, const c10::IValue* c) {
    stack.clear();
    stack.push_back(std::move(a));
    stack.push_back(b);
    if (c != nullptr) stack.push_back(*c);
    op.callBoxed(stack);
    return std::move(stack[0]);
  };
  for (auto step : state) {
    c10::IValue z = x;
    for (int i = 0; i < kRounds; ++i) {
      z = call(add, std::move(z), y, &alpha);
      z = call(mul, std::move(z), y, nullptr);
      z = call(view, std::move(z), wide, nullptr);
      z = call(view, std::move(z), flat, nullptr);
    }
    benchmark::DoNotOptimize(z);
  }
  count_nodes(state, 4 * kRounds);
}

void interpreter(benchmark::State& state) {
  const Graph graph = capture_chain();
  Interpreter replay(graph);
  const Bindings bindings = Bindings().bind("x", at::ones({8})).bind("y", at::ones({8}));
  for (auto step : state) benchmark::DoNotOptimize(replay.run(bindings));
  count_nodes(state, 4 * kRounds);
}

void prepare(benchmark::State& state) {
  const Graph graph = capture_chain();
  for (auto step : state) {
    Interpreter replay(graph);
    benchmark::DoNotOptimize(&replay);
  }
  count_nodes(state, 4 * kRounds);
}

BENCHMARK(direct_calls);
BENCHMARK(boxed_calls);
BENCHMARK(interpreter);
BENCHMARK(prepare);

void eager_step(benchmark::State& state, const char* name) {
  at::set_num_threads(1);
  const auto model = models::build(name, {.tiny = true});
  torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
  for (auto step : state) {
    optimizer.zero_grad();
    model.loss(model.forward(model.inputs), model.inputs).backward();
    optimizer.step();
  }
}

void replayed_step(benchmark::State& state, const char* name) {
  at::set_num_threads(1);
  Graph graph;
  {
    const FakeTensorMode mode;
    const auto model = models::build(name, {.tiny = true});
    torch::optim::AdamW optimizer(model.module->parameters(), torch::optim::AdamWOptions(1e-3));
    graph = capture_training_step(models::program_of(model, &optimizer)).graph;
  }
  const auto model = models::build(name, {.tiny = true});
  Bindings bindings;
  bindings.module(*model.module);
  for (size_t i = 0; i < model.inputs.size(); ++i) bindings.bind(model.input_names[i], model.inputs[i]);
  Interpreter replay(graph);
  for (auto step : state) benchmark::DoNotOptimize(replay.run(bindings));
  state.counters["nodes"] = static_cast<double>(graph.node_count());
}

BENCHMARK_CAPTURE(eager_step, bert_base, "bert_base");
BENCHMARK_CAPTURE(replayed_step, bert_base, "bert_base");
BENCHMARK_CAPTURE(eager_step, resnet18, "resnet18");
BENCHMARK_CAPTURE(replayed_step, resnet18, "resnet18");

}  // namespace

BENCHMARK_MAIN();
