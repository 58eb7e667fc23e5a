// On which device results are, which devices mix, and what is said where they do not.
#include <ATen/DeviceGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "core/fake/errors.h"
#include "core/fake/fake_tensor_mode.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const c10::Device kGpu0(at::kCUDA, 0);
const c10::Device kGpu1(at::kCUDA, 1);

class FakeDevices : public ::testing::Test {
 protected:
  FakeTensorMode mode_;
  at::Tensor cpu_ = at::rand({2, 2});
  at::Tensor scalar_ = at::rand({});
  at::Tensor gpu_ = at::rand({2, 2}, kGpu0);
  at::Tensor gpu1_ = at::rand({2, 2}, kGpu1);
};

TEST_F(FakeDevices, CpuScalarsGoWithAnything) {
  EXPECT_EQ((gpu_ * scalar_).device(), kGpu0);
  EXPECT_EQ((scalar_ * gpu_).device(), kGpu0);
  EXPECT_EQ(at::where(gpu_ > 0, gpu_, scalar_).device(), kGpu0);
  EXPECT_EQ(at::addcmul(gpu_, scalar_, gpu_).device(), kGpu0);
  EXPECT_EQ((scalar_ * scalar_).device(), at::kCPU);
  EXPECT_EQ(gpu_.add_(scalar_).device(), kGpu0);
  // But nothing is written to the CPU from a GPU.
  EXPECT_THROW(scalar_.add_(gpu_.sum()), DeviceMismatchError);
  EXPECT_THROW(at::add_out(scalar_, gpu_.sum(), gpu_.sum()), DeviceMismatchError);
  EXPECT_THROW(at::nextafter(gpu_, scalar_), DeviceMismatchError);
}

TEST_F(FakeDevices, MismatchesAreToldInEagersWords) {
  EXPECT_THAT([&] { gpu_ + cpu_; }, ThrowsMessage<DeviceMismatchError>(
                                        HasSubstr("Expected all tensors to be on the same device, but found at "
                                                  "least two devices, cuda:0 and cpu!")));
  EXPECT_THAT([&] { cpu_ + gpu_; }, ThrowsMessage<DeviceMismatchError>(HasSubstr("two devices, cuda:0 and cpu!")));
  EXPECT_THAT([&] { gpu_ + gpu1_; }, ThrowsMessage<DeviceMismatchError>(HasSubstr("two devices, cuda:0 and cuda:1!")));
  EXPECT_THAT([&] { gpu_.mm(cpu_); },
              ThrowsMessage<DeviceMismatchError>(HasSubstr(
                  "Expected all tensors to be on the same device, but got mat2 is on cpu, different from other tensors "
                  "on cuda:0 (when checking argument in method wrapper_CUDA_mm)")));
  EXPECT_THAT([&] { gpu_.index_select(0, at::zeros({1}, at::kLong)); },
              ThrowsMessage<DeviceMismatchError>(
                  HasSubstr("got index is on cpu, different from other tensors on cuda:0 (when checking argument in "
                            "method wrapper_CUDA__index_select)")));
  EXPECT_THROW(at::cat({gpu_, cpu_}), DeviceMismatchError);
  EXPECT_THROW(torch::nn::Linear(2, 2)->forward(gpu_), DeviceMismatchError);
}

TEST_F(FakeDevices, CopiesGoAnywhere) {
  EXPECT_EQ(gpu_.copy_(cpu_).device(), kGpu0);
  EXPECT_EQ(cpu_.copy_(gpu_).device(), at::kCPU);
  EXPECT_EQ(gpu_.to(kGpu1).device(), kGpu1);
  EXPECT_EQ(gpu_.to(at::kCPU, at::kHalf).scalar_type(), at::kHalf);
  EXPECT_EQ(gpu_.to(gpu1_.options()).device(), kGpu1);
  EXPECT_EQ(at::slice_scatter(gpu_, cpu_.slice(0, 0, 1), 0, 0, 1).device(), kGpu0);
  EXPECT_EQ(gpu_.resize_as_(at::rand({3})).device(), kGpu0);
}

TEST_F(FakeDevices, IndicesMayBeOnTheCpu) {
  const at::Tensor rows = at::zeros({3}, at::kLong);
  EXPECT_EQ(gpu_.index({rows}).device(), kGpu0);
  EXPECT_EQ(gpu_.index({rows.to(kGpu0)}).device(), kGpu0);
  EXPECT_EQ(gpu_.index_put_({rows}, gpu_[0]).device(), kGpu0);
  EXPECT_EQ(gpu_.index_put_({rows}, scalar_).device(), kGpu0);
  EXPECT_THAT([&] { cpu_.index({rows.to(kGpu0)}); },
              ThrowsMessage<DeviceMismatchError>(
                  HasSubstr("indices should be either on cpu or on the same device as the indexed tensor (cpu)")));
  EXPECT_THAT([&] { gpu_.index({rows.to(kGpu1)}); },
              ThrowsMessage<DeviceMismatchError>(HasSubstr("the indexed tensor (cuda:0)")));
}

