// Losses. A reduced loss is 0-dimensional; gradients have the input's metadata.
#include <ATen/core/Reduction.h>
#include <ATen/native/Resize.h>

#include "core/fake/rules/registry.h"
#include "shadowgraph/error.h"

namespace shadowgraph::rules {
namespace {

constexpr Elementwise kOneDtype{.promote = false};

Tensor reduced(const Tensor& loss, int64_t reduction) {
  return reduction == at::Reduction::None ? loss : rules::empty({}, loss);
}

// zeros_like(input, contiguous), then written by a TensorIterator over all three.
Tensor pointwise_gradient(const Tensor& grad, const Tensor& input, const Tensor& target) {
  Tensor result = rules::empty(input.sizes(), input);
  return elementwise_into(result, {input, target, grad});
}

Tensor huber_loss(const Tensor& input, const Tensor& target, int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
  return reduced(elementwise({input, target}), reduction);
}

Tensor binary_cross_entropy(const Tensor& input, int64_t reduction) {
  // The kernels resize the unreduced loss.
  if (reduction == at::Reduction::None) return rules::empty_like(input);
  return empty_resized(input.sizes(), {}, input.scalar_type());
}

// The kernels write through a view without dimensions of size 1. If the view has to be resized, the output itself keeps
// its sizes, which later steps use.
Tensor& binary_cross_entropy_out(const Tensor& input, const Tensor& target, const OptionalTensor& weight,
                                 int64_t reduction, Tensor& loss) {
  Tensor squeezed = loss.squeeze();
  const Tensor x = input.squeeze();
  const Tensor y = target.squeeze();
  elementwise_into(squeezed, {x, y}, kOneDtype);
  if (given(weight)) loss.mul_(*weight);
  if (reduction != at::Reduction::None) at::native::resize_output(loss, {});
  return loss;
}

Tensor& binary_cross_entropy_backward_out(const Tensor& grad, const Tensor& input, const Tensor& target,
                                          const OptionalTensor& weight, int64_t /*reduction*/, Tensor& result) {
  Tensor squeezed = result.squeeze();
  const Tensor dy = grad.squeeze();
  const Tensor x = input.squeeze();
  const Tensor y = target.squeeze();
  elementwise_into(squeezed, {dy, x, y}, kOneDtype);
  if (given(weight)) result.mul_(*weight);
  return result;
}

void check_nll_loss2d(const Tensor& input, const Tensor& target, const OptionalTensor& weight) {
  TORCH_CHECK(target.dim() == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of dimension: ", target.dim());
  TORCH_CHECK(input.dim() == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of dimension: ", input.dim());
  TORCH_CHECK(!given(weight) || weight->numel() == input.size(1),
              "weight tensor should be defined either for all or no classes");
  TORCH_CHECK(input.size(0) == target.size(0) && input.size(2) == target.size(1) && input.size(3) == target.size(2),
              "input and target batch or spatial sizes don't match: target ", target.sizes(), ", input ",
              input.sizes());
}

TwoTensors nll_loss2d_forward(const Tensor& input, const Tensor& target, const OptionalTensor& weight,
                              int64_t reduction) {
  check_nll_loss2d(input, target, weight);
  return {reduced(rules::empty(target.sizes(), input), reduction), rules::empty({}, input)};
}

Tensor nll_loss2d_backward(const Tensor& input, const Tensor& target, const OptionalTensor& weight) {
  check_nll_loss2d(input, target, weight);
  Tensor result = rules::empty_like(input);
  TORCH_CHECK(result.is_contiguous(), "grad_input must be contiguous");  // eager checks its own result
  return result;
}

DimVector per_sample(const Tensor& input) { return input.dim() < 2 ? DimVector{} : DimVector{input.size(0)}; }

void check_margin_input(const Tensor& input) {
  TORCH_CHECK((input.dim() == 2 && input.size(1) != 0) || (input.dim() == 1 && input.size(0) != 0) || input.dim() == 0,
              "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ", input.sizes());
}

Tensor multi_margin_loss(const Tensor& input, const Tensor& target, const Scalar& p, const Scalar& /*margin*/,
                         const OptionalTensor& weight, int64_t reduction) {
  TORCH_CHECK(p.toLong() == 1 || p.toLong() == 2, "only p == 1 and p == 2 supported");
  check_margin_input(input);
  const int64_t samples = input.dim() < 2 ? 1 : input.size(0);
  TORCH_CHECK(target.dim() <= 1 && target.numel() == samples,
              "multi_margin_loss: target tensor should be 1-D with size equal to the number of input samples (batch "
              "size). Expected target size [",
              samples, "], but got ", target.sizes(), ". Input has shape ", input.sizes(), ".");
  const int64_t classes = input.dim() == 0 ? 1 : input.size(-1);
  TORCH_CHECK(!given(weight) || (weight->dim() <= 1 && weight->numel() == classes),
              "inconsistent weight size, expected ", classes, " but got ",
              given(weight) ? weight->sizes() : input.sizes());
  TORCH_CHECK(target.scalar_type() == c10::kLong, "expected scalar type Long but found ", target.scalar_type());
  return reduced(rules::empty(target.sizes(), input), reduction);
}

// The CPU's kernels write the output row by row.
Tensor& multi_margin_loss_backward_out(const Tensor& input, Tensor& result) {
  at::native::resize_output(result, input.sizes());
  TORCH_CHECK(on_cuda() || result.is_contiguous(), "grad_input must be contiguous");
  return result;
}

TwoTensors multilabel_margin_loss_forward(const Tensor& input, const Tensor& target, int64_t reduction) {
  check_margin_input(input);
  TORCH_CHECK(input.dim() < 2 ? target.dim() <= 1 && target.numel() == input.numel() : target.sizes() == input.sizes(),
              "inconsistent target size: ", target.sizes(), " for input of size: ", input.sizes());
  return {reduced(rules::empty(per_sample(input), input), reduction), rules::empty(target.sizes(), input)};
}

std::tuple<Tensor&, Tensor&> multilabel_margin_loss_forward_out(const Tensor& input, const Tensor& target,
                                                                int64_t reduction, Tensor& output, Tensor& is_target) {
  const TwoTensors results = rules::multilabel_margin_loss_forward(input, target, reduction);
  at::native::resize_output(output, std::get<0>(results).sizes());
  at::native::resize_output(is_target, target.sizes());
  TORCH_CHECK(on_cuda() || is_target.is_contiguous(), "is_target must be contiguous");
  return {output, is_target};
}

// ---- Connectionist temporal classification (CTC); the forward has a Meta kernel

TwoTensors cudnn_ctc_loss(const Tensor& log_probabilities) {
  return {rules::empty({log_probabilities.size(1)}, log_probabilities), empty_contiguous_like(log_probabilities)};
}

// With lengths in tensors, cuDNN's selection depends on their values.
bool use_cudnn_ctc_loss_of_tensors(const Tensor& log_probabilities, const Tensor& targets, const Tensor& input_lengths,
                                   const Tensor& target_lengths, int64_t blank) {
  const bool suits = on_cuda() && device_profile().cudnn && blank == 0 && targets.dim() == 1 &&
                     targets.is_contiguous() && log_probabilities.dim() == 3 &&
                     log_probabilities.scalar_type() == c10::kFloat && targets.scalar_type() == c10::kInt &&
                     input_lengths.scalar_type() == c10::kInt && target_lengths.scalar_type() == c10::kInt;
  if (!suits) return false;
  throw DataDependentError(
      "aten::_use_cudnn_ctc_loss.Tensor depends on the values of the length tensors; pass the lengths as lists of "
      "numbers");
}

// cuDNN and MIOpen require int32 targets on the CPU with probabilities on the GPU, which is not simulated.
bool use_library_ctc_loss() { return false; }

}  // namespace

void register_loss(RuleRegistry& registry) {
  registry.add("aten::huber_loss", &huber_loss);
  registry.add_partial({"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward"},
                       &pointwise_gradient);
  registry.add_partial({"aten::binary_cross_entropy"}, &binary_cross_entropy, {"self", "reduction"});
  registry.add("aten::binary_cross_entropy.out", &binary_cross_entropy_out);
  registry.add("aten::binary_cross_entropy_backward.grad_input", &binary_cross_entropy_backward_out);
  registry.add_partial({"aten::nll_loss2d_forward"}, &nll_loss2d_forward);
  registry.add_partial({"aten::nll_loss2d_backward"}, &nll_loss2d_backward, {"self", "target", "weight"});
  registry.add("aten::multi_margin_loss", &multi_margin_loss);
  registry.add_partial({"aten::multi_margin_loss_backward.grad_input"}, &multi_margin_loss_backward_out,
                       {"self", "grad_input"});
  registry.add("aten::multilabel_margin_loss_forward", &multilabel_margin_loss_forward);
  registry.add("aten::multilabel_margin_loss_forward.output", &multilabel_margin_loss_forward_out);
  registry.add_partial({"aten::_use_cudnn_ctc_loss", "aten::_use_miopen_ctc_loss", "aten::_use_miopen_ctc_loss.Tensor"},
                       &use_library_ctc_loss);
  registry.add_partial({"aten::_cudnn_ctc_loss", "aten::_cudnn_ctc_loss.Tensor"}, &cudnn_ctc_loss);
  registry.add("aten::_use_cudnn_ctc_loss.Tensor", &use_cudnn_ctc_loss_of_tensors);
  add_like(registry, {"aten::binary_cross_entropy_backward"}, {1});
  add_like(registry,
           {"aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward", "aten::_ctc_loss_backward",
            "aten::_ctc_loss_backward.Tensor"},
           {1}, &empty_contiguous_like);
}

}  // namespace shadowgraph::rules
