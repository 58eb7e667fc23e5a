// Low precision in dense tensors: fake quantization, products with packed or scaled weights, and jagged batches as
// values and offsets. Tensors of quantized dtypes are not supported.
#include <ATen/ScalarOps.h>
#include <ATen/native/GroupedMMUtils.h>
#include <ATen/native/Resize.h>

#include "core/fake/rules/registry.h"

namespace shadowgraph::rules {
namespace {

// ---- Fake quantization: (output, mask of elements in range)

TwoTensors quantized_and_mask(const Tensor& x) { return {rules::empty_like(x), rules::empty_like(x, c10::kBool)}; }

void check_range(int64_t least, int64_t greatest) {
  TORCH_CHECK(least <= greatest, "`quant_min` should be less than or equal to `quant_max`.");
}

void check_channels(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis) {
  TORCH_CHECK(scale.dim() == 1, "scale should be a 1-D tensor");
  TORCH_CHECK(zero_point.dim() == 1, "zero point should be a 1-D tensor");
  TORCH_CHECK(scale.numel() == zero_point.numel(), "scale and zero-point need to have the same dimensions");
  TORCH_CHECK(scale.numel() == x.size(axis), "dimensions of scale and zero-point are not consistent with input tensor");
}

// aminmax of the zero points requires at least one.
void check_zero_points(const Tensor& zero_point) {
  TORCH_CHECK(zero_point.numel() != 0,
              "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity.");
}

TwoTensors fake_quantize(const Tensor& x, int64_t zero_point, int64_t least, int64_t greatest) {
  check_range(least, greatest);
  TORCH_CHECK(zero_point >= least && zero_point <= greatest,
              "`zero_point` must be between `quant_min` and `quant_max`.");
  return quantized_and_mask(x);
}

TwoTensors fake_quantize_by_tensors(const Tensor& x, int64_t least, int64_t greatest) {
  check_range(least, greatest);
  return quantized_and_mask(x);
}

TwoTensors fake_quantize_channels(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis,
                                  int64_t least, int64_t greatest) {
  check_channels(x, scale, zero_point, axis);
  check_range(least, greatest);
  if (!zero_point.is_floating_point()) check_zero_points(zero_point);
  return quantized_and_mask(x);
}

Tensor learnable(const Tensor& x, int64_t least, int64_t greatest) {
  check_range(least, greatest);
  return rules::empty_like(x);
}

Tensor learnable_channels(const Tensor& x, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t least,
                          int64_t greatest) {
  check_channels(x, scale, zero_point, axis);
  check_range(least, greatest);
  check_zero_points(zero_point);
  return rules::empty_like(x);
}

// Computed and returned in float32, for bfloat16 inputs too.
void check_learnable(const Tensor& grad, const Tensor& x, int64_t least, int64_t greatest) {
  const auto is_float = [](const Tensor& t) {
    return t.scalar_type() == c10::kFloat || t.scalar_type() == c10::kBFloat16;
  };
  TORCH_CHECK(is_float(x) && is_float(grad), "expected scalar type Float but found ", x.scalar_type(), " and ",
              grad.scalar_type());
  TORCH_CHECK(x.numel() == grad.numel(), "`X` and `dY` are not the same size");
  TORCH_CHECK(least <= 0 && greatest >= 0, "Expecting `quant_min` <= 0 and `quant_max` >= 0");
}

ThreeTensors learnable_backward(const Tensor& grad, const Tensor& x, const Tensor& scale, const Tensor& zero_point,
                                int64_t least, int64_t greatest) {
  check_learnable(grad, x, least, greatest);
  if (x.numel() == 0) return {x, scale, zero_point};
  return {rules::empty_like(x, c10::kFloat), rules::empty({1}, c10::kFloat), rules::empty({1}, c10::kFloat)};
}

ThreeTensors learnable_channels_backward(const Tensor& grad, const Tensor& x, const Tensor& scale,
                                         const Tensor& zero_point, int64_t axis, int64_t least, int64_t greatest) {
  check_learnable(grad, x, least, greatest);
  check_channels(x, scale, zero_point, axis);
  check_zero_points(zero_point);
  if (x.numel() == 0) return {x, scale, zero_point};
  return {rules::empty_like(x, c10::kFloat), rules::empty({scale.numel()}, c10::kFloat),
          rules::empty({scale.numel()}, c10::kFloat)};
}

// An observer without statistics is empty, and gets one element per channel.
TwoTensors observe_and_quantize(const Tensor& x, Tensor& running_min, Tensor& running_max, Tensor& scale,
                                Tensor& zero_point, int64_t axis, bool per_channel) {
  TORCH_CHECK(x.scalar_type() == c10::kFloat || on_cuda(), "expected scalar type Float but found ", x.scalar_type());
  if (per_channel && running_min.numel() == 0) {
    for (Tensor* const tensor : {&running_min, &running_max, &scale, &zero_point}) {
      at::native::resize_output(*tensor, {x.size(axis)});
    }
  }
  return quantized_and_mask(x);
}

// A dense tensor is only converted to float.
Tensor dequantize(const Tensor& x) { return x.to(c10::kFloat); }

void check_add_relu(const Tensor& x) {
  TORCH_CHECK((c10::isIntegralType(x.scalar_type(), /*includeBool=*/false) && x.scalar_type() != c10::kByte) ||
                  x.scalar_type() == c10::kFloat || x.scalar_type() == c10::kDouble,
              "Unsupported datatype for add_relu:", x.scalar_type());
}

Tensor add_relu(const Tensor& x, const Tensor& y) {
  check_add_relu(x);
  return elementwise({x, y});
}

Tensor add_relu_scalar(const Tensor& x, const Scalar& y) { return add_relu(x, at::native::wrapped_scalar_tensor(y)); }

Tensor& add_relu_out(const Tensor& x, const Tensor& y, const Scalar& /*alpha*/, Tensor& result) {
  check_add_relu(x);
  return elementwise_into(result, {x, y});
}

void check_matrix(const Tensor& x, const char* name) { TORCH_CHECK(x.dim() == 2, name, " must be a 2D tensor"); }

Tensor product(const Tensor& x, int64_t columns) {
  check_matrix(x, "x");
  return rules::empty({x.size(0), columns}, x);
}

Tensor int4_weight(const Tensor& weight, int64_t inner_tiles) {
  check_matrix(weight, "w");
  return rules::empty({weight.size(0) / 8, weight.size(1) * 2 / (inner_tiles * 16), 32, inner_tiles / 2}, c10::kInt);
}

Tensor int4_weight_for_cpu(const Tensor& weight) {
  check_matrix(weight, "w");
  return rules::empty({weight.size(0), weight.size(1) / 2}, c10::kByte);
}

Tensor int4_product(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 4, "w must be a 4D tensor");
  return product(x, weight.size(0) * 8);
}

Tensor int4_product_for_cpu(const Tensor& x, const Tensor& weight) {
  check_matrix(weight, "w");
  return product(x, weight.size(0));
}

Tensor int8_product(const Tensor& x, const Tensor& weight) {
  check_matrix(weight, "w");
  TORCH_CHECK(weight.size(1) == x.size(-1), "expected weight to have ", x.size(-1), " columns, but got ",
              weight.size(1));
  return product(x, weight.size(0));
}

// Packed as in a libtorch without KleidiAI.
Tensor dynamic_weight(const Tensor& weight, const Tensor& scales, const OptionalTensor& bias) {
  return rules::empty({weight.numel() + scales.numel() + (given(bias) ? bias->numel() : 0)}, c10::kFloat);
}

// CUTLASS's product of a half-precision matrix and an 8- or 4-bit integer matrix. A byte holds two 4-bit columns.
Tensor mixed_linear(const Tensor& x, const Tensor& weight, const Tensor& scale) {
  TORCH_CHECK(weight.dim() == 2 && scale.dim() == 1, "_mixed_dtypes_linear: expected a matrix and a vector of scales");
  DimVector sizes(x.sizes());
  sizes.back() = scale.size(0);
  return rules::empty(sizes, x);
}

Tensor scaled_product(const Tensor& a, const Tensor& b, OptionalDtype dtype) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              a.sizes(), " and ", b.sizes(), ")");
  return rules::empty({a.size(0), b.size(1)}, dtype.value_or(a.scalar_type()));
}

