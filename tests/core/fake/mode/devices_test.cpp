// Devices of results, devices that may be mixed, and error messages for those that may not.
#include <ATen/DeviceGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/deferred/deferred.h"
#include "shadowgraph/error.h"

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
                ThrowsMessage<Error>(HasSubstr("two devices, cuda:0 and cpu!")));
    EXPECT_THROW(cpu_.index_put_({on_gpu}, gpu_[0], accumulate), Error);
  }
  // masked_fill_ in eager accepts a mask and a scalar tensor from the CPU.
  const at::Tensor one = at::rand({1});
  const at::Tensor mask = at::ones({2}, at::device(kGpu0).dtype(at::kBool));
  EXPECT_EQ(at::index_put(gpu_, {mask}, one).device(), kGpu0);
  EXPECT_THROW(at::index_put(gpu_, {on_gpu}, one), Error);
  EXPECT_THROW(at::index_put(gpu_, {mask, mask}, one), Error);
}

TEST_F(FakeDevices, WhatIsCopiedIntoAnOutGoesAnywhere) {
  at::Tensor out = at::empty({2, 2});
  EXPECT_EQ(at::copy_out(out, gpu_, gpu1_).device(), at::kCPU);
  EXPECT_EQ(at::slice_scatter_out(out, gpu_, cpu_[0].unsqueeze(0), 0, 0, 1).device(), at::kCPU);
  EXPECT_THROW(at::add_out(out, gpu_, gpu_), Error);
}

TEST_F(FakeDevices, CpuScalarsGoWithAnything) {
  EXPECT_EQ((gpu_ * scalar_).device(), kGpu0);
  EXPECT_EQ((scalar_ * gpu_).device(), kGpu0);
  EXPECT_EQ(at::where(gpu_ > 0, gpu_, scalar_).device(), kGpu0);
  EXPECT_EQ(at::addcmul(gpu_, scalar_, gpu_).device(), kGpu0);
  EXPECT_EQ((scalar_ * scalar_).device(), at::kCPU);
  EXPECT_EQ(gpu_.add_(scalar_).device(), kGpu0);
  // Writing GPU values to a CPU tensor is refused.
  EXPECT_THROW(scalar_.add_(gpu_.sum()), Error);
  EXPECT_THROW(at::add_out(scalar_, gpu_.sum(), gpu_.sum()), Error);
  EXPECT_THROW(at::nextafter(gpu_, scalar_), Error);
}

TEST_F(FakeDevices, MismatchesAreToldInEagersWords) {
  EXPECT_THAT([&] { gpu_ + cpu_; },
              ThrowsMessage<Error>(HasSubstr("Expected all tensors to be on the same device, but found at "
                                             "least two devices, cuda:0 and cpu!")));
  EXPECT_THAT([&] { cpu_ + gpu_; }, ThrowsMessage<Error>(HasSubstr("two devices, cuda:0 and cpu!")));
  EXPECT_THAT([&] { gpu_ + gpu1_; }, ThrowsMessage<Error>(HasSubstr("two devices, cuda:0 and cuda:1!")));
  EXPECT_THAT([&] { gpu_.mm(cpu_); },
              ThrowsMessage<Error>(HasSubstr(
                  "Expected all tensors to be on the same device, but got mat2 is on cpu, different from other tensors "
                  "on cuda:0 (when checking argument in method wrapper_CUDA_mm)")));
  EXPECT_THAT([&] { gpu_.index_select(0, at::zeros({1}, at::kLong)); },
              ThrowsMessage<Error>(
                  HasSubstr("got index is on cpu, different from other tensors on cuda:0 (when checking argument in "
                            "method wrapper_CUDA__index_select)")));
  EXPECT_THROW(at::cat({gpu_, cpu_}), Error);
  EXPECT_THROW(torch::nn::Linear(2, 2)->forward(gpu_), Error);
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
              ThrowsMessage<Error>(
                  HasSubstr("indices should be either on cpu or on the same device as the indexed tensor (cpu)")));
  EXPECT_THAT([&] { gpu_.index({rows.to(kGpu1)}); }, ThrowsMessage<Error>(HasSubstr("the indexed tensor (cuda:0)")));
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
  EXPECT_THROW(at::_foreach_add({cpu_, gpu_}, {cpu_, cpu_}), Error);
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
  EXPECT_THAT([] { FakeTensorMode({.device = at::kHIP}); }, ThrowsMessage<Error>(HasSubstr("not hip")));
}

DeviceProfile of_devices(int count) { return {.device_count = count}; }

