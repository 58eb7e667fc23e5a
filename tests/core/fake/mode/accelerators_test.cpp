// Simulated devices other than CUDA: models train on them as on a fake CPU and on fake CUDA.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/capture/fake.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

bool has_index(c10::DeviceType type) { return type != at::kCPU && type != at::kMeta; }

// Sizes, strides and dtype of a run's result and of every gradient.
struct Run {
  std::vector<std::string> tensors;

  void see(const char* name, const at::Tensor& tensor, c10::DeviceType type) {
    EXPECT_EQ(tensor.device(), c10::Device(type, static_cast<c10::DeviceIndex>(has_index(type) ? 0 : -1))) << name;
    tensors.push_back(c10::str(name, " ", tensor.scalar_type(), tensor.sizes(), tensor.strides()));
  }
};

// Runs forward, loss, backward and an optimizer step.
template <class Module>
Run train(c10::DeviceType type, const Module& make, const std::function<at::Tensor(decltype(make()))>& forward) {
  const FakeTensorMode mode({.device = type});
  auto net = make();
  torch::optim::AdamW optimizer(net->parameters());
  const at::Tensor y = forward(net);
  (y * y).mean().backward();
  optimizer.step();
  Run run;
  run.see("result", y, type);
  for (const auto& parameter : net->named_parameters()) {
    if (!parameter->grad().defined()) {
      ADD_FAILURE() << parameter.key() << " has no gradient";
      continue;
    }
    run.see(parameter.key().c_str(), parameter->grad(), type);
  }
  return run;
}

Run train_cnn(c10::DeviceType type) {
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                                 torch::nn::MaxPool2d(2), torch::nn::Flatten(), torch::nn::Linear(4 * 9, 5),
                                 torch::nn::Dropout(0.5));
  };
  return train(type, make, [](torch::nn::Sequential net) { return net->forward(at::rand({2, 3, 8, 8})); });
}

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
  BlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    qkv = register_module("qkv", torch::nn::Linear(16, 48));
    out = register_module("out", torch::nn::Linear(16, 16));
    up = register_module("up", torch::nn::Linear(16, 64));
    down = register_module("down", torch::nn::Linear(64, 16));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto parts = qkv(norm1(x)).view({x.size(0), x.size(1), 3, 2, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor attended =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    const at::Tensor y = x + out(attended.transpose(1, 2).reshape(x.sizes()));
    return y + down(at::gelu(up(norm2(y))));
  }
};
TORCH_MODULE(Block);

Run train_block(c10::DeviceType type) {
  return train(
      type, [] { return Block(); },
      [](Block net) {
        return net->forward(at::rand({2, 6, 16}));
      });
}

Run train_lstm(c10::DeviceType type) {
  const auto make = [] { return torch::nn::LSTM(torch::nn::LSTMOptions(4, 5).num_layers(2).batch_first(true)); };
  return train(type, make, [](torch::nn::LSTM net) { return std::get<0>(net->forward(at::rand({2, 3, 4}))); });
}

class FakeAccelerators : public ::testing::TestWithParam<c10::DeviceType> {};

TEST_P(FakeAccelerators, ACnnTrains) { EXPECT_EQ(train_cnn(GetParam()).tensors, train_cnn(at::kCPU).tensors); }

