// Converts real tensors to fakes: which properties carry over, which storages alias, and which tensors are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(FakeConverter, TheSameTensorGivesTheSameFakeAndAliasesStayAliases) {
  const at::Tensor real = at::rand({4, 6});
  const at::Tensor row = real[1];
  FakeTensorMode mode;
  const at::Tensor fake = mode.from_real(real);
  EXPECT_TRUE(mode.from_real(real).is_same(fake));
  const at::Tensor fake_row = mode.from_real(row);
  EXPECT_TRUE(fake_row.is_alias_of(fake));
  EXPECT_EQ(fake_row.storage_offset(), 6);
  EXPECT_FALSE(mode.from_real(at::rand({4, 6})).is_alias_of(fake));
}

TEST(FakeConverter, GeometryAndBitsAreKept) {
  const at::Tensor real = at::rand({4, 6}, at::kComplexFloat).t().slice(0, 1, 5, 2).conj();
  FakeTensorMode mode;
  const at::Tensor fake = mode.from_real(real);
  EXPECT_EQ(fake.sizes(), real.sizes());
  EXPECT_EQ(fake.strides(), real.strides());
  EXPECT_EQ(fake.storage_offset(), real.storage_offset());
  EXPECT_EQ(fake.scalar_type(), real.scalar_type());
  EXPECT_TRUE(fake.is_conj());
  const at::Tensor negative = at::_neg_view(at::rand({3}));
  EXPECT_TRUE(mode.from_real(negative).is_neg());
}

TEST(FakeConverter, GradientsAreFakesOfTheRealGradients) {
  at::Tensor real = at::rand({3}).requires_grad_();
  real.sum().backward();
  const at::Tensor gradient = real.grad();
  FakeTensorMode mode;
  const at::Tensor fake = mode.from_real(real);
  EXPECT_TRUE(fake.requires_grad());
  EXPECT_TRUE(fake.is_leaf());
  ASSERT_TRUE(fake.grad().defined());
  EXPECT_TRUE(is_fake(fake.grad()));
  EXPECT_TRUE(fake.grad().is_same(mode.from_real(gradient)));
  EXPECT_FALSE(is_fake(real.grad()));
}

TEST(FakeConverter, AViewIsAViewOfTheFakeOfItsBase) {
  at::Tensor base = at::rand({2, 3});
  const at::Tensor view = base.t();
  FakeTensorMode mode;
  const at::Tensor fake = mode.from_real(view);
  const at::Tensor fake_base = mode.from_real(base);
  ASSERT_TRUE(fake.is_view());
  EXPECT_TRUE(at::Tensor(fake._base()).is_same(fake_base));
  const auto version = fake_base._version();
  fake.mul_(2);
  EXPECT_GT(fake_base._version(), version);
  // Writing through the view updates the autograd history of the base, as in eager.
  fake.mul_(at::rand({3, 2}).requires_grad_());
  EXPECT_TRUE(fake_base.requires_grad());
  EXPECT_FALSE(base.requires_grad());
}

TEST(FakeConverter, AViewOfAParameterIsNoLeafAndItsGradientReachesTheParameter) {
  const at::Tensor parameter = at::rand({2, 3}).requires_grad_();
  const at::Tensor view = parameter.view({6});
  FakeTensorMode mode;
  const at::Tensor fake = mode.from_real(view);
  EXPECT_FALSE(fake.is_leaf());
  EXPECT_TRUE(fake.requires_grad());
  fake.sum().backward();
  const at::Tensor gradient = mode.from_real(parameter).grad();
  ASSERT_TRUE(gradient.defined());
  EXPECT_EQ(gradient.sizes(), parameter.sizes());
  EXPECT_FALSE(parameter.grad().defined());
}

TEST(FakeConverter, AHistoryOfRealTensorsEndsInAnErrorNotInSilence) {
  const at::Tensor real = at::rand({3}).requires_grad_().exp();
  FakeTensorMode mode;
  const at::Tensor fake = mode.from_real(real);
  EXPECT_FALSE(fake.is_leaf());
  EXPECT_TRUE(fake.requires_grad());
  EXPECT_THAT([&] { fake.sum().backward(); }, ThrowsMessage<UnsupportedError>(HasSubstr("not a leaf")));
}