// Rows of one operand, or of both, are in groups that end at `offsets`.
Tensor grouped_product(const Tensor& a, const Tensor& b, const OptionalTensor& offsets, ScalarType dtype) {
  TORCH_CHECK(a.dim() == 2 || a.dim() == 3, "mat_a has to be 2 or 3d");
  TORCH_CHECK(b.dim() == 2 || b.dim() == 3, "mat_b has to be 2 or 3d");
  const bool any_flat = a.dim() == 2 || b.dim() == 2;
  TORCH_CHECK((a.dim() == 2 && b.dim() == 2) || a.size(-1) == b.size(-2),
              "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK(given(offsets) == any_flat,
              "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d");
  TORCH_CHECK(!given(offsets) || (offsets->dim() == 1 && offsets->scalar_type() == c10::kInt),
              "Offsets have to be a vector of int32");
  return at::native::create_grouped_gemm_output_tensor(a, b, offsets, dtype);
}

// One of the last two dimensions is dense, and the other's stride is a multiple of 16 bytes.
void check_aligned(const Tensor& x) {
  const int64_t alignment = 16 / static_cast<int64_t>(x.element_size());
  const auto steps = [&](int64_t dense, int64_t other) {
    return x.stride(dense) == 1 && x.stride(other) >= std::max<int64_t>(1, x.size(dense));
  };
  TORCH_CHECK(steps(-2, -1) || steps(-1, -2), "Invalid strides/sizes, got ", x.strides(), " for strides and ",
              x.sizes(), " for sizes");
  TORCH_CHECK(x.stride(steps(-2, -1) ? -1 : -2) % alignment == 0, "strides should be multiple of 16 bytes");
}