// Calls that name a device which the mode does not have are refused and change no state.
void expect_refused(FakeTensorMode& mode, c10::Device device, const char* words) {
  const auto refused = [&](const char* what, const std::function<void()>& program) {
    SCOPED_TRACE(what);
    EXPECT_THAT(program, ThrowsMessage<Error>(HasSubstr(words)));
  };
  const at::Tensor x = at::ones({2, 2});
  refused("a factory", [&] { at::empty({2}, device); });
  refused("an unboxed factory", [&] { at::zeros({2}, at::TensorOptions(device)); });
  refused("a boxed factory", [&] { at::randperm(3, at::TensorOptions(device)); });
  refused("a literal", [&] { at::tensor({1, 2}, at::TensorOptions(device)); });
  refused("to", [&] { x.to(device); });
  refused("new_empty", [&] { x.new_empty({2}, at::TensorOptions(device)); });
  refused("ones_like", [&] { at::ones_like(x, at::TensorOptions(device)); });
  refused("a module", [&] { torch::nn::Linear(2, 2)->to(device); });
  refused("from_real", [&] {
    const at::Tensor real = [] {
      const UnfakeGuard outside;
      return at::ones({2});
    }();
    mode.from_real(real, device);
  });
  refused("the current device", [&] { const c10::DeviceGuard guard(device); });
  refused("a default generator", [&] { at::globalContext().defaultGenerator(device); });
  refused("a generator",
          [&] { at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index()); });
  EXPECT_EQ(at::empty({2}).device(), at::kCPU);
}

TEST(FakeMachine, DevicesBeyondItsCountAreRefused) {
  FakeTensorMode mode;
  expect_refused(mode, {at::kCUDA, 99}, "cuda:99: invalid device ordinal, the simulated machine has 8");
  EXPECT_THROW(at::empty({2}, c10::Device(at::kCUDA, 8)), Error);
  EXPECT_THROW(at::empty({2}, c10::Device(at::kXPU, 8)), Error);
  EXPECT_THROW(at::empty({2}, c10::Device(at::kMPS, 1)), Error);
  EXPECT_THROW(at::empty({2}, c10::Device(at::kPrivateUse1, 8)), Error);
  for (const c10::DeviceType type : {at::kCUDA, at::kXPU, at::kPrivateUse1}) {
    EXPECT_EQ(at::empty({2}, c10::Device(type, 7)).device(), c10::Device(type, 7));
  }
  EXPECT_EQ(at::empty({2}, c10::Device(at::kMPS, 0)).device(), c10::Device(at::kMPS, 0));
  EXPECT_THROW(FakeTensorMode({.device = c10::Device(at::kCUDA, 8)}), Error);
}

TEST(FakeMachine, MayBeLarger) {
  FakeTensorMode mode({.device = c10::Device(at::kCUDA, 99), .profile = of_devices(127)});
  EXPECT_EQ(at::empty({2}).device(), c10::Device(at::kCUDA, 99));
  EXPECT_EQ(torch::cuda::device_count(), 127U);
  EXPECT_THROW(FakeTensorMode({.profile = of_devices(128)}), Error);
  EXPECT_THROW(FakeTensorMode({.profile = of_devices(-1)}), Error);
}

// Matches torchdistx's fake_mode(fake_cuda=False).
TEST(FakeMachine, WithoutDevicesRefusesAllAccelerators) {
  at::Tensor elsewhere;
  {
    const FakeTensorMode other;
    elsewhere = at::ones({2}, at::kCUDA);
  }
  FakeTensorMode mode({.profile = of_devices(0)});
  expect_refused(mode, {at::kCUDA, 0}, "cuda:0: the simulated machine has no accelerators");
  EXPECT_THROW(at::empty({2}, at::kCUDA), Error);
  for (const c10::DeviceType type : {at::kXPU, at::kMPS, at::kPrivateUse1}) {
    EXPECT_THROW(at::empty({2}, c10::Device(type, 0)), Error);
  }
  EXPECT_THROW(elsewhere + 1, Error);
  EXPECT_THROW(FakeTensorMode({.device = at::kCUDA, .profile = of_devices(0)}), Error);
  EXPECT_EQ(torch::cuda::device_count(), 0U);
  if (at::detail::getCUDAHooks().deviceCount() == 0) EXPECT_FALSE(torch::cuda::is_available());
  // Other behavior is unaffected.
  auto net = torch::nn::Linear(2, 2);
  net->forward(at::ones({3, 2})).sum().backward();
  EXPECT_TRUE(is_fake(net->weight.grad()));
  EXPECT_EQ(at::empty({2}, at::kMeta).device(), at::kMeta);
  {
    const FakeTensorMode inner;
    EXPECT_EQ(at::empty({2}, at::kCUDA).device(), kGpu0);
  }
}

TEST(FakeMachine, DeferredInitializationHasOne) {
  EXPECT_THROW(deferred_init([] { return at::empty({2}, c10::Device(at::kCUDA, 99)); }), Error);
  const auto on_cuda = [] { return at::empty({2}, at::kCUDA); };
  EXPECT_EQ(deferred_init(on_cuda).device(), kGpu0);
  EXPECT_THROW(deferred_init({.profile = of_devices(0)}, on_cuda), Error);
  EXPECT_THROW(deferred_init({.device = at::kCUDA, .profile = of_devices(0)}, [] {}), Error);
}

TEST(FakeMachine, AModuleOfAnotherOneDoesNotRun) {
  auto net = [] {
    const FakeTensorMode other({.device = c10::Device(at::kCUDA, 2)});
    return torch::nn::Linear(2, 2);
  }();
  FakeTensorMode mode({.profile = of_devices(2)});
  const FakeModule fake = fakeify(mode, *net);
  EXPECT_THROW(net->forward(at::ones({2, 2})), Error);
  EXPECT_THROW(net->weight.t(), Error);
}

}  // namespace
}  // namespace shadowgraph
