// compile_operators(): eager mode, autograd and optimizers use the kernels, and everything else is unaffected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <thread>
#include <utility>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/kernels/kernel.h"
#include "tests/kernels/temporary_folder.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

OperatorKernels::Report row_of(const CompiledOperators& compiled, const std::string& op) {
  for (const auto& row : compiled.report()) {
    if (row.op == op) return row;
  }
  return {.op = op};
}

TEST(CompileOperators, CallsRunTheKernelUntilTheHandleIsGone) {
  const TemporaryFolder folder;
  const at::Tensor x = at::randn({5, 33});
  const at::Tensor y = at::randn({33});
  const at::Tensor expected = at::mul(x, y);
  const auto cache = folder.cache();
  {
    const CompiledOperators compiled =
        compile_operators({"aten::mul.Tensor"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = cache});
    EXPECT_TRUE(at::mul(x, y).equal(expected));
    EXPECT_TRUE(at::mul(x, y).equal(expected));
    EXPECT_EQ(row_of(compiled, "aten::mul.Tensor").ran, 2);
    EXPECT_EQ(cache->stats().compiled, 1);
    // Complex operands are left to eager.
    const at::Tensor z = at::randn({3}, at::kComplexFloat);
    const at::Tensor product = at::mul(z, z);
    EXPECT_EQ(row_of(compiled, "aten::mul.Tensor").unsupported, 1);
    EXPECT_TRUE(product.allclose(at::square(z)));
    EXPECT_NE(row_of(compiled, "aten::mul.Tensor").reason, "");
  }
  const CompiledOperators other =
      compile_operators({"aten::add.Tensor"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = cache});
  EXPECT_TRUE(at::mul(x, y).equal(expected));
  EXPECT_EQ(row_of(other, "aten::mul.Tensor").ran, 0);
}

// Numbers among the operands: _to_copy of a number, and complex ones.
TEST(CompileOperators, EveryOperatorAtOnceBesideARealProgram) {
  const TemporaryFolder folder;
  const auto program = [] {
    torch::manual_seed(4);
    const at::Tensor x = at::randn({6, 8});
    const at::Tensor weight = at::randn({3, 8}).requires_grad_();
    const at::Tensor loss = at::relu(at::linear(x, weight)).mean();
    loss.backward();
    std::ostringstream text;
    text << x << (x > -9).all() << at::view_as_real(at::mul(x, c10::Scalar(c10::complex<double>(1, 2))))
         << torch::tensor(3).to(at::kDouble);
    return std::pair(text.str(), weight.grad());
  };
  const auto [text, gradient] = program();
  const CompiledOperators compiled = compile_operators(compilable_operators(), c10::DispatchKey::CPU,
                                                       {.measure = {.enabled = false}, .cache = folder.cache()});
  const auto [read, found] = program();
  EXPECT_EQ(read, text);
  EXPECT_TRUE(found.allclose(gradient));
  EXPECT_GT(row_of(compiled, "aten::mean").ran + row_of(compiled, "aten::threshold_backward").ran, 0);
}

// Calls that differ only in the distance between two overlapping operands get separate kernels.
TEST(CompileOperators, OverlappingViewsAreToldApartByTheirDistance) {
  const TemporaryFolder folder;
  const at::Tensor y = at::randn({34});
  const auto from = [&](int64_t begin) { return y.slice(0, begin, begin + 32); };
  const int64_t begins[] = {1, 0, 2};
  std::vector<at::Tensor> expected;
  for (const int64_t begin : begins) expected.push_back(at::mul(from(1), from(begin)));
  const CompiledOperators compiled = compile_operators({"aten::mul.Tensor"}, c10::DispatchKey::CPU,
                                                       {.measure = {.enabled = false}, .cache = folder.cache()});
  for (size_t i = 0; i < std::size(begins); ++i) {
    EXPECT_TRUE(at::mul(from(1), from(begins[i])).equal(expected[i])) << "beside a view from " << begins[i];
  }
  EXPECT_EQ(row_of(compiled, "aten::mul.Tensor").ran, 3);
}

