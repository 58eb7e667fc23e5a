// Replays groups of nodes as kernels: results equal those of the nodes, with aliases, writes and empty tensors.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shadowgraph/capture/fake.h"
#include "tests/core/replay/same_bits.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/graphs.h"
#include "tests/random/program.h"

namespace shadowgraph::kernel_tests {
namespace {

using ::testing::UnorderedElementsAre;

TEST(KernelGroups, AChainIsOneCallAndStoresWhatIsReadOutside) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor a = at::mul(x[0], x[1]);
        const at::Tensor b = at::add(a, x[0], 0.5);
        return Tensors{at::relu(b), a};
      },
      {numbers({17, 9}, 1), numbers({9}, 2)});
  EXPECT_THAT(names(*groups), UnorderedElementsAre(Names{"mul", "add", "relu"}));
  EXPECT_EQ(groups->lowered(0).inputs.size(), 2U);
  EXPECT_EQ(groups->lowered(0).outputs.size(), 2U);  // b is not an output
}

TEST(KernelGroups, AllDtypesRoundAsTheNodesDo) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const auto groups = expect_same(
        [](const Tensors& x) {
          const at::Tensor a = at::mul(at::add(x[0], x[1]), x[1]);
          return Tensors{at::where(at::gt(a, x[0]), at::neg(a), at::abs(x[0]))};
        },
        {numbers({33}, 3, dtype), numbers({33}, 4, dtype)});
    EXPECT_EQ(groups->groups().size(), 1U) << dtype;
  }
}

TEST(KernelGroups, IntegersAndConversions) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor a = at::add(x[0], x[1]);  // i16 and u8 promote to i16
        return Tensors{at::mul(a.to(at::kFloat), x[2]), at::eq(a, x[1])};
      },
      {at::arange(-20, 20).to(at::kShort), at::arange(0, 40).to(at::kByte), numbers({40}, 5)});
  EXPECT_EQ(groups->groups().size(), 1U);
}

TEST(KernelGroups, AnOptimizersStepOfAParameterIsOneCall) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor &p = x[0], &g = x[1], &m = x[2], &v = x[3];
        p.mul_(0.99);
        m.mul_(0.9).add_(g, 0.1);
        v.mul_(0.999).addcmul_(g, g, 0.001);
        p.addcdiv_(m, v.add(1e-8), -0.01);
        return Tensors{};
      },
      {numbers({31, 5}, 1), numbers({31, 5}, 2), numbers({31, 5}, 3), numbers({31, 5}, 4).abs_()});
  EXPECT_EQ(groups->groups().size(), 1U);
  EXPECT_EQ(groups->lowered(0).inputs.size(), 4U);
  EXPECT_EQ(groups->lowered(0).outputs.size(), 0U);
}

// Reading through an alias created before a write returns the written values.
TEST(KernelGroups, WritesAreSeenThroughOlderNames) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor before = at::mul(x[0], 2);
        at::Tensor y = at::add(x[0], 1);
        const at::Tensor same = y.mul_(x[1]);
        return Tensors{before, at::add(y, 1), same, y, x[0].add_(y)};
      },
      {numbers({12}, 6), numbers({12}, 7)});
  EXPECT_EQ(groups->groups().size(), 1U);
}

TEST(KernelGroups, ViewsOfWhatIsWrittenPartGroups) {
  expect_same(
      [](const Tensors& x) {
        const at::Tensor row = x[0][0];
        const at::Tensor a = at::add(row, 1);
        x[0].mul_(2);
        const at::Tensor b = at::add(row, a);
        row.add_(b);
        return Tensors{at::mul(x[0], 3), at::mul(row, b), x[0].t().neg()};
      },
      {numbers({4, 4}, 8)});
}

TEST(KernelGroups, LayoutsOfAllKinds) {
  const at::Tensor base = numbers({6, 8, 10}, 9);
  expect_same(
      [](const Tensors& x) {
        const at::Tensor a = at::mul(x[0], x[1]);
        return Tensors{at::sub(a, x[2]), at::add(at::neg(x[0]), x[3])};
      },
      {base.transpose(0, 2), numbers({10, 1, 6}, 10), numbers({}, 11), base.transpose(0, 2).slice(1, 0, 1)});
  expect_same([](const Tensors& x) { return Tensors{at::add(at::mul(x[0], 2), x[1])}; },
              {base.slice(2, 0, 10, 2), base.slice(2, 1, 10, 2)});
}

TEST(KernelGroups, NothingAndOneElement) {
  const auto function = [](const Tensors& x) { return Tensors{at::add(at::mul(x[0], 2), x[1]), x[0].mul_(3)}; };
  expect_same(function, {numbers({0, 5}, 1), numbers({0, 5}, 2)});
  expect_same(function, {numbers({3, 0}, 1), numbers({1}, 2)});
  expect_same(function, {numbers({}, 1), numbers({}, 2)});
  expect_same(function, {numbers({1, 1}, 1), numbers({1}, 2)});
}

