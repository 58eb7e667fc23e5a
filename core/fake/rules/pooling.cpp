// Pooling without structured kernels. The input's strides determine whether a result is channels-last; 3-D kernels and
// unpooling differ between CPU and CUDA.
#include <ATen/native/Pool.h>
#include <ATen/native/Resize.h>

#include <algorithm>

#include "core/fake/rules/registry.h"

namespace shadowgraph::rules {
namespace {

// The input's leading dimensions followed by `spatial`.
DimVector with_spatial(const Tensor& input, IntArrayRef spatial) {
  const auto leading = input.sizes().slice(0, static_cast<size_t>(input.dim()) - spatial.size());
  DimVector sizes(leading);
  sizes.append(spatial.begin(), spatial.end());
  return sizes;
}

void check_input(const Tensor& input, int64_t spatial, const char* name) {
  TORCH_CHECK(input.dim() == spatial + 1 || input.dim() == spatial + 2, name, "(): Expected ", spatial + 1, "D or ",
              spatial + 2, "D tensor, but got ", input.sizes());
  for (int64_t d = input.dim() - spatial; d < input.dim(); ++d) {
    TORCH_CHECK(input.size(d) > 0, name,
                "(): Expected input to have non-zero size for non-batch dimensions, but input "
                "has sizes ",
                input.sizes(), " with dimension ", d, " being empty");
  }
}

// ---- A single kernel on a CPU without gradients; otherwise max_pool1d_with_indices

Tensor max_pool1d(const Tensor& input, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                  IntArrayRef dilation, bool ceil_mode) {
  TORCH_CHECK((input.dim() == 2 || input.dim() == 3) && input.size(-2) != 0 && input.size(-1) != 0,
              "max_pool1d: Expected 2D or 3D (batch mode) tensor with optional 0 dim batch size for input, but got:",
              input.sizes());
  const auto one = [](IntArrayRef values, int64_t otherwise) { return values.empty() ? otherwise : values[0]; };
  const int64_t step = one(stride, one(kernel, 1));
  TORCH_CHECK(one(kernel, 1) > 0, "max_pool1d() kernel_size must be greater than zero, but got ", one(kernel, 1));
  TORCH_CHECK(step > 0, "max_pool1d() stride must be greater than zero, but got ", step);
  TORCH_CHECK(one(dilation, 1) > 0, "max_pool1d() dilation must be greater than zero, but got ", one(dilation, 1));
  const int64_t size = at::native::pooling_output_shape(input.size(-1), one(kernel, 1), one(padding, 0), step,
                                                        one(dilation, 1), ceil_mode);
  TORCH_CHECK(size > 0, "max_pool1d() Invalid computed output size: ", size);
  return rules::empty(with_spatial(input, {size}), input);
}

Tensor adaptive_avg_pool2d(const Tensor& input, IntArrayRef output) {
  TORCH_CHECK(output.size() == 2, "adaptive_avg_pool2d: output_size must be 2");
  check_input(input, 2, "adaptive_avg_pool2d");
  return rules::empty(with_spatial(input, output), input, input.suggest_memory_format());
}

Tensor adaptive_avg_pool2d_backward(const Tensor& input) {
  return rules::empty(input.sizes(), input, input.suggest_memory_format());
}

Tensor adaptive_avg_pool3d(const Tensor& input, IntArrayRef output) {
  TORCH_CHECK(output.size() == 3, "adaptive_avg_pool3d: output_size must be 3");
  check_input(input, 3, "adaptive_avg_pool3d");
  return rules::empty(with_spatial(input, output), input);
}

Tensor& adaptive_avg_pool3d_backward_out(const Tensor& /*grad*/, const Tensor& input, Tensor& result) {
  at::native::resize_output(result, input.sizes());
  return result;
}

// ---- 3-D max pooling: (output, indices)

int64_t at_or(IntArrayRef values, size_t i, int64_t missing) {
  if (values.empty()) return missing;
  return values.size() == 1 ? values[0] : values[i];
}

int64_t pooled_size(int64_t input, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil) {
  const int64_t reach = input + 2 * padding - dilation * (kernel - 1) - 1 + (ceil ? stride - 1 : 0);
  int64_t size = (reach >= 0 ? reach / stride : -((-reach + stride - 1) / stride)) + 1;
  // The last window must start inside the input or its left padding.
  if (ceil && (size - 1) * stride >= input + padding) --size;
  return size;
}

MemoryFormat volume_format(const Tensor& input) {
  return input.dim() == 5 ? input.suggest_memory_format() : MemoryFormat::Contiguous;
}

TwoTensors max_pool3d(const Tensor& input, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                      IntArrayRef dilation, bool ceil) {
  check_input(input, 3, "max_pool3d");
  TORCH_CHECK(
      input.size(-4) > 0,
      "max_pool3d_with_indices(): Expected input's non-batch dimensions to have positive length, but input has ",
      "a shape of ", input.sizes());
  DimVector spatial;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t k = at_or(kernel, i, 1);
    const int64_t pad = at_or(padding, i, 0);
    TORCH_CHECK(pad >= 0 && pad <= k / 2, "pad should be at most half of effective kernel size, but got pad=", pad,
                ", kernel_size=", k, " and dilation=", at_or(dilation, i, 1));
    spatial.push_back(
        pooled_size(input.size(static_cast<int64_t>(i) - 3), k, at_or(stride, i, k), pad, at_or(dilation, i, 1), ceil));
    TORCH_CHECK(spatial.back() >= 1, "max_pool3d: the output size would be ", spatial.back());
  }
  const auto sizes = with_spatial(input, spatial);
  return {rules::empty(sizes, input, volume_format(input)), rules::empty(sizes, c10::kLong, volume_format(input))};
}

Tensor max_pool3d_backward(const Tensor& input) { return rules::empty(input.sizes(), input, volume_format(input)); }

void check_unpool(const Tensor& input, const Tensor& indices, IntArrayRef output, size_t spatial) {
  TORCH_CHECK(indices.scalar_type() == c10::kLong,
              "elements in indices should be type int64 but got: ", indices.scalar_type());
  TORCH_CHECK(output.size() == spatial, "There should be exactly ", spatial, " elements in output_size, but got ",
              output.size(), " elements.");
  TORCH_CHECK(input.sizes() == indices.sizes(), "Expected shape of indices to be same as that of the input tensor (",
              input.sizes(), ") but got indices tensor with shape: ", indices.sizes());
}

Tensor max_unpool2d(const Tensor& input, const Tensor& indices, IntArrayRef output) {
  check_unpool(input, indices, output, 2);
  check_input(input, 2, "max_unpooling2d_forward");
  const auto sizes = with_spatial(input, output);
  return on_cuda() || input.dim() == 3 ? rules::empty(sizes, input)
                                       : rules::empty(sizes, input, input.suggest_memory_format());
}

// On the CPU a batched output always gets the kernel's memory format, even if its sizes match.
Tensor& max_unpool2d_out(const Tensor& input, const Tensor& indices, IntArrayRef output, Tensor& result) {
  const Tensor made = rules::max_unpool2d(input, indices, output);
  at::native::resize_output(result, made.sizes());
  if (!on_cuda() && input.dim() == 4) result.as_strided_(made.sizes(), made.strides());
  return result;
}

Tensor max_unpool3d(const Tensor& input, const Tensor& indices, IntArrayRef output, IntArrayRef stride,
                    IntArrayRef padding) {
  check_unpool(input, indices, output, 3);
  TORCH_CHECK(stride.size() == 3,
              "There should be exactly three elements (depth, height, width) in stride, but got: ", stride.size(),
              " elements.");
  TORCH_CHECK(padding.size() == 3,
              "There should be exactly three elements (depth, height, width) in padding, but got: ", padding.size(),
              " elements.");
  check_input(input, 3, "max_unpooling3d_forward");
  TORCH_CHECK(std::ranges::all_of(stride, [](int64_t step) { return step > 0; }),
              "strides should be greater than zero, but got stride: ", stride);
  return rules::empty(with_spatial(input, output), input);
}

}  // namespace

void register_pooling(RuleRegistry& registry) {
  registry.add("aten::max_pool1d", &max_pool1d);
  registry.add("aten::_adaptive_avg_pool2d", &adaptive_avg_pool2d);
  registry.add_partial({"aten::_adaptive_avg_pool2d_backward"}, &adaptive_avg_pool2d_backward, {"self"});
  registry.add("aten::_adaptive_avg_pool3d", &adaptive_avg_pool3d);
  registry.add("aten::adaptive_avg_pool3d_backward.grad_input", &adaptive_avg_pool3d_backward_out);
  registry.add("aten::max_pool3d_with_indices", &max_pool3d);
  registry.add_partial({"aten::max_pool3d_with_indices_backward"}, &max_pool3d_backward, {"self"});
  registry.add("aten::max_unpool2d", &max_unpool2d);
  registry.add("aten::max_unpool2d.out", &max_unpool2d_out);
  registry.add("aten::max_unpool3d", &max_unpool3d);
  add_like(registry, {"aten::_adaptive_avg_pool3d_backward", "aten::fractional_max_pool3d_backward"}, {1},
           &empty_contiguous_like);
}

}  // namespace shadowgraph::rules