TEST(CompileOperators, TheLaterOneIsAskedFirst) {
  const TemporaryFolder folder;
  const at::Tensor x = at::randn({16});
  const CompiledOperators first =
      compile_operators({"aten::neg"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = folder.cache()});
  {
    const CompiledOperators second = compile_operators({"aten::neg"}, c10::DispatchKey::CPU,
                                                       {.measure = {.enabled = false}, .cache = folder.cache()});
    at::neg(x);
    EXPECT_EQ(row_of(second, "aten::neg").ran, 1);
    EXPECT_EQ(row_of(first, "aten::neg").ran, 0);
  }
  at::neg(x);
  EXPECT_EQ(row_of(first, "aten::neg").ran, 1);
}

TEST(CompileOperators, TheyMayGoInAnyOrder) {
  const TemporaryFolder folder;
  const at::Tensor x = at::randn({16});
  auto first = std::make_unique<CompiledOperators>(compile_operators(
      {"aten::neg"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = folder.cache()}));
  const CompiledOperators second =
      compile_operators({"aten::neg"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = folder.cache()});
  first.reset();
  EXPECT_TRUE(at::neg(x).equal(x * -1));
  EXPECT_EQ(row_of(second, "aten::neg").ran, 1);
  const at::Tensor z = at::ones({3}, at::kComplexFloat);  // left to eager
  EXPECT_TRUE(at::neg(z).equal(z * -1));
}

TEST(CompileOperators, MayGoWhileThreadsCall) {
  const TemporaryFolder folder;
  const auto cache = folder.cache();
  const at::Tensor x = at::randn({64});
  const at::Tensor expected = x + x;
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  {
    const auto compiled =
        compile_operators({"aten::add.Tensor"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = cache});
    at::add(x, x);  // compiles the kernel before the threads start
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) wrong += at::add(x, x).equal(expected) ? 0 : 1;
    });
  }
  int64_t ran = 0;
  for (int i = 0; i < 300; ++i) {
    const auto compiled =
        compile_operators({"aten::add.Tensor"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = cache});
    at::add(x, x);
    ran += row_of(compiled, "aten::add.Tensor").ran;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(ran, 300);
}

