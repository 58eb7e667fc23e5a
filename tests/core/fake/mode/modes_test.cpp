// Fake modes combined with other global state: nesting, threads, exceptions, autocast, inference mode, hooks, functorch
// transforms.
#include <ATen/autocast_mode.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/functorch/DynamicLayer.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <thread>

#include "core/fake/thread_state.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void expect_nothing_left_behind() {
  EXPECT_EQ(thread_state.mode, nullptr);
  EXPECT_EQ(thread_state.kernel_depth, 0U);
  EXPECT_EQ(thread_state.literal, nullptr);
  EXPECT_FALSE(is_fake(at::empty({2})));
  EXPECT_EQ(at::ones({3}).sum().item<float>(), 3.0F);
}

TEST(FakeModes, TheInnermostCounts) {
  {
    const FakeTensorMode outer({.device = at::kCUDA});
    EXPECT_TRUE(at::empty({2}).is_cuda());
    {
      const FakeTensorMode inner;
      EXPECT_TRUE(at::empty({2}).is_cpu());
      {
        const UnfakeGuard real;
        EXPECT_FALSE(is_fake(at::empty({2})));
        const FakeTensorMode third({.device = c10::Device(at::kCUDA, 3)});
        EXPECT_EQ(at::empty({2}).device().index(), 3);
      }
      EXPECT_TRUE(at::empty({2}).is_cpu());
    }
    EXPECT_TRUE(at::empty({2}).is_cuda());
  }
  expect_nothing_left_behind();
}

TEST(FakeModes, FakesOutliveTheirMode) {
  at::Tensor x;
  at::Tensor literal;
  {
    const FakeTensorMode mode;
    x = at::rand({2, 3}).requires_grad_();
    literal = at::tensor({1.0F, 2.0F});
  }
  const at::Tensor y = (x * 2).t().matmul(x).softmax(-1);
  EXPECT_TRUE(is_fake(y));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(literal.sum().item<float>(), 3.0F);
  EXPECT_THROW(y.sum().item(), DataDependentError);
  const at::Tensor real = at::ones({2, 3});
  EXPECT_TRUE(is_fake(real + x));
  expect_nothing_left_behind();
}

TEST(FakeModes, ExceptionsAtAnyPointRestoreEverything) {
  const std::vector<std::function<void()>> programs = {
      [] {
        at::empty({2, 3}).mm(at::empty({2, 3}));
      },
      [] { at::rand({2}).item(); },
      [] { at::rand({2}, at::kCUDA) + at::rand({2}); },
      [] { at::nonzero(at::rand({2})); },
      [] {
        const at::Tensor literal = at::tensor({1, 2});  // its contents are still pending when the mode ends
        throw std::runtime_error("midway");
      },
      [] {
        at::Tensor x = at::rand({2}).requires_grad_();
        x.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("in backward"); });
        (x * 2).sum().backward();
      },
      [] { at::empty({-1}); },
      [] {
        at::zeros({int64_t{1} << 62, int64_t{1} << 62});
      },
  };
  for (const auto& program : programs) {
    EXPECT_ANY_THROW({
      const FakeTensorMode mode;
      program();
    });
    expect_nothing_left_behind();
    EXPECT_ANY_THROW({
      Capture session({.mode = {.device = at::kCUDA}});
      program();
      throw std::runtime_error("those that mix devices do not throw here");
    });
    expect_nothing_left_behind();
  }
}

TEST(FakeModes, EveryThreadHasItsOwn) {
  std::vector<std::thread> threads;
  std::array<bool, 4> right{};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i, &right] {
      bool all = true;
      for (int round = 0; round < 20; ++round) {
        const FakeTensorMode mode({.device = c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(i))});
        const at::Tensor x = at::rand({4, i + 1}).requires_grad_();
        const at::Tensor scale = at::tensor({1.0F, 2.0F});
        (x.t().matmul(x) * scale.sum()).sum().backward();
        all = all && x.grad().device().index() == i && x.grad().size(1) == i + 1 && scale.sum().item<float>() == 3.0F;
      }
      right[static_cast<size_t>(i)] = all && at::ones({2}).sum().item<float>() == 2.0F;
      right[static_cast<size_t>(i)] = right[static_cast<size_t>(i)] && !is_fake(at::empty({1}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(right, ::testing::Each(true));
}

TEST(FakeModes, ThreadsShareOne) {
  FakeTensorMode mode;
  const at::Tensor weight = [] {
    const UnfakeGuard real;
    return at::rand({8, 8}).requires_grad_();
  }();
  const at::Tensor shared = mode.from_real(weight);
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_FALSE(is_fake(at::empty({1})));
      {
        const FakeTensorModeScope scope(mode);
        for (int round = 0; round < 20; ++round) {
          const at::Tensor y = at::rand({4, 8}).matmul(weight).relu();
          right += is_fake(y) && mode.from_real(weight).is_same(shared) && detect_fake_mode({y}) == &mode;
        }
      }
      EXPECT_FALSE(is_fake(at::empty({1})));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 80);
}

TEST(FakeModes, ACaptureIsOfOneThread) {
  Capture session;
  std::thread([&] {
    EXPECT_THAT([&] { FakeTensorModeScope scope(session.mode()); },
                ThrowsMessage<Error>(HasSubstr("is being captured")));
  }).join();
}

