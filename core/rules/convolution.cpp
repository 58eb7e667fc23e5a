// Convolutions. The kernel that eager would use (convolution_kernel.h) decides the strides of the result and of the
// gradients. All backends give output, input gradient and weight gradient in the backend's memory format:
//   - CPU (oneDNN, slow_conv*, NNPACK) is compared with eager in tests/core/rules/convolution_test.cpp;
//   - CUDA: cuDNN allocates with cudnn_conv_suggest_memory_format (native/cudnn/ConvShared.cpp; its backward first
//     makes grad_output follow the input, pytorch#171622), the depthwise and slow kernels allocate contiguous;
//   - XPU, MPS: channels-last operands give channels-last results (ConvUtils.h); on others all is contiguous.
#include <ATen/native/ConvUtils.h>
#include <c10/util/SmallVector.h>
#include <c10/util/strides.h>

#include "core/rules/convolution_kernel.h"
#include "core/rules/families.h"
#include "core/rules/onednn.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::ScalarType;
using at::native::ConvBackend;
using c10::DimVector;
using c10::IntArrayRef;
using c10::MemoryFormat;

bool any_negative(IntArrayRef values) {
  return std::any_of(values.begin(), values.end(), [](int64_t value) { return value < 0; });
}

std::string joined(IntArrayRef values) { return c10::Join(" x ", values); }

// The checks of check_shape_forward (native/Convolution.cpp), in its order and words.
void check_shapes(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                  const ConvolutionParameters& p) {
  TORCH_CHECK(!any_negative(p.padding), "negative padding is not supported");
  TORCH_CHECK(!any_negative(p.output_padding), "negative output_padding is not supported");
  TORCH_CHECK(std::none_of(p.stride.begin(), p.stride.end(), [](int64_t s) { return s <= 0; }),
              "non-positive stride is not supported");
  TORCH_CHECK(std::none_of(p.dilation.begin(), p.dilation.end(), [](int64_t d) { return d <= 0; }),
              "dilation should be greater than zero");
  TORCH_CHECK(p.groups > 0, "expected groups to be greater than 0, but got groups=", p.groups);
  TORCH_CHECK(weight.dim() == input.dim(), "Expected ", weight.dim(), "-dimensional input for ", weight.dim(),
              "-dimensional weight ", weight.sizes(), ", but got ", input.dim(), "-dimensional input of size ",
              input.sizes(), " instead");
  TORCH_CHECK(weight.size(0) >= p.groups, "Given groups=", p.groups, ", expected weight to be at least ", p.groups,
              " at dimension 0, but got weight of size ", weight.sizes(), " instead");
  TORCH_CHECK(weight.size(0) % p.groups == 0, "Given groups=", p.groups, ", expected weight to be divisible by ",
              p.groups, " at dimension 0, but got weight of size [", weight.sizes(), "] instead");
  const int64_t output_channels = p.transposed ? weight.size(1) * p.groups : weight.size(0);
  const bool bias_fits = !given(bias) || (bias->dim() == 1 && bias->size(0) == output_channels);
  if (p.transposed) {
    TORCH_CHECK(input.size(1) == weight.size(0), "Given transposed=", p.transposed, ", weight of size ", weight.sizes(),
                ", expected input", input.sizes(), " to have ", weight.size(0), " channels, but got ", input.size(1),
                " channels instead");
    TORCH_CHECK(bias_fits, "Given transposed=", p.transposed, ", weight of size ", weight.sizes(),
                ", expected bias to be 1-dimensional with ", output_channels, " elements, but got bias of size ",
                bias->sizes(), " instead");
    return;
  }
  TORCH_CHECK(input.size(1) == weight.size(1) * p.groups, "Given groups=", p.groups, ", weight of size ",
              weight.sizes(), ", expected input", input.sizes(), " to have ", weight.size(1) * p.groups,
              " channels, but got ", input.size(1), " channels instead");
  TORCH_CHECK(bias_fits, "Given weight of size ", weight.sizes(), ", expected bias to be 1-dimensional with ",
              output_channels, " elements, but got bias of size ", bias->sizes(), " instead");
  DimVector padded;
  DimVector kernel;
  bool fits = true;
  for (size_t i = 0; i < p.stride.size(); ++i) {
    const auto d = static_cast<int64_t>(i) + 2;
    padded.push_back(input.size(d) + 2 * p.padding[i]);
    kernel.push_back(p.dilation[i] * (weight.size(d) - 1) + 1);
    fits = fits && padded.back() >= kernel.back();
  }
  TORCH_CHECK(fits, "Calculated padded input size per channel: (", joined(padded), "). Kernel size: (", joined(kernel),
              "). Kernel size can't be greater than actual input size");
}

