// Reductions and gathers fused with other nodes: one kernel for a reduction, its producers and its consumers.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "shadowgraph/graph/text.h"
#include "tests/core/replay/same_bits.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/graphs.h"
#include "tests/random/program.h"

namespace shadowgraph::kernel_tests {
namespace {

using ::testing::UnorderedElementsAre;

// Integer-valued, so that sums are exact in any order.
at::Tensor whole_numbers(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(seed);
  return at::randint(-4, 5, sizes).to(dtype);
}

TEST(ReductionGroups, AttentionWeights) {
  const at::Tensor kept = at::randint(2, {2, 7, 40}).to(at::kBool);
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor scores = at::add(at::mul(x[0], 0.125), x[1]);
        const at::Tensor weights = at::_softmax(scores, -1, false);
        return Tensors{weights, at::mul(at::mul(weights, x[2]), 1.25)};
      },
      {numbers({2, 7, 40}, 1), numbers({7, 40}, 2), kept}, 8);
  EXPECT_THAT(names(*groups), UnorderedElementsAre(Names{"mul", "add", "_softmax", "mul", "mul"}));
}

TEST(ReductionGroups, AllDtypesRoundBetweenNodes) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const auto groups = expect_same(
        [](const Tensors& x) {
          const at::Tensor highest = at::amax(at::mul(x[0], x[1]), {1}, true);
          return Tensors{at::sub(x[0], highest), at::mul(highest, x[2])};
        },
        {numbers({9, 33}, 3, dtype), numbers({33}, 4, dtype), numbers({9, 1}, 5, dtype)});
    EXPECT_EQ(groups->groups().size(), 1U) << dtype;
  }
}

// As in decomposed programs: per-row values mixed with per-element values.
TEST(ReductionGroups, ARootMeanSquareNormByHand) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor mean = at::mean(at::mul(x[0], x[0]), {-1}, true);
        const at::Tensor scale = at::rsqrt(at::add(mean, 1e-5));
        return Tensors{at::mul(at::mul(x[0], scale), x[1]), scale};
      },
      {numbers({4, 5, 64}, 6), numbers({64}, 7)}, 8);
  EXPECT_THAT(names(*groups), UnorderedElementsAre(Names{"mul", "mean", "add", "rsqrt", "mul", "mul"}));
}

// A bias gradient together with the tensor it reduces; per-column operands mixed with per-element ones.
TEST(ReductionGroups, Columns) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor gradient = at::mul(x[0], x[1]);
        const at::Tensor sum = at::sum(gradient, {0});
        return Tensors{gradient, at::add(sum, x[2]), x[3].mul_(2).add_(sum), at::sub(x[1], sum)};
      },
      {whole_numbers({70, 600}, 8), whole_numbers({70, 600}, 9), whole_numbers({600}, 10), whole_numbers({600}, 11)});
  EXPECT_EQ(groups->groups().size(), 1U);
  EXPECT_TRUE(groups->lowered(0).program.columns);
}

TEST(ReductionGroups, SeveralOfTheSameDimensions) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor y = at::add(x[0], x[1]);
        const at::Tensor low = at::amin(y, {0, 2}, true);
        const at::Tensor range = at::sub(at::amax(y, {0, 2}, true), low);
        return Tensors{at::sum(at::sub(y, low), at::IntArrayRef({0, 2})), range};
      },
      {whole_numbers({3, 5, 8}, 12), whole_numbers({5, 8}, 13)});
  EXPECT_THAT(names(*groups), UnorderedElementsAre(Names{"add", "amin", "amax", "sub", "sub", "sum"}));
}

TEST(ReductionGroups, OfOtherDimensionsAreOthers) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor y = at::mul(x[0], 2);
        return Tensors{at::sum(y, {0}), at::sum(y, {1}), at::amax(y)};
      },
      {whole_numbers({12, 9}, 14)});
  for (const Names& group : names(*groups)) EXPECT_LE(group.size(), 2U);
}

