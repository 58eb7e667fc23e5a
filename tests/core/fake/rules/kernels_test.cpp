// Operators that programs rarely call directly, on fakes compared with eager; CUDA-only ones with known results.
#include "shadowgraph/error.h"
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

const Comparison kOnCpu{.cuda = false};

TEST(RulesKernels, ConvolutionsOfImages) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const at::Tensor x = at::ones({2, 4, 8, 9});
  const at::Tensor w = at::ones({6, 4, 3, 3});
  for (const auto& input : {x, x.contiguous(last), x.transpose(2, 3).contiguous().transpose(2, 3), x.slice(0, 0, 0)}) {
    for (const auto& weight : {w, w.contiguous(last)}) {
      expect_like_eager(
          [](const Tensors& t) {
            return Tensors{at::_slow_conv2d_forward(t[0], t[1], {3, 3}, t[2], {2, 1}, {1, 0}),
                           at::slow_conv_dilated2d(t[0], t[1], {3, 3}, t[2], {1, 1}, {0, 0}, {2, 2})};
          },
          {input, weight, at::ones({6})}, kOnCpu);
      expect_like_eager(
          [](const Tensors& t) {
            const auto [dx, dw, db] = at::_slow_conv2d_backward(t[2], t[0], t[1], {3, 3}, {1, 1}, {0, 0}, {1, 1, 1});
            return Tensors{dx, dw, db};
          },
          {input, weight, at::ones({input.size(0), 6, 6, 7})}, kOnCpu);
      for (const auto& sizes : {std::vector<int64_t>{0}, {2, 6, 6, 7}}) {
        expect_like_eager(
            [](const Tensors& t) {
              at::Tensor out = t[2];
              return Tensors{at::_slow_conv2d_forward_out(out, t[0], t[1], {3, 3}, {}, {1, 1}, {0, 0})};
            },
            {input, weight, at::ones(sizes)}, kOnCpu);
      }
    }
  }
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::slow_conv_dilated2d(t[0], t[1], {3, 3})};
      },
      {x[0], w}, kOnCpu);
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::slow_conv_dilated2d(t[0], t[1], {3, 3})};
      },
      {at::ones({1, 4, 2, 2}), w}, kOnCpu);
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::_slow_conv2d_forward(t[0], t[1], {3, 3}, {}, {1, 1}, {0, 0})};
      },
      {at::ones({1, 5, 8, 8}), w}, kOnCpu);
}

TEST(RulesKernels, ConvolutionsOfVolumes) {
  const at::Tensor x = at::ones({2, 4, 5, 8, 9});
  for (const auto& input : {x, x.contiguous(at::MemoryFormat::ChannelsLast3d)}) {
    expect_like_eager(
        [](const Tensors& t) {
          return Tensors{
              at::slow_conv3d(t[0], t[1], {3, 3, 3}, t[3], {1, 2, 1}, {1, 1, 1}),
              at::slow_conv_dilated3d(t[0], t[1], {3, 3, 3}, t[3], {1, 1, 1}, {0, 0, 0}, {2, 2, 2}),
              at::slow_conv_transpose3d(t[0], t[2], {3, 3, 3}, t[3], {2, 2, 2}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1})};
        },
        {input, at::ones({6, 4, 3, 3, 3}), at::ones({4, 6, 3, 3, 3}), at::ones({6})}, kOnCpu);
  }
}

