// Pooling on fakes compared with eager: sizes with every option, and when channels-last is preserved.
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

Tensors images() {
  const auto x = at::ones({2, 3, 8, 9});
  return {x,
          x.contiguous(at::MemoryFormat::ChannelsLast),
          x.transpose(2, 3),
          x[0],
          at::ones({2, 1, 8, 9}),
          at::ones({0, 3, 8, 9}),
          x.to(at::kBFloat16)};
}

Tensors volumes() {
  const auto x = at::ones({2, 3, 6, 8, 9});
  return {x, x.contiguous(at::MemoryFormat::ChannelsLast3d), x.transpose(2, 3), x[0], at::ones({0, 3, 6, 8, 9})};
}

template <class Pair>
Tensors both(const Pair& pair) {
  return {std::get<0>(pair), std::get<1>(pair)};
}

void expect_pools(const Tensors& inputs,
                  const std::vector<std::pair<std::string, std::function<Tensors(at::Tensor)>>>& pools,
                  const std::string& cpu_only = "none") {
  for (const auto& [name, pool] : pools) {
    for (const auto& x : inputs) {
      expect_like_eager([&pool = pool](const Tensors& t) { return pool(t[0]); }, {x},
                        {.gradients = true, .cuda = name != cpu_only, .note = name});
    }
  }
}

TEST(RulesPooling, Images) {
  expect_pools(images(), {
                             {"adaptive average",
                              [](at::Tensor x) {
                                return Tensors{at::adaptive_avg_pool2d(x, {3, 4})};
                              }},
                             {"adaptive average to one",
                              [](at::Tensor x) {
                                return Tensors{at::adaptive_avg_pool2d(x, {1, 1})};
                              }},
                             {"_adaptive average to one",
                              [](at::Tensor x) {
                                return Tensors{at::_adaptive_avg_pool2d(x, {1, 1})};
                              }},
                             {"adaptive maximum",
                              [](at::Tensor x) {
                                return both(at::adaptive_max_pool2d(x, {3, 4}));
                              }},
                             {"maximum", [](at::Tensor x) { return both(at::max_pool2d_with_indices(x, 3, 2, 1)); }},
                             {"maximum, rounding up",
                              [](at::Tensor x) { return both(at::max_pool2d_with_indices(x, 2, 2, 0, 1, true)); }},
                             {"maximum, dilated",
                              [](at::Tensor x) {
                                return Tensors{at::max_pool2d(x, {2, 3}, {1, 2}, {1, 1}, {2, 2})};
                              }},
                             {"average", [](at::Tensor x) { return Tensors{at::avg_pool2d(x, 3, 2, 1)}; }},
                             {"average, too large", [](at::Tensor x) { return Tensors{at::avg_pool2d(x, 30)}; }},
                         });
}

TEST(RulesPooling, Volumes) {
  expect_pools(
      volumes(),
      {
          {"adaptive average",
           [](at::Tensor x) {
             return Tensors{at::adaptive_avg_pool3d(x, {2, 3, 4})};
           }},
          {"adaptive maximum",
           [](at::Tensor x) {
             return both(at::adaptive_max_pool3d(x, {2, 3, 4}));
           }},
          {"maximum", [](at::Tensor x) { return both(at::max_pool3d_with_indices(x, 3, 2, 1)); }},
          {"maximum, default stride",
           [](at::Tensor x) {
             return both(at::max_pool3d_with_indices(x, {2, 3, 3}));
           }},
          {"maximum, rounding up", [](at::Tensor x) { return both(at::max_pool3d_with_indices(x, 2, 2, 1, 1, true)); }},
          // 9 elements in windows of 2: the fifth window is half empty.
          {"maximum, rounding up, without padding",
           [](at::Tensor x) { return both(at::max_pool3d_with_indices(x, 2, 2, 0, 1, true)); }},
          {"maximum, dilated", [](at::Tensor x) { return both(at::max_pool3d_with_indices(x, 2, 1, 0, 2)); }},
          {"maximum, too much padding", [](at::Tensor x) { return both(at::max_pool3d_with_indices(x, 2, 1, 2)); }},
          {"maximum, too large", [](at::Tensor x) { return both(at::max_pool3d_with_indices(x, 30)); }},
          {"average", [](at::Tensor x) { return Tensors{at::avg_pool3d(x, 3, 2, 1)}; }},
      });
}

TEST(RulesPooling, Lines) {
  expect_pools({at::ones({2, 3, 9}), at::ones({3, 9})},
               {
                   {"adaptive average", [](at::Tensor x) { return Tensors{at::adaptive_avg_pool1d(x, 4)}; }},
                   {"maximum", [](at::Tensor x) { return both(at::max_pool1d_with_indices(x, 3, 2)); }},
                   {"average", [](at::Tensor x) { return Tensors{at::avg_pool1d(x, 3, 2)}; }},
               });
}

TEST(RulesPooling, Unpooling) {
  for (const auto& x : images()) {
    if (x.scalar_type() != at::kFloat) continue;
    // Eager's CUDA kernel returns contiguous results only.
    const bool cuda = x.suggest_memory_format() == at::MemoryFormat::Contiguous;
    expect_like_eager(
        [](const Tensors& t) {
          return Tensors{at::max_unpool2d(t[0], t[1], {16, 18})};
        },
        {x, at::zeros(x.sizes(), at::kLong)}, {.gradients = true, .cuda = cuda});
  }
  for (const auto& x : volumes()) {
    expect_like_eager(
        [](const Tensors& t) {
          return Tensors{at::max_unpool3d(t[0], t[1], {12, 16, 18}, {2, 2, 2}, {0, 0, 0})};
        },
        {x, at::zeros(x.sizes(), at::kLong)}, {.gradients = true});
    expect_like_eager(
        [](const Tensors& t) {
          return Tensors{at::max_unpool3d(t[0], t[1], {12, 16, 18}, {2, 0, 2}, {0, 0, 0})};
        },
        {x, at::zeros(x.sizes(), at::kLong)}, {.same_error = true});
  }
}

}  // namespace
}  // namespace shadowgraph::testing