DimVector output_sizes(IntArrayRef input, IntArrayRef weight, const ConvolutionParameters& p, bool may_be_empty) {
  DimVector sizes{input[0], p.transposed ? weight[1] * p.groups : weight[0]};
  if (input[1] == 0) sizes[1] = 0;
  for (size_t i = 0; i < p.stride.size(); ++i) {
    const int64_t kernel = p.dilation[i] * (weight[i + 2] - 1) + 1;
    sizes.push_back(p.transposed ? (input[i + 2] - 1) * p.stride[i] - 2 * p.padding[i] + kernel + p.output_padding[i]
                                 : (input[i + 2] + 2 * p.padding[i] - kernel) / p.stride[i] + 1);
  }
  const int64_t smallest = may_be_empty ? 0 : 1;
  TORCH_CHECK(std::all_of(sizes.begin() + 2, sizes.end(), [&](int64_t size) { return size >= smallest; }),
              "Given input size per channel: (", joined(input.slice(2)), "). Calculated output size per channel: (",
              joined(IntArrayRef(sizes).slice(2)), "). Output size is too small");
  return sizes;
}

// The call as eager's backends see it: one spatial dimension made two, a backend chosen.
struct Call {
  ConvolutionParameters parameters;
  bool one_dimensional;
  at::Tensor input;
  at::Tensor weight;
  ConvBackend backend;
  MemoryFormat format;