TEST_F(FakeDevices, ForeachAgreesSlotBySlot) {
  const auto sums = at::_foreach_add({cpu_, gpu_, gpu1_}, {cpu_, gpu_, gpu1_});
  EXPECT_EQ(sums[0].device(), at::kCPU);
  EXPECT_EQ(sums[1].device(), kGpu0);
  EXPECT_EQ(sums[2].device(), kGpu1);
  EXPECT_EQ((sums[2] + gpu1_).device(), kGpu1);
  EXPECT_THROW(at::_foreach_add({cpu_, gpu_}, {cpu_, cpu_}), DeviceMismatchError);
  at::_foreach_copy_({cpu_, gpu_}, {gpu_, cpu_});
  at::_foreach_mul_({cpu_, gpu_}, 2.0);
}

TEST_F(FakeDevices, LikesAndNewOnesStay) {
  EXPECT_EQ(at::empty_like(gpu1_).device(), kGpu1);
  EXPECT_EQ(at::zeros_like(gpu1_, at::kHalf).device(), kGpu1);
  EXPECT_EQ(at::rand_like(gpu1_, at::TensorOptions(at::kCPU)).device(), at::kCPU);
  EXPECT_EQ(gpu1_.new_zeros({2}).device(), kGpu1);
  EXPECT_EQ(gpu1_.new_empty({2}, at::TensorOptions(kGpu0)).device(), kGpu0);
  EXPECT_EQ(gpu1_.new_full({2}, 3).device(), kGpu1);
}

TEST(FakeCurrentDevice, CudaIsTheCurrentOne) {
  const FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_EQ(at::empty({2}).device(), kGpu0);
  {
    const c10::DeviceGuard guard(kGpu1);
    EXPECT_EQ(at::empty({2}).device(), kGpu1);
    EXPECT_EQ(at::empty({2}, at::kCUDA).device(), kGpu1);
    EXPECT_EQ(at::empty({2}, kGpu0).device(), kGpu0);
    EXPECT_EQ(at::empty({2}, at::kCPU).to(at::kCUDA).device(), kGpu1);
  }
  EXPECT_EQ(at::empty({2}).device(), kGpu0);
}

class OtherDevices : public ::testing::TestWithParam<c10::DeviceType> {};

TEST_P(OtherDevices, AModelTrains) {
  const FakeTensorMode mode({.device = GetParam()});
  const bool has_index = GetParam() != at::kCPU && GetParam() != at::kMeta;
  const c10::Device device(GetParam(), static_cast<c10::DeviceIndex>(has_index ? 0 : -1));
  const bool has_backward = !has_index || GetParam() == at::kCUDA;
  torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                            torch::nn::Flatten(), torch::nn::Linear(4 * 36, 5), torch::nn::Dropout(0.5));
  torch::optim::AdamW optimizer(net->parameters());
  const at::Tensor x = at::rand({2, 3, 8, 8});
  EXPECT_EQ(x.device(), device);
  EXPECT_EQ(x.cpu().device(), at::kCPU);
  const at::Tensor y = net->forward(x);
  EXPECT_EQ(y.device(), device);
  const at::Tensor loss = torch::cross_entropy_loss(y, at::zeros({2}, at::kLong));
  if (has_backward) loss.backward();
  if (!has_backward) {
    EXPECT_ANY_THROW(loss.backward());  // docs/fake-tensors.md, Limits
  }
  optimizer.step();
  for (const at::Tensor& parameter : net->parameters()) {
    EXPECT_EQ(parameter.device(), device);
    if (!has_backward) continue;
    ASSERT_TRUE(parameter.grad().defined());
    EXPECT_EQ(parameter.grad().device(), device);
  }
  if (GetParam() != at::kCPU) {
    EXPECT_THROW(x + at::rand({2, 3, 8, 8}, at::kCPU), DeviceMismatchError);
  }
  torch::nn::LSTM lstm(4, 4);
  EXPECT_EQ(std::get<0>(lstm->forward(at::rand({2, 3, 4}))).device(), device);
  // libtorch asks a kernel of these devices, which is not there, how to do it: docs/fake-tensors.md, Limits.
  if (GetParam() == at::kXPU || GetParam() == at::kMPS) return;
  EXPECT_EQ(
      at::scaled_dot_product_attention(at::rand({1, 2, 4, 8}), at::rand({1, 2, 4, 8}), at::rand({1, 2, 4, 8})).device(),
      device);
}

INSTANTIATE_TEST_SUITE_P(All, OtherDevices,
                         ::testing::Values(at::kCPU, at::kCUDA, at::kXPU, at::kMPS, at::kPrivateUse1, at::kMeta),
                         [](const auto& info) { return c10::DeviceTypeName(info.param); });

TEST(FakeCurrentDevice, OthersCannotBePretended) {
  EXPECT_THAT([] { FakeTensorMode({.device = at::kHIP}); }, ThrowsMessage<Error>(HasSubstr("not on hip")));
}

}  // namespace
}  // namespace shadowgraph
