// Histograms and segments against eager.
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

TEST(RulesGrouping, HistogramsByCountAndByEdges) {
  const at::Tensor x = at::rand({3, 4});
  expect_like_eager(
      [](const Tensors& t) {
        const auto [counts, edges] = at::histogram(t[0], 5, {}, t[1]);
        return Tensors{counts, edges};
      },
      {x, at::rand({3, 4})});
  expect_like_eager(
      [](const Tensors& t) {
        const auto [counts, edges] = at::histogram(t[0], t[1]);
        return Tensors{counts, edges};
      },
      {x.t(), at::arange(4) / 4.0});
  expect_like_eager(
      [](const Tensors& t) {
        auto [counts, edges] = at::histogramdd(t[0], at::IntArrayRef{2, 3, 4, 1});
        Tensors all{counts};
        all.insert(all.end(), edges.begin(), edges.end());
        return all;
      },
      {x});
  // A weight of the wrong shape, no bins, and too few bins for the dimensions.
  expect_like_eager([](const Tensors& t) { return Tensors{std::get<0>(at::histogram(t[0], 5, {}, t[1]))}; },
                    {x, at::rand({4})});
  expect_like_eager([](const Tensors& t) { return Tensors{std::get<0>(at::histogram(t[0], int64_t{0}))}; }, {x});
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{std::get<0>(at::histogramdd(t[0], at::IntArrayRef{2, 3}))};
      },
      {x});
}

TEST(RulesGrouping, SegmentsByLengthAndByOffset) {
  const at::Tensor lengths = at::tensor({1, 2, 0, 1});
  const at::Tensor offsets = at::tensor({0, 1, 3, 3, 4});
  for (const char* reduce : {"sum", "mean", "max", "min", "prod", "median"}) {
    expect_like_eager(
        [=](const Tensors& t) {
          return Tensors{at::segment_reduce(t[0], reduce, t[1].detach(), {}, {}, 0, false, 1.0)};
        },
        {at::rand({4, 3}), lengths}, {.gradients = true, .note = reduce});
    expect_like_eager(
        [=](const Tensors& t) {
          return Tensors{at::segment_reduce(t[0], reduce, {}, {}, t[1].detach(), 0, false, 1.0)};
        },
        {at::rand({3, 4}).t(), offsets}, {.gradients = true, .note = reduce});
  }
}

}  // namespace
}  // namespace shadowgraph::testing
