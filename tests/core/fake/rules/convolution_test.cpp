#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <random>
#include <tuple>

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

// Random parameters for everything that affects backend selection.
struct RandomConvolution {
  int64_t groups;
  bool transposed;
  std::vector<int64_t> input_sizes, weight_sizes, stride, padding, dilation, output_padding;
  Layout input_layout, weight_layout;
  bool biased;
  std::array<bool, 3> differentiated;  // requires_grad of input, weight and bias

  explicit RandomConvolution(std::mt19937& random) {
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t spatial = pick(1, 3);
    const bool depthwise = pick(0, 5) == 0;
    groups = depthwise ? 4 : pick(0, 2) == 0 ? 2 : 1;
    transposed = pick(0, 2) == 0;
    const int64_t in_channels = depthwise ? 4 : groups * pick(pick(0, 15) == 0 ? 0 : 1, 3);
    const int64_t out_channels = groups * pick(1, 3);
    input_sizes = {pick(0, 9) == 0 ? 0 : pick(1, 3), in_channels};
    weight_sizes = {transposed ? in_channels : out_channels, (transposed ? out_channels : in_channels) / groups};
    for (int64_t i = 0; i < spatial; ++i) {
      input_sizes.push_back(pick(1, 7));
      weight_sizes.push_back(pick(1, 3));
      stride.push_back(pick(1, 2));
      padding.push_back(pick(0, 2));
      dilation.push_back(pick(0, 3) == 0 ? 2 : 1);
      // oneDNN refuses an output padding as large as the stride.
      const bool padded = transposed && std::max(stride.back(), dilation.back()) == 2;
      output_padding.push_back(padded ? pick(0, 1) : 0);
    }
    input_layout = static_cast<Layout>(pick(0, 3));
    weight_layout = static_cast<Layout>(pick(0, 2));
    biased = pick(0, 1) == 0;
    for (bool& wanted : differentiated) wanted = pick(0, 3) != 0;
  }

  Tensors operands(at::ScalarType dtype) const {
    const int64_t out_channels = transposed ? weight_sizes[1] * groups : weight_sizes[0];
    const Tensors all{in_layout(input_sizes, dtype, input_layout), in_layout(weight_sizes, dtype, weight_layout),
                      biased ? at::rand({out_channels}, dtype) : at::Tensor()};
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].defined()) all[i].requires_grad_(differentiated[i]);
    }
    return all;
  }
  Program program() const {
    return [this](const Tensors& in) {
      return Tensors{
          at::convolution(in[0], in[1], in[2], stride, padding, dilation, transposed, output_padding, groups)};
    };
  }
};

std::ostream& operator<<(std::ostream& out, const RandomConvolution& c) {
  return out << "input " << at::IntArrayRef(c.input_sizes) << ' ' << kLayoutNames[static_cast<int>(c.input_layout)]
             << " weight " << at::IntArrayRef(c.weight_sizes) << ' ' << kLayoutNames[static_cast<int>(c.weight_layout)]
             << " stride " << at::IntArrayRef(c.stride) << " padding " << at::IntArrayRef(c.padding) << " dilation "
             << at::IntArrayRef(c.dilation) << " transposed " << c.transposed << " output_padding "
             << at::IntArrayRef(c.output_padding) << " groups " << c.groups;
}

// Returns the results of `run` in eager and on fakes. Error messages for impossible sizes differ between backends.
template <class Run>
void expect_random_convolutions_agree(int rounds, const Run& run) {
  constexpr unsigned kSeed = 20240611;
  std::mt19937 random(kSeed);
  int failures = 0;
  for (int round = 0; round < rounds; ++round) {
    const RandomConvolution convolution(random);
    const auto [dtype, real, fake] = run(convolution, random);
    if (!real.error.empty() && !fake.error.empty()) continue;
    const std::string found = difference(real, fake);
    EXPECT_EQ(found, "") << "seed " << kSeed << " round " << round << ": " << c10::toString(dtype) << ' '
                         << convolution;
    failures += found.empty() ? 0 : 1;
    ASSERT_LT(failures, 8);
  }
}

TEST(ConvolutionRules, RandomConvolutionsAgreeWithEager) {
  expect_random_convolutions_agree(2000, [](const RandomConvolution& convolution, std::mt19937& random) {
    constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
    const at::ScalarType dtype = kDtypes[random() % std::size(kDtypes)];
    const Tensors in = convolution.operands(dtype);
    return std::tuple(dtype, run_real(in, convolution.program()), run_fake(in, convolution.program()));
  });
}

constexpr at::ScalarType kByProcessor[] = {at::kBFloat16, at::kHalf};

TEST(ConvolutionRules, AProcessorWithoutLowPrecisionHasTheKernelsWithoutOnednn) {
  expect_random_convolutions_agree(300, [](const RandomConvolution& convolution, std::mt19937& random) {
    const at::ScalarType dtype = kByProcessor[random() % 2];
    const Tensors in = convolution.operands(dtype);
    Outcome real;
    {
      const WithoutOnednn without;
      real = run_real(in, convolution.program());
    }
    return std::tuple(dtype, real,
                      run_fake(in, convolution.program(), Backward::kYes,
                               {.profile = DeviceProfile{.cpu = {.mkldnn_bf16 = false, .mkldnn_fp16 = false}}}));
  });
}

