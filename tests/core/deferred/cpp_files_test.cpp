// C++ torch::load inside deferred_init: a storage has no recipe. Tensors loaded for real may be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "shadowgraph/deferred/deferred.h"
#include "tests/core/deferred/check.h"

namespace shadowgraph {
namespace {

using testing::same_bits;

std::string saved_layer() {
  const std::string path = ::testing::TempDir() + "layer.pt";
  torch::save(torch::nn::Linear(3, 2), path);
  return path;
}

TEST(CppFiles, WhatTheyHoldIsReadUnderAnUnfakeGuard) {
  const std::string path = saved_layer();
  torch::nn::Linear eager(3, 2);
  torch::load(eager, path);
  const auto described = deferred_init([&] {
    torch::nn::Linear net(3, 2);
    torch::nn::Linear read = [&] {
      const UnfakeGuard real;
      torch::nn::Linear made(3, 2);
      torch::load(made, path);
      return made;
    }();
    const torch::NoGradGuard no_grad;
    net->weight.copy_(read->weight);
    net->bias.copy_(read->bias).mul_(2);
    return net;
  });
  EXPECT_TRUE(is_deferred(*described));
  materialize_module(*described);
  EXPECT_TRUE(same_bits(described->weight, eager->weight));
  EXPECT_TRUE(same_bits(described->bias, eager->bias * 2));
}

TEST(CppFiles, AreNotDescribedAndSayWhatToDo) {
  const std::string path = saved_layer();
  EXPECT_THAT(
      [&] {
        deferred_init([&] {
          torch::nn::Linear net(3, 2);
          torch::load(net, path);
          return net;
        });
      },
      ::testing::ThrowsMessage<DeferredError>(
          ::testing::AllOf(::testing::HasSubstr("Storage"), ::testing::HasSubstr("UnfakeGuard"))));
}

}  // namespace
}  // namespace shadowgraph
