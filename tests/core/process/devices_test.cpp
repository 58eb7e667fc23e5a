// On which device results are, which devices mix, and what is said where they do not.
#include <ATen/DeviceGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/error.h"
#include "shadowgraph/fake.h"

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

TEST_F(FakeDevices, AnIndexedWriteTakesIndicesFromAnywhereAndValuesFromItsOwnDevice) {
  const at::Tensor on_gpu = at::tensor({1}, at::device(kGpu0).dtype(at::kLong));
  EXPECT_EQ(cpu_.index_put_({on_gpu}, cpu_[0]).device(), at::kCPU);
  EXPECT_EQ(at::index_put(cpu_, {on_gpu}, at::rand({}, kGpu0)).device(), at::kCPU);
  for (const bool accumulate : {false, true}) {
    EXPECT_THAT([&] { gpu_.index_put_({on_gpu}, cpu_[0], accumulate); },
                ThrowsMessage<DeviceMismatchError>(HasSubstr("two devices, cuda:0 and cpu!")));
    EXPECT_THROW(cpu_.index_put_({on_gpu}, gpu_[0], accumulate), DeviceMismatchError);
  }
  // masked_fill_, in eager: one mask and one number of the CPU's.
  const at::Tensor one = at::rand({1});
  const at::Tensor mask = at::ones({2}, at::device(kGpu0).dtype(at::kBool));
  EXPECT_EQ(at::index_put(gpu_, {mask}, one).device(), kGpu0);
  EXPECT_THROW(at::index_put(gpu_, {on_gpu}, one), DeviceMismatchError);
  EXPECT_THROW(at::index_put(gpu_, {mask, mask}, one), DeviceMismatchError);
}

TEST_F(FakeDevices, WhatIsCopiedIntoAnOutGoesAnywhere) {
  at::Tensor out = at::empty({2, 2});
  EXPECT_EQ(at::copy_out(out, gpu_, gpu1_).device(), at::kCPU);
  EXPECT_EQ(at::slice_scatter_out(out, gpu_, cpu_[0].unsqueeze(0), 0, 0, 1).device(), at::kCPU);
  EXPECT_THROW(at::add_out(out, gpu_, gpu_), DeviceMismatchError);
}

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

TEST_F(FakeDevices, ABagOfEmbeddingsIsWhereItsWeightsAre) {
  const auto on = [](c10::Device device) { return at::zeros({2}, at::TensorOptions(device).dtype(at::kLong)); };
  for (const c10::Device indices : {kGpu0, c10::Device(at::kCPU)}) {
    for (const c10::Device offsets : {kGpu0, c10::Device(at::kCPU)}) {
      const auto [output, offset2bag, bag_size, max_indices] = at::_embedding_bag(gpu_, on(indices), on(offsets));
      EXPECT_EQ(output.device(), kGpu0);
      EXPECT_EQ(offset2bag.device(), kGpu0);
      EXPECT_EQ(bag_size.device(), kGpu0);
    }
  }
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

TEST(FakeCurrentDevice, OthersCannotBePretended) {
  EXPECT_THAT([] { FakeTensorMode({.device = at::kHIP}); }, ThrowsMessage<Error>(HasSubstr("not on hip")));
}

}  // namespace
}  // namespace shadowgraph