// Per-row values have the same size as the other dimension, along which libtorch would broadcast them.
TEST(ReductionGroups, SquareOnesAreNotTurned) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor highest = at::amax(x[0], {1});
        return Tensors{at::add(x[0], highest), at::add(highest, x[1]), at::add(x[0], x[1])};
      },
      {numbers({6, 6}, 15), numbers({6}, 16)});
  EXPECT_GT(groups->groups().size(), 1U);
  const auto columns = expect_same(
      [](const Tensors& x) {
        const at::Tensor highest = at::amax(x[0], {0});
        return Tensors{at::add(x[0], highest), at::add(highest, x[1]), at::add(x[0], x[1])};
      },
      {numbers({6, 6}, 15), numbers({6}, 16)});
  EXPECT_THAT(names(*columns), UnorderedElementsAre(Names{"amax", "add", "add"}, Names{"add"}));
}

TEST(ReductionGroups, WhatIsReducedIsWritten) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor sum = at::sum(x[0], {1}, true);
        x[0].sub_(sum);
        const at::Tensor highest = at::amax(x[0], {1}, true);
        return Tensors{x[0].mul_(2).add_(highest), sum.add_(x[1]), at::add(sum, highest)};
      },
      {whole_numbers({7, 530}, 17), whole_numbers({7, 1}, 18)});
  EXPECT_EQ(groups->groups().size(), 1U);
}

TEST(ReductionGroups, DimensionsOfOneAndNumbers) {
  const auto function = [](const Tensors& x) {
    const at::Tensor y = at::add(x[0], 1);
    const at::Tensor sum = at::sum(y, {1}, true);
    return Tensors{at::mul(y, sum), at::mul(at::sum(y), 0.5), at::neg(sum)};
  };
  expect_same(function, {whole_numbers({5, 1}, 19)});
  expect_same(function, {whole_numbers({1, 1}, 20)});
  expect_same(function, {whole_numbers({1, 9}, 21)});
  expect_same([](const Tensors& x) { return Tensors{at::add(at::sum(at::mul(x[0], 2)), x[0])}; },
              {whole_numbers({}, 22)});
}

TEST(ReductionGroups, GathersJoin) {
  at::manual_seed(23);
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor sum = at::add(at::embedding(x[0], x[2]), at::embedding(x[1], x[3]));
        return Tensors{std::get<0>(at::native_layer_norm(sum, {32}, x[4], x[5], 1e-5)), sum};
      },
      {numbers({50, 32}, 24), numbers({9, 32}, 25), at::randint(50, {4, 9}), at::arange(9), numbers({32}, 26),
       numbers({32}, 27)},
      16);
  // The indices of the second run along the second dimension: a different iteration space, then broadcast.
  EXPECT_THAT(names(*groups), ::testing::Contains(Names{"embedding", "add", "native_layer_norm"}));
}

TEST(ReductionGroups, LossesAndTheirGradients) {
  at::manual_seed(28);
  const at::Tensor targets = at::randint(40, {6});
  targets[2] = -100;
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor g = at::nll_loss_backward(x[0], x[1], x[2], {}, at::Reduction::Mean, -100, x[3]);
        return Tensors{at::mul(at::_log_softmax_backward_data(g, x[1], 1, at::kFloat), 2)};
      },
      {numbers({}, 29), at::log_softmax(numbers({6, 40}, 30), 1), targets, at::scalar_tensor(5.0F)}, 16);
  EXPECT_THAT(names(*groups), UnorderedElementsAre(Names{"nll_loss_backward", "_log_softmax_backward_data", "mul"}));
}

TEST(ReductionGroups, AnIndexThatIsOutOfRangeIsTheNodesError) {
  const auto function = [](const Tensors& x) { return Tensors{at::relu(at::mul(at::embedding(x[0], x[1]), 2))}; };
  const at::Tensor table = numbers({5, 8}, 31);
  const Graph graph = graph_of(function, {table, at::arange(4)});
  const auto groups = kernels_of(graph);
  ASSERT_EQ(groups->groups().size(), 1U);
  run_of(graph, {table, at::arange(4)}, groups);
  EXPECT_EQ(groups->report()[0].kernel_runs, 1);
  EXPECT_THROW(run_of(graph, {table, at::arange(4) + 3}, groups), ReplayError);
  EXPECT_THROW(run_of(graph, {table, at::arange(4) - 1}, groups), ReplayError);
  EXPECT_EQ(groups->report()[0].kernel_runs, 1);
}

