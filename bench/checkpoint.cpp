// Measures activation checkpointing:
//
//   - the pass at 10k, 100k and 1M nodes, us per node and growth;
//   - shadowgraph::checkpoint in eager programs against none, in one run;
//   - rotor's dynamic programme over 100 stages and 500 slots (aim: 100 ms);
//   - the curve of the policy optimal for GPT-2 and Llama 3 8B, with what it and the policies budget and sqrt compute
//     again.
//
//     build/bench/checkpoint [--benchmark_filter=...]
//
// The generated training step is a chain of blocks, each mm, relu, mm, dropout (random), add in forward and five nodes
// in backward. Every block is checkpointed.
#include "shadowgraph/checkpoint.h"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <climits>
#include <malloc.h>
#include <random>

#include "bench/growth.h"
#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/passes/chain_solver.h"
#include "shadowgraph/passes/checkpoint.h"
#include "shadowgraph/passes/checkpoint_curve.h"
#include "shadowgraph/profile/flops.h"
#include "shadowgraph/text.h"
#include "shadowgraph/units.h"

namespace {

using namespace shadowgraph;

Graph training_step(int64_t nodes) {
  const int64_t blocks = nodes / 10;
  std::string head =
      "shadowgraph 1 libtorch 2.13.0\n"
      "operator aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
      "operator aten::relu(Tensor self) -> Tensor\n"
      "operator aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)\n"
      "operator aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n"
      "operator aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor\n"
      "operator aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor\n"
      "s0 = 64 cpu parameter\ns1 = 64 cpu input\n";
  std::string regions;
  std::string forward =
      "n0: %0 = sg::parameter(name=\"w\") : f32[4,4] @s0 grad\nn1: %1 = sg::input(name=\"x\") : f32[4,4] @s1\n";
  std::string backward;
  int64_t value = 2;
  int64_t storage = 2;
  int64_t node = 2;
  std::string storages;
  const auto fresh = [&](int64_t bytes) {
    storages += fmt::format("s{} = {} cpu temporary\n", storage, bytes);
    return storage++;
  };
  struct Block {
    int64_t in, hidden = 0, rectified = 0, mask = 0, first_node = 0;
    int64_t mask_storage = 0, hidden_storage = 0, rectified_storage = 0;
  };
  std::vector<Block> all;
  int64_t x = 1;
  for (int64_t i = 0; i < blocks; ++i) {
    regions += fmt::format("r{} = module \"layers.{}\" \"Block\" call 0 in r0\n", i + 1, i);
    Block b{.in = x, .first_node = node};
    const auto at = [&](const std::string& rest, const std::string& attribute = "") {
      forward += fmt::format("n{}: {} | r{} grad_mode{}\n", node++, rest, i + 1, attribute);
    };
    b.hidden = value++;
    b.hidden_storage = fresh(64);
    at(fmt::format("%{} = aten::mm(self=%{}, mat2=%0) : f32[4,4] @s{}", b.hidden, x, b.hidden_storage));
    b.rectified = value++;
    b.rectified_storage = fresh(64);
    at(fmt::format("%{} = aten::relu(self=%{}) : f32[4,4] @s{}", b.rectified, b.hidden, b.rectified_storage),
       fmt::format(" free(s{})", b.hidden_storage));
    const int64_t product = value++;
    const int64_t product_storage = fresh(64);
    at(fmt::format("%{} = aten::mm(self=%{}, mat2=%0) : f32[4,4] @s{}", product, b.rectified, product_storage));
    const int64_t dropped = value++;
    b.mask = value++;
    const int64_t dropped_storage = fresh(64);
    b.mask_storage = fresh(16);
    at(fmt::format("%{}, %{} = aten::native_dropout(input=%{}, p=0.1, train=true) : f32[4,4] @s{}, bool[4,4] @s{}",
                   dropped, b.mask, product, dropped_storage, b.mask_storage),
       fmt::format(" free(s{})", product_storage));
    const int64_t out = value++;
    at(fmt::format("%{} = aten::add.Tensor(self=%{}, other=%{}) : f32[4,4] @s{}", out, dropped, x, fresh(64)),
       fmt::format(" free(s{})", dropped_storage));
    x = out;
    all.push_back(b);
  }
  int64_t gradient = x;
  for (size_t i = all.size(); i-- > 0;) {
    const Block& b = all[i];
    const auto at = [&](const std::string& rest, int64_t of, const std::string& attribute) {
      backward += fmt::format("n{}: {} | r{} backward of n{}{}\n", node++, rest, i + 1, of, attribute);
    };
    const auto make = [&](const std::string& call, int64_t of, const std::string& attribute = "") {
      const int64_t made = value++;
      at(fmt::format("%{} = {} : f32[4,4] @s{}", made, call, fresh(64)), of, attribute);
      return made;
    };
    int64_t g =
        make(fmt::format("aten::native_dropout_backward(grad_output=%{}, mask=%{}, scale=1.1)", gradient, b.mask),
             b.first_node + 3, fmt::format(" free(s{})", b.mask_storage));
    make(fmt::format("aten::mm(self=%{}, mat2=%{})", b.rectified, g), b.first_node + 2);
    g = make(fmt::format("aten::threshold_backward(grad_output=%{}, self=%{}, threshold=0)", g, b.rectified),
             b.first_node + 1, fmt::format(" free(s{})", b.rectified_storage));
    make(fmt::format("aten::mm(self=%{}, mat2=%{})", b.in, g), b.first_node);
    gradient = make(fmt::format("aten::add.Tensor(self=%{}, other=%{})", g, gradient), b.first_node + 4);
  }
  return parse(head + storages + regions + forward + backward + fmt::format("sg::output(values=[%{}])\n", gradient));
}

void Pass(benchmark::State& state) {
  const Graph graph = training_step(state.range(0));
  {
    // Once before: pages that the kernel has to clear first take as long as half of the pass.
    Graph copy = clone(graph);
    checkpoint_segments(copy, each_region()(copy, regions_named(copy, "layers.*")));
  }
  for (auto _ : state) {
    state.PauseTiming();
    Graph copy = clone(graph);
    const auto segments = each_region()(copy, regions_named(copy, "layers.*"));
    state.ResumeTiming();
    const CheckpointResult done = checkpoint_segments(copy, segments);
    if (done.recomputed == 0) state.SkipWithError("nothing computed again");
    benchmark::DoNotOptimize(done);
  }
}
BENCHMARK(Pass)->Arg(10000)->Arg(100000)->Arg(1000000)->Unit(benchmark::kMillisecond);

// Twenty blocks of two products of 32 x 32: forward and backward, where the work is small and the overhead shows.
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

// Stages of random sizes with four ways to keep each, as those of a network are.
std::vector<ChainStage> random_stages(size_t count) {
  std::mt19937 random(1);
  std::vector<ChainStage> stages;
  for (size_t i = 0; i < count; ++i) {
    ChainStage stage{.name = "stage"};
    stage.forward = 100 + random() % 1000;
    stage.again = stage.forward - random() % 50;
    stage.output = 1000 + random() % 1000;
    const int64_t all = stage.output * (4 + random() % 8);
    stage.forward_peak = 2 * stage.output;
    stage.keeping_peak = all + 500;
    stage.backward_peak = all + 3 * stage.output;
    stage.resident = stage.output;
    stage.options = {{all, 0}, {all * 2 / 3, stage.again / 4}, {all / 2, stage.again / 2}, {stage.output, stage.again}};
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
    benchmark::DoNotOptimize(solver.plan(bytes / 3));
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
  // At the peak of another policy: what it computes again, and what the curve does.
  for (const CheckpointChoice& tried : curve.tried()) {
    const bool shown = tried.made_by == "sqrt" || tried.made_by == "each" ||
                       (tried.made_by == "budget" && tried.segments.size() % 4 == 0);
    if (!shown) continue;
    const CheckpointChoice* best = curve.within(tried.peak);
    std::printf("%s at %s: %s %s FLOPs again, optimal %s\n", model, human_bytes(tried.peak).c_str(),
                tried.made_by.c_str(), human_count(again(tried)).c_str(), human_count(again(*best)).c_str());
  }
}
BENCHMARK_CAPTURE(Curve, gpt2, "gpt2", 8, 1024, false)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Curve, llama3_8b, "llama3_8b", 1, 8192, true)->Iterations(1)->Unit(benchmark::kMillisecond);

// A call adds a second forward and what checkpoint() itself does.
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
      "\n| us a block | forward | forward and backward | with checkpoint() | above a second forward | of that without "
      "random state |\n|---|---|---|---|---|---|\n| | %.1f | %.1f | %.1f | %.1f | %.1f |\n",
      forward, without, with, with - without - forward, stateless - without - forward);
}

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);  // what was freed is used again, at every size
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  const shadowgraph::bench::Growth measured = shadowgraph::bench::run_benchmarks(argc, argv);
  shadowgraph::bench::print_growth(measured);
  print_overhead(measured);
}