// float kernels are the same on every processor: oneDNN's, unless the batch size is one.
TEST(ConvolutionRules, AProcessorWithLowPrecisionHasOnednnsKernels) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);  // with one thread, 1x1 float kernels do not use oneDNN
  expect_random_convolutions_agree(300, [](RandomConvolution convolution, std::mt19937& random) {
    if (convolution.input_sizes[0] == 1) convolution.input_sizes[0] = 2;
    const at::ScalarType dtype = kByProcessor[random() % 2];
    const std::string name = c10::toString(dtype);
    return std::tuple(dtype,
                      with_dtype(run_real(convolution.operands(at::kFloat), convolution.program()), "Float", name),
                      run_fake(convolution.operands(dtype), convolution.program(), Backward::kYes,
                               {.profile = DeviceProfile{.cpu = {.mkldnn_bf16 = true, .mkldnn_fp16 = true}}}));
  });
  at::set_num_threads(threads);
}

TEST(ConvolutionRules, AKernelAsLargeAsTheInputFits) {
  const Program program = [](const Tensors& in) { return Tensors{at::conv2d(in[0], in[1])}; };
  EXPECT_EQ(difference({at::rand({2, 3, 5, 4}), at::rand({4, 3, 5, 4}).requires_grad_(true)}, program), "");
}

// Doubles use im2col, one group at a time. A group's result of [2, 1, 1, 1] looks contiguous, whatever its memory
// format, and so does the concatenation.
TEST(ConvolutionRules, GroupsAreJoinedAsEachOfThemLooks) {
  const Program program = [](const Tensors& in) {
    return Tensors{at::conv2d(in[0], in[1], {}, 1, at::IntArrayRef{0}, 1, 2)};
  };
  const at::Tensor weight = at::rand({2, 2, 3, 3}, at::kDouble).requires_grad_(true);
  for (const int64_t size : {3, 5}) {
    const at::Tensor x = at::rand({2, 4, size, size}, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
    EXPECT_EQ(difference({x, weight}, program), "");
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

// Dtypes that the processor does not support throw.
TEST(ConvolutionRules, MkldnnConvolutionAgreesWithEager) {
  const Program program = [](const Tensors& in) {
    return Tensors{at::mkldnn_convolution(in[0], in[1], in[2], {1, 1}, {2, 1}, {1, 1}, 2)};
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      const at::Tensor x = at::rand({2, 4, 6, 7}, dtype).contiguous(format);
      EXPECT_EQ(difference({x, at::rand({6, 2, 3, 3}, dtype), at::rand({6}, dtype)}, program), "");
    }
  }
  const Tensors doubles{at::rand({2, 4, 6, 7}, at::kDouble), at::rand({6, 2, 3, 3}, at::kDouble), {}};
  EXPECT_NE(run_real(doubles, program).error, "");
  EXPECT_NE(run_fake(doubles, program).error, "");
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

// ---- Fake CUDA: cuDNN uses cudnn_conv_suggest_memory_format (native/ConvUtils.h).

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
  // cuDNN never uses channels-last for double.
  EXPECT_THAT(convolution_on_cuda(x.to(at::kDouble).contiguous(last), w.to(at::kDouble)).results,
              ElementsAre("Double[2, 8, 5, 6][240, 30, 6, 1] grad"));
  // Without cuDNN, im2col kernels are used.
  EXPECT_THAT(convolution_on_cuda(x.contiguous(last), w, 1, false, {.cudnn = false}).results,
              ElementsAre("Float[2, 8, 5, 6][240, 30, 6, 1] grad"));
}

// cuDNN supports bfloat16 from compute capability 8.0 on; older GPUs use im2col kernels, whose results are contiguous.
TEST(ConvolutionRules, CudnnHasBfloat16FromAmpereOn) {
  using ::testing::ElementsAre;
  const at::Tensor x = at::rand({2, 4, 5, 6}).to(at::kBFloat16).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor w = at::rand({8, 4, 3, 3}).to(at::kBFloat16);
  EXPECT_THAT(convolution_on_cuda(x, w, 1, false, {.sm_major = 8}).results,
              ElementsAre("BFloat16[2, 8, 5, 6][240, 1, 48, 8] grad"));
  EXPECT_THAT(convolution_on_cuda(x, w, 1, false, {.sm_major = 7, .sm_minor = 5}).results,
              ElementsAre("BFloat16[2, 8, 5, 6][240, 30, 6, 1] grad"));
  EXPECT_THAT(convolution_on_cuda(x.to(at::kHalf), w.to(at::kHalf), 1, false, {.sm_major = 7, .sm_minor = 5}).results,
              ElementsAre("Half[2, 8, 5, 6][240, 1, 48, 8] grad"));
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
