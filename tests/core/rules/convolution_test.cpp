#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/core/compare_with_eager.h"

namespace shadowgraph::testing {
namespace {

enum class Layout { kContiguous, kChannelsLast, kPermuted, kExpanded };
constexpr const char* kLayoutNames[] = {"contiguous", "channels_last", "permuted", "expanded"};

at::Tensor in_layout(c10::IntArrayRef sizes, at::ScalarType dtype, Layout layout) {
  const auto options = at::TensorOptions().dtype(dtype);
  switch (layout) {
    case Layout::kContiguous:
      return at::rand(sizes, options);
    case Layout::kChannelsLast:
      if (sizes.size() == 3) return at::rand({sizes[0], sizes[2], sizes[1]}, options).transpose(1, 2);
      return at::rand(sizes, options)
          .contiguous(sizes.size() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d);
    case Layout::kPermuted: {
      std::vector<int64_t> swapped = sizes.vec();
      std::swap(swapped.front(), swapped.back());
      return at::rand(swapped, options).transpose(0, -1);
    }
    case Layout::kExpanded: {
      std::vector<int64_t> one = sizes.vec();
      one[0] = 1;
      return at::rand(one, options).expand(sizes);
    }
  }
  return {};
}

// Every choice that picks a backend, at random: two thousand programs forward and backward.
TEST(ConvolutionRules, RandomConvolutionsAgreeWithEager) {
  constexpr unsigned kSeed = 20240611;
  std::mt19937 random(kSeed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const at::ScalarType dtypes[] = {at::kFloat, at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
  int failures = 0;
  for (int round = 0; round < 2000; ++round) {
    const int64_t spatial = pick(1, 3);
    const int64_t groups = pick(0, 2) == 0 ? 2 : 1;
    const bool depthwise = pick(0, 5) == 0;
    const int64_t group_count = depthwise ? 4 : groups;
    const bool transposed = pick(0, 2) == 0;
    const auto dtype = dtypes[pick(0, 4)];
    const int64_t in_channels = depthwise ? 4 : group_count * pick(pick(0, 15) == 0 ? 0 : 1, 3);
    const int64_t out_channels = group_count * pick(1, 3);
    std::vector<int64_t> input_sizes{pick(0, 9) == 0 ? 0 : pick(1, 3), in_channels};
    std::vector<int64_t> weight_sizes{transposed ? in_channels : out_channels,
                                      (transposed ? out_channels : in_channels) / group_count};
    std::vector<int64_t> stride, padding, dilation, output_padding;
    for (int64_t i = 0; i < spatial; ++i) {
      input_sizes.push_back(pick(1, 7));
      weight_sizes.push_back(pick(1, 3));
      stride.push_back(pick(1, 2));
      padding.push_back(pick(0, 2));
      dilation.push_back(pick(0, 3) == 0 ? 2 : 1);
      output_padding.push_back(transposed && stride.back() == 2 ? pick(0, 1) : 0);
    }
    const auto input_layout = static_cast<Layout>(pick(0, 3));
    const auto weight_layout = static_cast<Layout>(pick(0, 2));
    at::Tensor input = in_layout(input_sizes, dtype, input_layout);
    at::Tensor weight = in_layout(weight_sizes, dtype, weight_layout);
    const at::Tensor bias = pick(0, 1) == 0 ? at::rand({out_channels}, weight.options()) : at::Tensor();
    if (pick(0, 3) != 0) input.requires_grad_(true);
    if (pick(0, 3) != 0) weight.requires_grad_(true);
    if (bias.defined() && pick(0, 3) != 0) bias.requires_grad_(true);
    const Program program = [&](const Tensors& in) {
      return Tensors{
          at::convolution(in[0], in[1], in[2], stride, padding, dilation, transposed, output_padding, group_count)};
    };
    const Outcome real = run_real({input, weight, bias}, program);
    const Outcome fake = run_fake({input, weight, bias}, program);
    if (!real.error.empty() && !fake.error.empty()) continue;  // the words for impossible sizes vary by backend
    const std::string found = difference(real, fake);
    EXPECT_EQ(found, "") << "seed " << kSeed << " round " << round << ": " << c10::toString(dtype) << " input "
                         << at::IntArrayRef(input_sizes) << ' ' << kLayoutNames[static_cast<int>(input_layout)]
                         << " weight " << at::IntArrayRef(weight_sizes) << ' '
                         << kLayoutNames[static_cast<int>(weight_layout)] << " stride " << at::IntArrayRef(stride)
                         << " padding " << at::IntArrayRef(padding) << " dilation " << at::IntArrayRef(dilation)
                         << " transposed " << transposed << " output_padding " << at::IntArrayRef(output_padding)
                         << " groups " << group_count;
    failures += found.empty() ? 0 : 1;
    ASSERT_LT(failures, 8);
  }
}

TEST(ConvolutionRules, UnbatchedAndPaddedByNameAgreeWithEager) {
  const at::Tensor weight = at::rand({4, 3, 3, 3}).requires_grad_(true);
  EXPECT_EQ(difference({at::rand({3, 6, 7}).requires_grad_(true), weight},
                       [](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1])}; }),
            "");
  EXPECT_EQ(difference({at::rand({2, 3, 6, 7}).requires_grad_(true), weight},
                       [](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1], {}, 1, "same")}; }),
            "");
  EXPECT_EQ(difference({at::rand({2, 3, 6, 7}), weight, at::rand({4})},
                       [](const Tensors& in) {
                         return Tensors{at::_convolution(in[0], in[1], in[2], {2, 2}, {1, 1}, {1, 1}, false, {0, 0}, 1,
                                                         false, false, true, true)};
                       }),
            "");
}

