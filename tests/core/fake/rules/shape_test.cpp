// Rearranging, padding, sampling, distances, factories and optimizer steps on fakes compared with eager.
#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

using ShapeFunction = std::function<at::Tensor(const at::Tensor&)>;
using Named = std::vector<std::pair<std::string, ShapeFunction>>;

void expect_all(const Named& functions, const Tensors& inputs, bool cuda = true) {
  for (const auto& [name, function] : functions) {
    for (const auto& x : inputs) {
      expect_like_eager([&f = function](const Tensors& t) { return Tensors{f(t[0])}; }, {x},
                        {.gradients = true, .cuda = cuda, .note = name});
    }
  }
}

Tensors contiguous_only(const Tensors& tensors) {
  Tensors kept;
  for (const auto& x : tensors) {
    if (x.is_contiguous()) kept.push_back(x);
  }
  return kept;
}

TEST(RulesShape, OrderOfElements) {
  expect_all(
      {
          {"flip",
           [](const auto& x) {
             return at::flip(x, {0, -1});
           }},
          {"flip of nothing", [](const auto& x) { return at::flip(x, {}); }},
          {"repeat", [](const auto& x) { return x.repeat(std::vector<int64_t>(static_cast<size_t>(x.dim()) + 1, 2)); }},
          {"repeat too few", [](const auto& x) { return x.repeat({2}); }},
          {"tile", [](const auto& x) { return at::tile(x, {2}); }},
          {"rot90", [](const auto& x) { return at::rot90(x); }},
          {"unfold", [](const auto& x) { return x.unfold(0, 1, 1); }},
          {"tril", [](const auto& x) { return at::tril(x); }},
          {"pad",
           [](const auto& x) {
             return at::constant_pad_nd(x, {1, 2});
           }},
          {"negative pad",
           [](const auto& x) {
             return at::constant_pad_nd(x, {-1, 0});
           }},
          {"cat",
           [](const auto& x) {
             return at::cat({x, x});
           }},
          {"stack",
           [](const auto& x) {
             return at::stack({x, x}, -1);
           }},
      },
      layouts(at::kFloat));
  const Named rolls = {
      {"roll", [](const auto& x) { return at::roll(x, 2); }},
      {"roll along 0", [](const auto& x) { return at::roll(x, -7, 0); }},
      {"roll along two",
       [](const auto& x) {
         return at::roll(x, {1, 2}, {0, -1});
       }},
      {"roll, misaligned",
       [](const auto& x) {
         return at::roll(x, {1, 2}, {0});
       }},
  };
  expect_all(rolls, layouts(at::kFloat), /*cuda=*/false);  // the CPU uses cat, which preserves channels-last
  expect_all(rolls, contiguous_only(layouts(at::kFloat)));
}

TEST(RulesShape, Views) {
  expect_all(
      {
          {"t", [](const auto& x) { return x.dim() <= 2 ? x.t() : x; }},
          {"slice", [](const auto& x) { return x.slice(-1, 1, 3); }},
          {"expand",
           [](const auto& x) {
             return x.expand(at::infer_size(x.sizes(), {2, 1, 1, 1, 1, 1}));
           }},
          {"select", [](const auto& x) { return x.select(0, 0); }},
          {"as_strided", [](const auto& x) { return x.numel() == 0 ? x : x.as_strided({1}, {1}, 0); }},
          {"reshape", [](const auto& x) { return x.reshape({-1}); }},
          {"view as itself", [](const auto& x) { return x.view(x.sizes()); }},
          {"squeeze", [](const auto& x) { return x.squeeze().unsqueeze(0); }},
          {"diagonal", [](const auto& x) { return x.diagonal(); }},
      },
      layouts(at::kFloat));
}