  Call(const at::Tensor& given_input, const at::Tensor& given_weight, const OptionalTensor& bias,
       ConvolutionParameters given_parameters)
      : parameters(std::move(given_parameters)),
        one_dimensional(given_weight.dim() == 3),
        input(given_input),
        weight(given_weight) {
    check_shapes(given_input, given_weight, bias, parameters);
    if (one_dimensional) {
      parameters.insert_leading_dimension();
      // The input is made contiguous first, the weight is not.
      input = with_leading_dimension(given_input, given_input.is_contiguous()
                                                      ? DimVector(given_input.strides())
                                                      : c10::contiguous_strides(given_input.sizes()));
      weight = with_leading_dimension(given_weight, given_weight.strides());
    }
    const ConvolutionKernel choice = choose_convolution_kernel(input, weight, parameters);
    backend = choice.backend;
    format = choice.format;
    TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", stand_in(input).toString(),
                ") and weight type (", stand_in(weight).toString(), ") should be the same",
                on_mkldnn() ? " or input should be a MKLDNN tensor and weight is a dense tensor" : "");
  }

  bool on_mkldnn() const { return backend == ConvBackend::Mkldnn || backend == ConvBackend::MkldnnTranspose; }

  // The slow kernels reject empty results and do one group at a time.
  bool on_slow_kernel() const { return is_slow_kernel(backend); }

  at::Tensor output() const {
    const DimVector sizes = output_sizes(input.sizes(), weight.sizes(), parameters, !on_slow_kernel());
    if (backend == ConvBackend::Empty) return result(empty_output(sizes));
    return result(rules::empty(sizes, input, joined_format(sizes, 1, format)));
  }
  at::Tensor input_gradient() const {
    if (backend == ConvBackend::Empty) return result(rules::empty_like(input));
    return result(rules::empty(input.sizes(), input, joined_format(input.sizes(), 1, format)));
  }
  at::Tensor weight_gradient() const {
    if (backend == ConvBackend::Empty) return result(rules::empty_like(weight));
    // These follow the weight they get, which may look like either format when a dimension is 1.
    const bool follows =
        (backend == ConvBackend::Slow2d || backend == ConvBackend::SlowTranspose2d) && weight.is_contiguous(format);
    const MemoryFormat own = follows ? weight.suggest_memory_format() : format;
    // Then the transposed one may find that what it has made is not what its own format asks for.
    if (follows && backend == ConvBackend::SlowTranspose2d && !on_cuda() && parameters.groups == 1) {
      TORCH_CHECK(rules::empty(weight.sizes(), weight, own).is_contiguous(format),
                  "slow_conv_transpose2d: grad_weight needs to be contiguous");
    }
    return result(rules::empty(weight.sizes(), weight, joined_format(weight.sizes(), 0, own)));
  }

 private:
  // A result of the backend, brought back to the caller's number of dimensions.
  at::Tensor result(const at::Tensor& dense) const { return one_dimensional ? dense.squeeze(2) : dense; }

  // cat of the groups' results looks at what each of them seems to be.
  MemoryFormat joined_format(IntArrayRef sizes, size_t dimension, MemoryFormat of_each) const {
    if (parameters.groups == 1 || !on_slow_kernel() || of_each == MemoryFormat::Contiguous) return of_each;
    DimVector group(sizes);
    group[dimension] /= parameters.groups;
    return rules::empty(group, input, of_each).suggest_memory_format();
  }

  // Without batch or channels eager multiplies input and weight elementwise, then views.
  at::Tensor empty_output(IntArrayRef sizes) const {
    if (input.size(1) == 0 || sizes != input.sizes()) return rules::empty(sizes, input);
    const at::Tensor operand = rules::empty_strided(input.sizes(), input.strides(), input.scalar_type());
    const at::Tensor weight_element = rules::empty({}, weight);
    return elementwise({operand, weight_element});
  }

  static at::Tensor with_leading_dimension(const at::Tensor& tensor, IntArrayRef strides) {
    const IntArrayRef sizes = tensor.sizes();
    return stand_in({sizes[0], sizes[1], 1, sizes[2]}, {strides[0], strides[1], sizes[2] * strides[2], strides[2]},
                    tensor);
  }
};

ConvolutionParameters parameters_for(const at::Tensor& weight, IntArrayRef stride, IntArrayRef padding,
                                     IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                                     int64_t groups) {
  TORCH_CHECK(weight.dim() > 2, "weight should have at least three dimensions");
  return ConvolutionParameters(static_cast<size_t>(weight.dim() - 2), stride, padding, dilation, transposed,
                               output_padding, groups);
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                       IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                       IntArrayRef output_padding, int64_t groups) {
  const Call call(input, weight, bias,
                  parameters_for(weight, stride, padding, dilation, transposed, output_padding, groups));
  return call.output();
}

at::Tensor underscore_convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                                  IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                                  IntArrayRef output_padding, int64_t groups, bool /*benchmark*/,
                                  bool /*deterministic*/, bool /*cudnn_enabled*/, bool /*allow_tf32*/) {
  return rules::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
    at::OptionalIntArrayRef bias_sizes, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
    IntArrayRef output_padding, int64_t groups, std::array<bool, 3> output_mask) {
  const Call call(input, weight, std::nullopt,
                  parameters_for(weight, stride, padding, dilation, transposed, output_padding, groups));
  TORCH_CHECK(grad_output.dim() == input.dim(),
              "Expected input and grad_output to have the same number of dimensions, "
              "but got: ",
              input.dim(), " and ", grad_output.dim());
  std::tuple<at::Tensor, at::Tensor, at::Tensor> grads;
  if (output_mask[0]) std::get<0>(grads) = call.input_gradient();
  if (output_mask[1]) {
    std::get<1>(grads) = call.weight_gradient();
  } else if (output_mask[2] && call.on_mkldnn()) {
    // oneDNN computes both together, and what nobody asked for comes back too, in the library's own dimensions.
    std::get<1>(grads) = rules::empty(call.weight.sizes(), call.weight, call.format);
  }
  if (output_mask[2]) {
    const bool by_sizes = call.backend == ConvBackend::Empty && bias_sizes;
    std::get<2>(grads) =
        by_sizes ? rules::empty(*bias_sizes, weight) : rules::empty({grad_output.size(1)}, grad_output);
  }
  return grads;
}

