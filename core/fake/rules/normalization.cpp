// Normalization layers. The statistics that the kernels save differ by device and dtype:
//
//                      CPU                                                CUDA
//   native_batch_norm  training: [C] of the parameters' dtype; else [0]   [C] float32 (double for double), also in
//                                                                         evaluation (native/cuda/Normalization.cu)
//   cudnn_batch_norm   -                                                  training: [C] of the weight's dtype; else [0]
//   native_layer_norm  parameters' dtype                                  float32 (double for double)
//   native_group_norm  parameters' dtype                                  parameters' dtype
//
// "Parameters' dtype" is float32 when a half or bfloat16 input meets float32 parameters, otherwise the input's
// (native/cpu/mixed_data_type.h).
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/native/layer_norm.h>
#include <c10/core/InferenceMode.h>

#include <array>

#include "core/fake/rules/registry.h"
#include "core/fake/thread_state.h"
#include "core/libtorch/kernels.h"

namespace shadowgraph::rules {
namespace {

ScalarType parameter_dtype(const Tensor& input, std::initializer_list<const OptionalTensor*> parameters) {
  const ScalarType dtype = input.scalar_type();
  if (dtype != at::kHalf && dtype != at::kBFloat16) return dtype;
  for (const OptionalTensor* parameter : parameters) {
    if (given(*parameter)) return (*parameter)->scalar_type() == at::kFloat ? at::kFloat : dtype;
  }
  return dtype;
}

// at::toAccumulateType on CUDA, for floating-point dtypes.
ScalarType accumulate_dtype(ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

Tensor empty_in_suggested_format(const Tensor& like) {
  return rules::empty(like.sizes(), like, like.suggest_memory_format());
}

void check_per_channel(const OptionalTensor& tensor, const char* name, int64_t channels) {
  TORCH_CHECK(!given(tensor) || tensor->numel() == channels, name, " should contain ", channels, " elements not ",
              tensor->numel());
}

ThreeTensors batch_norm_forward(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training) {
  TORCH_CHECK(input.dim() >= 2, "Expected at least 2 input dimensions, but got ", input.dim());
  const int64_t channels = input.size(1);
  check_per_channel(running_mean, "running_mean", channels);
  check_per_channel(running_var, "running_var", channels);
  check_per_channel(weight, "weight", channels);
  check_per_channel(bias, "bias", channels);
  TORCH_CHECK(training || (given(running_mean) && given(running_var)),
              "running_mean and running_var must be defined in evaluation mode");
  if (on_cuda()) {
    const ScalarType dtype = accumulate_dtype(input.scalar_type());
    return {rules::empty_like(input), rules::empty({channels}, dtype), rules::empty({channels}, dtype)};
  }
  const ScalarType dtype = parameter_dtype(input, {&weight, &bias, &running_mean, &running_var});
  const int64_t saved = training ? channels : 0;
  return {empty_in_suggested_format(input), rules::empty({saved}, dtype), rules::empty({saved}, dtype)};
}

ThreeTensors native_batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                               const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                               double /*momentum*/, double /*eps*/) {
  return batch_norm_forward(input, weight, bias, running_mean, running_var, training);
}

ThreeTensors native_batch_norm_legit(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                     const Tensor& running_mean, const Tensor& running_var, bool training) {
  return batch_norm_forward(input, weight, bias, running_mean, running_var, training);
}

ThreeTensors batch_norm_without_stats(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                      bool training) {
  return batch_norm_forward(input, weight, bias, std::nullopt, std::nullopt, training);
}

ThreeTensors batch_norm_in_evaluation(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                      const Tensor& running_mean, const Tensor& running_var) {
  return batch_norm_forward(input, weight, bias, running_mean, running_var, false);
}

// The size of cuDNN's reserve space (cudnnGetBatchNormalizationTrainingExReserveSpaceSize) is not public. Estimated as
// 0, its size without a fused activation; PyTorch's decomposition assumes the same.
constexpr int64_t kCudnnBatchNormReserve = 0;

FourTensors cudnn_batch_norm_forward(const Tensor& input, const Tensor& weight, bool training) {
  const int64_t saved = training ? input.size(1) : 0;
  return {empty_in_suggested_format(input), rules::empty({saved}, weight), rules::empty({saved}, weight),
          rules::empty({training ? kCudnnBatchNormReserve : 0}, at::kByte)};
}

FourTensors cudnn_batch_norm(const Tensor& input, const Tensor& weight, const OptionalTensor& bias,
                             const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                             double /*exponential_average_factor*/, double /*epsilon*/) {
  return cudnn_batch_norm_forward(input, weight, training);
}

ThreeTensors cudnn_batch_norm_backward(const Tensor& input, const Tensor& grad_output, const Tensor& weight,
                                       const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                       const OptionalTensor& save_mean, const OptionalTensor& save_var,
                                       double /*epsilon*/, const Tensor& reserve) {
  return {empty_in_suggested_format(input), empty_contiguous_like(weight), empty_contiguous_like(weight)};
}

// batch_norm_use_channels_last_kernels (native/cuda/Normalization.cuh)
bool uses_channels_last_kernels(const Tensor& tensor) {
  return tensor.is_contiguous(MemoryFormat::ChannelsLast) || tensor.is_contiguous(MemoryFormat::ChannelsLast3d) ||
         (tensor.is_contiguous() && tensor.stride(1) == 1);
}

ThreeTensors batch_norm_gradients(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& mean,
                                  const OptionalTensor& variance, bool training, std::array<bool, 3> output_mask) {
  ThreeTensors grads;
  if (output_mask[0]) {
    // On CUDA only the training kernel for channels-last input returns a non-contiguous result.
    const bool suggested = !on_cuda() || (training && uses_channels_last_kernels(input));
    std::get<0>(grads) = suggested ? empty_in_suggested_format(input) : empty_contiguous_like(input);
  }
  const ScalarType dtype =
      on_cuda() && given(weight) ? weight->scalar_type() : parameter_dtype(input, {&weight, &mean, &variance});
  if (output_mask[1]) std::get<1>(grads) = rules::empty({input.size(1)}, dtype);
  if (output_mask[2]) std::get<2>(grads) = rules::empty({input.size(1)}, dtype);
  return grads;
}

ThreeTensors native_batch_norm_backward(const Tensor& grad_output, const Tensor& input, const OptionalTensor& weight,
                                        const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                        const OptionalTensor& save_mean, const OptionalTensor& save_invstd,
                                        bool training, double /*eps*/, std::array<bool, 3> output_mask) {
  return batch_norm_gradients(input, weight, training ? save_mean : running_mean, training ? save_invstd : running_var,
                              training, output_mask);
}

// _select_batch_norm_backend (native/Normalization.cpp)
bool uses_cudnn(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training) {
  return on_cuda() && device_profile().cudnn && input.scalar_type() != at::kBFloat16 && given(weight) && given(bias) &&
         (input.scalar_type() != at::kHalf || weight->scalar_type() == at::kFloat) &&
         (training || (given(running_mean) && given(running_var))) && input.dim() >= 3 &&
         input.size(0) <= (training ? 880801 : 65535);
}

FourTensors batch_norm_with_update(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                   const Tensor& running_mean, const Tensor& running_var) {
  if (uses_cudnn(input, weight, bias, running_mean, running_var, true)) {
    return cudnn_batch_norm_forward(input, *weight, true);
  }
  auto [output, mean, invstd] = batch_norm_forward(input, weight, bias, running_mean, running_var, true);
  return {output, mean, invstd, rules::empty({0}, at::kByte)};
}

FourTensors batch_norm_no_update(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                 const OptionalTensor& running_mean, const OptionalTensor& running_var) {
  auto [output, mean, invstd] = batch_norm_forward(input, weight, bias, running_mean, running_var, false);
  return {output, mean, invstd, rules::empty({0}, at::kByte)};
}

ThreeTensors batch_norm_backward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                 const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                 const OptionalTensor& save_mean, const OptionalTensor& save_var, bool update,
                                 double /*eps*/, std::array<bool, 3> output_mask, const Tensor& reserve) {
  if (update && uses_cudnn(input, weight, weight, running_mean, running_var, true)) {
    return {empty_in_suggested_format(input), empty_contiguous_like(weight), empty_contiguous_like(weight)};
  }
  return batch_norm_gradients(input, weight, save_mean, save_var, update, output_mask);
}

// ---- Sync batch norm: parts between which processes exchange statistics (native/cuda/Normalization.cuh)

TwoTensors two_of(int64_t channels, ScalarType dtype) {
  return {rules::empty({channels}, dtype), rules::empty({channels}, dtype)};
}

TwoTensors batch_norm_stats(const Tensor& input) {
  return two_of(input.size(1), accumulate_dtype(input.scalar_type()));
}

TwoTensors batch_norm_update_stats(const Tensor& input, const OptionalTensor& running_mean,
                                   const OptionalTensor& running_var) {
  return two_of(input.size(1), on_cuda() ? accumulate_dtype(input.scalar_type())
                                         : parameter_dtype(input, {&running_mean, &running_var}));
}

// `mean` has one row per process.
TwoTensors batch_norm_gather_stats(const Tensor& mean) {
  return two_of(mean.size(1), accumulate_dtype(mean.scalar_type()));
}

FourTensors batch_norm_backward_reduce(const Tensor& /*grad*/, const Tensor& input, const Tensor& mean,
                                       const Tensor& /*invstd*/, const OptionalTensor& weight, bool of_input,
                                       bool of_weight, bool of_bias) {
  FourTensors sums;
  const Tensor& like_weight = given(weight) ? *weight : mean;
  if (of_input) std::get<0>(sums) = rules::empty_like(mean);
  if (of_input) std::get<1>(sums) = rules::empty_like(mean);
  if (of_weight) std::get<2>(sums) = rules::empty({input.size(1)}, like_weight);
  if (of_bias) std::get<3>(sums) = rules::empty({input.size(1)}, like_weight);
  return sums;
}

Tensor batch_norm_backward_elemt(const Tensor& input) {
  return uses_channels_last_kernels(input) ? empty_in_suggested_format(input) : empty_contiguous_like(input);
}

// Returns the input's sizes with the normalized dimensions set to 1, after eager's checks.
DimVector statistics_sizes(const Tensor& input, IntArrayRef normalized, const OptionalTensor& weight,
                           const OptionalTensor& bias) {
  static const Tensor undefined;
  at::native::_check_layer_norm_inputs(input, normalized, given(weight) ? *weight : undefined,
                                       given(bias) ? *bias : undefined);
  DimVector sizes(input.sizes().begin(), input.sizes().end());
  std::fill(sizes.end() - static_cast<std::ptrdiff_t>(normalized.size()), sizes.end(), 1);
  return sizes;
}

ThreeTensors native_layer_norm(const Tensor& input, IntArrayRef normalized, const OptionalTensor& weight,
                               const OptionalTensor& bias, double /*eps*/) {
  const auto sizes = statistics_sizes(input, normalized, weight, bias);
  const ScalarType dtype = on_cuda() ? accumulate_dtype(input.scalar_type()) : parameter_dtype(input, {&weight, &bias});
  return {empty_contiguous_like(input), rules::empty(sizes, dtype), rules::empty(sizes, dtype)};
}

ThreeTensors native_layer_norm_backward(const Tensor& grad_output, const Tensor& input, IntArrayRef normalized,
                                        const Tensor& mean, const Tensor& rstd, const OptionalTensor& weight,
                                        const OptionalTensor& bias, std::array<bool, 3> output_mask) {
  const ScalarType dtype = given(weight) ? weight->scalar_type() : input.scalar_type();
  return {output_mask[0] ? empty_contiguous_like(input) : Tensor(),
          output_mask[1] ? rules::empty(normalized, dtype) : Tensor(),
          output_mask[2] ? rules::empty(normalized, given(bias) ? bias->scalar_type() : dtype) : Tensor()};
}

TwoTensors fused_rms_norm(const Tensor& input, IntArrayRef normalized, const OptionalTensor& weight) {
  const auto sizes = statistics_sizes(input, normalized, weight, std::nullopt);
  return {empty_contiguous_like(input), rules::empty(sizes, accumulate_dtype(input.scalar_type()))};
}

TwoTensors fused_rms_norm_backward(const Tensor& input, const OptionalTensor& weight, std::array<bool, 2> output_mask) {
  return {output_mask[0] ? empty_contiguous_like(input) : Tensor(),
          output_mask[1] && given(weight) ? empty_contiguous_like(*weight) : Tensor()};
}

// A libtorch without CUDA has no CUDA kernel for _fused_rms_norm and would decompose it. One with CUDA runs its
// derivative formula, which is compiled into both: call that.
TwoTensors fused_rms_norm_as_one_operator(const Tensor& input, IntArrayRef normalized, const OptionalTensor& weight,
                                          std::optional<double> eps) {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_rms_norm", "");
  torch::jit::Stack stack{input, normalized, weight, eps};
  op.callBoxedForDispatchKey(c10::InferenceMode::is_enabled() ? kFakeKey : c10::DispatchKey::Autograd, stack);
  return {std::move(stack[0]).toTensor(), std::move(stack[1]).toTensor()};
}

Tensor group_norm_result(const Tensor& input) {
  return on_cuda() ? empty_contiguous_like(input) : empty_in_suggested_format(input);
}

ThreeTensors native_group_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                               int64_t batch, int64_t channels, int64_t spatial, int64_t groups, double /*eps*/) {
  TORCH_CHECK(groups > 0 && channels % groups == 0, "Expected number of channels in input to be divisible by ",
              "num_groups, but got input of shape ", input.sizes(), " and num_groups=", groups);
  check_per_channel(weight, "weight", channels);
  check_per_channel(bias, "bias", channels);
  TORCH_CHECK(kGroupNormAcceptsAnyLayout ||
                  input.is_contiguous(on_cuda() ? MemoryFormat::Contiguous : input.suggest_memory_format()),
              "Expected X.is_contiguous(memory_format) to be true, but got false.");
  const ScalarType dtype = parameter_dtype(input, {&weight, &bias});
  return {group_norm_result(input), rules::empty({batch, groups}, dtype), rules::empty({batch, groups}, dtype)};
}

