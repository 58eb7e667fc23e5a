// Convolutions: selection of the kernel, and the memory format of its results.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/Resize.h>
#include <c10/util/SmallVector.h>
#include <c10/util/strides.h>

#include <array>
#include <memory>

#include "core/fake/rules/registry.h"
#include "core/fake/thread_state.h"

namespace shadowgraph::rules {
namespace {

using at::native::ConvBackend;

// A single number applies to all spatial dimensions (convolution_expand_param_if_needed).
DimVector expanded(IntArrayRef values, const char* what, size_t dimensions) {
  if (values.size() == 1) return DimVector(dimensions, values[0]);
  TORCH_CHECK(values.size() == dimensions, "expected ", what, " to be a single integer value or a list of ", dimensions,
              " values to match the convolution dimensions, but got ", what, "=", values);
  return DimVector(values.begin(), values.end());
}

// The non-tensor arguments of a call, with a number for each spatial dimension.
struct ConvolutionParameters {
  DimVector stride;
  DimVector padding;
  DimVector dilation;
  bool transposed = false;
  DimVector output_padding;
  int64_t groups = 1;

  ConvolutionParameters(size_t dimensions, IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                        bool is_transposed, IntArrayRef output_paddings, int64_t group_count)
      : stride(expanded(strides, "stride", dimensions)),
        padding(expanded(paddings, "padding", dimensions)),
        dilation(expanded(dilations, "dilation", dimensions)),
        transposed(is_transposed),
        output_padding(expanded(output_paddings, "output_padding", dimensions)),
        groups(group_count) {}

