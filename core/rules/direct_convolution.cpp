// Kernels behind aten::convolution, called by their own names. They take the operands as they are, have one group, and
// give the memory format that they are written in. They are compared with eager CPU; CUDA's allocate contiguous.
#include <ATen/native/ConvUtils.h>
#include <ATen/native/Resize.h>

#include <array>

#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using c10::MemoryFormat;

constexpr int64_t kOnes[] = {1, 1, 1};
constexpr int64_t kZeros[] = {0, 0, 0};

// Decides the result's sizes. `channels` says how many the convolution makes.
struct Window {
  int64_t channels;
  IntArrayRef kernel;
  IntArrayRef stride;
  IntArrayRef padding;
  IntArrayRef dilation = kOnes;
  bool transposed = false;
  IntArrayRef output_padding = kZeros;
};

c10::DimVector convolved(const Tensor& x, size_t spatial, const Window& w) {
  const auto dims = static_cast<int64_t>(spatial);
  TORCH_CHECK(x.dim() == dims + 1 || x.dim() == dims + 2, "Expected ", dims + 1, "D or ", dims + 2,
              "D input tensor, but got: ", x.sizes());
  for (const IntArrayRef values : {w.kernel, w.stride, w.padding, w.dilation, w.output_padding}) {
    TORCH_CHECK(values.size() >= spatial, "It is expected that there are ", spatial, " values, but got ", values);
  }
  c10::DimVector sizes;
  if (x.dim() == dims + 2) sizes.push_back(x.size(0));
  sizes.push_back(w.channels);
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t size = x.size(static_cast<int64_t>(i) - dims);
    const int64_t stride = w.stride[i];
    const int64_t padding = w.padding[i];
    const int64_t reach = w.dilation[i] * (w.kernel[i] - 1) + 1;
    TORCH_CHECK(stride > 0 && reach > 0, "kernel size, stride and dilation should be greater than zero");
    sizes.push_back(w.transposed ? (size - 1) * stride - 2 * padding + reach + w.output_padding[i]
                                 : (size + 2 * padding - reach) / stride + 1);
    TORCH_CHECK(sizes.back() >= 1 && (w.transposed || size + 2 * padding >= reach), "Given input size per channel: (",
                c10::Join(" x ", x.sizes().slice(static_cast<size_t>(x.dim() - dims))),
                "). Calculated output size: ", sizes.back(), ". Output size is too small");
  }
  return sizes;
}

void check_weight(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, size_t spatial) {
  TORCH_CHECK(weight.dim() == static_cast<int64_t>(spatial) + 2, "weight should have ", spatial + 2,
              " dimensions, but got: ", weight.sizes());
  TORCH_CHECK(weight.numel() > 0, "non-empty weight tensor expected, but got: ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "expected scalar type ", x.scalar_type(), " but found ",
              weight.scalar_type());
  TORCH_CHECK(!given(bias) || bias->dim() == 1, "bias should be a vector");
}

void check_channels(const Tensor& x, const Tensor& weight, size_t spatial) {
  TORCH_CHECK(x.size(-1 - static_cast<int64_t>(spatial)) == weight.size(1), "expected input ", x.sizes(), " to have ",
              weight.size(1), " channels");
}

// ---- im2col of images. A batch may be channels-last.

MemoryFormat image_format(const Tensor& x, const Tensor& weight) {
  const bool channels_last =
      !on_cuda() && x.dim() == 4 && at::native::thnn_conv_use_channels_last(stand_in(x), stand_in(weight));
  return channels_last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
}

Tensor slow_conv2d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding) {
  TORCH_CHECK(x.dim() == 4, "Expected 4D input tensor, but got: ", x.sizes());
  check_weight(x, weight, bias, 2);
  check_channels(x, weight, 2);
  return rules::empty(convolved(x, 2, {weight.size(0), kernel, stride, padding}), x, image_format(x, weight));
}

// The CPU gives what it is handed its own format, even if it fits.
Tensor& slow_conv2d_out(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                        IntArrayRef stride, IntArrayRef padding, Tensor& result) {
  const auto sizes = slow_conv2d(x, weight, kernel, bias, stride, padding).sizes().vec();
  if (on_cuda()) {
    at::native::resize_output(result, sizes);
  } else {
    result.resize_(sizes, image_format(x, weight));
  }
  return result;
}

void check_gradient(const Tensor& grad, const Tensor& x, const Tensor& weight, IntArrayRef kernel, IntArrayRef stride,
                    IntArrayRef padding) {
  const Tensor output = slow_conv2d(x, weight, kernel, std::nullopt, stride, padding);
  TORCH_CHECK(grad.sizes() == output.sizes(), "Expected grad_output to have sizes ", output.sizes(), ", but got ",
              grad.sizes());
}