// An invalid index would be detected after some elements have been overwritten, with no way to undo that.
TEST(ReductionGroups, WhatChecksIndicesWritesNothingInPlace) {
  const auto groups = expect_same(
      [](const Tensors& x) {
        const at::Tensor rows = at::embedding(x[0], x[1]);
        return Tensors{x[2].add_(rows), at::mul(rows, 2)};
      },
      {numbers({5, 8}, 32), at::arange(4), numbers({4, 8}, 33)});
  EXPECT_THAT(names(*groups), UnorderedElementsAre(Names{"embedding", "mul"}, Names{"add_"}));
}

// A fused kernel would use one thread where the operator uses several.
TEST(ReductionGroups, AReductionOfAllOfALargeTensorStaysAlone) {
  const int before = at::get_num_threads();
  const auto groups_with = [](int threads) {
    at::set_num_threads(threads);
    const Graph graph = graph_of([](const Tensors& x) { return Tensors{at::sum(at::mul(at::add(x[0], 1), x[0]))}; },
                                 {numbers({1024, 256}, 34)});
    return names(*kernels_of(graph));
  };
  EXPECT_THAT(groups_with(4), UnorderedElementsAre(Names{"add", "mul"}, Names{"sum"}));
  EXPECT_THAT(groups_with(1), UnorderedElementsAre(Names{"add", "mul", "sum"}));
  at::set_num_threads(before);
}

// ---- Random groups on integer values: elementwise operators, reductions with and without keepdim, operands of all
// these shapes and broadcast ones, in-place writes.

struct Choice {
  std::mt19937 state;
  int below(size_t count) { return static_cast<int>(state() % count); }
  bool one_in(int count) { return below(static_cast<size_t>(count)) == 0; }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[static_cast<size_t>(below(all.size()))];
  }
};

struct Shapes {
  std::vector<int64_t> full, kept, others, reduced;
};
Shapes shapes(Choice& choose) {
  static const std::vector<int64_t> kSizes = {1, 2, 3, 4, 4, 9, 33, 520};
  Shapes out;
  const int rank = 1 + choose.below(3);
  int64_t elements = 1;
  for (int64_t d = 0; d < rank; ++d) {
    int64_t size = choose.of(kSizes);
    if (elements * size > 20000) size = 3;
    elements *= size;
    const bool reduced = choose.one_in(2) || (d + 1 == rank && out.reduced.empty());
    out.full.push_back(size);
    out.kept.push_back(reduced ? 1 : size);
    if (reduced) {
      out.reduced.push_back(d);
    } else {
      out.others.push_back(size);
    }
  }
  return out;
}

at::Tensor one_of_two(Choice& choose, const at::Tensor& a, const at::Tensor& b) {
  switch (choose.below(5)) {
    case 0:
      return at::add(a, b);
    case 1:
      return at::add(at::clamp(at::mul(a, b), -9, 9), 0);  // avoids negative zeros, which maxima do not distinguish
    case 2:
      return at::sub(a, b, 2);
    case 3:
      return at::where(at::gt(a, b), a, b);
    default:
      return at::maximum(a, b);
  }
}