  // A 1-D convolution is computed as a 2-D one, with a first dimension of size 1.
  void insert_leading_dimension() {
    stride.insert(stride.begin(), 1);
    padding.insert(padding.begin(), 0);
    dilation.insert(dilation.begin(), 1);
    output_padding.insert(output_padding.begin(), 0);
  }
};

struct ConvolutionKernel {
  ConvBackend backend;
  MemoryFormat format;
};

// ---- Selection is done by libtorch itself: select_conv_backend is called with stand-ins for the operands that report
// "cpu" or "cuda". It uses this machine's oneDNN capabilities; select_backend corrects that for the simulated CPU.

// Returns whether it is an im2col kernel, which rejects empty results and processes one group at a time.
bool is_slow_kernel(ConvBackend backend) {
  using enum ConvBackend;
  return backend == Slow2d || backend == Slow3d || backend == SlowDilated2d || backend == SlowDilated3d ||
         backend == SlowTranspose2d || backend == SlowTranspose3d;
}

Tensor contiguous_in(const Tensor& tensor, MemoryFormat wanted) {
  if (tensor.is_contiguous(wanted)) return tensor;
  return stand_in(tensor.sizes(), rules::empty(tensor.sizes(), tensor, wanted).strides(), tensor);
}

// subtensor (native/Convolution.cpp): one group's part of an operand
Tensor part(const Tensor& tensor, size_t dimension, int64_t groups) {
  DimVector sizes(tensor.sizes());
  sizes[dimension] /= groups;
  return contiguous_in(stand_in(sizes, tensor.strides(), tensor), tensor.suggest_memory_format());
}

// xpu_ and mps_conv_use_channels_last of ConvUtils.h, for stand-ins, which are on neither device.
MemoryFormat overrideable_format(const Tensor& input, const Tensor& weight) {
  const auto is_channels_last = [](const Tensor& tensor) {
    const MemoryFormat format = tensor.suggest_memory_format();
    return format == MemoryFormat::ChannelsLast || format == MemoryFormat::ChannelsLast3d;
  };
  const c10::DeviceType device = simulated_device().type();
  const bool channels_last =
      (device == c10::DeviceType::XPU && (is_channels_last(input) || is_channels_last(weight))) ||
      (device == c10::DeviceType::MPS && is_channels_last(input));
  if (!channels_last) return MemoryFormat::Contiguous;
  return weight.dim() == 5 ? MemoryFormat::ChannelsLast3d : MemoryFormat::ChannelsLast;
}

ConvBackend selected(const Tensor& input, const Tensor& weight, const ConvolutionParameters& p) {
  const auto symbolic = [](IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
  return at::native::select_conv_backend(input, weight, std::nullopt, symbolic(p.stride), symbolic(p.padding),
                                         symbolic(p.dilation), p.transposed, symbolic(p.output_padding), p.groups,
                                         c10::OptionalArrayRef<c10::SymInt>());
}

// ConvParams::use_mkldnn for dtypes that oneDNN supports on some CPUs only (bfloat16, half).
ConvBackend select_backend(const Tensor& input, const Tensor& weight, const ConvolutionParameters& p) {
  const ScalarType dtype = input.scalar_type();
  const CpuProfile& cpu = device_profile().cpu;
  if (!simulated_device().is_cpu() || mkldnn_matches_this_machine(dtype, cpu)) return selected(input, weight, p);
  if (!mkldnn_supports(dtype, cpu)) {  // as for double, which it never supports
    const auto as_double = [](const Tensor& tensor) {
      return stand_in(rules::empty_strided(tensor.sizes(), tensor.strides(), at::kDouble));
    };
    return selected(as_double(input), as_double(weight), p);
  }
  const ConvBackend without = selected(input, weight, p);
  bool big_output_padding = false;
  for (size_t i = 0; i < p.stride.size(); ++i) big_output_padding |= p.output_padding[i] >= p.stride[i];
  if (without == ConvBackend::Empty || !at::globalContext().userEnabledMkldnn() ||
      (p.transposed && big_output_padding)) {
    return without;
  }
  return p.transposed ? ConvBackend::MkldnnTranspose : ConvBackend::Mkldnn;
}

ConvolutionKernel select_with_libtorch(const Tensor& meta_input, const Tensor& meta_weight,
                                       const ConvolutionParameters& p) {
  const Tensor input = stand_in(meta_input);
  const Tensor weight = stand_in(meta_weight);
  const ConvBackend backend = select_backend(input, weight, p);
  if (backend == ConvBackend::Empty) return {backend, MemoryFormat::Contiguous};
  if (backend == ConvBackend::Overrideable) return {backend, overrideable_format(input, weight)};
  MemoryFormat format = at::native::_determine_backend_memory_format(input, weight, backend);
  if (is_slow_kernel(backend) && p.groups > 1 && format == MemoryFormat::ChannelsLast) {
    // One group at a time, each with a format derived from its part of the operands.
    const Tensor input_part = part(contiguous_in(input, format), 1, p.groups);
    const Tensor weight_part = part(contiguous_in(weight, format), 0, p.groups);
    if (!at::native::thnn_conv_use_channels_last(input_part, weight_part)) format = MemoryFormat::Contiguous;
  }
  return {backend, format};
}

// Selects the kernel, with a cache: a selection takes a microsecond, and a network has the same few dozen at every
// step. The key contains everything that the selection depends on.
ConvolutionKernel choose_convolution_kernel(const Tensor& input, const Tensor& weight, const ConvolutionParameters& p) {
  using Key = c10::SmallVector<int64_t, 48>;
  struct Entry {
    Key key;
    ConvolutionKernel choice;
  };
  using Cache = std::array<Entry, 128>;
  std::shared_ptr<void>& kept = thread_objects().convolution_cache;
  if (!kept) kept = std::make_shared<Cache>();
  Cache& cache = *static_cast<Cache*>(kept.get());

  const auto& context = at::globalContext();
  const DeviceProfile& device = device_profile();
  Key key{static_cast<int64_t>(simulated_device().type()),
          static_cast<int64_t>(input.scalar_type()),
          static_cast<int64_t>(weight.scalar_type()),
          context.userEnabledCuDNN() | context.userEnabledMkldnn() << 1 | context.userEnabledNNPACK() << 2 |
              context.deterministicCuDNN() << 3 | context.deterministicAlgorithms() << 4 |
              context.benchmarkCuDNN() << 5 | device.cudnn << 6 | p.transposed << 7 | device.cpu.mkldnn_bf16 << 8 |
              device.cpu.mkldnn_fp16 << 9,
          device.cudnn_version,
          device.sm_major * 10 + device.sm_minor,
          at::get_num_threads(),
          p.groups};
  for (const IntArrayRef part :
       {input.sizes(), input.strides(), weight.sizes(), weight.strides(), IntArrayRef(p.stride), IntArrayRef(p.padding),
        IntArrayRef(p.dilation), IntArrayRef(p.output_padding)}) {
    key.append(part.begin(), part.end());
  }
  size_t hash = 0;
  for (const int64_t word : key) hash = (hash ^ static_cast<size_t>(word)) * 0x9e3779b97f4a7c15u;
  Entry& entry = cache[(hash >> 32) % cache.size()];
  if (entry.key != key) {
    entry.choice = select_with_libtorch(input, weight, p);
    entry.key = std::move(key);
  }
  return entry.choice;
}

// ---- Results. The selected kernel determines the strides of the result and of the gradients: all backends return
// output, input gradient and weight gradient in the backend's memory format.
//   - CPU (oneDNN, slow_conv*, NNPACK) is compared with eager in tests/core/fake/rules/convolution_test.cpp;
//   - CUDA: cuDNN allocates with cudnn_conv_suggest_memory_format (native/cudnn/ConvShared.cpp; its backward
//     first converts grad_output to the input's format, pytorch#171622); the depthwise and slow kernels allocate
//     contiguous results;
//   - XPU, MPS: channels-last operands yield channels-last results (ConvUtils.h); otherwise all is contiguous.

bool any_negative(IntArrayRef values) {
  return std::any_of(values.begin(), values.end(), [](int64_t value) { return value < 0; });
}

std::string joined(IntArrayRef values) { return c10::Join(" x ", values); }

// The checks of check_shape_forward (native/Convolution.cpp), with its order and messages.
void check_shapes(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
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
    for (size_t i = 0; i < p.stride.size(); ++i) {  // as the slow kernels, which the CPU then falls back to
      TORCH_CHECK(p.output_padding[i] < std::max(p.stride[i], p.dilation[i]),
                  "output padding must be smaller than either stride or dilation, but got output_padding: ",
                  p.output_padding[i], ", stride: ", p.stride[i], ", dilation: ", p.dilation[i]);
    }
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

// A call as eager's backends see it: 1-D expanded to 2-D, with the backend selected.
struct Call {
  ConvolutionParameters parameters;
  bool one_dimensional;
  Tensor input;
  Tensor weight;
  ConvBackend backend;
  MemoryFormat format;

  Call(const Tensor& given_input, const Tensor& given_weight, const OptionalTensor& bias,
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

  Tensor output() const {
    const DimVector sizes = output_sizes(input.sizes(), weight.sizes(), parameters, !is_slow_kernel(backend));
    if (backend == ConvBackend::Empty) return result(empty_output(sizes));
    return result(rules::empty(sizes, input, joined_format(sizes, 1, format)));
  }
  Tensor input_gradient() const {
    if (backend == ConvBackend::Empty) return result(rules::empty_like(input));
    return result(rules::empty(input.sizes(), input, joined_format(input.sizes(), 1, format)));
  }
  Tensor weight_gradient() const {
    if (backend == ConvBackend::Empty) return result(rules::empty_like(weight));
    // These use the weight's own format, which is ambiguous when a dimension is 1.
    const bool follows =
        (backend == ConvBackend::Slow2d || backend == ConvBackend::SlowTranspose2d) && weight.is_contiguous(format);
    const MemoryFormat own = follows ? weight.suggest_memory_format() : format;
    // The transposed kernel may then reject its own gradient.
    if (follows && backend == ConvBackend::SlowTranspose2d && !on_cuda() && parameters.groups == 1) {
      TORCH_CHECK(rules::empty(weight.sizes(), weight, own).is_contiguous(format),
                  "slow_conv_transpose2d: grad_weight needs to be contiguous");
    }
    return result(rules::empty(weight.sizes(), weight, joined_format(weight.sizes(), 0, own)));
  }

 private:
  // Restores the caller's number of dimensions.
  Tensor result(const Tensor& dense) const { return one_dimensional ? dense.squeeze(2) : dense; }

  // cat of the groups' results uses the suggested format of each.
  MemoryFormat joined_format(IntArrayRef sizes, size_t dimension, MemoryFormat of_each) const {
    if (parameters.groups == 1 || !is_slow_kernel(backend) || of_each == MemoryFormat::Contiguous) return of_each;
    DimVector group(sizes);
    group[dimension] /= parameters.groups;
    return rules::empty(group, input, of_each).suggest_memory_format();
  }

  // Without batch or channels eager multiplies input and weight elementwise, then views.
  Tensor empty_output(IntArrayRef sizes) const {
    if (input.size(1) == 0 || sizes != input.sizes()) return rules::empty(sizes, input);
    const Tensor operand = rules::empty_strided(input.sizes(), input.strides(), input.scalar_type());
    const Tensor weight_element = rules::empty({}, weight);
    return elementwise({operand, weight_element});
  }

  static Tensor with_leading_dimension(const Tensor& tensor, IntArrayRef strides) {
    const IntArrayRef sizes = tensor.sizes();
    return stand_in({sizes[0], sizes[1], 1, sizes[2]}, {strides[0], strides[1], sizes[2] * strides[2], strides[2]},
                    tensor);
  }
};

ConvolutionParameters parameters_for(const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
                                     IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                                     int64_t groups) {
  TORCH_CHECK(weight.dim() > 2, "weight should have at least three dimensions");
  return ConvolutionParameters(static_cast<size_t>(weight.dim() - 2), stride, padding, dilation, transposed,
                               output_padding, groups);
}

Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                   int64_t groups) {
  const Call call(input, weight, bias,
                  parameters_for(weight, stride, padding, dilation, transposed, output_padding, groups));
  return call.output();
}

ThreeTensors convolution_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                  OptionalIntArrayRef bias_sizes, IntArrayRef stride, IntArrayRef padding,
                                  IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups,
                                  std::array<bool, 3> output_mask) {
  const Call call(input, weight, std::nullopt,
                  parameters_for(weight, stride, padding, dilation, transposed, output_padding, groups));
  TORCH_CHECK(grad_output.dim() == input.dim(),
              "Expected input and grad_output to have the same number of dimensions, "
              "but got: ",
              input.dim(), " and ", grad_output.dim());
  ThreeTensors grads;
  if (output_mask[0]) std::get<0>(grads) = call.input_gradient();
  if (output_mask[1]) {
    std::get<1>(grads) = call.weight_gradient();
  } else if (output_mask[2] && call.on_mkldnn()) {
    // oneDNN computes both together and also returns the unrequested one, in the library's dimensions.
    std::get<1>(grads) = rules::empty(call.weight.sizes(), call.weight, call.format);
  }
  if (output_mask[2]) {
    const bool by_sizes = call.backend == ConvBackend::Empty && bias_sizes;
    std::get<2>(grads) =
        by_sizes ? rules::empty(*bias_sizes, weight) : rules::empty({grad_output.size(1)}, grad_output);
  }
  return grads;
}

// A library's operator called directly runs that library's kernel, even where aten::convolution would select another.
Tensor library_convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                           const ConvolutionParameters& parameters, MemoryFormat format) {
  check_shapes(input, weight, bias, parameters);
  return rules::empty(output_sizes(input.sizes(), weight.sizes(), parameters, true), input, format);
}

Tensor mkldnn_convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef padding,
                          IntArrayRef stride, IntArrayRef dilation, int64_t groups) {
  const ScalarType dtype = input.scalar_type();
  TORCH_CHECK(dtype != at::kBFloat16 || device_profile().cpu.mkldnn_bf16,
              "mkldnn_convolution: bf16 path needs the cpu support avx_ne_convert or avx512bw, avx512vl and avx512dq");
  TORCH_CHECK(dtype != at::kHalf || device_profile().cpu.mkldnn_fp16,
              "mkldnn_convolution: fp16 path needs the cpu support avx_ne_convert or avx512_fp16");
  TORCH_CHECK(mkldnn_supports(dtype, device_profile().cpu), "mkldnn_convolution: oneDNN does not compute in ", dtype);
  const bool channels_last = at::native::mkldnn_conv_use_channels_last(input, weight);
  const MemoryFormat format = !channels_last      ? MemoryFormat::Contiguous
                              : weight.dim() == 5 ? MemoryFormat::ChannelsLast3d
                                                  : MemoryFormat::ChannelsLast;
  return library_convolution(input, weight, bias, parameters_for(weight, stride, padding, dilation, false, {0}, groups),
                             format);
}

Tensor cudnn_convolution(const Tensor& input, const Tensor& weight, IntArrayRef padding, IntArrayRef stride,
                         IntArrayRef dilation, int64_t groups) {
  return library_convolution(input, weight, std::nullopt,
                             parameters_for(weight, stride, padding, dilation, false, {0}, groups),
                             at::native::cudnn_conv_suggest_memory_format(input, weight));
}

Tensor cudnn_convolution_relu(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                              IntArrayRef padding, IntArrayRef dilation, int64_t groups) {
  return library_convolution(input, weight, bias, parameters_for(weight, stride, padding, dilation, false, {0}, groups),
                             at::native::cudnn_conv_suggest_memory_format(input, weight));
}

Tensor cudnn_convolution_transpose(const Tensor& input, const Tensor& weight, IntArrayRef padding,
                                   IntArrayRef output_padding, IntArrayRef stride, IntArrayRef dilation,
                                   int64_t groups) {
  return library_convolution(input, weight, std::nullopt,
                             parameters_for(weight, stride, padding, dilation, true, output_padding, groups),
                             at::native::cudnn_conv_suggest_memory_format(input, weight));
}

// ---- Kernels behind aten::convolution, called by name. They take the operands as they are, have one group, and return
// their kernel's memory format. Compared with eager on the CPU; CUDA's allocate contiguous.

constexpr int64_t kOnes[] = {1, 1, 1};
constexpr int64_t kZeros[] = {0, 0, 0};

// The window of a convolution; `channels` is the number of output channels.
struct Window {
  int64_t channels;
  IntArrayRef kernel;
  IntArrayRef stride;
  IntArrayRef padding;
  IntArrayRef dilation = kOnes;
  bool transposed = false;
  IntArrayRef output_padding = kZeros;
};

DimVector convolved(const Tensor& x, size_t spatial, const Window& w) {
  const auto dims = static_cast<int64_t>(spatial);
  TORCH_CHECK(x.dim() == dims + 1 || x.dim() == dims + 2, "Expected ", dims + 1, "D or ", dims + 2,
              "D input tensor, but got: ", x.sizes());
  for (const IntArrayRef values : {w.kernel, w.stride, w.padding, w.dilation, w.output_padding}) {
    TORCH_CHECK(values.size() >= spatial, "It is expected that there are ", spatial, " values, but got ", values);
  }
  DimVector sizes;
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

// ---- 2-D im2col. A batch may be channels-last.

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

// On the CPU the output always gets the kernel's format, even if its sizes match.
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
  // The kernel checks only the weight's format to decide whether the gradient's is valid.
  TORCH_CHECK(on_cuda() || !wanted[1] || format == MemoryFormat::Contiguous || weight.is_contiguous(format),
              "slow_conv2d: grad_weight must be contiguous");
  return {wanted[0] ? rules::empty(x.sizes(), x, format) : Tensor(),
          wanted[1] ? rules::empty(weight.sizes(), weight, format) : Tensor(),
          wanted[2] ? rules::empty({weight.size(0)}, grad) : Tensor()};
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

template <size_t spatial>
Tensor slow_conv_dilated(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                         IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  check_weight(x, weight, bias, spatial);
  const auto sizes = convolved(x, spatial, {weight.size(0), kernel, stride, padding, dilation});
  check_channels(x, weight, spatial);
  return rules::empty(sizes, x, spatial == 2 ? image_format(x, weight) : MemoryFormat::Contiguous);
}

Tensor slow_conv3d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                   IntArrayRef stride, IntArrayRef padding) {
  TORCH_CHECK(x.dim() == 5, "non-empty 5D input tensor expected but got: ", x.sizes());
  check_weight(x, weight, bias, 3);
  check_channels(x, weight, 3);
  return rules::empty(convolved(x, 3, {weight.size(0), kernel, stride, padding}), x);
}

Tensor slow_conv_transpose3d(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                             IntArrayRef stride, IntArrayRef padding, IntArrayRef output_padding,
                             IntArrayRef dilation) {
  check_weight(x, weight, bias, 3);
  return rules::empty(convolved(x, 3, {weight.size(1), kernel, stride, padding, dilation, true, output_padding}), x);
}

// CUDA's depthwise kernels
template <size_t spatial>
Tensor depthwise(const Tensor& x, const Tensor& weight, IntArrayRef kernel, const OptionalTensor& bias,
                 IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  check_weight(x, weight, bias, spatial);
  return rules::empty(convolved(x, spatial, {weight.size(0), kernel, stride, padding, dilation}), x);
}

}  // namespace

