// The choice is left to libtorch itself: select_conv_backend sees stand-ins for the operands that say "cpu" or "cuda". It
// asks this machine's processor what oneDNN computes with; where the pretended CPU differs, select_backend mends that.
#include "core/rules/convolution_kernel.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <array>
#include <memory>

#include "core/fake/thread_state.h"
#include "core/rules/onednn.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::ScalarType;
using at::native::ConvBackend;
using c10::DimVector;
using c10::IntArrayRef;
using c10::MemoryFormat;

// One number may stand for all spatial dimensions (convolution_expand_param_if_needed).
DimVector expanded(IntArrayRef values, const char* what, size_t dimensions) {
  if (values.size() == 1) return DimVector(dimensions, values[0]);
  TORCH_CHECK(values.size() == dimensions, "expected ", what, " to be a single integer value or a list of ", dimensions,
              " values to match the convolution dimensions, but got ", what, "=", values);
  return DimVector(values.begin(), values.end());
}

}  // namespace

ConvolutionParameters::ConvolutionParameters(size_t dimensions, IntArrayRef strides, IntArrayRef paddings,
                                             IntArrayRef dilations, bool is_transposed, IntArrayRef output_paddings,
                                             int64_t group_count)
    : stride(expanded(strides, "stride", dimensions)),
      padding(expanded(paddings, "padding", dimensions)),
      dilation(expanded(dilations, "dilation", dimensions)),
      transposed(is_transposed),
      output_padding(expanded(output_paddings, "output_padding", dimensions)),
      groups(group_count) {}

void ConvolutionParameters::insert_leading_dimension() {
  stride.insert(stride.begin(), 1);
  padding.insert(padding.begin(), 0);
  dilation.insert(dilation.begin(), 1);
  output_padding.insert(output_padding.begin(), 0);
}

bool is_slow_kernel(ConvBackend backend) {
  switch (backend) {
    case ConvBackend::Slow2d:
    case ConvBackend::Slow3d:
    case ConvBackend::SlowDilated2d:
    case ConvBackend::SlowDilated3d:
    case ConvBackend::SlowTranspose2d:
    case ConvBackend::SlowTranspose3d:
      return true;
    default:
      return false;
  }
}

namespace {

at::Tensor contiguous_in(const at::Tensor& tensor, MemoryFormat wanted) {
  if (tensor.is_contiguous(wanted)) return tensor;
  return stand_in(tensor.sizes(), rules::empty(tensor.sizes(), tensor, wanted).strides(), tensor);
}

// subtensor (native/Convolution.cpp): one group's part of an operand
at::Tensor part(const at::Tensor& tensor, size_t dimension, int64_t groups) {
  DimVector sizes(tensor.sizes());
  sizes[dimension] /= groups;
  return contiguous_in(stand_in(sizes, tensor.strides(), tensor), tensor.suggest_memory_format());
}

// xpu_ and mps_conv_use_channels_last of ConvUtils.h, for stand-ins, which are on neither device.
MemoryFormat overrideable_format(const at::Tensor& input, const at::Tensor& weight) {
  const auto is_channels_last = [](const at::Tensor& tensor) {
    const MemoryFormat format = tensor.suggest_memory_format();
    return format == MemoryFormat::ChannelsLast || format == MemoryFormat::ChannelsLast3d;
  };
  const c10::DeviceType device = pretended_device().type();
  const bool channels_last =
      (device == c10::DeviceType::XPU && (is_channels_last(input) || is_channels_last(weight))) ||
      (device == c10::DeviceType::MPS && is_channels_last(input));
  if (!channels_last) return MemoryFormat::Contiguous;
  return weight.dim() == 5 ? MemoryFormat::ChannelsLast3d : MemoryFormat::ChannelsLast;
}

ConvBackend selected(const at::Tensor& input, const at::Tensor& weight, const ConvolutionParameters& p) {
  const auto symbolic = [](IntArrayRef values) { return c10::fromIntArrayRefSlow(values); };
  return at::native::select_conv_backend(input, weight, std::nullopt, symbolic(p.stride), symbolic(p.padding),
                                         symbolic(p.dilation), p.transposed, symbolic(p.output_padding), p.groups,
                                         c10::OptionalArrayRef<c10::SymInt>());
}

// ConvParams::use_mkldnn of a dtype that oneDNN computes in on one CPU and not on another (bfloat16, half).
ConvBackend select_backend(const at::Tensor& input, const at::Tensor& weight, const ConvolutionParameters& p) {
  const ScalarType dtype = input.scalar_type();
  const CpuProfile& cpu = device_profile().cpu;
  if (!pretended_device().is_cpu() || mkldnn_is_as_here(dtype, cpu)) return selected(input, weight, p);
  if (!mkldnn_computes_in(dtype, cpu)) {  // as for doubles, which it never computes in
    const auto as_double = [](const at::Tensor& tensor) {
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

ConvolutionKernel ask_libtorch(const at::Tensor& meta_input, const at::Tensor& meta_weight,
                               const ConvolutionParameters& p) {
  const at::Tensor input = stand_in(meta_input);
  const at::Tensor weight = stand_in(meta_weight);
  const ConvBackend backend = select_backend(input, weight, p);
  if (backend == ConvBackend::Empty) return {backend, MemoryFormat::Contiguous};
  if (backend == ConvBackend::Overrideable) return {backend, overrideable_format(input, weight)};
  MemoryFormat format = at::native::_determine_backend_memory_format(input, weight, backend);
  if (is_slow_kernel(backend) && p.groups > 1 && format == MemoryFormat::ChannelsLast) {
    // One group at a time, and each looks anew at what its part of the operands seems to be.
    const at::Tensor input_part = part(contiguous_in(input, format), 1, p.groups);
    const at::Tensor weight_part = part(contiguous_in(weight, format), 0, p.groups);
    if (!at::native::thnn_conv_use_channels_last(input_part, weight_part)) format = MemoryFormat::Contiguous;
  }
  return {backend, format};
}

}  // namespace

// Asking takes a microsecond, and a network asks the same few dozen questions at every step: the answers are kept, with
// all they depend on.
ConvolutionKernel choose_convolution_kernel(const at::Tensor& input, const at::Tensor& weight,
                                            const ConvolutionParameters& p) {
  using Key = c10::SmallVector<int64_t, 48>;
  struct Answer {
    Key key;
    ConvolutionKernel choice;
  };
  using Answers = std::array<Answer, 128>;
  std::shared_ptr<void>& kept = thread_belongings().convolution_answers;
  if (!kept) kept = std::make_shared<Answers>();
  Answers& answers = *static_cast<Answers*>(kept.get());

  const auto& context = at::globalContext();
  const DeviceProfile& device = device_profile();
  Key key{static_cast<int64_t>(pretended_device().type()),
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
  Answer& entry = answers[(hash >> 32) % answers.size()];
  if (entry.key != key) {
    entry.choice = ask_libtorch(input, weight, p);
    entry.key = std::move(key);
  }
  return entry.choice;
}

}  // namespace shadowgraph::rules