TEST(FakeConverter, InferenceTensorsStayInferenceTensors) {
  at::Tensor inference;
  {
    const c10::InferenceMode guard;
    inference = at::rand({3});
  }
  const at::Tensor plain = at::rand({3});
  FakeTensorMode mode;
  EXPECT_TRUE(mode.from_real(inference).is_inference());
  const c10::InferenceMode guard;
  EXPECT_FALSE(mode.from_real(plain).is_inference());
}

TEST(FakeConverter, ATensorThatHasChangedGetsAFakeOfWhatItIsNow) {
  at::Tensor real = at::rand({2, 3});
  FakeTensorMode mode;
  const at::Tensor fake = mode.from_real(real);
  {
    const UnfakeGuard guard;
    real.t_();
  }
  EXPECT_EQ(mode.from_real(real).sizes(), at::IntArrayRef({3, 2}));
  EXPECT_EQ(fake.sizes(), at::IntArrayRef({2, 3}));
  {
    const UnfakeGuard guard;
    real.resize_({10, 10});
  }
  EXPECT_EQ(mode.from_real(real).storage().nbytes(), 400U);
}

TEST(FakeConverter, AFakeOfAFake) {
  FakeTensorMode outer({.device = at::kCUDA});
  const at::Tensor fake = at::empty({2, 3}).t();
  EXPECT_TRUE(outer.from_real(fake).is_same(fake));
  FakeTensorMode inner;
  const at::Tensor own = inner.from_real(fake);
  EXPECT_FALSE(own.is_same(fake));
  EXPECT_FALSE(own.is_alias_of(fake));
  EXPECT_EQ(own.sizes(), fake.sizes());
  EXPECT_EQ(own.strides(), fake.strides());
  EXPECT_EQ(own.device(), fake.device());
  EXPECT_TRUE(inner.from_real(fake).is_same(own));
}

TEST(FakeConverter, TheModeIsFoundFromItsTensors) {
  FakeTensorMode outer;
  const at::Tensor a = at::empty({2});
  {
    FakeTensorMode inner;
    const at::Tensor b = at::empty({2});
    EXPECT_EQ(detect_fake_mode({a}), &outer);
    EXPECT_EQ(detect_fake_mode({b}), &inner);
    EXPECT_EQ(detect_fake_mode({a.view({2}), a.exp().detach()}), &inner);  // created in the inner mode
    EXPECT_EQ(detect_fake_mode({}), &inner);
    EXPECT_THROW(detect_fake_mode({a, b}), Error);
  }
  const UnfakeGuard guard;
  EXPECT_EQ(detect_fake_mode({at::empty({2}), a}), &outer);
  EXPECT_EQ(detect_fake_mode({at::empty({2})}), nullptr);
}

TEST(FakeConverter, AFakeOfAModeThatEndedHasNone) {
  at::Tensor kept;
  {
    const FakeTensorMode mode;
    kept = at::empty({2});
  }
  EXPECT_EQ(detect_fake_mode({kept}), nullptr);
}

TEST(FakeConverter, AFakeSaysWhatItIs) {
  const at::Tensor real = at::empty({2, 3});
  const FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_EQ(to_string(at::empty({2, 3}).requires_grad_()), "fake Float[2, 3] on cuda:0, requires_grad");
  EXPECT_EQ(to_string(at::empty({}, at::TensorOptions(at::kCPU).dtype(at::kLong))), "fake Long[] on cpu");
  EXPECT_EQ(to_string(real), "real Float[2, 3] on cpu");
  EXPECT_EQ(to_string(at::Tensor()), "undefined");
}