// Inputs: 0, 1 full; 2, 3 reduced with keepdim; 4, 5 reduced without; 6 of the last dimension.
Tensors random_program(uint64_t seed, const Tensors& x, const std::vector<int64_t>& reduced) {
  Choice choose{std::mt19937(static_cast<uint32_t>(seed))};
  std::vector<Tensors> pools = {{x[0], x[1]}, {x[2], x[3]}, {x[4], x[5]}};
  Tensors results;
  const int steps = 3 + choose.below(8);
  for (int i = 0; i < steps; ++i) {
    const auto kind = static_cast<size_t>(choose.one_in(2) ? 0 : choose.below(3));
    Tensors& pool = pools[kind];
    if (choose.one_in(3)) {
      const at::Tensor y = choose.of(pools[0]);
      const bool keep = choose.one_in(2);
      const int which = choose.below(3);
      const at::Tensor clamped = at::clamp(y, -50, 50);
      at::Tensor made = which == 0   ? at::sum(clamped, reduced, keep)
                        : which == 1 ? at::amax(y, reduced, keep)
                                     : at::amin(clamped, reduced, keep);
      pools[keep ? 1 : 2].push_back(made);
      results.push_back(made);
    } else if (choose.one_in(5)) {
      at::Tensor self = choose.of(pool);
      if (choose.one_in(2)) {
        self.add_(choose.of(kind == 0 && choose.one_in(2) ? pools[1] : pool));
      } else {
        self.clamp_(-20, 30);
      }
      results.push_back(self);
    } else {
      const at::Tensor& a = choose.of(pool);
      const at::Tensor& b = kind == 0 && choose.one_in(3)   ? choose.of(pools[1])
                            : kind == 0 && choose.one_in(4) ? x[6]
                                                            : choose.of(pool);
      pool.push_back(one_of_two(choose, a, b));
      results.push_back(pool.back());
    }
  }
  Tensors wanted = {results.back()};
  for (const at::Tensor& result : results) {
    if (choose.one_in(3)) wanted.push_back(result);
  }
  return wanted;
}

class RandomReductionGroups : public ::testing::TestWithParam<int> {};

TEST_P(RandomReductionGroups, DoAsTheNodesDo) {
  constexpr int kShards = 2;
  static TemporaryFolder folder;
  static const auto cache =
      std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path(), .background = false},
                                    compiler_backend({.flags = {"-O1", "-march=native", "-fopenmp-simd"}}));
  int joined = 0;
  const int programs = shadowgraph::testing::random_program_count(40);
  for (int i = GetParam(); i < programs; i += kShards) {
    Choice choose{std::mt19937(static_cast<uint32_t>(40000 + i))};
    const Shapes of = shapes(choose);
    const at::ScalarType dtype = choose.of(std::vector{at::kFloat, at::kDouble});
    Tensors inputs;
    for (const auto* sizes : {&of.full, &of.full, &of.kept, &of.kept, &of.others, &of.others}) {
      inputs.push_back(whole_numbers(*sizes, static_cast<uint64_t>(i * 10) + inputs.size(), dtype));
    }
    inputs.push_back(whole_numbers({of.full.back()}, static_cast<uint64_t>(i), dtype));
    if (choose.one_in(3)) {
      at::Tensor turned = inputs[1].transpose(0, -1).contiguous().transpose(0, -1);
      inputs[1] = turned;
    }
    const Function function = [&](const Tensors& x) { return random_program(static_cast<uint64_t>(i), x, of.reduced); };
    const Graph graph = graph_of(function, inputs);
    const auto groups = group_kernels(graph, cache, {.measure = {.enabled = false}});
    Tensors eager = layout_changes(inputs);
    const Tensors outputs = function(eager);
    eager.insert(eager.begin(), outputs.begin(), outputs.end());
    const Tensors found = run_of(graph, inputs, groups);
    ASSERT_EQ(eager.size(), found.size());
    for (size_t k = 0; k < eager.size(); ++k) {
      ASSERT_TRUE(same_bits(eager[k], found[k])) << "program " << i << ", tensor " << k << "\n" << to_text(graph);
    }
    for (const auto& report : groups->report()) {
      EXPECT_EQ(report.kernel_runs, 1) << report.problem;
      const bool reduces = std::ranges::any_of(report.operators, [](const std::string& name) {
        return name.starts_with("aten::sum") || name.starts_with("aten::am");
      });
      if (reduces && report.operators.size() > 2) ++joined;
    }
  }
  EXPECT_GT(joined, programs / kShards / 4);
}
INSTANTIATE_TEST_SUITE_P(Shard, RandomReductionGroups, ::testing::Range(0, 2));

}  // namespace
}  // namespace shadowgraph::kernel_tests
