// A capture inherits unset options from the mode in which the module was created; conflicting options are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/error.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// Creates a tensor in forward, so that the default device shows in the graph.
struct Shifting : torch::nn::Module {
  Shifting() { weight = register_parameter("weight", at::ones({4})); }
  at::Tensor forward(const at::Tensor& x) { return x * weight + at::ones({4}); }
  at::Tensor weight;
};

std::vector<std::string> devices_of(const Graph& graph) {
  std::set<std::string> devices;
  for (const NodeId node : graph.nodes()) {
    graph.for_each_output(node, [&](ValueId value) {
      if (graph.value(value).kind == ValueKind::kTensor) devices.insert(graph.value(value).device().str());
    });
  }
  return {devices.begin(), devices.end()};
}

at::Tensor summed(const Tensors& outputs) { return outputs[0].sum(); }

TEST(CaptureOptions, TheDeviceIsThatOfTheModeTheModuleWasMadeIn) {
  FakeTensorMode mode({.device = at::kCUDA});
  Shifting net;
  const at::Tensor x = at::ones({2, 4});
  torch::optim::SGD sgd(net.parameters(), 0.1);
  const FakeTensorMode inner;  // a CPU mode that the module does not belong to
  EXPECT_EQ(devices_of(capture_forward(net, {x}).graph), std::vector<std::string>{"cuda:0"});
  EXPECT_EQ(devices_of(capture_training_step(net, {x}, summed, sgd).graph), std::vector<std::string>{"cuda:0"});
  Capture session(net);
  EXPECT_EQ(at::ones({1}).device(), at::Device(at::kCUDA, 0));
  EXPECT_EQ(devices_of(session.finish({net.forward(x)})), std::vector<std::string>{"cuda:0"});
}

TEST(CaptureOptions, WithoutAModuleThatOfTheInputsOrOfTheThread) {
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor x = at::ones({4});
  const ProgramToCapture shift{.inputs = {x},
                               .forward = [](const Tensors& in) { return Tensors{in[0] + at::ones({4})}; }};
  const ProgramToCapture make{.forward = [](const Tensors&) { return Tensors{at::ones({4})}; }};
  EXPECT_EQ(devices_of(capture_forward(make).graph), std::vector<std::string>{"cuda:0"});
  Capture session;
  EXPECT_EQ(at::ones({1}).device(), at::Device(at::kCUDA, 0));
  session.finish({});
  const FakeTensorMode inner;
  EXPECT_EQ(devices_of(capture_forward(shift).graph), std::vector<std::string>{"cuda:0"});
  EXPECT_EQ(devices_of(capture_forward(make).graph), std::vector<std::string>{"cpu"});
  EXPECT_EQ(devices_of(capture_forward(make, {.mode = {.device = at::kMeta}}).graph), std::vector<std::string>{"meta"});
}

TEST(CaptureOptions, OfAModeThatHasEndedTheDeviceIsLeft) {
  std::shared_ptr<Shifting> net;
  at::Tensor x;
  {
    const FakeTensorMode mode({.device = c10::Device(at::kCUDA, 3)});
    net = std::make_shared<Shifting>();
    x = at::ones({2, 4});
  }
  EXPECT_EQ(devices_of(capture_forward(*net, {x}).graph), std::vector<std::string>{"cuda:3"});
  // No mode to conflict with: the error is eager's for mixed devices.
  EXPECT_THROW(capture_forward(*net, {x}, {.mode = {.device = at::kCPU}}), Error);
}

TEST(CaptureOptions, WhatContradictsTheModeIsRefused) {
  FakeTensorMode mode({.device = at::kCUDA});
  Shifting net;
  const at::Tensor x = at::ones({2, 4});
  torch::optim::SGD sgd(net.parameters(), 0.1);
  const auto words = ThrowsMessage<Error>(AllOf(HasSubstr("device cpu and cuda"), HasSubstr("Leave it out")));
  const CaptureOptions on_cpu{.mode = {.device = at::kCPU}};
  EXPECT_THAT([&] { capture_forward(net, {x}, on_cpu); }, words);
  EXPECT_THAT([&] { capture_training_step(net, {x}, summed, sgd, on_cpu); }, words);
  EXPECT_THAT([&] { Capture session(net, on_cpu); }, words);
  EXPECT_THAT([&] { capture_forward(net, {x}, {.mode = {.profile = DeviceProfile::a100()}}); },
              ThrowsMessage<Error>(HasSubstr("device profile 'NVIDIA A100' and 'NVIDIA H100'")));
  Capture session(on_cpu);
  EXPECT_THAT([&] { session.name_module(net); },
              ThrowsMessage<Error>(AllOf(HasSubstr("'weight'"), HasSubstr("device cpu and cuda"))));
  // Repeating the mode's own option is not a conflict.
  const FakeTensorMode back({.device = at::kCPU});
  EXPECT_NO_THROW(capture_forward(net, {x}, {.mode = {.device = c10::Device(at::kCUDA, 0)}}));
}

