// Rules with a fast path for common operands. Every layout is compared with eager, so that both sides of each condition
// are tested, including those where the result is an error or has another dtype.
#include "core/libtorch/kernels.h"
#include "shadowgraph/capture/shape_rules.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using at::Tensor;
using Unary = std::function<Tensor(const Tensor&)>;
using Binary = std::function<Tensor(const Tensor&, const Tensor&)>;

const c10::Scalar kComplex(c10::complex<double>(1, 2));

TEST(PlainOperands, OneOperandInEveryLayout) {
  constexpr size_t kTimesComplex = 11;
  const std::vector<Unary> programs = {
      [](const Tensor& x) { return x.neg(); },
      [](const Tensor& x) { return x.exp(); },
      [](const Tensor& x) { return x.sqrt(); },
      [](const Tensor& x) { return x.rsqrt(); },
      [](const Tensor& x) { return x.tanh(); },
      [](const Tensor& x) { return x.sigmoid(); },
      [](const Tensor& x) { return x * 2; },
      [](const Tensor& x) { return x + 0.5; },
      [](const Tensor& x) { return x.sub(1, 3); },
      [](const Tensor& x) { return x / 3; },
      [](const Tensor& x) { return x.mul(true); },
      [](const Tensor& x) { return x.mul(kComplex); },
      [](const Tensor& x) { return x.pow(2); },
      [](const Tensor& x) { return x.pow(0.5); },
      [](const Tensor& x) { return at::zeros_like(x); },
      [](const Tensor& x) { return at::empty_like(x, x.options().dtype(at::kDouble), at::MemoryFormat::Contiguous); },
      [](const Tensor& x) { return at::ones_like(x, at::MemoryFormat::Preserve); },
      [](const Tensor& x) { return x.clone(); },
      [](const Tensor& x) { return x.clone(at::MemoryFormat::Contiguous); },
      [](const Tensor& x) { return x.clone().mul_(2); },
      [](const Tensor& x) { return x.clone().add_(0.5, 2); },
      [](const Tensor& x) { return x.clone().fill_(1); },
      [](const Tensor& x) { return x.detach(); },
      [](const Tensor& x) { return at::alias(x); },
      [](const Tensor& x) { return x.view({-1}); },
      [](const Tensor& x) {
        return x.view({2, -1});
      },
      [](const Tensor& x) {
        return x.view({7, 7});
      },
      [](const Tensor& x) {
        return x.reshape({-1, 1});
      },
      [](const Tensor& x) { return x.unsqueeze(0); },
      [](const Tensor& x) { return x.unsqueeze(-1); },
      [](const Tensor& x) { return x.unsqueeze(9); },
      [](const Tensor& x) { return x.squeeze(-1); },
      [](const Tensor& x) { return x.squeeze(0); },
      [](const Tensor& x) { return x.select(0, -1); },
      [](const Tensor& x) { return x.select(-1, 0); },
      [](const Tensor& x) { return x.select(0, 5); },
      [](const Tensor& x) { return x.slice(0, 1, -1); },
      [](const Tensor& x) { return x.slice(-1, -100, 100, 2); },
      [](const Tensor& x) { return x.slice(0, 3, 1); },
      [](const Tensor& x) { return x.slice(0, std::nullopt, std::nullopt, 0); },
      [](const Tensor& x) { return x.t(); },
      [](const Tensor& x) { return x.transpose(0, -1); },
      [](const Tensor& x) { return x.transpose(0, 7); },
      [](const Tensor& x) {
        return x.permute({1, 0});
      },
      [](const Tensor& x) {
        return x.permute({0, 0});
      },
      [](const Tensor& x) {
        return x.permute({-1, 0, 1, 2});
      },
      [](const Tensor& x) {
        return x.expand({3, -1, -1});
      },
      [](const Tensor& x) { return x.expand({5}); },
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kComplexFloat}) {
    for (const Tensor& x : layouts(dtype)) {
      for (size_t i = 0; i < programs.size(); ++i) {
        // Since 2.14 the CPU refuses this; CUDA computes it.
        const bool on_gpus_alone = i == kTimesComplex && is_bcomplex32(at::result_type(x, kComplex));
        expect_like_eager(
            [&](const Tensors& in) { return Tensors{programs[i](in[0])}; }, {x},
            {.cuda = !on_gpus_alone, .same_error = i > 22 && i < 46, .note = "program " + std::to_string(i)});
      }
    }
  }
}

TEST(PlainOperands, TwoOperandsInEveryPairOfLayouts) {
  const std::vector<Binary> programs = {
      [](const Tensor& x, const Tensor& y) { return x + y; },
      [](const Tensor& x, const Tensor& y) { return x.sub(y, 0.5); },
      [](const Tensor& x, const Tensor& y) { return x * y; },
      [](const Tensor& x, const Tensor& y) { return x / y; },
      [](const Tensor& x, const Tensor& y) { return x.clone().add_(y); },
      [](const Tensor& x, const Tensor& y) { return x.clone().mul_(y); },
      [](const Tensor& x, const Tensor& y) { return x.clone().addcmul_(y, y, 0.5); },
      [](const Tensor& x, const Tensor& y) { return x.clone().addcdiv_(y, x); },
      [](const Tensor& x, const Tensor& y) { return at::threshold_backward(x, y, 0); },
      [](const Tensor& x, const Tensor& y) {
        return at::cat({x, y}, 0);
      },
      [](const Tensor& x, const Tensor& y) {
        return at::cat({y, x, y}, -1);
      },
  };
  Tensors operands = layouts(at::kFloat);
  for (const Tensor& x : {at::ones({4, 6}).to(at::kDouble), at::ones({4, 6}).to(at::kInt), at::ones({6}), at::ones({0}),
                          at::ones({1, 6}).expand({4, 6}), at::ones({2, 1, 4, 5})}) {
    operands.push_back(x);
  }
  for (const Tensor& x : operands) {
    for (const Tensor& y : operands) {
      for (size_t i = 0; i < programs.size(); ++i) {
        expect_like_eager([&](const Tensors& in) { return Tensors{programs[i](in[0], in[1])}; }, {x, y},
                          {.note = "program " + std::to_string(i)});
      }
    }
  }
}

