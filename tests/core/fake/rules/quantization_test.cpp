// Fake quantization, packed weights and jagged batches on fakes compared with eager; CUDA-only operators with known
// results.
#include "shadowgraph/error.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

at::Tensor channels(const at::Tensor& x, int64_t axis) { return at::ones({x.dim() == 0 ? 1 : x.size(axis)}); }

TEST(RulesQuantization, FakeQuantizeOneScale) {
  for (const auto& x : layouts(at::kFloat)) {
    expect_like_eager(
        [](const Tensors& t) {
          return Tensors{at::fake_quantize_per_tensor_affine(t[0], 0.1, 0, -128, 127),
                         at::fake_quantize_per_tensor_affine(t[0], t[1].detach(), t[2], -128, 127),
                         at::_fake_quantize_learnable_per_tensor_affine(t[0], t[1], t[3], 0, 255)};
        },
        {x, at::ones({1}), at::zeros({1}, at::kInt), at::zeros({1})}, {.gradients = true});
  }
  expect_like_eager([](const Tensors& t) { return Tensors{at::fake_quantize_per_tensor_affine(t[0], 0.1, 0, 3, 2)}; },
                    {at::ones({2})});
  expect_like_eager([](const Tensors& t) { return Tensors{at::fake_quantize_per_tensor_affine(t[0], 0.1, 9, 0, 2)}; },
                    {at::ones({2})});
}

TEST(RulesQuantization, FakeQuantizeChannels) {
  for (const auto& x : layouts(at::kFloat)) {
    if (x.dim() == 0) continue;
    for (const int64_t axis : {int64_t{0}, x.dim() - 1}) {
      expect_like_eager(
          [axis](const Tensors& t) {
            return Tensors{at::fake_quantize_per_channel_affine(t[0], t[1].detach(), t[2], axis, -128, 127),
                           at::_fake_quantize_learnable_per_channel_affine(t[0], t[1], t[3], axis, 0, 255)};
          },
          {x, channels(x, axis), channels(x, axis).to(at::kInt).zero_(), channels(x, axis).zero_()},
          {.gradients = x.numel() != 0});
    }
  }
  expect_like_eager(
      [](const Tensors& t) { return Tensors{at::fake_quantize_per_channel_affine(t[0], t[1], t[2], 1, 0, 255)}; },
      {at::ones({2, 3}), at::ones({4}), at::zeros({4}, at::kInt)});
}

TEST(RulesQuantization, ObserveAndQuantize) {
  for (const bool per_channel : {false, true}) {
    for (const int64_t seen : {0, 4}) {
      const int64_t size = per_channel ? seen : 1;
      expect_like_eager(
          [=](const Tensors& t) {
            at::Tensor low = t[1];
            at::Tensor high = t[2];
            at::Tensor scale = t[3];
            at::Tensor zero = t[4];
            return Tensors{at::fused_moving_avg_obs_fake_quant(t[0], t[5], t[5], low, high, scale, zero, 0.1, 0, 255, 0,
                                                               per_channel)};
          },
          {at::ones({4, 3}).t().contiguous().t(), at::zeros({size}), at::ones({size}), at::ones({size}),
           at::zeros({size}, at::kInt), at::ones({1}, at::kLong)});
    }
  }
}

TEST(RulesQuantization, AddReluAndDequantize) {
  for (const auto dtype : {at::kFloat, at::kInt, at::kBFloat16, at::kBool}) {
    for (const auto& x : layouts(dtype)) {
      expect_like_eager([](const Tensors& t) { return Tensors{at::_add_relu(t[0], t[0])}; }, {x});
      expect_like_eager([](const Tensors& t) { return Tensors{at::_add_relu(t[0], 2.5)}; }, {x});
      expect_like_eager([](const Tensors& t) { return Tensors{t[0].dequantize()}; }, {x});
    }
  }
}

TEST(RulesQuantization, PackedWeights) {
  const Program products = [](const Tensors& t) {
    const at::Tensor packed = at::_convert_weight_to_int4pack_for_cpu(t[1], 2);
    const at::Tensor dynamic = at::_dyn_quant_pack_4bit_weight(t[4], t[5], t[6], 64, 64, 32);
    return Tensors{packed, at::_weight_int4pack_mm_for_cpu(t[0], packed, 32, t[2]),
                   at::_weight_int8pack_mm(t[0], t[3], t[0].new_ones({32})), dynamic,
                   at::_dyn_quant_matmul_4bit(t[0].to(at::kFloat), dynamic, 64, 64, 32)};
  };
  expect_like_eager(
      products,
      {at::ones({4, 64}).to(at::kBFloat16), at::zeros({32, 64}, at::kInt), at::ones({2, 32, 2}).to(at::kBFloat16),
       at::zeros({32, 64}, at::kChar), at::zeros({32, 32}, at::kByte), at::ones({32, 1}), at::ones({32})},
      {.cuda = false});
}

TEST(RulesQuantization, PackedWeightsOfCuda) {
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor x = at::ones({4, 64}, at::kBFloat16);
  const at::Tensor packed = at::_convert_weight_to_int4pack(at::zeros({32, 32}, at::kByte), 2);
  EXPECT_EQ(described(packed), "Int[4, 2, 32, 1][64, 32, 1, 1]");  // 32 / 8, 64 / (2 * 16), a warp, 2 / 2
  EXPECT_EQ(described(at::_weight_int4pack_mm(x, packed, 32, at::ones({2, 32, 2}, at::kBFloat16))),
            "BFloat16[4, 32][32, 1]");
}

TEST(RulesQuantization, GroupedProducts) {
  const Tensors dense{at::ones({16, 32}), at::ones({2, 32, 10}), at::ones({2}, at::kInt)};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor rows = at::ones({16, 32}).to(dtype);
    const at::Tensor matrices = at::ones({2, 16, 32}).to(dtype);
    const at::Tensor weights = at::ones({2, 24, 32}).to(dtype).transpose(1, 2);
    const at::Tensor ends = at::tensor({8, 16}, at::kInt);
    expect_like_eager([](const Tensors& t) { return Tensors{at::_grouped_mm(t[0], t[1], t[2])}; },
                      {rows, weights, ends});
    expect_like_eager([](const Tensors& t) { return Tensors{at::_grouped_mm(t[0], t[1])}; }, {matrices, weights});
    expect_like_eager([](const Tensors& t) { return Tensors{at::_grouped_mm(t[0].t(), t[1], t[2])}; },
                      {rows, at::ones({16, 24}).to(dtype), ends});
    expect_like_eager([](const Tensors& t) { return Tensors{at::_grouped_mm(t[0], t[1])}; }, {rows, weights});
    expect_like_eager([](const Tensors& t) { return Tensors{at::_grouped_mm(t[0], t[1], t[2])}; },
                      {rows, at::ones({2, 3, 32}).to(dtype).transpose(1, 2).slice(2, 0, 2), ends});
  }
}

TEST(RulesQuantization, JaggedBatches) {
  const Tensors in{at::ones({7, 3}), at::tensor({0, 2, 5, 7}), at::ones({3, 4, 3})};
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::_jagged_to_padded_dense_forward(t[0], {t[1]}, {4}),
                       at::_padded_dense_to_jagged_forward(t[2], {t[1]}, 7)};
      },
      in);
  const FakeTensorMode mode;
  EXPECT_THROW(at::_padded_dense_to_jagged_forward(at::ones({3, 4, 3}), {at::ones({4}, at::kLong)}),
               DataDependentError);
}

}  // namespace
}  // namespace shadowgraph::testing
