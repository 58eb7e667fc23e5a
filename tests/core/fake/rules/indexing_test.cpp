// Indexing and embedding on fakes compared with eager; results with data-dependent sizes are refused.
#include "shadowgraph/error.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using at::indexing::TensorIndex;

at::Tensor longs(at::IntArrayRef sizes, int64_t bound) {
  return at::arange(c10::multiply_integers(sizes)).remainder(bound).reshape(sizes);
}

TEST(RulesIndexing, SelectByIndex) {
  const auto index = longs({5}, 2);
  for (const auto& x : layouts(at::kFloat)) {
    if (x.dim() == 0 || x.numel() <= 1) continue;
    const Tensors in{x, index, longs(x.sizes(), 1)};
    const Comparison how{.gradients = true, .note = "dim 0 and -1"};
    expect_like_eager(
        [](const Tensors& t) {
          return Tensors{t[0].index_select(0, t[1]), t[0].index_select(-1, t[1])};
        },
        in, how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].take(t[1])}; }, in, how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].index({t[1]})}; }, in, how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].gather(0, t[2])}; }, in, how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].scatter(0, t[2], 1)}; }, in, how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].scatter_add(0, t[2], t[0])}; }, in, how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].index_fill(0, t[1], 2)}; }, in, how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].index_add(0, t[1], t[0].index_select(0, t[1]))}; }, in,
                      how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].index_put({t[1]}, t[0].select(0, 0))}; }, in, how);
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].put(t[1], t[0].flatten().slice(0, 0, 5))}; }, in, {});
  }
}

TEST(RulesIndexing, WritesInPlace) {
  const Tensors in{at::ones({4, 3}), longs({2}, 3), at::ones({4, 3}, at::kBool), at::ones({12})};
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].index_put_({t[1]}, at::zeros({3}))}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].index_put_({t[2]}, at::zeros({}))}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].index_fill_(0, t[1], 3)}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].index_copy_(0, t[1], at::zeros({2, 3}))}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].put_(t[1], at::zeros({2}))}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].masked_scatter_(t[2], t[3])}; }, in);
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].masked_scatter(t[2], t[3])}; }, in, {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].t().masked_scatter_(t[2], t[3])}; }, in);  // throws
}

TEST(RulesIndexing, Embedding) {
  const Tensors in{at::ones({10, 4}), longs({2, 3}, 10)};
  expect_like_eager([](const Tensors& t) { return Tensors{at::embedding(t[0], t[1])}; }, in, {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::embedding(t[0], t[1].to(at::kInt), 0, true)}; }, in,
                    {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::embedding(t[0].t(), t[1].select(0, 0).select(0, 0))}; },
                    in, {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::embedding(t[0][0], t[1])}; }, in, {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::embedding(t[0], t[1].to(at::kFloat))}; }, in,
                    {.cuda = false, .same_error = true});
  expect_like_eager(
      [](const Tensors& t) {
        at::Tensor weight = t[0];
        return Tensors{at::embedding_renorm_(weight, t[1], 1.0, 2.0)};
      },
      in);
}

TEST(RulesIndexing, EmbeddingBagKeepsBooksOnTheCpu) {
  // CUDA's kernel returns other auxiliary tensors; see the next test.
  const Comparison how{.gradients = true, .cuda = false};
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Tensors in{at::ones({10, 4}, dtype), longs({6}, 10), longs({3}, 3) * 2, at::ones({6}, dtype)};
    for (const int64_t mode : {0, 1, 2}) {
      for (const bool last : {false, true}) {
        expect_like_eager(
            [=](const Tensors& t) {
              const auto [output, bags, sizes, maxima] =
                  at::embedding_bag(t[0], t[1], t[2], false, mode, false, {}, last);
              return Tensors{output, bags, sizes, maxima};
            },
            in, how);
        expect_like_eager(
            [=](const Tensors& t) {
              const auto [output, bags, sizes, maxima] =
                  at::_embedding_bag_forward_only(t[0].detach(), t[1], t[2], false, mode, false, {}, last);
              return Tensors{output, bags, sizes, maxima};
            },
            in, {.cuda = false});
      }
    }
    expect_like_eager(
        [](const Tensors& t) {
          return Tensors{std::get<0>(at::embedding_bag(t[0], t[1], t[2], false, 0, false, t[3]))};
        },
        in, how);
  }
}

TEST(RulesIndexing, EmbeddingBagOnCuda) {
  FakeTensorMode mode({.device = at::kCUDA});
  const auto [output, bags, sizes, maxima] =
      at::embedding_bag(at::empty({10, 4}), at::empty({6}, at::kLong), at::empty({3}, at::kLong));
  EXPECT_EQ(output.sizes(), (at::IntArrayRef{3, 4}));
  EXPECT_EQ(bags.sizes(), at::IntArrayRef{6});
  EXPECT_EQ(sizes.sizes(), at::IntArrayRef{3});
  EXPECT_EQ(maxima.sizes(), at::IntArrayRef{0});
}

TEST(RulesIndexing, SortedSearch) {
  const Tensors in{at::arange(10), longs({3, 4}, 9).t(), at::ones({4, 10}), at::ones({4, 3})};
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::searchsorted(t[0], t[1]), at::searchsorted(t[0], 3), at::bucketize(t[1], t[0], true),
                       at::bucketize(3, t[0]), at::searchsorted(t[2], t[3])};
      },
      in);
  expect_like_eager([](const Tensors& t) { return Tensors{at::searchsorted(t[2], t[1])}; }, in, {.same_error = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::bucketize(t[1], t[2])}; }, in);
}

TEST(RulesIndexing, RepeatInterleaveNeedsItsSize) {
  const Tensors in{at::ones({3, 2}), at::ones({3}, at::kLong)};
  expect_like_eager([](const Tensors& t) { return Tensors{at::repeat_interleave(t[0], t[1], 0, 3)}; }, in,
                    {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::repeat_interleave(t[0], 2, 1)}; }, in,
                    {.gradients = true});
  FakeTensorMode mode;
  EXPECT_THROW(at::repeat_interleave(mode.from_real(in[0]), mode.from_real(in[1]), 0), DataDependentError);
}

TEST(RulesIndexing, ResultsThatDependOnDataAreRefused) {
  FakeTensorMode mode;
  const auto x = at::empty({3, 4});
  const auto mask = at::empty({3, 4}, at::kBool);
  EXPECT_THROW(x.nonzero(), DataDependentError);
  EXPECT_THROW(x.masked_select(mask), DataDependentError);
  EXPECT_THROW(x.index({mask}), DataDependentError);
  EXPECT_THROW(at::_unique2(x), DataDependentError);
  EXPECT_THROW(at::unique_consecutive(x), DataDependentError);
  EXPECT_THROW(at::bincount(at::empty({3}, at::kLong)), DataDependentError);
  EXPECT_THROW(x.sum().item(), DataDependentError);
  EXPECT_THROW(x.equal(x.clone()), DataDependentError);
  EXPECT_THROW(static_cast<void>(x.sum().item<float>()), DataDependentError);
  try {
    x.nonzero();
  } catch (const DataDependentError& error) {
    EXPECT_NE(std::string(error.what()).find("aten::nonzero"), std::string::npos);
  }
  EXPECT_EQ(at::nonzero_static(x, 5).sizes(), (at::IntArrayRef{5, 2}));
}

}  // namespace
}  // namespace shadowgraph::testing