// Strides of size-one dimensions address nothing, but TensorIterator sorts by them.
TEST(PlainOperands, StridesOfSizesOfOne) {
  for (const Tensor& x : {at::ones({4}).as_strided({1, 4}, {1, 1}), at::ones({8}).as_strided({4, 1, 2}, {2, 9, 1}),
                          at::ones({8}).as_strided({4, 1}, {1, 1})}) {
    expect_like_eager(
        [](const Tensors& in) {
          return Tensors{in[0] + in[0], in[0] * 2, in[0].neg(), in[0].clone()};
        },
        {x});
  }
}

TEST(PlainOperands, PartialOverlapIsRefused) {
  for (const int64_t start : {0, 1, 3, 6}) {
    expect_like_eager([&](const Tensors& in) { return Tensors{in[0].narrow(0, 0, 6).add_(in[0].narrow(0, start, 6))}; },
                      {at::ones({12})}, {.same_error = true, .note = "from " + std::to_string(start)});
  }
}

TEST(PlainOperands, ScalesThatAnAddRefuses) {
  expect_like_eager([](const Tensors& in) { return Tensors{in[0].add(in[0], true)}; }, {at::ones({3})},
                    {.same_error = true});
  expect_like_eager([](const Tensors& in) { return Tensors{in[0].add(in[0], c10::complex<double>(0, 1))}; },
                    {at::ones({3})}, {.same_error = true});
  expect_like_eager([](const Tensors& in) { return Tensors{in[0].sub(true)}; }, {at::ones({3})}, {.same_error = true});
}

TEST(PlainOperands, Indexing) {
  using List = c10::List<std::optional<Tensor>>;
  const Tensor one = at::zeros({3}, at::kLong);
  const Tensor square = at::zeros({2, 2}, at::kLong);
  const Tensor scalar = at::zeros({}, at::kLong);
  const std::vector<std::vector<Tensor>> choices = {{one},
                                                    {square},
                                                    {scalar},
                                                    {Tensor(), one},
                                                    {one, one},
                                                    {one, Tensor()},
                                                    {Tensor(), one, one},
                                                    {one, Tensor(), one},
                                                    {square, one.slice(0, 0, 2)},
                                                    {one, scalar},
                                                    {one.to(at::kInt)},
                                                    {square.t(), square},
                                                    {one, square},
                                                    {at::zeros({0}, at::kLong)}};
  Tensors bases = layouts(at::kFloat);
  bases.push_back(at::ones({2, 3, 4}));
  for (const Tensor& x : bases) {
    for (size_t i = 0; i < choices.size(); ++i) {
      Tensors inputs{x};
      for (const Tensor& index : choices[i]) inputs.push_back(index);
      expect_like_eager(
          [&](const Tensors& in) {
            List indices;
            for (size_t k = 1; k < in.size(); ++k)
              indices.push_back(in[k].defined() ? std::optional(in[k]) : std::nullopt);
            return Tensors{at::index(in[0], indices)};
          },
          inputs, {.note = "indices " + std::to_string(i)});
    }
  }
}

TEST(PlainOperands, FactoriesKeepTheirOptions) {
  const FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_EQ(described(at::empty({2, 3})), "Float[2, 3][3, 1]");
  EXPECT_EQ(at::empty({2}).device(), c10::Device("cuda:0"));
  EXPECT_EQ(at::empty({2}, at::device(at::kCPU)).device(), at::kCPU);
  EXPECT_EQ(described(at::empty({2, 3, 4, 5}, at::kHalf, at::MemoryFormat::ChannelsLast)),
            "Half[2, 3, 4, 5][60, 1, 15, 3]");
  EXPECT_EQ(described(at::empty({0, 3})), "Float[0, 3][3, 1]");
  EXPECT_THROW(at::empty({-1}), c10::Error);
  EXPECT_EQ(at::zeros_like(at::empty({2}), at::device(at::kCPU)).device(), at::kCPU);
}

// In inference mode, a view is a normal tensor if its base is one.
TEST(PlainOperands, ViewsInInferenceMode) {
  const FakeTensorMode mode;
  const Tensor normal = at::ones({2, 3});
  const c10::InferenceMode inference;
  const Tensor made_here = at::ones({2, 3});
  EXPECT_TRUE(made_here.is_inference());
  EXPECT_TRUE(made_here.view({6}).is_inference());
  EXPECT_FALSE(normal.view({6}).is_inference());
  EXPECT_TRUE((normal + normal).is_inference());
}

}  // namespace
}  // namespace shadowgraph::testing
