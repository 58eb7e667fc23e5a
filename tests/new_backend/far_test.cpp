// Kernels that run in another process, on examples/new_backend's device, using only the public back-end interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <signal.h>

#include "examples/new_backend/host_device.h"
#include "shadowgraph/kernels/kernel.h"
#include "tests/kernels/temporary_folder.h"
#include "tests/new_backend/far_backend.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

const c10::Device kFar(c10::DeviceType::PrivateUse1, 0);
constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse1;

class FarKernels : public ::testing::Test {
 protected:
  FarKernels() {
    host::register_device();
    torch::set_num_threads(1);
    processor_ = std::make_unique<far::Processor>(FAR_PROCESSOR);
    cache_ = std::make_shared<KernelCache>(KernelCacheOptions{.directory = folder_.path(), .background = false},
                                           far::backend(*processor_));
  }
  CompiledOperators compile(const std::vector<std::string>& operators) const {
    return compile_operators(operators, kKey, {.cache = cache_});
  }
  static int64_t ran(const CompiledOperators& compiled) {
    int64_t calls = 0;
    for (const auto& row : compiled.report()) calls += row.ran;
    return calls;
  }

  const TemporaryFolder folder_;
  std::unique_ptr<far::Processor> processor_;
  std::shared_ptr<KernelCache> cache_;
};

std::vector<double> train(c10::Device device) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::GELU(),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})), torch::nn::Linear(64, 10));
  if (!device.is_cpu()) {
    for (const at::Tensor& parameter : net->parameters()) host::move(parameter);
  }
  const at::Tensor x = torch::randn({16, 32}).to(device);
  const at::Tensor labels = torch::randint(10, {16}).to(device);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<double> losses;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), labels);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST_F(FarKernels, TrainAsTheCpuDoes) {
  const std::vector<double> expected = train(at::kCPU);
  const CompiledOperators compiled = compile(compilable_operators());
  host::forget_fallbacks();
  const std::vector<double> losses = train(kFar);
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 2e-5 * expected[i]) << i;
  EXPECT_NE(processor_->pid(), ::getpid());
  EXPECT_GE(processor_->launches(), ran(compiled));
  EXPECT_GT(ran(compiled), 100);
  EXPECT_FALSE(host::fallbacks().contains("aten::gelu"));
  // Cache entries are separate from those of other back ends.
  for (const KernelCacheEntry& entry : list_kernel_cache(folder_.path(), true)) {
    EXPECT_EQ(entry.problem, "");
    EXPECT_THAT(entry.identity, HasSubstr("far"));
  }
}

TEST_F(FarKernels, AWrongIndexIsTheOriginalsError) {
  const CompiledOperators compiled = compile({"aten::index_select"});
  const at::Tensor x = at::arange(12, at::kFloat).view({3, 4}).to(kFar);
  const at::Tensor rows = at::tensor({2, 0}, at::kLong).to(kFar);
  EXPECT_TRUE(at::equal(x.index_select(0, rows).cpu(), x.cpu().index_select(0, rows.cpu())));
  EXPECT_EQ(ran(compiled), 1);
  EXPECT_THROW(x.index_select(0, at::tensor({2, 7}, at::kLong).to(kFar)), c10::Error);
}

// A tensor on another device is left to the original operator; a scalar is accepted.
TEST_F(FarKernels, OperandsElsewhereAreLeftToTheOriginal) {
  const CompiledOperators compiled = compile({"aten::mul.Tensor"});
  const at::Tensor x = at::ones({4}).to(kFar);
  EXPECT_TRUE(at::equal((x * 3).cpu(), at::full({4}, 3.0)));
  EXPECT_EQ(ran(compiled), 1);
  EXPECT_TRUE(at::equal((x * at::scalar_tensor(2.0)).cpu(), at::full({4}, 2.0)));
  EXPECT_EQ(ran(compiled), 1);
  EXPECT_THAT(compiled.report()[0].reason, HasSubstr("an operand on cpu"));
}

TEST_F(FarKernels, OtherDevicesAreRefused) {
  for (const auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
    try {
      compile_operators({"aten::neg"}, key, {.cache = cache_});
      ADD_FAILURE() << c10::toString(key);
    } catch (const UnsupportedError& error) {
      EXPECT_THAT(error.what(), HasSubstr("compiles kernels for host, not for"));
    }
  }
}

TEST_F(FarKernels, AProcessThatEndedIsSaid) {
  const CompiledOperators compiled = compile({"aten::neg"});
  const at::Tensor x = at::ones({4}).to(kFar);
  EXPECT_TRUE(at::equal(x.neg().cpu(), at::full({4}, -1.0)));
  ASSERT_EQ(::kill(processor_->pid(), SIGKILL), 0);
  try {
    x.neg();
    ADD_FAILURE() << "it ran";
  } catch (const UnsupportedError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has ended"));
  }
}

}  // namespace
}  // namespace shadowgraph