TEST(FakeConverter, PrintingAFakeFailsAndSaysWhy) {
  const auto print = [](const at::Tensor& tensor) {
    std::ostringstream out;
    out << tensor;
  };
  const auto ours = AllOf(HasSubstr("a fake tensor has no data to print"), HasSubstr("to_string"));
  at::Tensor kept;
  {
    const FakeTensorMode mode;
    kept = at::rand({2, 3});
    const std::vector<at::Tensor> fakes = {
        kept,
        kept.t(),
        at::rand({}),
        at::rand({5}).requires_grad_(),
        at::rand({2, 2, 2}),
        at::rand({2}, at::kCUDA),
        at::rand({2}, at::kXPU),
        at::randint(3, {2}, at::kLong),
        at::rand({2}, at::kDouble),
        at::rand({2, 3}, at::kDouble),
        at::rand({2, 3}, at::kDouble).t(),
    };
    for (const at::Tensor& fake : fakes) {
      EXPECT_THAT([&] { print(fake); }, ThrowsMessage<c10::Error>(ours)) << to_string(fake);
      EXPECT_NO_THROW(fake + 1);
    }
    // Tensors with known contents, or without elements, can be printed.
    EXPECT_NO_THROW(print(at::tensor({1, 2})));
    EXPECT_NO_THROW(print(at::tensor({1.0, 2.0}, at::kDouble)));
    EXPECT_NO_THROW(print(at::rand({0, 3})));
    // On MPS, libtorch converts in two steps; the second looks like any conversion to double, so the error is
    // libtorch's own.
    EXPECT_THAT([&] { print(at::rand({2}, at::kMPS)); },
                ThrowsMessage<c10::Error>(HasSubstr("its data is not allocated yet")));
  }
  EXPECT_THAT([&] { print(kept); }, ThrowsMessage<c10::Error>(ours));
  EXPECT_NO_THROW(print(at::rand({2})));
}

// Refusing to print must not disturb kernels that read data pointers, reference counts, or when storages are freed.
TEST(FakeConverter, ConversionsToDoubleAreUsedAsEver) {
  const FakeTensorMode mode;
  const at::Tensor x = at::rand({4, 4});
  at::Tensor y = x.to(at::kCPU, at::kDouble);
  EXPECT_EQ(y.use_count(), 1);
  EXPECT_EQ(y.storage().use_count(), 1);
  EXPECT_NO_THROW(y.add_(y));
  EXPECT_ANY_THROW(y.slice(0, 1).add_(y.slice(0, 0, 3)));  // operands overlap
  EXPECT_EQ(y.to(at::kCPU, at::kDouble).unsafeGetTensorImpl(), y.unsafeGetTensorImpl());
  EXPECT_NO_THROW(y.mul_(y));
  EXPECT_TRUE(y.view({16}).is_alias_of(y));
  y = y.to(at::kCPU, at::kDouble);
  y.resize_({20});
  EXPECT_EQ(y.numel(), 20);
  // If the gradient is the conversion itself, autograd steals it instead of copying: its reference count is one.
  at::Tensor leaf = at::rand({3}, at::kDouble).requires_grad_();
  leaf.to(at::kCPU, at::kFloat).sum().backward();
  EXPECT_EQ(leaf.grad().scalar_type(), at::kDouble);
  EXPECT_EQ(leaf.grad().use_count(), 1);
}

TEST(FakeConverter, DoublesCompute) {
  const FakeTensorMode mode;
  at::Tensor x = at::rand({4, 4}, at::kDouble).requires_grad_();
  const at::Tensor y = (x.t().matmul(x).softmax(-1) + x.view({16}).sum()).detach().resize_({8, 2});
  EXPECT_EQ(y.sizes(), at::IntArrayRef({8, 2}));
  x.mul(2).sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kDouble);
  at::Tensor z = at::rand({2}, at::kDouble);
  z.set_data(at::rand({3}, at::kDouble));
  z.resize_({100});
  EXPECT_EQ(z.numel(), 100);
}