TEST(RulesKernels, ConvolutionsOfCuda) {
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor x = at::ones({2, 4, 8, 9});
  EXPECT_EQ(described(at::_conv_depthwise2d(x, at::ones({4, 1, 3, 3}), {3, 3}, {}, {1, 1}, {0, 0}, {1, 1})),
            "Float[2, 4, 6, 7][168, 42, 7, 1]");
  const at::Tensor volume = at::ones({1, 4, 5, 5, 5});
  EXPECT_EQ(described(at::conv_depthwise3d(volume, at::ones({4, 1, 3, 3, 3}), {3, 3, 3}, {}, {1, 1, 1}, {0, 0, 0},
                                           {1, 1, 1})),
            "Float[1, 4, 3, 3, 3][108, 27, 9, 3, 1]");
  const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor w = at::ones({6, 4, 3, 3});
  EXPECT_EQ(described(at::cudnn_convolution_relu(last, w, {}, {1, 1}, {1, 1}, {1, 1}, 1)),
            "Float[2, 6, 8, 9][432, 1, 54, 6]");
  EXPECT_EQ(described(at::cudnn_convolution_add_relu(x, w, at::ones({2, 6, 8, 9}), 1, {}, {1, 1}, {1, 1}, {1, 1}, 1)),
            "Float[2, 6, 8, 9][432, 72, 9, 1]");
}

TEST(RulesKernels, BatchNormInPieces) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto parameters : {at::kFloat, dtype}) {
      expect_like_eager(
          [](const Tensors& t) {
            const auto [mean, variance] = at::batch_norm_update_stats(t[0], t[1], t[2], 0.1);
            return Tensors{mean, variance};
          },
          {at::ones({2, 3, 4}).to(dtype), at::zeros({3}).to(parameters), at::ones({3}).to(parameters)}, kOnCpu);
    }
  }
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor x = at::ones({2, 3, 4, 5}, at::kHalf);
  const at::Tensor w = at::ones({3}, at::kHalf);
  const auto [mean, invstd] = at::batch_norm_stats(x, 1e-5);
  EXPECT_EQ(described(mean), "Float[3][1]");
  const auto [all_mean, all_invstd] = at::batch_norm_gather_stats_with_counts(
      x, at::stack({mean, mean}), at::stack({invstd, invstd}), {}, {}, 0.1, 1e-5, at::ones({2}));
  EXPECT_EQ(described(all_mean), "Float[3][1]");
  EXPECT_EQ(described(at::batch_norm_elemt(x, w, w, all_mean, all_invstd, 1e-5)), described(x));
  const auto [dy, dy_xmu, dw, db] = at::batch_norm_backward_reduce(x, x, mean, invstd, w, true, true, false);
  EXPECT_EQ(described(dy_xmu), "Float[3][1]");
  EXPECT_EQ(described(dw), "Half[3][1]");
  EXPECT_FALSE(db.defined());
  const at::Tensor last = x.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(described(at::batch_norm_backward_elemt(last, last, mean, invstd, w, dy, dy_xmu, at::ones({1}))),
            described(last));
}

TEST(RulesKernels, Attention) {
  expect_like_eager(
      [](const Tensors& t) {
        const auto [q, k, v] = at::_transform_bias_rescale_qkv(t[0], t[1], 2);
        return Tensors{q, k, v};
      },
      {at::ones({2, 5, 12}), at::ones({12})});
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor packed = at::ones({12, 4, 64}, at::kHalf);
  const at::Tensor starts = at::ones({3}, at::kInt);
  const auto forward = at::_cudnn_attention_forward(packed, packed, packed, {}, starts, starts, 6, 6, true);
  EXPECT_EQ(described(std::get<0>(forward)), described(packed));
  EXPECT_EQ(described(std::get<1>(forward)), "Float[12, 4, 1][4, 1, 1]");
  const at::Tensor bytes = at::ones({2, 16, 4, 64}, at::kHalf).to(at::kFloat8_e4m3fn);
  const std::optional<at::Tensor> none;
  const auto scaled =
      at::_flash_attention_forward(bytes, bytes, bytes, none, none, 16, 16, 0.0, false, false, none, none, none);
  EXPECT_EQ(described(std::get<0>(scaled)), "BFloat16[2, 16, 4, 64][4096, 256, 64, 1]");
}