// mm depends on the product and feeds the sum, so the two cannot be one call. The other two nodes join the product.
TEST(KernelGroups, NoWayLeadsOutOfAGroupAndBack) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor a = at::mul(x[0], 2);
        const at::Tensor product = at::mm(a, x[0]);
        const at::Tensor b = at::relu(a);
        const at::Tensor sum = at::add(a, product);
        return Tensors{at::neg(sum), at::mul(b, 3)};
      },
      {numbers({7, 7}, 12)});
  EXPECT_THAT(names(*groups), UnorderedElementsAre(Names{"mul", "relu", "mul"}, Names{"add", "neg"}));
}

// Two chains that depend on each other crosswise: either could be one call, but not both.
TEST(KernelGroups, GroupsDoNotNeedOneAnotherInACircle) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor a = at::mul(x[0], 2);
        const at::Tensor b = at::mul(x[1], 2);
        const at::Tensor c = at::add(at::mm(b, x[0]), a);
        const at::Tensor d = at::add(at::mm(a, x[1]), b);
        return Tensors{c, d};
      },
      {numbers({5, 5}, 13), numbers({5, 5}, 14)});
  EXPECT_LE(groups->groups().size(), 4U);
  IdMap<NodeId, int32_t> seen;
  for (const NodeId node : groups->order()) EXPECT_EQ(std::exchange(seen[node], 1), 0);
}

TEST(KernelGroups, DrawsKeepTheirOrder) {
  const Function function = [](const Tensors& x) {
    const at::Tensor a = at::mul(x[0], 2);
    const at::Tensor kept = at::empty_like(a).bernoulli_(0.5);
    const at::Tensor b = at::mul(a, kept.div_(0.5));
    return Tensors{at::add(b, at::rand_like(b))};
  };
  const Tensors inputs = {numbers({40}, 15)};
  const Graph graph = graph_of(function, inputs);
  at::manual_seed(3);
  const Tensors plain = run_of(graph, inputs);
  at::manual_seed(3);
  const Tensors found = run_of(graph, inputs, kernels_of(graph));
  EXPECT_TRUE(same_bits(plain[0], found[0]));
}

// Two graph inputs are bound to identical or overlapping tensors: a write to the first is seen by the second.
TEST(KernelGroups, BoundTensorsThatOverlapRunAsNodes) {
  const Graph graph = graph_of(
      [](const Tensors& x) {
        x[0].add_(1);
        return Tensors{at::mul(x[1], 2)};
      },
      {numbers({8}, 1), numbers({8}, 2)});
  const Graph joined = graph_of(
      [](const Tensors& x) {
        const at::Tensor a = at::mul(x[1], 3);
        return Tensors{x[0].add_(a), at::mul(x[1], 2).add(a)};
      },
      {numbers({8}, 1), numbers({8}, 2)});
  for (const Graph* g : {&graph, &joined}) {
    const auto groups = kernels_of(*g);
    for (const int64_t shift : {0, 3, 8}) {
      const at::Tensor memory = numbers({16}, 17);
      const Tensors inputs = {memory.slice(0, 0, 8), memory.slice(0, shift, shift + 8)};
      const Tensors plain = run_of(*g, inputs);
      const Tensors found = run_of(*g, inputs, groups);
      for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(same_bits(plain[i], found[i])) << shift << " " << i;
    }
  }
  const auto groups = kernels_of(joined);
  ASSERT_EQ(groups->groups().size(), 1U);
  const at::Tensor memory = numbers({16}, 17);
  run_of(joined, {memory.slice(0, 0, 8), memory.slice(0, 3, 11)}, groups);
  EXPECT_EQ(groups->report()[0].node_runs, 1);
  run_of(joined, {memory.slice(0, 0, 8), memory.slice(0, 8, 16)}, groups);
  EXPECT_EQ(groups->report()[0].kernel_runs, 1);
}

TEST(KernelGroups, OtherSizesRunAsNodes) {
  const Graph graph =
      graph_of([](const Tensors& x) { return Tensors{at::add(at::mul(x[0], 2), 1)}; }, {numbers({8}, 1)});
  const auto groups = kernels_of(graph);
  Interpreter interpreter(graph, {.check_bindings = false, .groups = groups});
  for (const at::Tensor& x :
       {numbers({5}, 1), numbers({2, 4}, 1), numbers({8}, 1, at::kDouble), numbers({16}, 2).slice(0, 0, 16, 2)}) {
    const auto out = interpreter.run(Bindings().bind("x0", x)).outputs;
    EXPECT_TRUE(same_bits(out[0], x * 2 + 1));
  }
  EXPECT_EQ(groups->report()[0].kernel_runs, 0);
  interpreter.run(Bindings().bind("x0", numbers({8}, 1)));
  EXPECT_EQ(groups->report()[0].kernel_runs, 1);
}

