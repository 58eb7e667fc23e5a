// Tests the features of the simulated CPU; by default they equal those of this machine, as eager shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/rnn.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/text.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CpuProfile, IsThisMachinesByDefault) {
  const auto convolves = [](at::ScalarType dtype) {
    return run_real({at::rand({2, 4, 6, 7}, dtype), at::rand({6, 4, 3, 3}, dtype)},
                    [](const Tensors& in) {
                      return Tensors{at::mkldnn_convolution(in[0], in[1], {}, {1, 1}, {1, 1}, {1, 1}, 1)};
                    })
        .error.empty();
  };
  const DeviceProfile profile;
  EXPECT_EQ(profile.cpu, CpuProfile::this_machine());
  EXPECT_EQ(profile.cpu.mkldnn_bf16, convolves(at::kBFloat16));
  EXPECT_EQ(profile.cpu.mkldnn_fp16, convolves(at::kHalf));
}

TEST(CpuProfile, ReachesCaptures) {
  const auto captured = [](bool mkldnn_bf16) {
    const DeviceProfile profile{.cpu = {.mkldnn_bf16 = mkldnn_bf16}};
    const FakeTensorMode mode({.device = at::kCPU, .profile = profile});
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(5, 6));
    lstm->to(at::kBFloat16);
    Capture session;
    const at::Tensor x = at::empty({3, 4, 5}, at::kBFloat16);
    std::get<0>(lstm->forward(x)).sum().backward();
    return to_text(session.finish({}));
  };
  EXPECT_THAT(captured(true), HasSubstr("aten::mkldnn_rnn_layer_backward"));
  EXPECT_THAT(captured(false), Not(HasSubstr("mkldnn")));
  EXPECT_THAT(captured(false), HasSubstr("aten::sigmoid_"));
}

}  // namespace
}  // namespace shadowgraph::testing
