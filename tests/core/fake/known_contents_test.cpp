// Tensors with known contents: literals, results computed from them, and when the contents become unknown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <random>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/capture/replay.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Reads the values of a fake tensor as a program would.
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

// Positions are known when they are created, so reading one is cheap.
TEST(FakeConstants, PositionsOfABatchAreKnownAtOnce) {
  const FakeTensorMode mode({.contents_budget = ContentsBudget{.bytes = 1}});
  EXPECT_EQ(at::arange(1000)[999].item<int64_t>(), 999);
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

TEST(FakeConstants, LargeOnesAreComputedWhenSomebodyReads) {
  const FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_EQ(at::zeros({5000}).sum().item<float>(), 0);
  EXPECT_EQ(at::arange(300000).max().item<int64_t>(), 299999);
  EXPECT_EQ(at::arange(5000, at::kFloat).max().item<float>(), 4999);
  EXPECT_EQ(at::ones({1}).expand({5000}).sum().item<float>(), 5000);
  const at::Tensor literal = at::tensor(std::vector<float>(5000, 1.0F));
  EXPECT_EQ(literal.sizes(), at::IntArrayRef({5000}));
  EXPECT_EQ(literal.sum().item<float>(), 5000);
  const at::Tensor causal = at::ones({512, 512}).tril();
  EXPECT_EQ(causal.sum().item<float>(), 512 * 513 / 2);
  // Writes before the read are visible, later writes are not.
  at::Tensor table = at::arange(4000, at::kFloat);
  const at::Tensor twice = table * 2;
  table.slice(0, 10, 20).zero_();
  EXPECT_EQ(table[15].item<float>(), 0);
  EXPECT_EQ(twice[15].item<float>(), 30);
  EXPECT_EQ(table[25].item<float>(), 25);
}

TEST(FakeConstants, OneNumberEverywhereIsKnownAtAnySize) {
  const FakeTensorMode mode({.device = at::kCUDA, .contents_budget = ContentsBudget{.bytes = 1 << 16}});
  const at::Tensor ones = at::ones({1 << 20, 1 << 14});  // 64 GiB
  EXPECT_TRUE(ones.all().item<bool>());
  EXPECT_FALSE(ones.to(at::kBool).logical_not().any().item<bool>());
  EXPECT_EQ((ones * 3).add_(1).amax().item<float>(), 4);
  EXPECT_EQ(ones.t().slice(0, 5, 9).max().item<float>(), 1);
  EXPECT_EQ(at::where(ones > 0, ones, at::zeros({})).min().item<float>(), 1);
  EXPECT_EQ(at::full({1 << 20, 1 << 14}, 7, at::kInt)[3][4].item<int>(), 7);
  // Over the budget once it is no longer a single repeated value.
  EXPECT_THAT([&] { ones.tril().sum().item(); }, ThrowsMessage<DataDependentError>(HasSubstr("contents_budget.bytes")));
}

TEST(FakeConstants, ALongChainOfCallsIsComputed) {
  const FakeTensorMode mode({.device = at::kCUDA});
  at::Tensor table = at::arange(2000, at::kFloat);
  for (int i = 0; i < 5000; ++i) table = table + 1;
  EXPECT_EQ(table[7].item<float>(), 5007);
}

TEST(FakeConstants, WhatWaitsHoldsNoTensorOfTheProgram) {
  const FakeTensorMode mode;
  at::Tensor table = at::arange(5000, at::kFloat);
  const at::Tensor result = table * 2;
  const auto storage = table.storage().getWeakStorageImpl();
  table = at::Tensor();
  EXPECT_TRUE(storage.expired());
  EXPECT_EQ(result[3].item<float>(), 6);
}

// One instruction of a random program on 40 x 40 constants.
void run_constant_instruction(std::mt19937& choices, std::vector<at::Tensor>& tensors) {
  const auto choose = [&](int64_t count) { return static_cast<int64_t>(choices() % static_cast<uint64_t>(count)); };
  const auto any = [&]() -> at::Tensor { return tensors[static_cast<size_t>(choose(tensors.size()))]; };
  switch (choose(18)) {
    case 0:
      tensors.push_back(at::full({40, 40}, choose(5)));
      break;
    case 1:
      tensors.push_back(at::arange(1600, at::kFloat).view({40, 40}));
      break;
    case 2:
      tensors.push_back(any() + any());
      break;
    case 3:
      tensors.push_back(any() * 2);
      break;
    case 4:
      tensors.push_back(any().t());
      break;
    case 5:
      any().slice(0, choose(20), 20 + choose(20)).fill_(choose(7));
      break;
    case 6:
      any().add_(any());
      break;
    case 7:
      any().select(1, choose(40)).copy_(any().select(0, choose(40)));
      break;
    case 8:
      any().copy_(any());
      break;
    case 9:
      tensors.push_back(at::where(any() > any(), any(), any()));
      break;
    case 10:
      tensors.push_back(any().cumsum(0).remainder(11));
      break;
    case 11:
      tensors.push_back(any().tril(choose(5)));
      break;
    case 12:
      tensors.push_back(at::zeros_like(any()));
      break;
    case 13:
      tensors.push_back(any().amax(1, true).expand({40, 40}));
      break;
    case 14:
      tensors.push_back(at::cat({any().slice(1, 0, 10), any().slice(1, 10)}, 1));
      break;
    case 15: {
      const at::Tensor filled = any();
      const at::Tensor mask = any() > 3;
      if (filled.is_non_overlapping_and_dense()) filled.masked_fill_(mask, choose(4));
      break;
    }
    case 16:
      any().zero_();
      break;
    default:
      tensors.push_back(any().clone().remainder_(13));
      break;
  }
}

// Random programs on constants: known contents of fakes equal eager's, whatever was written and read.
TEST(FakeConstants, RandomProgramsOfConstantsGiveEagersNumbers) {
  std::mt19937 random(20261122);
  const auto pick = [&](size_t count) { return static_cast<size_t>(random() % count); };
  int compared = 0;
  for (int program = 0; program < 150; ++program) {
    const uint32_t seed = random();
    const auto run = [&](std::vector<at::Tensor>& tensors) {
      std::mt19937 choices(seed);
      for (int instruction = 0; instruction < 24; ++instruction) run_constant_instruction(choices, tensors);
    };
    std::vector<at::Tensor> real{at::ones({40, 40}), at::zeros({40, 40})};
    try {
      run(real);
    } catch (const c10::Error&) {
      continue;  // eager refuses to write to an expanded tensor
    }
    const FakeTensorMode mode({.device = pick(2) == 0 ? at::kCUDA : at::kCPU});
    std::vector<at::Tensor> fake{at::ones({40, 40}), at::zeros({40, 40})};
    run(fake);
    ASSERT_EQ(fake.size(), real.size());
    for (size_t i = 0; i < fake.size(); ++i) {
      const auto known = known_contents(fake[i]);
      ASSERT_TRUE(known.has_value()) << "program " << seed << ", tensor " << i;
      const UnfakeGuard guard;
      ASSERT_TRUE(at::equal(*known, real[i])) << "program " << seed << ", tensor " << i;
      ++compared;
    }
  }
  EXPECT_GT(compared, 500);
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
  // Filled piece by piece, starting from uninitialized memory.
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
  pointer[0] = 3;  // the memory is still valid
  EXPECT_TRUE(is_unknown(t));
  // Only the creator of a literal writes to memory that was never filled.
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
    Capture session;
    const at::Tensor x = session.mode().from_real(real);
    session.name_input(x, "x");
    return session.finish({program(x)});
  }();
  EXPECT_NO_THROW(verify(graph));
  const at::Tensor x = at::rand({2});
  Interpreter interpreter(graph);
  const auto outputs = interpreter.run(Bindings().bind("x", x)).outputs;
  EXPECT_TRUE(outputs[0].equal(program(x)));
  // The text is deterministic and lists the values that control flow depended on.
  const auto text = [&] {
    Capture session;
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
    Capture session;
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
  // Without a CPU kernel for the operator or dtype, the contents are unknown; this is no error.
  const at::Tensor half = at::ones({2, 2}, at::kHalf);
  EXPECT_NO_THROW(half.mm(half));
}

// CUDA keeps the means of a half tensor in float32; the CPU, which computes known contents, keeps them in half with too
// few digits.
TEST(FakeConstants, WhatTheCpuKeepsInAnotherTypeIsUnknown) {
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor x = at::tensor({1.0, 2.0, 4.0}).to(at::kHalf);
  const auto [y, mean, deviation] = at::native_layer_norm(x, {3}, {}, {}, 1e-5);
  EXPECT_FALSE(is_unknown(y));
  EXPECT_EQ(mean.scalar_type(), at::kFloat);
  EXPECT_TRUE(is_unknown(mean));
}

// A tensor that is only written does not count as an unread operand.
TEST(FakeConstants, TheOutOfALikeFactoryIsWritten) {
  const FakeTensorMode mode;
  const at::Tensor like = at::rand({2, 3});
  at::Tensor out = at::empty({2, 3});
  at::ones_like_out(out, like);
  EXPECT_EQ(out.sum().item<float>(), 6.0F);
}

}  // namespace
}  // namespace shadowgraph