ThreeTensors native_group_norm_backward(const Tensor& input, const OptionalTensor& weight, int64_t channels,
                                        std::array<bool, 3> output_mask) {
  const ScalarType dtype = parameter_dtype(input, {&weight});
  return {output_mask[0] ? group_norm_result(input) : Tensor(),
          output_mask[1] ? rules::empty({channels}, dtype) : Tensor(),
          output_mask[2] ? rules::empty({channels}, dtype) : Tensor()};
}

TwoTensors weight_norm_interface(const Tensor& v, const Tensor& g, int64_t dim) {
  TORCH_CHECK(dim == 0 || dim == v.dim() - 1, "fused kernels can only be applied for first or last dim");
  // CUDA stores the norms in the accumulation type (native/cuda/WeightNorm.cu), the CPU bfloat16 ones in float32.
  return {empty_contiguous_like(v), rules::empty(g.sizes(), accumulate_dtype(g.scalar_type()))};
}

// ---- Masked softmax, used by fused attention layers

Tensor masked_softmax(const Tensor& input, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == c10::kBool, "Mask should be a boolean tensor");
  return rules::empty_like(input);
}

}  // namespace

void register_normalization(RuleRegistry& registry) {
  registry.add("aten::native_batch_norm", &native_batch_norm);
  registry.add_partial({"aten::_native_batch_norm_legit"}, &native_batch_norm_legit);
  registry.add_partial({"aten::_native_batch_norm_legit.no_stats"}, &batch_norm_without_stats);
  registry.add_partial({"aten::_native_batch_norm_legit_no_training"}, &batch_norm_in_evaluation);
  registry.add("aten::native_batch_norm_backward", &native_batch_norm_backward);
  registry.add("aten::cudnn_batch_norm", &cudnn_batch_norm);
  registry.add("aten::cudnn_batch_norm_backward", &cudnn_batch_norm_backward);
  registry.add_partial({"aten::_batch_norm_with_update"}, &batch_norm_with_update);
  registry.add_partial({"aten::_batch_norm_no_update"}, &batch_norm_no_update);
  registry.add("aten::batch_norm_backward", &batch_norm_backward);
  registry.add_partial({"aten::batch_norm_stats"}, &batch_norm_stats);
  registry.add_partial({"aten::batch_norm_update_stats"}, &batch_norm_update_stats);
  registry.add_partial({"aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"},
                       &batch_norm_gather_stats, {"mean"});
  registry.add("aten::batch_norm_backward_reduce", &batch_norm_backward_reduce);
  registry.add_partial({"aten::batch_norm_backward_elemt"}, &batch_norm_backward_elemt, {"input"});
  registry.add("aten::native_layer_norm", &native_layer_norm);
  registry.add("aten::native_layer_norm_backward", &native_layer_norm_backward);
  registry.add_partial({"aten::_fused_rms_norm"}, &fused_rms_norm);
  registry.add_partial({"aten::_fused_rms_norm_backward"}, &fused_rms_norm_backward,
                       {"input", "weight", "output_mask"});
  registry.add_composite("aten::_fused_rms_norm", &fused_rms_norm_as_one_operator);
  registry.add_partial({"aten::_masked_softmax"}, &masked_softmax);
  registry.add("aten::native_group_norm", &native_group_norm);
  registry.add_partial({"aten::native_group_norm_backward"}, &native_group_norm_backward,
                       {"input", "weight", "C", "output_mask"});
  registry.add("aten::_weight_norm_interface", &weight_norm_interface);
  add_like(registry, {"aten::batch_norm_elemt"}, {0});
  add_like(registry, {"aten::_masked_softmax_backward"}, {0}, &empty_contiguous_like);
  add_like(registry, {"aten::_weight_norm_interface_backward"}, {1, 2}, &empty_contiguous_like);
}

}  // namespace shadowgraph::rules