TEST(RulesShape, Images) {
  const auto x = at::ones({2, 8, 6, 6});
  const Tensors images{x, x.contiguous(at::MemoryFormat::ChannelsLast), x.transpose(2, 3), x[0]};
  const Named same_on_cuda = {
      {"nearest",
       [](const auto& x) {
         return at::upsample_nearest2d(x, {12, 13}, 2.0, std::nullopt);
       }},
      {"bilinear",
       [](const auto& x) {
         return at::upsample_bilinear2d(x, {12, 13}, false);
       }},
      {"bicubic",
       [](const auto& x) {
         return at::upsample_bicubic2d(x, {12, 13}, true);
       }},
      {"im2col",
       [](const auto& x) {
         return at::im2col(x, {2, 3}, {1, 1}, {1, 0}, {2, 1});
       }},
      {"im2col, too large",
       [](const auto& x) {
         return at::im2col(x, {20, 3}, {1, 1}, {1, 0}, {2, 1});
       }},
      {"pixel_shuffle by 3", [](const auto& x) { return at::pixel_shuffle(x, 3); }},
  };
  expect_all(same_on_cuda, images);
  const Named cpu_keeps_channels_last = {
      {"reflection",
       [](const auto& x) {
         return at::reflection_pad2d(x, {1, 2, 3, 0});
       }},
      {"reflection, too wide",
       [](const auto& x) {
         return at::reflection_pad2d(x, {1, 2, 3, 6});
       }},
      {"replication",
       [](const auto& x) {
         return at::replication_pad2d(x, {1, 2, 3, 7});
       }},
      {"pixel_shuffle", [](const auto& x) { return at::pixel_shuffle(x, 2); }},
      {"pixel_unshuffle", [](const auto& x) { return at::pixel_unshuffle(x, 2); }},
      {"channel_shuffle", [](const auto& x) { return at::channel_shuffle(x, 2); }},
  };
  expect_all(cpu_keeps_channels_last, images, /*cuda=*/false);
  expect_all(cpu_keeps_channels_last, contiguous_only(images));
  const auto v = at::ones({2, 3, 6, 6, 6});
  const Named of_volumes = {
      {"reflection",
       [](const auto& x) {
         return at::reflection_pad3d(x, {1, 2, 3, 0, 1, 1});
       }},
      {"replication",
       [](const auto& x) {
         return at::replication_pad3d(x, {1, 2, 3, 0, 1, 1});
       }},
  };
  expect_all(of_volumes, {v, v.contiguous(at::MemoryFormat::ChannelsLast3d), v[0]}, /*cuda=*/false);
  expect_all(of_volumes, {v, v[0]});
  expect_all({{"col2im",
               [](const auto& x) {
                 return at::col2im(x, {5, 5}, {2, 2}, {1, 1}, {0, 0}, {1, 1});
               }}},
             {at::ones({2, 12, 16}), at::ones({12, 16}), at::ones({2, 12, 15}), at::ones({2, 13, 16})});
}

TEST(RulesShape, Sampling) {
  const auto x = at::ones({2, 3, 5, 6});
  for (const auto& image : {x, x.contiguous(at::MemoryFormat::ChannelsLast)}) {
    for (const bool align : {false, true}) {
      expect_like_eager([align](const Tensors& t) { return Tensors{at::grid_sampler(t[0], t[1], 0, 0, align)}; },
                        {image, at::zeros({2, 7, 8, 2})}, {.gradients = true});
    }
  }
  expect_like_eager([](const Tensors& t) { return Tensors{at::grid_sampler(t[0], t[1], 0, 1, true)}; },
                    {at::ones({2, 3, 4, 5, 6}), at::zeros({2, 7, 8, 9, 3})}, {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::grid_sampler(t[0], t[1], 0, 1, true)}; },
                    {x, at::zeros({3, 7, 8, 2})});  // throws
}

TEST(RulesShape, Distances) {
  expect_like_eager([](const Tensors& t) { return Tensors{at::cdist(t[0], t[1], 1.0)}; },
                    {at::ones({5, 1, 3, 4}), at::ones({2, 6, 4})}, {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::cdist(t[0], t[1])}; },
                    {at::ones({3, 4}), at::ones({6, 4})}, {.gradients = true});
  expect_like_eager([](const Tensors& t) { return Tensors{at::pdist(t[0])}; }, {at::ones({5, 4})}, {.gradients = true});
}

TEST(RulesShape, FourierTransforms) {
  expect_all(
      {
          {"rfft", [](const auto& x) { return at::fft_rfft(x); }},
          {"irfft of rfft", [](const auto& x) { return at::fft_irfft(at::fft_rfft(x, {}, 0), {}, 0); }},
          {"fft2", [](const auto& x) { return at::fft_fft2(x); }},
          {"rfftn", [](const auto& x) { return at::fft_rfftn(x); }},
          {"irfftn", [](const auto& x) { return at::fft_irfftn(at::complex(x, x)); }},
          {"fft along 1", [](const auto& x) { return at::fft_fft(x, {}, 1); }},
      },
      {at::ones({4, 6}), at::ones({6, 4}).t(), at::ones({2, 4, 6}).permute({2, 0, 1})}, /*cuda=*/false);
}