TEST(RulesKernels, Others) {
  expect_like_eager(
      [](const Tensors& t) {
        const auto [low, high] = at::_aminmax(t[0]);
        const auto [lows, highs] = at::_aminmax(t[0], 1, true);
        return Tensors{low,
                       high,
                       lows,
                       highs,
                       at::_compute_linear_combination(t[0], t[1]),
                       at::glu_jvp(t[2], t[0], t[0], 1),
                       at::glu_backward_jvp(t[0], t[2], t[0], t[2], t[0], 1)};
      },
      {at::ones({4, 6}), at::ones({5, 4}), at::ones({4, 3})});
  expect_like_eager(
      [](const Tensors& t) {
        at::Tensor out = t[2];
        return Tensors{at::_compute_linear_combination_out(out, t[0], t[1])};
      },
      {at::ones({4, 6}), at::ones({5, 4}), at::ones({0})});
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::ones({t[0].is_set_to(t[0].view({3, 2}).view({2, 3})) ? 1 : 2}, t[0].options()),
                       at::ones({t[0].is_set_to(t[0].view({3, 2})) ? 1 : 2}, t[0].options())};
      },
      {at::ones({2, 3})});
  const FakeTensorMode mode({.device = at::kCUDA});
  const at::Tensor x = at::ones({2, 3});
  x.record_stream(c10::Stream(c10::Stream::DEFAULT, x.device()));
  const auto [dropped, mask] = at::_fused_dropout(x, 0.5);
  EXPECT_EQ(described(mask), "Byte[2, 3][3, 1]");
  EXPECT_EQ(described(at::_masked_scale(x, mask, 2)), "Float[2, 3][3, 1]");
  EXPECT_EQ(described(at::cudnn_affine_grid_generator(at::ones({2, 2, 3}), 2, 3, 4, 5)),
            "Float[2, 4, 5, 2][40, 10, 2, 1]");
  const at::Tensor key = at::zeros({3, 2}, at::kUInt64);
  EXPECT_EQ(described(at::_philox_key_split(key, 4)), "UInt64[4, 3, 2][6, 2, 1]");
  EXPECT_THROW(at::_nested_tensor_from_mask_left_aligned(at::ones({2, 3, 4}), at::rand({2, 3}) < 0.5),
               DataDependentError);
}

// Autograd differentiates these through their decomposition, whose in-place operators increment the version.
TEST(RulesKernels, OutFormsOfComposites) {
  const Tensors in{at::ones({2, 3, 8})};
  const Program pooled = [](const Tensors& t) {
    at::Tensor out = at::empty({0}, t[0].options());
    at::avg_pool1d_out(out, t[0], 2);
    return Tensors{out};
  };
  expect_like_eager(pooled, in);
  expect_like_eager(pooled, in, {.gradients = true});
  const Program written = [](const Tensors& t) {
    at::Tensor out = t[1];
    return Tensors{at::avg_pool1d_out(out, t[0], 2)};
  };
  expect_like_eager(written, {in[0], at::zeros({0})}, kOnCpu);  // when CUDA resizes it, it increments the version, too
}

