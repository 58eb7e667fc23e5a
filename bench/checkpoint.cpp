// Measures activation checkpointing: the pass on bench/training_chain.h, with every block checkpointed; the overhead of
// checkpoint() in eager programs; the dynamic program of rotor with 100 stages and 500 slots (aim: 100 ms); and the
// memory/recompute curve for GPT-2 and Llama 3 8B, compared with the policies budget and sqrt.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <climits>
#include <malloc.h>
#include <random>

#include "bench/growth.h"
#include "bench/training_chain.h"
#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/activation_checkpoint.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/recompute.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/units.h"

namespace {

using namespace shadowgraph;

void Pass(benchmark::State& state) {
  const Graph graph = bench::training_step(state.range(0));
  {  // Warm up: page faults take as long as half of the pass.
    Graph copy = clone(graph);
    checkpoint_segments(copy, each_region()(copy, regions_named(copy, "layers.*")));
  }
  for (auto _ : state) {
    state.PauseTiming();
    Graph copy = clone(graph);
    const auto segments = each_region()(copy, regions_named(copy, "layers.*"));
    state.ResumeTiming();
    const CheckpointResult done = checkpoint_segments(copy, segments);
    if (done.recomputed == 0) state.SkipWithError("nothing was recomputed");
    benchmark::DoNotOptimize(done);
  }
}
BENCHMARK(Pass)->Arg(10000)->Arg(100000)->Arg(1000000)->Unit(benchmark::kMillisecond);

// Twenty blocks of two 32 x 32 matrix products, small enough to measure the overhead of checkpoint().
constexpr int kBlocks = 20;

enum class Checkpoints { kNone, kWithoutRandomState, kAll };

void eager(benchmark::State& state, Checkpoints with, bool backward) {
  at::set_num_threads(1);
  const at::Tensor w = at::randn({32, 32}).set_requires_grad(true);
  const auto block = [&](const at::Tensor& x) { return at::mm(at::mm(x, w).tanh(), w); };
  const CheckpointOptions options{.preserve_random_state = with == Checkpoints::kAll};
  for (auto _ : state) {
    const at::Tensor x = at::ones({32, 32}).set_requires_grad(true);
    at::Tensor y = x;
    for (int i = 0; i < kBlocks; ++i) y = with == Checkpoints::kNone ? block(y) : checkpoint(options, block, y);
    if (backward) y.sum().backward();
  }
}
void EagerForward(benchmark::State& state) { eager(state, Checkpoints::kNone, false); }
void EagerWithout(benchmark::State& state) { eager(state, Checkpoints::kNone, true); }
void EagerWithoutState(benchmark::State& state) { eager(state, Checkpoints::kWithoutRandomState, true); }
void EagerWith(benchmark::State& state) { eager(state, Checkpoints::kAll, true); }
BENCHMARK(EagerForward)->Unit(benchmark::kMillisecond);
BENCHMARK(EagerWithout)->Unit(benchmark::kMillisecond);
BENCHMARK(EagerWithoutState)->Unit(benchmark::kMillisecond);
BENCHMARK(EagerWith)->Unit(benchmark::kMillisecond);

// Stages of random sizes with four options each for the saved activations.
std::vector<ChainStage> random_stages(size_t count) {
  std::mt19937 random(1);
  std::vector<ChainStage> stages;
  for (size_t i = 0; i < count; ++i) {
    ChainStage stage{.name = "stage"};
    stage.forward = 100 + random() % 1000;
    stage.recompute = stage.forward - random() % 50;
    stage.output = 1000 + random() % 1000;
    const int64_t all = stage.output * (4 + random() % 8);
    stage.forward_peak = 2 * stage.output;
    stage.keeping_peak = all + 500;
    stage.backward_peak = all + 3 * stage.output;
    stage.resident = stage.output;
    stage.options = {
        {all, 0}, {all * 2 / 3, stage.recompute / 4}, {all / 2, stage.recompute / 2}, {stage.output, stage.recompute}};
    stages.push_back(stage);
  }
  return stages;
}

void Rotor(benchmark::State& state) {
  const auto stages = random_stages(static_cast<size_t>(state.range(0)));
  int64_t bytes = 5000;
  for (const ChainStage& stage : stages) bytes += stage.options[0].saved;
  for (auto _ : state) {
    const ChainSolver solver(stages, bytes, 500);
    benchmark::DoNotOptimize(solver.schedule(bytes / 3));
  }
}
BENCHMARK(Rotor)->Arg(100)->Unit(benchmark::kMillisecond);

Graph captured_step(const char* model, int64_t batch, int64_t seq, bool bf16) {
  const FakeTensorMode mode({.device = c10::kCUDA});
  const models::BuiltModel built =
      models::build(model, {.batch = batch, .seq = seq, .dtype = bf16 ? at::kBFloat16 : at::kFloat, .training = true});
  return capture_training_step(models::program_of(built)).graph;
}

void Curve(benchmark::State& state, const char* model, int64_t batch, int64_t seq, bool bf16) {
  const Graph graph = captured_step(model, batch, seq, bf16);
  const Flops flops = Flops::of(graph);
  const auto again = [&](const CheckpointChoice& choice) {
    int64_t sum = 0;
    for (const NodeId n : choice.repeated) sum += flops.of(n).matmul;
    return sum;
  };
  CheckpointCurve curve;
  for (auto _ : state) curve = CheckpointCurve::of(graph);
  // Compares recomputed FLOPs of other policies with those of the curve at the same peak.
  for (const CheckpointChoice& tried : curve.tried()) {
    const bool shown = tried.policy == "sqrt" || tried.policy == "each" ||
                       (tried.policy == "budget" && tried.segments.size() % 4 == 0);
    if (!shown) continue;
    const CheckpointChoice* best = curve.within(tried.peak);
    std::printf("%s at %s: %s recomputes %s FLOPs, optimal %s\n", model, human_bytes(tried.peak).c_str(),
                tried.policy.c_str(), human_count(again(tried)).c_str(), human_count(again(*best)).c_str());
  }
}
BENCHMARK_CAPTURE(Curve, gpt2, "gpt2", 8, 1024, false)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Curve, llama3_8b, "llama3_8b", 1, 8192, true)->Iterations(1)->Unit(benchmark::kMillisecond);

// checkpoint() adds a second forward and its own overhead.
void print_overhead(const bench::Growth& measured) {
  const auto microseconds = [&](const char* name) {
    const auto found = measured.milliseconds.find(name);
    return found == measured.milliseconds.end() ? 0.0 : found->second.begin()->second * 1e3 / kBlocks;
  };
  const double forward = microseconds("EagerForward");
  const double without = microseconds("EagerWithout");
  const double with = microseconds("EagerWith");
  const double stateless = microseconds("EagerWithoutState");
  if (forward == 0 || without == 0 || with == 0 || stateless == 0) return;
  std::printf(
      "\n| us per block | forward | forward and backward | with checkpoint() | overhead | overhead without "
      "random state |\n|---|---|---|---|---|---|\n| | %.1f | %.1f | %.1f | %.1f | %.1f |\n",
      forward, without, with, with - without - forward, stateless - without - forward);
}

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // reuse freed memory of every size
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  const shadowgraph::bench::Growth measured = shadowgraph::bench::run_benchmarks(argc, argv);
  shadowgraph::bench::print_growth(measured);
  print_overhead(measured);
}