TEST(ConvolutionRules, MkldnnConvolutionAgreesWithEager) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const at::Tensor x = at::rand({2, 4, 6, 7}).contiguous(format);
    EXPECT_EQ(difference({x, at::rand({6, 2, 3, 3}), at::rand({6})},
                         [](const Tensors& in) {
                           return Tensors{at::mkldnn_convolution(in[0], in[1], in[2], {1, 1}, {2, 1}, {1, 1}, 2)};
                         }),
              "");
  }
}

TEST(ConvolutionRules, ErrorsAreEagersOwn) {
  const auto check = [](const Tensors& in, bool transposed, int64_t padding, int64_t groups) {
    const Program program = [&](const Tensors& in) {
      return Tensors{
          at::convolution(in[0], in[1], in[2], {1, 1}, {padding, padding}, {1, 1}, transposed, {0, 0}, groups)};
    };
    const Outcome real = run_real(in, program);
    EXPECT_NE(real.error, "");
    EXPECT_EQ(run_fake(in, program).error, real.error);
  };
  const at::Tensor x = at::rand({2, 4, 5, 5});
  check({x, at::rand({4, 3, 3, 3}), {}}, false, 0, 1);             // channels
  check({x, at::rand({3, 3, 3}), {}}, false, 0, 1);                // dimensions
  check({x, at::rand({4, 4, 3, 3}), at::rand({5})}, false, 0, 1);  // bias
  check({x, at::rand({4, 4, 6, 6}), {}}, false, 0, 1);             // kernel larger than the input
  check({x, at::rand({4, 4, 3, 3}), {}}, false, -1, 1);            // negative padding
  check({x, at::rand({3, 2, 3, 3}), {}}, false, 0, 2);             // groups
  check({x, at::rand({3, 4, 3, 3}), {}}, true, 0, 1);              // transposed channels
  check({x, at::rand({4, 4, 3, 3}, at::kDouble), {}}, false, 0, 1);
  check({x.slice(2, 0, 0), at::rand({4, 4, 3, 3}), {}}, false, 2, 1);
}

// ---- Fake CUDA: cuDNN follows cudnn_conv_suggest_memory_format (native/ConvUtils.h).

Outcome convolution_on_cuda(const at::Tensor& input, const at::Tensor& weight, int64_t groups = 1,
                            bool transposed = false, DeviceProfile profile = {}) {
  const std::vector<int64_t> ones(static_cast<size_t>(weight.dim()) - 2, 1);
  const std::vector<int64_t> zeros(ones.size(), 0);
  return run_on_fake_cuda(
      {input.detach().requires_grad_(true), weight.detach().requires_grad_(true)},
      [&](const Tensors& in) {
        return Tensors{at::convolution(in[0], in[1], {}, ones, ones, ones, transposed, zeros, groups)};
      },
      Backward::kYes, profile);
}

TEST(ConvolutionRules, CudnnKeepsTheMemoryFormatOfEitherOperand) {
  using ::testing::ElementsAre;
  const at::Tensor x = at::rand({2, 4, 5, 6});
  const at::Tensor w = at::rand({8, 4, 3, 3});
  const auto last = at::MemoryFormat::ChannelsLast;
  for (const auto& [input, weight] : {std::pair{x.contiguous(last), w}, std::pair{x, w.contiguous(last)}}) {
    const Outcome run = convolution_on_cuda(input, weight);
    EXPECT_EQ(run.error, "");
    EXPECT_THAT(run.results, ElementsAre("Float[2, 8, 5, 6][240, 1, 48, 8] grad"));
    EXPECT_THAT(run.results_of("aten::convolution_backward"),
                ElementsAre("Float[2, 4, 5, 6][120, 1, 24, 4]", "Float[8, 4, 3, 3][36, 1, 12, 4]", "undefined"));
  }
  EXPECT_THAT(convolution_on_cuda(x, w).results, ElementsAre("Float[2, 8, 5, 6][240, 30, 6, 1] grad"));
  EXPECT_THAT(convolution_on_cuda(x.contiguous(last), at::rand({4, 8, 3, 3}), 1, true).results,
              ElementsAre("Float[2, 8, 5, 6][240, 1, 48, 8] grad"));
  // Double is never channels-last in cuDNN.
  EXPECT_THAT(convolution_on_cuda(x.to(at::kDouble).contiguous(last), w.to(at::kDouble)).results,
              ElementsAre("Double[2, 8, 5, 6][240, 30, 6, 1] grad"));
  // Without cuDNN the im2col kernels take over.
  EXPECT_THAT(convolution_on_cuda(x.contiguous(last), w, 1, false, {.cudnn = false}).results,
              ElementsAre("Float[2, 8, 5, 6][240, 30, 6, 1] grad"));
}

TEST(ConvolutionRules, CudaDepthwiseKernelIsContiguousAndCudnnsIsNot) {
  using ::testing::ElementsAre;
  const at::Tensor x = at::rand({2, 4, 5, 6});
  const at::Tensor w = at::rand({4, 1, 3, 3});
  EXPECT_THAT(convolution_on_cuda(x, w, 4).results, ElementsAre("Float[2, 4, 5, 6][120, 30, 6, 1] grad"));
  EXPECT_THAT(convolution_on_cuda(x.contiguous(at::MemoryFormat::ChannelsLast), w, 4).results,
              ElementsAre("Float[2, 4, 5, 6][120, 1, 24, 4] grad"));
}

}  // namespace
}  // namespace shadowgraph::testing