// Before 2.14, MKL refuses empty transforms; since then it is not called.
TEST(RulesShape, FourierTransformsOfNoElements) {
  FakeTensorMode mode;
  const at::Tensor x = at::empty({0, 2, 3}).mT();
  EXPECT_EQ(at::fft_fft2(x).strides(), (at::IntArrayRef{6, 2, 1}));
  EXPECT_EQ(at::fft_rfft2(x).sizes(), (at::IntArrayRef{0, 3, 2}));
  EXPECT_EQ(at::fft_rfft2(x).strides(), (at::IntArrayRef{6, 2, 1}));
}

// cuFFT transforms up to three dimensions at once, innermost first; the result has the layout of the last plan.
TEST(RulesShape, FourierTransformOfFourDimensionsOnCuda) {
  FakeTensorMode mode({.device = at::kCUDA});
  const auto x = at::empty({2, 3, 4, 5}, at::kComplexFloat);
  // Dimensions 1, 2, 3 first: contiguous. Then dimension 0 is innermost: 3 has stride 2, 2 has 2 * 5, 1 has 2 * 5 * 4.
  EXPECT_EQ(at::fft_fftn(x).strides(), (at::IntArrayRef{1, 40, 10, 2}));
  EXPECT_EQ(at::fft_fft2(x).strides(), x.strides());
}

TEST(RulesShape, Factories) {
  for (const int64_t offset : {-9, -3, -1, 0, 1, 2, 9}) {
    for (const auto& [rows, columns] : {std::pair{4, 5}, {5, 4}, {0, 3}, {3, 0}, {1, 1}}) {
      expect_like_eager(
          [=](const Tensors&) {
            return Tensors{at::tril_indices(rows, columns, offset), at::triu_indices(rows, columns, offset)};
          },
          {}, {.note = "offset " + std::to_string(offset)});
    }
  }
  expect_like_eager(
      [](const Tensors& t) {
        return Tensors{at::linspace(0, 1, 5), at::linspace(t[0], 1, 5),   at::logspace(0, t[0], 3, 2, at::kDouble),
                       at::arange(7),         at::arange(0.5, 3),         at::eye(3, 4),
                       at::full({2}, 3),      at::ones({2, 3}, at::kBool)};
      },
      {at::zeros({})});
  FakeTensorMode mode({.device = at::kCUDA});
  EXPECT_EQ(at::tril_indices(3, 3).device(), c10::Device(at::kCUDA, 0));
  EXPECT_EQ(at::tril_indices(3, 3, 0, at::kCPU).device(), c10::Device(at::kCPU));
}

TEST(RulesShape, OptimizerSteps) {
  const Tensors in{at::ones({3}), at::ones({3}), at::zeros({3}), at::zeros({3}), at::zeros({})};
  expect_like_eager(
      [](const Tensors& t) {
        at::_fused_adamw_({t[0]}, {t[1]}, {t[2]}, {t[3]}, {}, {t[4]}, 1e-3, 0.9, 0.99, 0.01, 1e-8, false, false);
        return Tensors{};
      },
      in);
  expect_like_eager(
      [](const Tensors& t) {
        at::_fused_adam_({t[0]}, {t[1]}, {t[2]}, {t[3]}, {}, {t[4]}, 1e-3, 0.9, 0.99, 0.01, 1e-8, false, false);
        at::_fused_sgd_({t[0]}, {t[1]}, {t[2]}, 0.0, 0.9, 0.1, 0.0, false, false, false);
        return Tensors{};
      },
      in);
  expect_like_eager(
      [](const Tensors& t) {
        at::_foreach_add_({t[0], t[2]}, {t[1], t[3]}, 2);
        at::_foreach_mul_({t[0]}, 0.5);
        return at::_foreach_sqrt({t[1], t[3]});
      },
      in);
  expect_like_eager(
      [](const Tensors& t) {
        at::Tensor scale = t[4];
        at::Tensor tracker = at::zeros({}, at::kInt);
        at::_amp_foreach_non_finite_check_and_unscale_({t[0]}, scale, at::ones({}));
        return Tensors{};
      },
      in);
}

}  // namespace
}  // namespace shadowgraph::testing
