// Decompositions and solvers that LAPACK runs on column-major matrices, compared with eager, with out= forms.
// tests/conformance runs all OpInfo samples; this file covers what they lack.
#include <ATen/core/dispatch/Dispatcher.h>

#include "shadowgraph/error.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

at::Tensor positive_definite(at::IntArrayRef sizes) {
  const at::Tensor x = at::randn(sizes);
  return at::matmul(x, x.mT()) + at::eye(sizes.back());
}

TEST(RulesLinalg, TriangularSystemsInEachLayout) {
  const at::Tensor a = positive_definite({2, 3, 3});
  const Tensors lefts{a, a.mT(), a.expand({2, 3, 3}), a[0]};
  for (const at::Tensor& left : lefts) {
    for (const at::Tensor& right : {at::randn({2, 3, 4}), at::randn({2, 4, 3}).mT(), at::randn({3, 1})}) {
      expect_like_eager(
          [](const Tensors& t) { return Tensors{at::linalg_solve_triangular(t[0], t[1], /*upper=*/true)}; },
          {left, right}, {.gradients = true});
    }
  }
  expect_like_eager([](const Tensors& t) { return Tensors{at::linalg_solve_triangular(t[0], t[1], true)}; },
                    {at::randn({3, 2}), at::randn({3, 2})});  // not square
  expect_like_eager([](const Tensors& t) { return Tensors{at::linalg_solve_triangular(t[0], t[1], true)}; },
                    {at::randn({3, 3}, at::kComplexFloat).mT().conj(), at::randn({3, 2}, at::kComplexFloat)});
}

TEST(RulesLinalg, OutFormsMakeEmptyResultsColumnMajorAndKeepTheStridesOfOthers) {
  const at::Tensor a = positive_definite({3, 3});
  for (const at::Tensor& out : {at::empty({0}), at::empty({3, 3}), at::empty({3, 3}).t(), at::empty({2})}) {
    expect_like_eager([](Tensors t) { return Tensors{at::cholesky_inverse_out(t[1], t[0])}; }, {a, out});
    expect_like_eager([](Tensors t) { return Tensors{at::linalg_solve_triangular_out(t[1], t[0], t[0], true)}; },
                      {a, out});
  }
  expect_like_eager(
      [](Tensors t) {
        const auto [factors, scales] = at::geqrf_out(t[1], t[2], t[0]);
        return Tensors{factors, scales};
      },
      {at::randn({4, 3}), at::empty({0}), at::empty({0})});
}

TEST(RulesLinalg, OutFormsThatNobodyWroteFollowTheirFunctionalForm) {
  const at::Tensor x = at::randn({4, 5});
  const at::Tensor index = at::tensor({1, 0, 3});
  for (const at::Tensor& out : {at::empty({0}), at::empty({3, 5}), at::empty({5, 3}).t()}) {
    expect_like_eager([](Tensors t) { return Tensors{at::index_select_out(t[2], t[0], 0, t[1])}; }, {x, index, out});
  }
  expect_like_eager(
      [](Tensors t) {
        const auto [values, indices] = at::mode_out(t[1], t[2], t[0], 1, true);
        return Tensors{values, indices};
      },
      {x, at::empty({0}), at::empty({0}, at::kLong)});
  // A result that cannot be cast to the out= dtype is refused as in eager.
  expect_like_eager([](Tensors t) { return Tensors{at::index_select_out(t[2], t[0], 0, t[1])}; },
                    {x, index, at::empty({0}, at::kInt)});
}

// linalg.matrix_sqrth exists since libtorch 2.14.
TEST(RulesLinalg, SquareRootsOfMatrices) {
  const auto op = c10::Dispatcher::singleton().findSchema({"aten::linalg_matrix_sqrth", ""});
  if (!op) GTEST_SKIP() << "not in this libtorch";
  const Program root = [&](const Tensors& t) { return Tensors{op->typed<at::Tensor(const at::Tensor&)>().call(t[0])}; };
  for (const at::Tensor& x : {positive_definite({3, 3}), positive_definite({2, 3, 3}).mT()}) {
    expect_like_eager(root, {x}, {.gradients = true});
  }
  for (const at::Tensor& x : {at::randn({0, 3, 3}).mT(), at::empty_strided({0, 0}, {2, 2}), at::randn({3}),
                              at::randn({3, 4}), at::ones({3, 3}, at::kInt), at::ones({3, 3}, at::kHalf)}) {
    expect_like_eager(root, {x});
  }
}

TEST(RulesLinalg, CompositesThatReadTensorsSaySo) {
  FakeTensorMode mode;
  const at::Tensor x = at::randn({6});
  EXPECT_THROW((void)at::tensor_split(x, at::randint(6, {2}, at::kLong), 0), DataDependentError);
}

}  // namespace
}  // namespace shadowgraph::testing