TEST(CompileOperators, WrongNamesAndKeysAreRefused) {
  const auto why = [](const std::vector<std::string>& names, c10::DispatchKey key) -> std::string {
    try {
      compile_operators(names, key);
    } catch (const UnsupportedError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(why({"aten::no_such"}, c10::DispatchKey::CPU), HasSubstr("unknown operator aten::no_such"));
  EXPECT_THAT(why({"no namespace"}, c10::DispatchKey::CPU), HasSubstr("no namespace"));
  EXPECT_THAT(why({"aten::mm"}, c10::DispatchKey::CPU), HasSubstr("aten::mm"));
  EXPECT_THAT(why({"aten::neg"}, c10::DispatchKey::CUDA), HasSubstr("compiles kernels for cpu, not for cuda"));
  // If one operator of the list is invalid, none of them is replaced.
  EXPECT_NE(why({"aten::neg", "aten::no_such"}, c10::DispatchKey::CPU), "");
}

TEST(CompileOperators, TrainingAgrees) {
  const auto train = [] {
    torch::manual_seed(3);
    torch::nn::Sequential net(torch::nn::Linear(12, 24), torch::nn::LayerNorm(torch::nn::LayerNormOptions({24})),
                              torch::nn::GELU(), torch::nn::Linear(24, 5));
    torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
    const at::Tensor x = at::randn({9, 12});
    const at::Tensor labels = at::randint(5, {9});
    std::vector<double> losses;
    for (int i = 0; i < 4; ++i) {
      optimizer.zero_grad();
      const at::Tensor loss = at::cross_entropy_loss(net->forward(x), labels);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
    return losses;
  };
  const std::vector<double> expected = train();
  const TemporaryFolder folder;
  const CompiledOperators compiled = compile_operators(compilable_operators(), c10::DispatchKey::CPU,
                                                       {.measure = {.enabled = false}, .cache = folder.cache()});
  EXPECT_THAT(train(), ::testing::Pointwise(::testing::DoubleNear(1e-5), expected));
  for (const char* op : {"aten::gelu", "aten::gelu_backward", "aten::addcdiv_", "aten::native_layer_norm"}) {
    EXPECT_GT(row_of(compiled, op).ran, 0) << op << ": " << row_of(compiled, op).reason;
  }
}

// In-place operators that do not read self, also inside groups.
TEST(CompileOperators, SelfIsWrittenWithoutBeingRead) {
  const TemporaryFolder folder;
  const CompiledOperators compiled =
      compile_operators({"aten::zero_", "aten::fill_.Scalar", "aten::copy_"}, c10::DispatchKey::CPU,
                        {.measure = {.enabled = false}, .cache = folder.cache()});
  const at::Tensor base = at::arange(24, at::kFloat).reshape({4, 6});
  base.slice(1, 0, 6, 2).zero_();
  base.select(0, 1).fill_(2.5);
  base.select(1, 5).copy_(at::arange(4));
  EXPECT_EQ(row_of(compiled, "aten::zero_").ran, 1) << row_of(compiled, "aten::zero_").reason;
  EXPECT_EQ(row_of(compiled, "aten::fill_.Scalar").ran, 1) << row_of(compiled, "aten::fill_.Scalar").reason;
  const at::Tensor expected = at::tensor({0.0, 1.0,  0.0, 3.0,  0.0, 0.0,   //
                                          2.5, 2.5,  2.5, 2.5,  2.5, 1.0,   //
                                          0.0, 13.0, 0.0, 15.0, 0.0, 2.0,   //
                                          0.0, 19.0, 0.0, 21.0, 0.0, 3.0})  //
                                  .to(at::kFloat)
                                  .reshape({4, 6});
  EXPECT_TRUE(base.equal(expected)) << base;
}

TEST(CompileOperators, FakeAndDeferredTensorsPassThrough) {
  const TemporaryFolder folder;
  const CompiledOperators compiled = compile_operators({"aten::mul.Tensor", "aten::add.Tensor"}, c10::DispatchKey::CPU,
                                                       {.measure = {.enabled = false}, .cache = folder.cache()});
  {
    const FakeTensorMode mode;
    const at::Tensor x = at::empty({4, 5});
    EXPECT_TRUE(is_fake(at::mul(x, x)));
  }
  EXPECT_EQ(row_of(compiled, "aten::mul.Tensor").ran, 0);
  Capture session;
  const at::Tensor x = at::empty({4});
  const Graph graph = session.finish({at::add(x, x)});
  EXPECT_EQ(row_of(compiled, "aten::add.Tensor").ran, 0);
}

TEST(CompileOperators, ThreadsShareKernelsThatComeWhileTheyCall) {
  const TemporaryFolder folder;
  const auto cache = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path()});
  const CompiledOperators compiled =
      compile_operators({"aten::sub.Tensor"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = cache});
  const at::Tensor x = at::randn({7, 9});
  const at::Tensor y = at::randn({7, 9});
  const at::Tensor expected = at::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    expected.data_ptr<float>()[i] = x.data_ptr<float>()[i] - y.data_ptr<float>()[i];
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) wrong += at::sub(x, y).equal(expected) ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  cache->wait();
  EXPECT_TRUE(at::sub(x, y).equal(expected));
  EXPECT_EQ(wrong, 0);
  const auto row = row_of(compiled, "aten::sub.Tensor");
  EXPECT_EQ(row.ran + row.compiling + row.unsupported, 2001);
  EXPECT_GE(row.ran, 1);
  EXPECT_EQ(cache->stats().compiled, 1);
}

TEST(CompileOperators, WithoutACompilerAllIsEager) {
  const TemporaryFolder folder;
  const auto cache = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder.path(), .background = false},
                                                   compiler_backend({.compiler = "/no/such/compiler"}));
  const CompiledOperators compiled =
      compile_operators({"aten::abs"}, c10::DispatchKey::CPU, {.measure = {.enabled = false}, .cache = cache});
  EXPECT_TRUE(at::abs(at::full({3}, -2.0)).equal(at::full({3}, 2.0)));
  EXPECT_EQ(row_of(compiled, "aten::abs").ran, 0);
  EXPECT_THAT(row_of(compiled, "aten::abs").reason, HasSubstr("compiler"));
}

TEST(CompileOperators, ErrorsAreEagers) {
  const TemporaryFolder folder;
  const CompiledOperators compiled = compile_operators({"aten::add.Tensor"}, c10::DispatchKey::CPU,
                                                       {.measure = {.enabled = false}, .cache = folder.cache()});
  EXPECT_THROW(at::add(at::randn({3}), at::randn({4})), c10::Error);
  EXPECT_TRUE(at::add(at::ones({3}), at::ones({3})).equal(at::full({3}, 2.0)));
}

}  // namespace
}  // namespace shadowgraph