TEST(FakeConverter, RealTensorsAreNeverChangedInsideAMode) {
  at::Tensor real = at::ones({2, 3});
  const FakeTensorMode mode;
  EXPECT_THAT([&] { real.t_(); }, ThrowsMessage<UnsupportedError>(HasSubstr("nothing was changed")));
  EXPECT_THROW(real.squeeze_(), UnsupportedError);
  EXPECT_THROW(real.add_(1), UnsupportedError);
  EXPECT_THAT([&] { real[0].zero_(); }, ThrowsMessage<UnsupportedError>(HasSubstr("a view ([3]) of a real tensor")));
  EXPECT_TRUE(is_fake(real[0].mul(2)));  // a view created here is a fake
  EXPECT_THROW(real.resize_({7}), UnsupportedError);
  EXPECT_THROW(at::add_out(real, at::ones({2, 3}), 1), UnsupportedError);
  EXPECT_THROW(at::_foreach_add_({real}, 1), UnsupportedError);
  EXPECT_THROW(real.set_data(at::empty({5})), UnsupportedError);
  const UnfakeGuard guard;
  EXPECT_EQ(real.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_TRUE(real.equal(at::ones({2, 3})));
}

TEST(FakeConverter, WritesThroughViewsOfRealTensorsAreRefused) {
  const at::Tensor real = at::ones({2, 3});
  const int64_t version = real._version();
  {
    FakeTensorMode mode;
    const at::Tensor grown = at::ones({3}).requires_grad_();
    const std::vector<at::Tensor> views = {
        real[0],       real.t(),         real.view(6).slice(0, 1, 3), real.unbind()[1],
        real.detach(), real.detach()[0], real.detach().detach(),      at::alias(real)};
    for (const at::Tensor& view : views) {
      EXPECT_TRUE(is_fake(view));
      EXPECT_THROW(view.zero_(), UnsupportedError);          // unboxed
      EXPECT_THROW(view.bernoulli_(0.5), UnsupportedError);  // through the boxed fallback
      EXPECT_THROW(at::_foreach_add_({view}, 1), UnsupportedError);
      EXPECT_THROW(view.add_(grown.sum()), std::exception);  // autograd's own error for views of unbind comes first
    }
    const at::NoGradGuard no_grad;
    EXPECT_THROW(real[0].zero_(), UnsupportedError);
    // The fake of the tensor belongs to the program.
    EXPECT_NO_THROW(mode.from_real(real)[0].zero_());
    EXPECT_NO_THROW(real[0].clone().zero_());
  }
  EXPECT_FALSE(real.requires_grad());
  EXPECT_FALSE(real.grad_fn());
  EXPECT_EQ(real._version(), version);
}

TEST(FakeConverter, NoFakeGradientIsLeftAtARealTensor) {
  const at::Tensor weight = at::ones({3}).requires_grad_();
  const at::Tensor product = weight * 2;
  {
    FakeTensorMode mode;
    const auto leaves_a_gradient = ThrowsMessage<UnsupportedError>(HasSubstr("a real tensor ([3]) a fake gradient"));
    const at::Tensor x = at::ones({3}).requires_grad_();
    EXPECT_THAT([&] { (x * weight).sum().backward(); }, leaves_a_gradient);
    EXPECT_THAT([&] { weight.view({1, 3}).sum().backward(); }, leaves_a_gradient);
    EXPECT_THAT([&] { (product * x).sum().backward(); },
                ThrowsMessage<UnsupportedError>(HasSubstr("history consists of real tensors")));
    EXPECT_TRUE(is_fake(torch::autograd::grad({(x * weight).sum()}, {weight})[0]));  // no fake state is left behind
    const at::Tensor fake = mode.from_real(weight);
    (fake * x).sum().backward();
    EXPECT_TRUE(fake.grad().defined());
  }
  EXPECT_FALSE(weight.grad().defined());
  product.sum().backward();  // its autograd history is unchanged
  EXPECT_TRUE(weight.grad().equal(at::full({3}, 2.0)));
}

TEST(FakeConverter, OneTensorHasAFakeOnEachDevice) {
  const at::Tensor real = at::ones({2, 3});
  const at::Tensor row = real[0];
  FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor cpu = mode.from_real(real);
  const at::Tensor cuda = mode.from_real(real, at::Device(at::kCUDA, 0));
  EXPECT_TRUE(cpu.is_cpu());
  EXPECT_TRUE(cuda.is_cuda());
  EXPECT_FALSE(cpu.is_alias_of(cuda));
  EXPECT_TRUE(mode.from_real(real).is_same(cpu));
  EXPECT_TRUE(mode.from_real(real, at::kCUDA).is_same(cuda));
  EXPECT_TRUE(mode.from_real(row, at::kCUDA).is_alias_of(cuda));
  EXPECT_TRUE(mode.from_real(row).is_alias_of(cpu));
  // Without an explicit device, the device of the mode's existing fakes.
  const at::Tensor other = [] {
    const UnfakeGuard guard;
    return at::ones({3});
  }();
  const at::Tensor moved = mode.from_real(other, at::kCUDA);
  EXPECT_TRUE(mode.from_real(other).is_same(moved));
}

TEST(FakeConverter, WhatIsForgottenIsGone) {
  at::Tensor real = at::ones({2});
  FakeTensorMode mode;
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> fake(mode.from_real(real).getIntrusivePtr());
  EXPECT_FALSE(fake.expired());
  mode.forget(real.unsafeGetTensorImpl());
  EXPECT_TRUE(fake.expired());
  EXPECT_TRUE(is_fake(mode.from_real(real)));
}

TEST(FakeConverter, RealStoragesBecomeFakeOnes) {
  const at::Tensor real = at::arange(4);
  const at::Tensor large = at::ones({5000});
  FakeTensorMode mode({.real_tensors = RealTensors::kConstant});
  at::Tensor first = at::empty({0}, at::kLong);
  first.set_(real.storage());
  EXPECT_TRUE(is_fake(first));
  EXPECT_EQ(first.sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(first.sum().item<int64_t>(), 6);
  at::Tensor second = at::empty({0}, at::kLong);
  second.set_(real.storage(), 1, {2}, {2});
  EXPECT_TRUE(second.is_alias_of(first));
  EXPECT_EQ(second.sum().item<int64_t>(), 4);
  first.zero_();
  EXPECT_EQ(second.sum().item<int64_t>(), 0);
  at::Tensor third = at::empty({0}, at::kLong);
  third.set_(real.storage());  // the contents are read once; later writes are not seen
  EXPECT_EQ(third.sum().item<int64_t>(), 0);
  at::Tensor unknown = at::empty({0});
  EXPECT_THROW(unknown.set_(large.storage()).sum().item(), DataDependentError);
  EXPECT_THAT([&] { at::empty({0}, at::kCUDA).set_(large.storage()); },
              ThrowsMessage<Error>(HasSubstr("the devices must match")));
  const UnfakeGuard guard;
  EXPECT_EQ(real.sum().item<int64_t>(), 6);
}

TEST(FakeConverter, RealTensorsCanBeRefused) {
  const at::Tensor real = at::ones({2});
  const at::Tensor scalar = at::ones({});
  FakeTensorMode mode({.real_tensors = RealTensors::kRefuse});
  EXPECT_THAT([&] { real + at::empty({2}); }, ThrowsMessage<UnsupportedError>(HasSubstr("kRefuse")));
  EXPECT_THROW(real.exp(), UnsupportedError);
  EXPECT_THROW(scalar.exp(), UnsupportedError);
  EXPECT_NO_THROW(mode.from_real(real) + at::empty({2}) * 2);
}

TEST(FakeConverter, RealTensorsCanKeepTheirValues) {
  at::Tensor real = at::arange(6);
  {
    const FakeTensorMode mode;
    EXPECT_THROW(real.sum().item(), DataDependentError);
  }
  const FakeTensorMode mode({.real_tensors = RealTensors::kConstant});
  EXPECT_EQ(real.sum().item<int64_t>(), 15);
  {
    const UnfakeGuard guard;
    real.add_(1);
  }
  EXPECT_EQ(real.sum().item<int64_t>(), 21);
  const at::Tensor large = [] {
    const UnfakeGuard guard;
    return at::ones({5000});
  }();
  EXPECT_THROW(large.sum().item(), DataDependentError);
}

TEST(FakeConverter, LayoutsThatCannotBeFakeAreRefused) {
  const at::Tensor sparse = at::eye(3).to_sparse();
  FakeTensorMode mode;
  EXPECT_THROW(mode.from_real(sparse), UnsupportedError);
}

}  // namespace
}  // namespace shadowgraph
