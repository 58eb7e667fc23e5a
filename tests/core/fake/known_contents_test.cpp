// Contents that are known: literals and what is computed from them; and when they stop being known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include "shadowgraph/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/fake.h"
#include "shadowgraph/replay.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The values of a fake tensor, as a program reads them.
template <class T>
std::vector<T> values(const at::Tensor& tensor) {
  EXPECT_TRUE(is_fake(tensor));
  std::vector<T> result;
  const at::Tensor flat = tensor.reshape({-1});
  for (int64_t i = 0; i < flat.numel(); ++i) result.push_back(flat[i].item<T>());
  return result;
}

bool is_unknown(const at::Tensor& tensor) {
  try {
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor.reshape({-1})[i].item();
    return false;
  } catch (const DataDependentError&) {
    return true;
  }
}

TEST(FakeConstants, LiteralsKeepTheirValues) {
  const FakeTensorMode mode;
  EXPECT_EQ(values<int64_t>(at::tensor({1, 2, 3}, at::kLong)), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(values<float>(torch::tensor({1.5, 2.5}, at::kFloat)), (std::vector<float>{1.5F, 2.5F}));
  EXPECT_EQ(values<double>(at::tensor(std::vector<double>{0.25, -1}, at::kDouble)), (std::vector<double>{0.25, -1}));
  EXPECT_EQ(values<int64_t>(torch::tensor({{1, 2}, {3, 4}})), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(torch::tensor(7).item<int64_t>(), 7);
  EXPECT_EQ(at::scalar_tensor(2.5).item<float>(), 2.5F);
  EXPECT_EQ(values<int64_t>(at::arange(4)), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(values<int64_t>(at::arange(2, 8, 3)), (std::vector<int64_t>{2, 5}));
  EXPECT_EQ(values<float>(at::full({2}, 3.5)), (std::vector<float>{3.5F, 3.5F}));
  EXPECT_EQ(values<float>(at::linspace(0, 1, 3)), (std::vector<float>{0, 0.5F, 1}));
  EXPECT_EQ(values<bool>(torch::tensor({true, false})), (std::vector<bool>{true, false}));
}

TEST(FakeConstants, OnAPretendedGpuToo) {
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor here = at::tensor({1, 2, 3});
  EXPECT_TRUE(here.is_cuda());
  EXPECT_EQ(values<int>(here), (std::vector<int>{1, 2, 3}));
  const at::Tensor there = at::tensor({1, 2, 3}, at::kCUDA);
  EXPECT_TRUE(there.is_cuda());
  EXPECT_EQ((there + 1).sum().item<int64_t>(), 9);
  EXPECT_EQ(at::arange(3).cpu()[2].item<int64_t>(), 2);
  EXPECT_ANY_THROW(here.data_ptr<int>());  // device memory
}

TEST(FakeConstants, WhatIsComputedFromThemAloneIsKnown) {
  const FakeTensorMode mode;
  const at::Tensor a = at::arange(6, at::kFloat).view({2, 3});
  EXPECT_EQ(values<float>(a.t().matmul(a).diagonal()), (std::vector<float>{9, 17, 29}));
  EXPECT_EQ((a * 2 + at::ones({3})).sum().item<float>(), 36.0F);
  EXPECT_EQ(values<float>(at::cat({a[0], a[1].flip(0)})), (std::vector<float>{0, 1, 2, 5, 4, 3}));
  EXPECT_TRUE((a.sum() > 14).item<bool>());
  EXPECT_TRUE(a.sum().gt(14).is_nonzero());
  EXPECT_TRUE(at::equal(a, a.clone()));
  EXPECT_FALSE(at::allclose(a, a + 1));
  EXPECT_EQ(values<int64_t>((a > 3).nonzero()), (std::vector<int64_t>{1, 1, 1, 2}));
  EXPECT_EQ(a.masked_select(a > 3).sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(std::get<0>(at::_unique2(at::tensor({3, 1, 3}))).sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(at::repeat_interleave(at::tensor({2, 3}, at::kLong)).sizes(), at::IntArrayRef({5}));
  EXPECT_EQ(values<float>(a.index({at::tensor({1, 0}, at::kLong)})), (std::vector<float>{3, 4, 5, 0, 1, 2}));
}

TEST(FakeConstants, AKnownMaskPicksFromUnknownData) {
  const FakeTensorMode mode;
  const at::Tensor x = at::rand({3, 4});
  const at::Tensor mask = torch::tensor({true, false, true});
  EXPECT_EQ(x.index({mask}).sizes(), at::IntArrayRef({2, 4}));
  EXPECT_EQ(x.t().masked_select(mask).sizes(), at::IntArrayRef({8}));
  EXPECT_TRUE(is_unknown(x.index({mask})));
}

TEST(FakeConstants, MixedWithDataTheyAreUnknown) {
  const FakeTensorMode mode;
  const at::Tensor known = at::ones({2});
  const at::Tensor unknown = at::rand({2});
  EXPECT_TRUE(is_unknown(known + unknown));
  EXPECT_TRUE(is_unknown(unknown.sum()));
  EXPECT_TRUE(is_unknown(at::empty({3})));
  EXPECT_TRUE(is_unknown(at::empty_like(known)));
  EXPECT_TRUE(is_unknown(known.new_empty({2})));
  EXPECT_THAT([&] { at::empty({1}).item(); }, ThrowsMessage<DataDependentError>(HasSubstr("_local_scalar_dense")));
}

TEST(FakeConstants, RandomNumbersNeverAre) {
  const FakeTensorMode mode;
  EXPECT_TRUE(is_unknown(at::rand({2})));
  EXPECT_TRUE(is_unknown(at::randint(5, {2})));
  EXPECT_TRUE(is_unknown(at::randperm(3)));
  EXPECT_TRUE(is_unknown(at::zeros({2}).normal_()));
  EXPECT_TRUE(is_unknown(at::bernoulli(at::full({2}, 0.5))));
  EXPECT_TRUE(is_unknown(at::dropout(at::ones({4}), 0.5, true)));
}

TEST(FakeConstants, LargeOnesNeverAre) {
  const FakeTensorMode mode;
  EXPECT_TRUE(is_unknown(at::zeros({5000}).sum()));
  EXPECT_TRUE(is_unknown(at::arange(300000).max()));
  EXPECT_TRUE(is_unknown(at::arange(5000, at::kFloat).max()));
  EXPECT_EQ(at::arange(5000).max().item<int64_t>(), 4999);  // token ids and masks may be that large
  EXPECT_TRUE(is_unknown(at::ones({1}).expand({5000}).sum()));
  const at::Tensor literal = at::tensor(std::vector<float>(5000, 1.0F));  // made all the same
  EXPECT_EQ(literal.sizes(), at::IntArrayRef({5000}));
  EXPECT_TRUE(is_unknown(literal.sum()));
}

TEST(FakeConstants, AWriteThroughAnyAliasEndsThem) {
  const FakeTensorMode mode;
  const at::Tensor unknown = at::rand({3});
  const std::vector<std::function<void(at::Tensor&)>> writes = {
      [&](at::Tensor& t) { t.copy_(unknown); },
      [&](at::Tensor& t) { t.add_(unknown); },
      [&](at::Tensor& t) { t.view({3}).mul_(unknown); },
      [&](at::Tensor& t) { t[1].copy_(unknown[0]); },
      [&](at::Tensor& t) { t.slice(0, 1).uniform_(); },
      [&](at::Tensor& t) { at::add_out(t, unknown, unknown); },
      [&](at::Tensor& t) { t.index_put_({at::tensor({0}, at::kLong)}, unknown[0]); },
      [&](at::Tensor& t) { t.resize_({100}); },
      [&](at::Tensor& t) { at::_foreach_add_(std::vector<at::Tensor>{t}, std::vector<at::Tensor>{unknown}); },
      [&](at::Tensor& t) { t.detach().masked_fill_(unknown > 0, 1); },
      [&](at::Tensor& t) { t.set_data(unknown); },
  };
  for (size_t i = 0; i < writes.size(); ++i) {
    at::Tensor t = at::ones({3});
    const at::Tensor alias = t.view({3});
    EXPECT_EQ(t.sum().item<float>(), 3.0F);
    writes[i](t);
    EXPECT_TRUE(is_unknown(t)) << "write " << i;
    if (i != writes.size() - 1) {
      EXPECT_TRUE(is_unknown(alias)) << "write " << i;
    }
  }
}

TEST(FakeConstants, AWriteOfKnownNumbersKeepsThem) {
  const FakeTensorMode mode;
  at::Tensor t = at::zeros({3});
  const at::Tensor alias = t.view({3});
  t[1].fill_(5);
  alias.slice(0, 2).add_(at::ones({1}));
  EXPECT_EQ(values<float>(t), (std::vector<float>{0, 5, 1}));
  t.index_put_({at::tensor({0}, at::kLong)}, at::scalar_tensor(9));
  EXPECT_EQ(values<float>(alias), (std::vector<float>{9, 5, 1}));
  // From nothing, piece by piece.
  at::Tensor u = at::empty({2, 2});
  u[0].fill_(1);
  EXPECT_TRUE(is_unknown(u));
  EXPECT_EQ(values<float>(u[0]), (std::vector<float>{1, 1}));
  u.select(1, 1).copy_(at::tensor({2.0F, 3.0F}));
  u[1][0].zero_();
  EXPECT_EQ(values<float>(u), (std::vector<float>{1, 2, 0, 3}));
}

TEST(FakeConstants, TheHostCanReadAndWriteThem) {
  const FakeTensorMode mode;
  at::Tensor t = at::tensor({1.0F, 2.0F});
  EXPECT_EQ((t.accessor<float, 1>()[1]), 2.0F);
  EXPECT_EQ(t.const_data_ptr<float>()[0], 1.0F);
  t.data_ptr<float>()[0] = 7;
  EXPECT_EQ((t + 1)[0].item<float>(), 8.0F);
  float* pointer = t.data_ptr<float>();
  t.add_(at::rand({2}));
  EXPECT_ANY_THROW(t.data_ptr<float>());
  pointer[0] = 3;  // still memory
  EXPECT_TRUE(is_unknown(t));
  // Nobody but a literal's maker writes to memory that was never filled.
  const at::Tensor never = at::empty({2});
  EXPECT_EQ((never + 1).sizes(), at::IntArrayRef({2}));
  EXPECT_ANY_THROW(never.data_ptr<float>());
}

TEST(FakeConstants, ACapturedLiteralIsReplayed) {
  const auto program = [](const at::Tensor& x) {
    const at::Tensor scale = at::tensor({2.0F, 3.0F});
    at::Tensor late = at::zeros({2});
    late.data_ptr<float>()[1] = 10;
    at::Tensor y = x * scale + late;
    if (scale.sum().item<float>() > 4) y = y + torch::tensor({1.0F, 2.0F});
    late.data_ptr<float>()[0] = 100;
    return y + late;
  };
  const at::Tensor real = at::rand({2});
  Graph graph = [&] {
    CaptureSession session;
    const at::Tensor x = session.mode().from_real(real);
    session.name_input(x, "x");
    return session.finish({program(x)});
  }();
  EXPECT_NO_THROW(verify(graph));
  const at::Tensor x = at::rand({2});
  Interpreter interpreter(graph);
  const auto outputs = interpreter.run(Bindings().bind("x", x)).outputs;
  EXPECT_TRUE(outputs[0].equal(program(x)));
  // The same text every time, and what the path depended on is listed.
  const auto text = [&] {
    CaptureSession session;
    const at::Tensor input = session.mode().from_real(real);
    session.name_input(input, "x");
    return shadowgraph::to_text(session.finish({program(input)}));
  };
  EXPECT_EQ(text(), text());
  ASSERT_FALSE(graph.guards.empty());
  EXPECT_TRUE(std::ranges::any_of(graph.guards, [](const Guard& guard) {
    return guard.observed.find("_local_scalar_dense = 5") != std::string::npos;
  }));
}

TEST(FakeConstants, ALargeLiteralIsReplayed) {
  std::vector<float> numbers(3000);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  Graph graph = [&] {
    CaptureSession session;
    return session.finish({at::tensor(numbers) * 2});
  }();
  const auto outputs = Interpreter(graph).run(Bindings()).outputs;
  EXPECT_TRUE(outputs[0].equal(at::tensor(numbers) * 2));
}

TEST(FakeConstants, OneRealNumberIsKnown) {
  const at::Tensor step = at::full({}, 41, at::kLong);
  const FakeTensorMode mode;
  EXPECT_EQ((step + at::arange(2)[1]).item<int64_t>(), 42);
}

TEST(FakeConstants, AnErrorOfTheCpuKernelIsNotOurs) {
  const FakeTensorMode mode({.device = at::kCUDA});
  // No such CPU kernel, or none for the type: unknown, not an error.
  const at::Tensor half = at::ones({2, 2}, at::kHalf);
  EXPECT_NO_THROW(half.mm(half));
}

// What they write to is no operand that is left unread.
TEST(FakeConstants, TheOutOfALikeFactoryIsWritten) {
  const FakeTensorMode mode;
  const at::Tensor like = at::rand({2, 3});
  at::Tensor out = at::empty({2, 3});
  at::ones_like_out(out, like);
  EXPECT_EQ(out.sum().item<float>(), 6.0F);
}

}  // namespace
}  // namespace shadowgraph