void register_convolution(RuleRegistry& registry) {
  registry.add("aten::convolution", &convolution);
  registry.add_partial({"aten::_convolution"}, &rules::convolution);
  registry.add("aten::convolution_backward", &convolution_backward);
  registry.add("aten::mkldnn_convolution", &mkldnn_convolution);
  registry.add_partial({"aten::cudnn_convolution"}, &cudnn_convolution);
  registry.add("aten::cudnn_convolution_relu", &cudnn_convolution_relu);
  registry.add_partial({"aten::cudnn_convolution_add_relu"}, &cudnn_convolution_relu,
                       {"self", "weight", "bias", "stride", "padding", "dilation", "groups"});
  registry.add_partial({"aten::cudnn_convolution_transpose"}, &cudnn_convolution_transpose);
  registry.add("aten::_slow_conv2d_forward", &slow_conv2d);
  registry.add("aten::_slow_conv2d_forward.output", &slow_conv2d_out);
  registry.add("aten::_slow_conv2d_backward.output_mask", &slow_conv2d_backward);
  registry.add("aten::_slow_conv2d_backward.grad_input", &slow_conv2d_backward_out);
  registry.add("aten::slow_conv_dilated2d", &slow_conv_dilated<2>);
  registry.add("aten::slow_conv3d_forward", &slow_conv3d);
  registry.add("aten::slow_conv_dilated3d", &slow_conv_dilated<3>);
  registry.add("aten::slow_conv_transpose3d", &slow_conv_transpose3d);
  registry.add("aten::_conv_depthwise2d", &depthwise<2>);
  registry.add("aten::conv_depthwise3d", &depthwise<3>);
}

}  // namespace shadowgraph::rules