ThreeTensors slow_conv2d_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, IntArrayRef kernel,
                                  IntArrayRef stride, IntArrayRef padding, std::array<bool, 3> wanted) {
  check_gradient(grad, x, weight, kernel, stride, padding);
  const MemoryFormat format = image_format(x, weight);
  // It looks at the weight alone when it asks whether the weight's gradient is as it should be.
  TORCH_CHECK(on_cuda() || !wanted[1] || format == MemoryFormat::Contiguous || weight.is_contiguous(format),
              "slow_conv2d: grad_weight must be contiguous");
  ThreeTensors grads;
  if (wanted[0]) std::get<0>(grads) = rules::empty(x.sizes(), x, format);
  if (wanted[1]) std::get<1>(grads) = rules::empty(weight.sizes(), weight, format);
  if (wanted[2]) std::get<2>(grads) = rules::empty({weight.size(0)}, grad);
  return grads;
}

std::tuple<Tensor&, Tensor&, Tensor&> slow_conv2d_backward_out(const Tensor& grad, const Tensor& x,
                                                               const Tensor& weight, IntArrayRef kernel,
                                                               IntArrayRef stride, IntArrayRef padding,
                                                               Tensor& grad_input, Tensor& grad_weight,
                                                               Tensor& grad_bias) {
  const auto [input, kernels, bias] =
      slow_conv2d_backward(grad, x, weight, kernel, stride, padding, {true, true, true});
  for (auto [result, made] : {std::pair<Tensor&, const Tensor&>(grad_input, input), {grad_weight, kernels}}) {
    at::native::resize_output(result, made.sizes());
    if (!on_cuda()) result.as_strided_(made.sizes(), made.strides());
  }
  at::native::resize_output(grad_bias, bias.sizes());
  return {grad_input, grad_weight, grad_bias};
}

Tensor slow_conv_dilated2d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  check_weight(x, weight, bias, 2);
  const auto sizes = convolved(x, 2, {weight.size(0), kernel, stride, padding, dilation});
  check_channels(x, weight, 2);
  return rules::empty(sizes, x, image_format(x, weight));
}

// ---- im2col of volumes

Tensor slow_conv3d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding) {
  TORCH_CHECK(x.dim() == 5, "non-empty 5D input tensor expected but got: ", x.sizes());
  check_weight(x, weight, bias, 3);
  check_channels(x, weight, 3);
  return rules::empty(convolved(x, 3, {weight.size(0), kernel, stride, padding}), x);
}

Tensor slow_conv_dilated3d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                           IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  check_weight(x, weight, bias, 3);
  const auto sizes = convolved(x, 3, {weight.size(0), kernel, stride, padding, dilation});
  check_channels(x, weight, 3);
  return rules::empty(sizes, x);
}

Tensor slow_conv_transpose3d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                             IntArrayRef stride, IntArrayRef padding, IntArrayRef output_padding,
                             IntArrayRef dilation) {
  check_weight(x, weight, bias, 3);
  return rules::empty(convolved(x, 3, {weight.size(1), kernel, stride, padding, dilation, true, output_padding}), x);
}

// ---- CUDA's kernels of one channel each

Tensor depthwise2d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  check_weight(x, weight, bias, 2);
  return rules::empty(convolved(x, 2, {weight.size(0), kernel, stride, padding, dilation}), x);
}

Tensor depthwise3d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  check_weight(x, weight, bias, 3);
  return rules::empty(convolved(x, 3, {weight.size(0), kernel, stride, padding, dilation}), x);
}

}  // namespace

void register_direct_convolution(RuleRegistry& registry) {
  registry.add("aten::_slow_conv2d_forward", &slow_conv2d);
  registry.add("aten::_slow_conv2d_forward.output", &slow_conv2d_out);
  registry.add("aten::_slow_conv2d_backward.output_mask", &slow_conv2d_backward);
  registry.add("aten::_slow_conv2d_backward.grad_input", &slow_conv2d_backward_out);
  registry.add("aten::slow_conv_dilated2d", &slow_conv_dilated2d);
  registry.add("aten::slow_conv3d_forward", &slow_conv3d);
  registry.add("aten::slow_conv_dilated3d", &slow_conv_dilated3d);
  registry.add("aten::slow_conv_transpose3d", &slow_conv_transpose3d);
  registry.add("aten::_conv_depthwise2d", &depthwise2d);
  registry.add("aten::conv_depthwise3d", &depthwise3d);
}

}  // namespace shadowgraph::rules
