// Dropout and random operators on fakes compared with eager: shapes only, because fakes draw no numbers.
#include <gmock/gmock.h>

#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

// Kernels exist for floating-point and complex dtypes only, although libtorch's shape function accepts any dtype.
TEST(RulesRandom, NormalNumbers) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble, at::kComplexFloat, at::kLong, at::kInt,
                           at::kBool, at::kByte, at::kFloat8_e5m2}) {
    expect_like_eager([](const Tensors& t) { return Tensors{t[0].clone().normal_()}; }, {at::zeros({3, 4}, dtype)},
                      {.cuda = false, .same_error = true});
  }
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].clone().normal_(0, -1)}; }, {at::zeros({3})},
                    {.same_error = true});
  const FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_THAT([] { at::empty({3}, at::kLong).normal_(); },
              ::testing::ThrowsMessage<c10::NotImplementedError>(
                  ::testing::HasSubstr("\"normal_kernel_cuda\" not implemented for 'Long'")));
}

TEST(RulesRandom, Dropout) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& x : layouts(dtype)) {
      // Eager's CUDA backward returns a contiguous or channels-last gradient, whatever the strides of the operand.
      const bool like_cuda = x.is_contiguous() || x.is_contiguous(x.suggest_memory_format());
      expect_like_eager([](const Tensors& t) { return Tensors{at::dropout(t[0], 0.1, true)}; }, {x},
                        {.gradients = true, .cuda = like_cuda, .note = "training"});
      expect_like_eager([](const Tensors& t) { return Tensors{at::dropout(t[0], 0.1, false)}; }, {x},
                        {.gradients = true, .note = "evaluation"});
      expect_like_eager([](const Tensors& t) { return Tensors{at::feature_dropout(t[0], 0.1, true)}; }, {x},
                        {.gradients = true, .note = "features"});
      for (const bool train : {true, false}) {
        expect_like_eager(
            [train](const Tensors& t) {
              const auto [output, mask] = at::native_dropout(t[0], 0.1, train);
              return Tensors{output, mask};
            },
            {x},
            {.gradients = true, .cuda = like_cuda && x.numel() != 0, .note = train ? "native" : "native, evaluation"});
      }
    }
  }
  expect_like_eager([](const Tensors& t) { return Tensors{at::dropout(t[0], 1.5, true)}; }, {at::ones({2})},
                    {.same_error = true});
}

// CUDA uses one fused kernel where the CPU multiplies by a mask: fewer saved bytes, and a different graph.
TEST(RulesRandom, DropoutOnCudaSavesABooleanMask) {
  FakeTensorMode mode({.device = at::kCUDA});
  const auto x = at::empty({4, 6}).requires_grad_();
  EXPECT_EQ(at::dropout(x, 0.1, true).grad_fn()->name(), "NativeDropoutBackward0");
  const auto back = torch::autograd::grad({at::dropout(x.t(), 0.1, true)}, {x}, {at::ones({6, 4}).t().t()})[0];
  EXPECT_EQ(back.strides(), (at::IntArrayRef{1, 4}));  // of t() of a contiguous [6, 4]
  EXPECT_EQ(at::dropout(at::empty({4, 6}, at::kCPU).requires_grad_(), 0.1, true).grad_fn()->name(), "MulBackward0");
}

TEST(RulesRandom, FreshTensors) {
  for (const auto& x : layouts(at::kFloat)) {
    const auto run = [&](const char* note, const Program& program) { expect_like_eager(program, {x}, {.note = note}); };
    run("bernoulli", [](const Tensors& t) { return Tensors{at::bernoulli(t[0])}; });
    run("bernoulli p", [](const Tensors& t) { return Tensors{at::bernoulli(t[0], 0.3)}; });
    run("poisson", [](const Tensors& t) { return Tensors{at::poisson(t[0])}; });
    run("normal", [](const Tensors& t) { return Tensors{at::normal(t[0], 1.0), at::normal(0.0, t[0].abs())}; });
    run("rand_like", [](const Tensors& t) { return Tensors{at::rand_like(t[0]), at::randn_like(t[0])}; });
    run("randint_like", [](const Tensors& t) { return Tensors{at::randint_like(t[0], 5)}; });
    run("binomial", [](const Tensors& t) { return Tensors{at::binomial(t[0], at::full({}, 0.5))}; });
    run("gamma", [](const Tensors& t) { return Tensors{at::_standard_gamma(t[0] + 1)}; });
  }
  expect_like_eager(
      [](const Tensors&) {
        return Tensors{at::rand({2, 3}),
                       at::randn({0, 3}),
                       at::randint(5, {2}),
                       at::randperm(7),
                       at::randperm(4, at::kInt),
                       at::normal(0.0, 1.0, {2, 3}),
                       at::rand({2, 3}, at::kDouble)};
      },
      {});
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::multinomial(t[0], 5, true), at::multinomial(t[0][0], 2)};
      },
      {at::ones({2, 4})});
  expect_like_eager([](const Tensors& t) { return Tensors{at::multinomial(t[0], 5)}; }, {at::ones({2, 4})},
                    {.same_error = true});
}

TEST(RulesRandom, InPlace) {
  const std::vector<std::pair<std::string, std::function<void(at::Tensor)>>> writes = {
      {"bernoulli_", [](at::Tensor x) { x.bernoulli_(0.5); }},
      {"bernoulli_ tensor", [](at::Tensor x) { x.bernoulli_(at::full({}, 0.5)); }},
      {"bernoulli_ of 2", [](at::Tensor x) { x.bernoulli_(2.0); }},
      {"exponential_", [](at::Tensor x) { x.exponential_(); }},
      {"geometric_", [](at::Tensor x) { x.geometric_(0.5); }},
      {"cauchy_", [](at::Tensor x) { x.cauchy_(); }},
      {"log_normal_", [](at::Tensor x) { x.log_normal_(); }},
      {"log_normal_ of -1", [](at::Tensor x) { x.log_normal_(0, -1); }},
      {"normal_", [](at::Tensor x) { x.normal_(); }},
      {"uniform_", [](at::Tensor x) { x.uniform_(); }},
      {"random_", [](at::Tensor x) { x.random_(); }},
  };
  for (const auto& [name, write] : writes) {
    for (const auto& x : layouts(at::kFloat)) {
      // libtorch's own Meta kernels accept self-overlapping tensors.
      if ((name == "normal_" || name == "random_") && !x.is_non_overlapping_and_dense()) continue;
      expect_like_eager(
          [&write = write](const Tensors& t) {
            write(t[0]);
            return Tensors{t[0]};
          },
          {x}, {.note = name});
    }
  }
}

}  // namespace
}  // namespace shadowgraph::testing