// The operators of one library, called directly. They give what their name says, whatever eager would have chosen.
at::Tensor library_convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                               const ConvolutionParameters& parameters, MemoryFormat format) {
  check_shapes(input, weight, bias, parameters);
  return rules::empty(output_sizes(input.sizes(), weight.sizes(), parameters, true), input, format);
}

at::Tensor mkldnn_convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                              IntArrayRef padding, IntArrayRef stride, IntArrayRef dilation, int64_t groups) {
  const ScalarType dtype = input.scalar_type();
  TORCH_CHECK(dtype != at::kBFloat16 || device_profile().cpu.mkldnn_bf16,
              "mkldnn_convolution: bf16 path needs the cpu support avx_ne_convert or avx512bw, avx512vl and avx512dq");
  TORCH_CHECK(dtype != at::kHalf || device_profile().cpu.mkldnn_fp16,
              "mkldnn_convolution: fp16 path needs the cpu support avx_ne_convert or avx512_fp16");
  TORCH_CHECK(mkldnn_computes_in(dtype, device_profile().cpu), "mkldnn_convolution: oneDNN does not compute in ",
              dtype);
  const bool channels_last = at::native::mkldnn_conv_use_channels_last(input, weight);
  const MemoryFormat format = !channels_last      ? MemoryFormat::Contiguous
                              : weight.dim() == 5 ? MemoryFormat::ChannelsLast3d
                                                  : MemoryFormat::ChannelsLast;
  return library_convolution(input, weight, bias, parameters_for(weight, stride, padding, dilation, false, {0}, groups),
                             format);
}

at::Tensor cudnn_convolution(const at::Tensor& input, const at::Tensor& weight, IntArrayRef padding, IntArrayRef stride,
                             IntArrayRef dilation, int64_t groups, bool /*benchmark*/, bool /*deterministic*/,
                             bool /*allow_tf32*/) {
  return library_convolution(input, weight, std::nullopt,
                             parameters_for(weight, stride, padding, dilation, false, {0}, groups),
                             at::native::cudnn_conv_suggest_memory_format(input, weight));
}

at::Tensor cudnn_convolution_relu(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor& bias,
                                  IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  return library_convolution(input, weight, bias, parameters_for(weight, stride, padding, dilation, false, {0}, groups),
                             at::native::cudnn_conv_suggest_memory_format(input, weight));
}

at::Tensor cudnn_convolution_add_relu(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& /*z*/,
                                      const std::optional<at::Scalar>& /*alpha*/, const OptionalTensor& bias,
                                      IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  return rules::cudnn_convolution_relu(input, weight, bias, stride, padding, dilation, groups);
}

at::Tensor cudnn_convolution_transpose(const at::Tensor& input, const at::Tensor& weight, IntArrayRef padding,
                                       IntArrayRef output_padding, IntArrayRef stride, IntArrayRef dilation,
                                       int64_t groups, bool /*benchmark*/, bool /*deterministic*/,
                                       bool /*allow_tf32*/) {
  return library_convolution(input, weight, std::nullopt,
                             parameters_for(weight, stride, padding, dilation, true, output_padding, groups),
                             at::native::cudnn_conv_suggest_memory_format(input, weight));
}

}  // namespace

void register_convolution(RuleRegistry& registry) {
  registry.add("aten::convolution", &convolution);
  registry.add("aten::_convolution", &underscore_convolution);
  registry.add("aten::convolution_backward", &convolution_backward);
  registry.add("aten::mkldnn_convolution", &mkldnn_convolution);
  registry.add("aten::cudnn_convolution", &cudnn_convolution);
  registry.add("aten::cudnn_convolution_relu", &cudnn_convolution_relu);
  registry.add("aten::cudnn_convolution_add_relu", &cudnn_convolution_add_relu);
  registry.add("aten::cudnn_convolution_transpose", &cudnn_convolution_transpose);
}

}  // namespace shadowgraph::rules