TEST(FakeModes, AutocastCastsAsOnTheDevice) {
  const auto expect_types = [](c10::Device device, at::ScalarType low) {
    const FakeTensorMode mode({.device = device});
    const at::Tensor x = at::rand({4, 4}).requires_grad_();
    at::autocast::set_autocast_enabled(device.type(), true);
    at::autocast::set_autocast_dtype(device.type(), low);
    const at::Tensor product = x.mm(x);
    EXPECT_EQ(product.scalar_type(), low);
    EXPECT_EQ(at::linear(x, x).scalar_type(), low);
    EXPECT_EQ(at::conv2d(at::rand({1, 4, 4, 4}), at::rand({4, 4, 1, 1})).scalar_type(), low);
    EXPECT_EQ(at::mse_loss(product, product).scalar_type(), at::kFloat);
    EXPECT_EQ((x + product).scalar_type(), at::kFloat);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device.type(), false);
    EXPECT_EQ(x.mm(x).scalar_type(), at::kFloat);
    product.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  };
  expect_types(at::kCPU, at::kBFloat16);
  expect_types(at::kCUDA, at::kHalf);
}

TEST(FakeModes, InferenceAndGradModes) {
  const FakeTensorMode mode;
  const at::Tensor w = at::rand({3, 3}).requires_grad_();
  {
    const c10::InferenceMode inference;
    const at::Tensor y = at::linear(at::rand({2, 3}), w);
    EXPECT_TRUE(y.is_inference());
    EXPECT_FALSE(y.requires_grad());
    EXPECT_TRUE(is_fake(y));
  }
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE((w * 2).requires_grad());
    const UnfakeGuard real;
    EXPECT_EQ(w.t().requires_grad(), at::rand({3, 3}).requires_grad_().t().requires_grad());
  }
  EXPECT_TRUE((w * 2).requires_grad());
  at::Tensor leaf_view = w.detach().view({9});
  EXPECT_FALSE(leaf_view.requires_grad());
  at::Tensor leaf = at::rand({2}).requires_grad_();
  EXPECT_ANY_THROW(leaf.add_(1));  // eager's error: a leaf that requires grad
  // A saved tensor that was modified after it was saved.
  at::Tensor a = at::rand({2}).requires_grad_() * 1;
  const at::Tensor b = a.exp();
  at::Tensor(b.detach()).add_(1);
  EXPECT_ANY_THROW(b.sum().backward());
}

// ---- User-defined extensions

struct KeptHooks : torch::autograd::SavedVariableHooks {
  explicit KeptHooks(int& packed, int& unpacked) : packed_(packed), unpacked_(unpacked) {}
  void call_pack_hook(const at::Tensor& tensor) override { ++packed_, data_ = tensor.tensor_data(); }
  at::Tensor call_unpack_hook() override { return ++unpacked_, data_; }
  int& packed_;
  int& unpacked_;
  at::Tensor data_;
};

TEST(FakeModes, AUsersSavedTensorHooksAreTheUsers) {
  int packed = 0;
  int unpacked = 0;
  const auto program = [&] {
    const at::Tensor x = at::rand({3}).requires_grad_();
    torch::autograd::SavedVariable saved(x * 2, /*is_output=*/false);
    saved.register_hooks(std::make_unique<KeptHooks>(packed, unpacked));
    EXPECT_EQ(saved.unpack().sizes(), x.sizes());
  };
  const FakeTensorMode mode;
  program();
  EXPECT_EQ(packed, 1);
  EXPECT_EQ(unpacked, 1);
}

std::atomic<int> seen_by_users_key{0};
void users_fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  ++seen_by_users_key;
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::TESTING_ONLY_GenericMode), stack);
}
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&users_fallback>());
}

TEST(FakeModes, AUsersDispatchKeyIsUndisturbed) {
  const auto program = [] {
    const c10::impl::IncludeDispatchKeyGuard guard(c10::DispatchKey::TESTING_ONLY_GenericMode);
    seen_by_users_key = 0;
    const at::Tensor x = at::rand({2, 3});
    x.t().mm(x).relu();
    return seen_by_users_key.load();
  };
  // Kernels of real tensors call more operators internally, which the key also sees.
  EXPECT_GE(program(), 4);
  const FakeTensorMode mode;
  EXPECT_GE(program(), 4);
}

struct Transform {
  explicit Transform(at::functorch::TransformType type)
      : level(at::functorch::initAndPushDynamicLayer(type, c10::SymInt(4), at::functorch::RandomnessType::Different,
                                                     true)) {}
  ~Transform() { at::functorch::popDynamicLayerAndDeleteMetadata(); }
  const int64_t level;
};

// functorch runs above the fake key, so the operators it calls are fake. Its wrapper tensors are not converted.
TEST(FakeModes, FunctorchTransformsRunButTheirWrappersAreNoFakes) {
  const auto mapped = [] {
    const at::Tensor x = at::rand({4, 2, 3});
    const at::Tensor weight = at::rand({3, 5});
    const Transform vmap(at::functorch::TransformType::Vmap);
    const at::Tensor y = at::functorch::makeBatched(x, 0, vmap.level).matmul(weight).softmax(-1).sum(0);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({5}));
    return at::functorch::maybeGetBatchedImpl(y)->value();
  };
  const at::Tensor real = mapped();
  {
    const FakeTensorMode mode;
    const at::Tensor fake = mapped();
    EXPECT_TRUE(is_fake(fake));
    EXPECT_EQ(fake.sizes(), real.sizes());
    EXPECT_EQ(fake.strides(), real.strides());
  }
  const at::Tensor wrapper = at::functorch::makeBatched(at::rand({4, 2}), 0, 1);
  FakeTensorMode mode;
  EXPECT_THAT([&] { mode.from_real(wrapper); }, ThrowsMessage<UnsupportedError>(HasSubstr("functorch")));
  // Outside its transform, functorch raises its own error.
  EXPECT_THAT(
      [&] {
        at::functorch::makeBatched(at::rand({4, 2}), 0, 1) + 1;
      },
      ThrowsMessage<c10::Error>(HasSubstr("escaped from inside a function being vmapped")));
}

}  // namespace
}  // namespace shadowgraph