// Dtypes for which the CPU kernels are compiled.
TEST(RulesKernels, Dtypes) {
  using Unary = std::function<at::Tensor(at::Tensor)>;
  const std::vector<std::pair<std::string, Unary>> operators = {
      {"frac", [](at::Tensor x) { return at::frac(x); }},
      {"round_", [](at::Tensor x) { return at::round_(x); }},
      {"trunc", [](at::Tensor x) { return at::trunc(x); }},
      {"floor_", [](at::Tensor x) { return at::floor_(x); }},
      {"ceil", [](at::Tensor x) { return at::ceil(x); }},
      {"lgamma", [](at::Tensor x) { return at::lgamma(x); }},
      {"erf", [](at::Tensor x) { return at::erf(x); }},
      {"erfc_", [](at::Tensor x) { return at::erfc_(x); }},
      {"abs", [](at::Tensor x) { return at::abs(x); }},
      {"abs_", [](at::Tensor x) { return at::abs_(x); }},
      {"lerp of a number", [](at::Tensor x) { return at::lerp(x, x, 2); }},
      {"lerp_ of tensors", [](at::Tensor x) { return x.lerp_(x.clone(), x.clone()); }},
      {"addcmul", [](at::Tensor x) { return at::addcmul(x, x, x); }},
      {"addcmul_", [](at::Tensor x) { return x.addcmul_(x.clone(), x.clone()); }},
      {"addcmul of floats", [](at::Tensor x) { return at::addcmul(x, x.to(at::kFloat), x.to(at::kFloat)); }},
      {"pow", [](at::Tensor x) { return at::pow(x, x); }},
      {"clamp_min", [](at::Tensor x) { return at::clamp_min(x, true); }},
      {"clamp_min by one", [](at::Tensor x) { return at::clamp_min(x, 1); }},
      {"clamp_max of tensors", [](at::Tensor x) { return at::clamp_max(x, x); }},
      {"cumsum_", [](at::Tensor x) { return x.cumsum_(0); }},
      {"cumprod_", [](at::Tensor x) { return x.cumprod_(0); }},
      {"mm", [](at::Tensor x) { return at::mm(x.t(), x); }},
      {"_foreach_frac",
       [](at::Tensor x) {
         return at::_foreach_frac({x, x})[1];
       }},
  };
  for (const auto& [name, f] : operators) {
    for (const auto dtype : {at::kBool, at::kByte, at::kLong, at::kHalf, at::kFloat, at::kComplexFloat}) {
      for (const auto& sizes : {std::vector<int64_t>{3, 2}, {0, 2}}) {
        expect_like_eager([&f = f](const Tensors& t) { return Tensors{f(t[0])}; }, {at::ones(sizes).to(dtype)},
                          {.cuda = false, .note = name});
      }
    }
  }
}

// Operators that check only the storage size on a real device.
TEST(RulesKernels, AsStridedWithinTheStorage) {
  for (const int64_t stride : {1, 3, 200}) {
    expect_like_eager(
        [stride](const Tensors& t) {
          return Tensors{t[0].as_strided({2, 2}, {stride, stride}), t[0].as_strided({2, 0}, {stride, stride}, 3)};
        },
        {at::ones({4, 4})});
  }
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].as_strided({2}, {-1})}; }, {at::ones({4})});
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].as_strided({2}, {1}, -1)}; }, {at::ones({4})});
  expect_like_eager([](const Tensors& t) { return Tensors{t[0].as_strided({2}, {1, 1})}; }, {at::ones({4})});
}

TEST(RulesKernels, LuSolveFromTheRight) {
  for (const bool left : {false, true}) {
    for (const auto dtype : {at::kFloat, at::kComplexFloat}) {
      expect_like_eager(
          [left](const Tensors& t) {
            const auto [lu, pivots] = at::linalg_lu_factor(t[0]);
            at::Tensor out = at::empty({0}, t[1].options().requires_grad(false));
            return Tensors{at::linalg_lu_solve(lu, pivots, t[1], left),
                           at::linalg_lu_solve_out(out, lu.detach(), pivots, t[1].detach(), left)};
          },
          {at::eye(3).to(dtype), at::ones({3, 3}).to(dtype)}, {.gradients = true});
    }
  }
}

TEST(RulesKernels, NonzeroWithoutElements) {
  for (const auto& sizes : {std::vector<int64_t>{3, 0}, {0}}) {
    expect_like_eager(
        [](const Tensors& t) {
          at::Tensor out = t[1];
          return Tensors{at::nonzero(t[0]), at::nonzero_out(out, t[0])};
        },
        {at::ones(sizes), at::zeros({0}, at::kLong)}, kOnCpu);
  }
}

}  // namespace
}  // namespace shadowgraph::testing