TEST(KernelGroups, OnFakesAndWatchedNodesRun) {
  const Graph graph =
      graph_of([](const Tensors& x) { return Tensors{at::add(at::mul(x[0], 2), 1)}; }, {numbers({8}, 1)});
  const auto groups = kernels_of(graph);
  Interpreter interpreter(graph, {.groups = groups});
  {
    FakeTensorMode mode;
    EXPECT_TRUE(is_fake(interpreter.run(Bindings().bind("x0", numbers({8}, 1))).outputs[0]));
  }
  // Capturing the replay records the original operators.
  const Graph again = graph_of([&](const Tensors& x) { return interpreter.run(Bindings().bind("x0", x[0])).outputs; },
                               {numbers({8}, 1)});
  EXPECT_EQ(again.node_count(), graph.node_count());
  EXPECT_EQ(groups->report()[0].kernel_runs, 0);
}

TEST(KernelGroups, SlicesUseTheGroupsThatTheyHoldWhole) {
  const Graph graph = graph_of(
      [](const Tensors& x) {
        const at::Tensor a = at::mul(x[0], 2);
        const at::Tensor b = at::add(a, 1);
        return Tensors{at::relu(at::mm(b, b))};
      },
      {numbers({4, 4}, 1)});
  std::vector<ValueId> values;  // x, a, b, product, relu
  for (const NodeId node : graph.nodes()) graph.for_each_output(node, [&](ValueId v) { values.push_back(v); });
  const at::Tensor x = numbers({4, 4}, 2);
  const auto run = [&](std::vector<ValueId> only, const std::shared_ptr<NodeGroups>& groups) {
    Interpreter interpreter(graph, {.only = std::move(only), .groups = groups});
    return interpreter.run(Bindings().bind("x0", x)).outputs;
  };
  const auto groups = kernels_of(graph);
  EXPECT_THAT(names(*groups), UnorderedElementsAre(Names{"mul", "add"}, Names{"relu"}));
  EXPECT_TRUE(same_bits(run({values[2]}, groups)[0], x * 2 + 1));
  EXPECT_EQ(groups->report()[0].kernel_runs, 1);
  EXPECT_TRUE(same_bits(run({values[1]}, groups)[0], x * 2));  // only a part of the group
  const auto both = run({values[1], values[4]}, groups);       // including a value inside the group
  EXPECT_TRUE(same_bits(both[0], x * 2));
  EXPECT_TRUE(same_bits(both[1], run({values[4]}, nullptr)[0]));
  EXPECT_EQ(groups->report()[0].kernel_runs, 1);
}

TEST(KernelGroups, OfAnotherGraphAreRefused) {
  const Tensors inputs = {numbers({8}, 1)};
  const Graph graph = graph_of([](const Tensors& x) { return Tensors{at::add(at::mul(x[0], 2), 1)}; }, inputs);
  const Graph other = graph_of([](const Tensors& x) { return Tensors{at::mul(x[0], 2)}; }, inputs);
  EXPECT_THROW(Interpreter(other, {.groups = kernels_of(graph)}), Error);
  EXPECT_THROW(Interpreter(graph, {.groups = kernels_of(other)}), Error);
}

TEST(KernelGroups, ExactLeavesTranscendentalFunctionsToLibtorch) {
  const Function function = [](const Tensors& x) { return Tensors{at::add(at::tanh(at::mul(x[0], 2)), x[0])}; };
  const Tensors inputs = {numbers({100}, 1)};
  const Graph graph = graph_of(function, inputs);
  const auto exact = kernels_of(graph, true);
  EXPECT_THAT(names(*exact), UnorderedElementsAre(Names{"mul"}, Names{"add"}));
  EXPECT_TRUE(same_bits(run_of(graph, inputs)[0], run_of(graph, inputs, exact)[0]));
  EXPECT_THAT(names(*expect_same(function, inputs, 4)), UnorderedElementsAre(Names{"mul", "tanh", "add"}));
}

// ---- Random programs: writes, views, out=, resize_, draws. Kernels are compiled without optimization.

class RandomProgramsWithKernels : public ::testing::TestWithParam<int> {};

TEST_P(RandomProgramsWithKernels, DoAsTheyRun) {
  constexpr int kShards = 4;
  static TemporaryFolder folder;
  static const auto cache =
      std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path(), .background = false},
                                    compiler_backend({.flags = {"-O0", "-march=native"}}));
  int64_t kernel_runs = 0;
  for (int i = GetParam(); i < shadowgraph::testing::random_program_count(60); i += kShards) {
    const auto program = shadowgraph::testing::RandomProgram::make(20000 + static_cast<uint64_t>(i), 20 + i % 15);
    const Graph graph = shadowgraph::testing::capture(program);
    const auto groups = group_kernels(graph, cache, {.kernels = {.exact = true}, .measure = {.enabled = false}});
    const auto expected = shadowgraph::testing::run_eagerly(program);
    const auto found = shadowgraph::testing::replay(graph, program, true, groups);
    const std::string difference = shadowgraph::testing::difference(expected, found);
    if (!difference.empty()) FAIL() << difference << "\n" << program.describe();
    for (const auto& report : groups->report()) kernel_runs += report.kernel_runs;
  }
  EXPECT_GT(kernel_runs, 0);
}
INSTANTIATE_TEST_SUITE_P(Shard, RandomProgramsWithKernels, ::testing::Range(0, 4));

}  // namespace
}  // namespace shadowgraph::kernel_tests