Tensor grouped_mm(const Tensor& a, const Tensor& b, const OptionalTensor& offsets, const OptionalTensor& bias,
                  std::optional<ScalarType> dtype) {
  for (const Tensor* const x : {&a, &b}) {
    const ScalarType type = x->scalar_type();
    TORCH_CHECK(type == c10::kBFloat16 || type == c10::kFloat || type == c10::kHalf,
                "Expected Float32, BFloat16 or Float16 matrices, got ", type);
  }
  TORCH_CHECK(!given(bias), "Bias not supported yet");
  const Tensor result = grouped_product(a, b, offsets, dtype.value_or(a.scalar_type()));
  check_aligned(a);
  check_aligned(b);
  TORCH_CHECK(result.scalar_type() == a.scalar_type(), "Grouped gemm output dtype must match `mat_a` dtype");
  return result;
}

Tensor scaled_grouped_mm(const Tensor& a, const Tensor& b, const OptionalTensor& offsets, OptionalDtype dtype) {
  return grouped_product(a, b, offsets, dtype.value_or(c10::kBFloat16));
}

// ---- Jagged batches: concatenated values and the start of each sample

Tensor jagged_to_padded(const Tensor& values, TensorList offsets, IntArrayRef longest) {
  TORCH_CHECK(offsets.size() == 1 && longest.size() == 1, "only one jagged dim is supported");
  DimVector sizes{offsets[0].size(0) - 1, longest[0]};
  sizes.append(values.sizes().begin() + 1, values.sizes().end());
  return rules::empty(sizes, values);
}

Tensor padded_to_jagged(const Tensor& padded, TensorList offsets, std::optional<int64_t> total) {
  TORCH_CHECK(offsets.size() == 1, "only one jagged dim is supported");
  DimVector sizes{
      total ? *total
            : data_size("aten::_padded_dense_to_jagged_forward", "total", offsets[0], padded.size(0) * padded.size(1))};
  sizes.append(padded.sizes().begin() + 2, padded.sizes().end());
  return rules::empty(sizes, padded);
}

}  // namespace

void register_quantization(RuleRegistry& registry) {
  registry.add_partial({"aten::fake_quantize_per_tensor_affine_cachemask"}, &fake_quantize,
                       {"self", "zero_point", "quant_min", "quant_max"});
  registry.add_partial({"aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"}, &fake_quantize_by_tensors,
                       {"self", "quant_min", "quant_max"});
  registry.add("aten::fake_quantize_per_channel_affine_cachemask", &fake_quantize_channels);
  registry.add_partial({"aten::_fake_quantize_learnable_per_tensor_affine"}, &learnable,
                       {"self", "quant_min", "quant_max"});
  registry.add_partial({"aten::_fake_quantize_learnable_per_tensor_affine_backward"}, &learnable_backward);
  registry.add_partial({"aten::_fake_quantize_learnable_per_channel_affine"}, &learnable_channels);
  registry.add_partial({"aten::_fake_quantize_learnable_per_channel_affine_backward"}, &learnable_channels_backward);
  registry.add_partial({"aten::_fused_moving_avg_obs_fq_helper"}, &observe_and_quantize,
                       {"self", "running_min", "running_max", "scale", "zero_point", "ch_axis", "per_row_fake_quant"});
  registry.add("aten::dequantize.self", &dequantize);
  registry.add_partial({"aten::_add_relu.Tensor"}, &add_relu);
  registry.add_partial({"aten::_add_relu.Scalar"}, &add_relu_scalar);
  registry.add("aten::_add_relu.out", &add_relu_out);
  registry.add("aten::_convert_weight_to_int4pack", &int4_weight);
  registry.add_partial({"aten::_convert_weight_to_int4pack_for_cpu"}, &int4_weight_for_cpu);
  registry.add_partial({"aten::_weight_int4pack_mm"}, &int4_product);
  registry.add_partial({"aten::_weight_int4pack_mm_for_cpu", "aten::_weight_int4pack_mm_with_scales_and_zeros"},
                       &int4_product_for_cpu);
  registry.add_partial({"aten::_weight_int8pack_mm"}, &int8_product);
  registry.add_partial({"aten::_dyn_quant_pack_4bit_weight"}, &dynamic_weight);
  registry.add_partial({"aten::_dyn_quant_matmul_4bit"}, &product, {"inp", "out_features"});
  registry.add_partial({"aten::_mixed_dtypes_linear"}, &mixed_linear);
  registry.add_partial({"aten::_scaled_mm_v2"}, &scaled_product, {"self", "mat2", "out_dtype"});
  registry.add("aten::_grouped_mm", &grouped_mm);
  registry.add_partial({"aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2"}, &scaled_grouped_mm,
                       {"self", "mat2", "offs", "out_dtype"});
  registry.add_partial({"aten::_jagged_to_padded_dense_forward"}, &jagged_to_padded);
  registry.add("aten::_padded_dense_to_jagged_forward", &padded_to_jagged);
}

}  // namespace shadowgraph::rules