TEST(CaptureOptions, AModuleOfTwoModesThatDifferIsRefused) {
  FakeTensorMode mode;
  Shifting net;
  const FakeTensorMode other({.device = at::kCUDA});
  net.register_buffer("extra", at::ones({4}));
  EXPECT_THAT([&] { capture_forward(net, {at::ones({4})}); },
              ThrowsMessage<Error>(HasSubstr("created in two different modes: device cpu and cuda")));
}

TEST(CaptureOptions, TheProfileComesAlong) {
  FakeTensorMode mode(
      {.device = at::kCUDA,
       .profile = DeviceProfile{.flash_attention = false, .efficient_attention = false, .cudnn_attention = false}});
  const at::Tensor x = at::empty({1, 2, 8, 16}, at::kHalf);
  const ProgramToCapture attend{.parameters = {{"x", x}}, .forward = [&](const Tensors&) {
                                  return Tensors{at::scaled_dot_product_attention(x, x, x)};
                                }};
  const FakeTensorMode inner({.device = at::kCUDA});
  const std::string text = to_text(capture_forward(attend).graph);
  EXPECT_THAT(text, HasSubstr("softmax"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("cudnn")));  // cuDNN attention is the default choice on an H100
}

// The step contains a mask that determines sizes and a real tensor, so it needs every option of the mode, also during
// warm-up.
TEST(CaptureOptions, WarmUpsRunUnderTheSameOptionsAsTheStep) {
  int asked = 0;
  const at::Tensor table = [] { return torch::tensor({1.0F, 2.0F, 3.0F, 4.0F}); }();  // a real tensor
  FakeTensorMode mode({.data_size_hint = [&](const DataSizeQuery&) -> std::optional<int64_t> {
                         ++asked;
                         return 2;
                       },
                       .real_tensors = RealTensors::kConstant});
  Shifting net;
  const at::Tensor mask = at::rand({4}) > 0.5;
  torch::optim::AdamW adamw(net.parameters());
  ProgramToCapture step{.module = &net,
                        .inputs = {at::ones({4}), mask},
                        .forward =
                            [&](const Tensors& in) {
                              // Only a mode with RealTensors::kConstant knows the contents of the table.
                              const double scale = (table * 2).sum().item<double>();
                              return Tensors{(net.forward(in[0]) * scale).index({in[1]})};
                            },
                        .loss = &summed,
                        .optimizer = &adamw,
                        .warmup_steps = 2};
  const Graph graph = capture_training_step(step).graph;
  EXPECT_EQ(asked, 2);  // once in the warm-ups, which share one mode, and once in the step
  std::vector<std::string> observed;
  for (const Guard& guard : graph.guards) observed.push_back(guard.observed);
  EXPECT_THAT(observed, Contains("nonzero0 = 2"));
  EXPECT_THAT(observed, Contains("aten::_local_scalar_dense = 20"));  // 2 * (1 + 2 + 3 + 4)

  FakeTensorMode strict({.real_tensors = RealTensors::kRefuse});
  Shifting other;
  torch::optim::AdamW optimizer(other.parameters());
  step.module = &other;
  step.inputs = {at::ones({4}), at::ones({4})};
  step.forward = [&](const Tensors& in) { return Tensors{other.forward(in[0]) * table}; };
  step.optimizer = &optimizer;
  EXPECT_THROW(capture_training_step(step), UnsupportedError);
  EXPECT_THAT(optimizer.state(), IsEmpty()) << "the warm-up ran with different options from the step";
}

}  // namespace
}  // namespace shadowgraph
