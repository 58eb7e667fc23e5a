// The faster of kernel and original is found by timing both in real calls, and the verdict persists across processes.
// Times come from a scripted clock in the test, independent of actual durations.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/kernels/kernel.h"
#include "tests/core/replay/same_bits.h"
#include "tests/kernels/graphs.h"
#include "tests/kernels/temporary_folder.h"

namespace shadowgraph::kernel_tests {
namespace {

// Every second reading ends an interval: 100 ns for the kernel, `original` for the replaced operators.
class ScriptedClock {
 public:
  explicit ScriptedClock(int64_t original) : original_(original) {}
  KernelMeasureOptions options(int samples) {
    return {.samples = samples, .clock = [this] {
              if (looks_++ % 2 == 0) return now_;
              // Kernel and original alternate: k o o k.
              const int64_t turn = (looks_ / 2 - 1) % 4;
              now_ += turn == 0 || turn == 3 ? 100 : original_;
              return now_;
            }};
  }
  int64_t looks() const { return looks_; }

 private:
  const int64_t original_;
  int64_t looks_ = 0;
  int64_t now_ = 0;
};

const Function kFunction = [](const Tensors& x) { return Tensors{at::add(at::mul(x[0], 2), x[0]), x[0].add_(1)}; };

TEST(KernelMeasure, EachCallGoesOneWayAndTheFasterIsKept) {
  const Tensors inputs = {at::randn({50})};
  for (const int64_t original : {99, 103, 104}) {
    const bool nodes = original < 104;  // the kernel must be at least 1/32 faster
    const TemporaryFolder folder;
    ScriptedClock clock(original);
    const Graph graph = graph_of(kFunction, inputs);
    const auto groups = group_kernels(graph, folder.cache(), {.measure = clock.options(3)});
    ASSERT_EQ(groups->groups().size(), 1U);
    const Tensors expected = run_of(graph, inputs);
    for (int i = 0; i < 20; ++i) {
      const Tensors found = run_of(graph, inputs, groups);
      for (size_t k = 0; k < found.size(); ++k) EXPECT_TRUE(same_bits(found[k], expected[k])) << i << " " << k;
      const auto state = groups->report()[0].state;
      EXPECT_EQ(state == KernelGroups::State::kMeasuring, i < 5) << i;
    }
    const auto report = groups->report()[0];
    // k o o k k o: three calls each.
    EXPECT_EQ(report.kernel_runs, nodes ? 3 : 17);
    EXPECT_EQ(report.node_runs, nodes ? 17 : 3);
    EXPECT_EQ(report.state, nodes ? KernelGroups::State::kNodes : KernelGroups::State::kKernel);
    EXPECT_EQ(report.kernel_ns, 100);
    EXPECT_EQ(report.nodes_ns, original);
    EXPECT_EQ(clock.looks(), 12);
  }
}

TEST(KernelMeasure, TheNextProcessKnows) {
  const Tensors inputs = {at::randn({50})};
  const Graph graph = graph_of(kFunction, inputs);
  const TemporaryFolder folder;
  ScriptedClock clock(99);
  {
    const auto groups = group_kernels(graph, folder.cache(), {.measure = clock.options(1)});
    for (int i = 0; i < 3; ++i) run_of(graph, inputs, groups);
    EXPECT_EQ(groups->report()[0].state, KernelGroups::State::kNodes);
  }
  ScriptedClock unused(0);
  const auto cache = folder.cache();
  const auto groups = group_kernels(graph, cache, {.measure = unused.options(1)});
  run_of(graph, inputs, groups);
  EXPECT_EQ(cache->stats().loaded, 1);
  EXPECT_EQ(groups->report()[0].state, KernelGroups::State::kNodes);
  EXPECT_EQ(groups->report()[0].kernel_ns, 100);
  EXPECT_EQ(groups->report()[0].nodes_ns, 99);
  EXPECT_EQ(unused.looks(), 0);
  // A verdict is valid for this size only; another size is measured again.
  const Tensors larger = {at::randn({5000})};
  const Graph other = graph_of(kFunction, larger);
  const auto others = group_kernels(other, cache, {.measure = unused.options(1)});
  run_of(other, larger, others);
  EXPECT_EQ(cache->stats().compiled, 0);
  EXPECT_EQ(others->report()[0].state, KernelGroups::State::kMeasuring);
}

TEST(KernelMeasure, GroupsThatAreAlikeAreMeasuredTogether) {
  const Tensors inputs = {at::randn({6, 6})};
  const Graph graph = graph_of(
      [](const Tensors& x) {
        at::Tensor y = x[0];
        for (int i = 0; i < 4; ++i) y = at::mm(at::relu(at::mul(y, 2)), x[0]);
        return Tensors{y};
      },
      inputs);
  const TemporaryFolder folder;
  ScriptedClock clock(200);
  const auto groups = group_kernels(graph, folder.cache(), {.measure = clock.options(2)});
  ASSERT_EQ(groups->groups().size(), 4U);
  run_of(graph, inputs, groups);
  for (const auto& report : groups->report()) EXPECT_EQ(report.state, KernelGroups::State::kKernel);
}

TEST(KernelMeasure, EagerCallsGoOneWayEach) {
  const TemporaryFolder folder;
  ScriptedClock clock(50);
  const at::Tensor x = at::zeros({20});
  const CompiledOperators compiled = compile_operators({"aten::add_.Tensor"}, c10::DispatchKey::CPU,
                                                       {.measure = clock.options(2), .cache = folder.cache()});
  for (int i = 0; i < 10; ++i) x.add_(1);
  EXPECT_TRUE(x.equal(at::full({20}, 10.0)));  // no call ran twice
  const auto report = compiled.report();
  ASSERT_EQ(report.size(), 1U);
  EXPECT_EQ(report[0].ran, 2);
  EXPECT_EQ(report[0].original, 8);
  EXPECT_EQ(clock.looks(), 8);
}

// A verdict is valid for one number of threads; another number is measured again.
TEST(KernelMeasure, EachNumberOfThreadsHasItsVerdict) {
  struct Threads {
    int before = at::get_num_threads();
    ~Threads() { at::set_num_threads(before); }
  } const restored;
  const TemporaryFolder folder;
  const at::Tensor x = at::zeros({20});
  const auto run_with = [&](int threads, ScriptedClock& clock) {
    at::set_num_threads(threads);
    const CompiledOperators compiled = compile_operators({"aten::add_.Tensor"}, c10::DispatchKey::CPU,
                                                         {.measure = clock.options(1), .cache = folder.cache()});
    for (int i = 0; i < 6; ++i) x.add_(1);
    return compiled.report().at(0);
  };
  ScriptedClock slow_kernel(50);
  EXPECT_EQ(run_with(1, slow_kernel).original, 5);  // one kernel call, to measure it
  ScriptedClock fast_kernel(200);
  EXPECT_EQ(run_with(2, fast_kernel).ran, 5);
  ScriptedClock unused(0);
  EXPECT_EQ(run_with(1, unused).original, 6);
  EXPECT_EQ(run_with(2, unused).ran, 6);
  EXPECT_EQ(unused.looks(), 0);
}

TEST(KernelMeasure, WithoutMeasuringTheKernelRuns) {
  const Tensors inputs = {at::randn({50})};
  const Graph graph = graph_of(kFunction, inputs);
  const TemporaryFolder folder;
  ScriptedClock clock(1);
  {
    const auto groups = group_kernels(graph, folder.cache(), {.measure = clock.options(1)});
    for (int i = 0; i < 3; ++i) run_of(graph, inputs, groups);
  }
  const auto groups = group_kernels(graph, folder.cache(), {.measure = {.enabled = false}});
  for (int i = 0; i < 3; ++i) run_of(graph, inputs, groups);
  EXPECT_EQ(groups->report()[0].kernel_runs, 3);
  EXPECT_EQ(groups->report()[0].state, KernelGroups::State::kKernel);
}

}  // namespace
}  // namespace shadowgraph::kernel_tests
