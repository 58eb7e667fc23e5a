#include <gtest/gtest.h>

#include <random>

#include "tests/unit/compare_with_eager.h"

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
  const auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
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
      return Tensors{at::convolution(in[0], in[1], in[2], stride, padding, dilation, transposed, output_padding,
                                     group_count)};
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

}  // namespace
}  // namespace shadowgraph::testing