// CPU, cuDNN, oneDNN and MPS agree: channels-last operands give channels-last results.
TEST_P(FakeAccelerators, ConvolutionsFollowTheirOperands) {
  if (GetParam() == at::kMeta) return;  // meta has no backend kernel: contiguous
  const auto convolve = [](c10::DeviceType type) {
    const FakeTensorMode mode({.device = type});
    const at::Tensor x = at::rand({2, 8, 9, 9}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    const at::Tensor weight = at::rand({4, 8, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    const at::Tensor y = at::conv2d(x, weight);
    const at::Tensor volume = at::conv3d(at::rand({1, 2, 5, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast3d),
                                         at::rand({4, 2, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast3d));
    y.sum().backward();
    return c10::str(y.strides(), x.grad().strides(), weight.grad().strides(), volume.strides());
  };
  EXPECT_EQ(convolve(GetParam()), "[196, 1, 28, 4][648, 1, 72, 8][72, 1, 24, 8][108, 1, 36, 12, 4]");
}

TEST_P(FakeAccelerators, HostTensorsCanBePinned) {
  const FakeTensorMode mode({.device = GetParam()});
  const at::Tensor x = at::rand({2, 3}, at::kCPU).t();
  const at::Tensor pinned = x.pin_memory();
  EXPECT_EQ(pinned.device(), at::kCPU);
  EXPECT_EQ(pinned.strides(), x.strides());
  EXPECT_FALSE(pinned.is_alias_of(x));
  EXPECT_TRUE(pinned.is_pinned() && !x.is_pinned());
  if (GetParam() != at::kMeta) {
    EXPECT_THAT([&] { x.to(GetParam()).pin_memory(); },
                ThrowsMessage<c10::Error>(HasSubstr("only dense CPU tensors can be pinned")));
  }
}

TEST_P(FakeAccelerators, ATransformerBlockTrains) {
  EXPECT_EQ(train_block(GetParam()).tensors, train_block(at::kCPU).tensors);
}

TEST_P(FakeAccelerators, AnLstmTrains) { EXPECT_EQ(train_lstm(GetParam()).tensors, train_lstm(at::kCPU).tensors); }

TEST_P(FakeAccelerators, ItIsNotMixedWithTheCpu) {
  const FakeTensorMode mode({.device = GetParam()});
  if (has_index(GetParam())) {
    EXPECT_THROW(at::rand({2}) + at::rand({2}, at::kCPU), Error);
  }
  EXPECT_EQ(at::rand({2}).cpu().device(), at::kCPU);
}

TEST_P(FakeAccelerators, ProgramsSeedAndAutocast) {
  const c10::DeviceType type = GetParam();
  const FakeTensorMode mode({.device = type});
  EXPECT_NO_THROW(torch::manual_seed(7));
  if (type == at::kMeta) return;  // meta has no autocast
  at::autocast::set_autocast_enabled(type, true);
  at::autocast::set_autocast_dtype(type, at::kHalf);
  const at::Tensor x = at::rand({1, 2, 4, 8}).requires_grad_();
  const at::Tensor product = x.matmul(x.mT());
  const at::Tensor attended = at::scaled_dot_product_attention(x, x, x);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type, false);
  EXPECT_EQ(product.scalar_type(), at::kHalf);
  EXPECT_EQ(attended.scalar_type(), at::kHalf);
  attended.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
}

// PrivateUse1 is tested below.
INSTANTIATE_TEST_SUITE_P(All, FakeAccelerators, ::testing::Values(at::kCUDA, at::kXPU, at::kMPS, at::kMeta),
                         [](const auto& info) { return c10::DeviceTypeName(info.param); });

TEST(FakeAccelerator, GradientsCrossToTheCpuAndBack) {
  for (const c10::DeviceType type : {at::kCUDA, at::kXPU, at::kMPS}) {
    const FakeTensorMode mode;
    const at::Tensor x = at::rand({2, 3}).set_requires_grad(true);
    const at::Tensor y = (x.to(type) * 2).to(at::kCPU);
    (y * x).sum().backward();
    EXPECT_EQ(x.grad().device(), at::kCPU);
  }
}

TEST(FakeAccelerator, OneKindAfterTheOtherButNotInOneBackward) {
  const FakeTensorMode mode;
  for (const c10::DeviceType type : {at::kXPU, at::kCUDA, at::kMPS, at::kXPU}) {
    const at::Tensor x = at::rand({2}, type).set_requires_grad(true);
    x.exp().sum().backward();
    EXPECT_EQ(x.grad().device().type(), type);
  }
  const at::Tensor x = at::rand({2}, at::kXPU).set_requires_grad(true);
  const at::Tensor mixed = x.exp().to(at::kCUDA).exp().sum();
  EXPECT_THAT([&] { mixed.backward(); }, ThrowsMessage<Error>(HasSubstr("one kind of accelerator")));
  EXPECT_FALSE(x.grad().defined());
}

TEST(FakeAccelerator, ThereIsNoneOutsideAMode) {
  {
    const FakeTensorMode mode({.device = at::kXPU});
    EXPECT_EQ(at::getAccelerator(), at::kXPU);
  }
  EXPECT_FALSE(at::getAccelerator().has_value());
  EXPECT_FALSE(at::hasXPU());
  EXPECT_FALSE(at::hasMPS());
}

TEST(FakeAccelerator, ABackwardAfterTheModeSaysWhereItBelongs) {
  for (const c10::DeviceType type : {at::kCUDA, at::kXPU, at::kMPS}) {
    at::Tensor x;
    at::Tensor loss;
    FakeTensorMode mode({.device = type});
    x = at::rand({2}).set_requires_grad(true);
    loss = x.exp().sum().cpu();
    {
      const UnfakeGuard guard;
      EXPECT_THAT([&] { loss.backward({}, /*retain_graph=*/true); }, ThrowsMessage<Error>(HasSubstr("outside a mode")));
    }
    loss.backward();
    EXPECT_EQ(x.grad().device().type(), type);
  }
}

TEST(FakeAccelerator, ACaptureOnXpu) {
  Capture session({.mode = {.device = at::kXPU}});
  const at::Tensor x = at::rand({2, 2, 4, 8}).set_requires_grad(true);
  at::scaled_dot_product_attention(x, x, x).sum().backward();
  const Graph graph = session.finish({x.grad()});
  EXPECT_NO_THROW(verify(graph));
}

// native/mkldnn/xpu/Attention.cpp: inference uses a single operator, with the query's dimension order.
TEST(FakeAccelerator, XpuAttendsInOneOperatorInInference) {
  const FakeTensorMode mode({.device = at::kXPU});
  const auto laid_out = [](int64_t head) { return at::rand({2, 6, 3, head}).transpose(1, 2); };
  EXPECT_EQ(at::scaled_dot_product_attention(laid_out(8), laid_out(8), laid_out(8)).strides(),
            at::IntArrayRef({144, 8, 24, 1}));
  // The math implementation ends with a matrix product, which is contiguous.
  EXPECT_EQ(at::scaled_dot_product_attention(laid_out(600), laid_out(600), laid_out(600)).strides(),
            at::IntArrayRef({10800, 3600, 600, 1}));
  EXPECT_EQ(
      at::scaled_dot_product_attention(laid_out(8), laid_out(8), laid_out(8).to(at::kDouble).to(at::kFloat), {}, 0.1)
          .strides(),
      at::IntArrayRef({144, 48, 8, 1}));
}

// Runs in a separate process, because renaming the backend lasts until the process ends and makes it the only
// accelerator.
void train_on_private_use() {
  c10::register_privateuse1_backend("npu");
  const bool same = train_cnn(at::kPrivateUse1).tensors == train_cnn(at::kCPU).tensors &&
                    train_block(at::kPrivateUse1).tensors == train_block(at::kCPU).tensors &&
                    train_lstm(at::kPrivateUse1).tensors == train_lstm(at::kCPU).tensors;
  if (!same || ::testing::Test::HasFailure()) std::exit(1);
  // Other accelerators are indistinguishable from it from now on.
  try {
    train_cnn(at::kCUDA);
    std::exit(2);
  } catch (const Error&) {}
  // Programs on real tensors still work.
  const at::Tensor x = at::rand({2}).set_requires_grad(true);
  x.exp().sum().backward();
  if (!x.grad().equal(x.exp())) std::exit(3);
  std::exit(0);
}

TEST(FakePrivateUseDeathTest, TrainsOnceItHasAName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(train_on_private_use(), ::testing::ExitedWithCode(0), "");
}

TEST(FakePrivateUse, WithoutANameBackwardSaysWhatToDo) {
  EXPECT_THAT([] { train_cnn(at::kPrivateUse1); }, ThrowsMessage<Error>(HasSubstr("register_privateuse1_backend")));
  const FakeTensorMode mode({.device = at::kPrivateUse1});
  const at::NoGradGuard no_grad;
  Block net;
  EXPECT_TRUE(net->forward(at::rand({2, 6, 16})).is_privateuseone());
}

}  // namespace
}  // namespace shadowgraph
