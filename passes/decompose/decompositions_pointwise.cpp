// Decomposes activations, softmax, views and other pointwise functions.
//
// Each function computes the operator's formula in the kernel's order, so results differ only by rounding.
// tests/passes/decompose_test.cpp compares each with its operator. Other cases are declined.
#include <ATen/Functions.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "passes/decompose/decompositions.h"

namespace shadowgraph::decompositions {

using at::Scalar;
using at::Tensor;

// Kernels compute half types in float and round once. The decomposition runs in float, or each step would round.
Tensor computed_in(const Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}

namespace {

// Rounds to the dtype of x once, as the kernel does.
Tensor like(const Tensor& result, const Tensor& x) {
  return result.scalar_type() == x.scalar_type() ? result : result.to(x.scalar_type());
}
void check_real(const Tensor& x) {
  if (x.is_complex()) decline("it is complex");
}

// self + value * a * b, and the same with a / b. A value of 1 adds no product.
Tensor addcmul(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
  return at::add(self, scaled(at::mul(a, b), value));
}
Tensor addcdiv(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
  return at::add(self, scaled(at::div(a, b), value));
}
Tensor& addcmul_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
  return self.add_(scaled(at::mul(a, b), value));
}
Tensor& addcdiv_(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
  return self.add_(scaled(at::div(a, b), value));
}
// Interpolates from the nearer end, as the kernel does.
Tensor lerp_scalar(const Tensor& self, const Tensor& end, const Scalar& weight) {
  if (self.is_complex() || weight.isComplex()) decline("it is complex");
  const double w = weight.to<double>();
  const Tensor difference = at::sub(end, self);
  return std::abs(w) < 0.5 ? at::add(self, at::mul(difference, w)) : at::sub(end, at::mul(difference, 1 - w));
}
Tensor lerp_tensor(const Tensor& self, const Tensor& end, const Tensor& weight) {
  check_real(weight);
  const Tensor difference = at::sub(end, self);
  return at::where(at::lt(at::abs(weight), 0.5), at::add(self, at::mul(weight, difference)),
                   at::sub(end, at::mul(difference, at::add(at::neg(weight), 1))));
}
Tensor& lerp_scalar_(Tensor& self, const Tensor& end, const Scalar& weight) {
  return self.copy_(lerp_scalar(self, end, weight));
}
Tensor& lerp_tensor_(Tensor& self, const Tensor& end, const Tensor& weight) {
  return self.copy_(lerp_tensor(self, end, weight));
}
// other - alpha * self.
Tensor rsub_scalar(const Tensor& self, const Scalar& other, const Scalar& alpha) {
  return at::add(at::neg(scaled(self, alpha)), other);
}
Tensor rsub_tensor(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  return at::sub(other, scaled(self, alpha));
}
Tensor masked_fill_scalar(const Tensor& self, const Tensor& mask, const Scalar& value) {
  return like(at::where(mask, value, self), self);  // bitwise
}

// (1 + erf(x / sqrt 2)) / 2, the cumulative distribution function of the standard normal distribution.
Tensor normal_cdf(const Tensor& x) { return at::mul(at::add(at::erf(at::mul(x, M_SQRT1_2)), 1), 0.5); }

// x cdf(x); or x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), where M_SQRT2 * M_2_SQRTPI / 2 is sqrt(2 / pi).
Tensor gelu(const Tensor& self, std::string_view approximate) {
  const Tensor x = computed_in(self);
  if (approximate != "tanh") return like(at::mul(x, normal_cdf(x)), self);
  const Tensor inner = at::mul(at::add(x, at::mul(at::mul(at::mul(x, x), x), 0.044715)), M_SQRT2 * M_2_SQRTPI * 0.5);
  return like(at::mul(at::mul(x, 0.5), at::add(at::tanh(inner), 1)), self);
}
Tensor gelu_backward(const Tensor& grad, const Tensor& self, std::string_view approximate) {
  const Tensor x = computed_in(self);
  const Tensor g = computed_in(grad);
  if (approximate != "tanh") {
    // The derivative of x * cdf(x) is cdf(x) + x * density(x).
    const Tensor density = at::mul(at::exp(at::mul(at::mul(x, x), -0.5)), M_2_SQRTPI * M_SQRT1_2 * 0.5);
    return like(at::mul(g, at::add(normal_cdf(x), at::mul(x, density))), grad);
  }
  // gelu is x/2 (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3): a product of two factors.
  constexpr double kBeta = M_SQRT2 * M_2_SQRTPI * 0.5;
  const Tensor square = at::mul(x, x);
  const Tensor t = at::tanh(at::mul(at::add(x, at::mul(at::mul(square, x), 0.044715)), kBeta));
  const Tensor left = at::mul(at::add(t, 1), 0.5);
  const Tensor inner = at::mul(at::add(at::mul(square, 3 * 0.044715), 1), kBeta);
  const Tensor right = at::mul(at::mul(at::mul(x, 0.5), at::add(at::neg(at::mul(t, t)), 1)), inner);
  return like(at::mul(g, at::add(left, right)), grad);
}
// x / (1 + e^-x).
Tensor silu_parts(const Tensor& self) {
  check_real(self);
  const Tensor x = computed_in(self);
  return like(at::div(x, at::add(at::exp(at::neg(x)), 1)), self);
}
Tensor& silu_(Tensor& self) { return self.copy_(silu_parts(self)); }
// With s = sigmoid(x), the derivative of x s is s (1 + x (1 - s)).
Tensor silu_backward(const Tensor& grad, const Tensor& self) {
  check_real(self);
  const Tensor x = computed_in(self);
  const Tensor s = at::sigmoid(x);
  const Tensor slope = at::mul(s, at::add(at::mul(x, at::add(at::neg(s), 1)), 1));
  return like(at::mul(computed_in(grad), slope), grad);
}
// Autograd saves the result y: sigmoid's derivative is (1 - y) y, tanh's is 1 - y^2.
Tensor sigmoid_backward(const Tensor& grad, const Tensor& output) {
  check_real(output);
  const Tensor y = computed_in(output);
  return like(at::mul(computed_in(grad), at::mul(at::add(at::neg(y), 1), y)), grad);
}
Tensor tanh_backward(const Tensor& grad, const Tensor& output) {
  check_real(output);
  const Tensor y = computed_in(output);
  return like(at::mul(computed_in(grad), at::add(at::neg(at::mul(y, y)), 1)), grad);
}
// Bitwise.
Tensor threshold_backward(const Tensor& grad, const Tensor& self, const Scalar& threshold) {
  return at::where(at::le(self, threshold), Scalar(0), grad);
}
Tensor hardtanh(const Tensor& self, const Scalar& low, const Scalar& high) { return at::clamp(self, low, high); }
Tensor hardtanh_backward(const Tensor& grad, const Tensor& self, const Scalar& low, const Scalar& high) {
  return at::where(at::logical_or(at::le(self, low), at::ge(self, high)), Scalar(0), grad);
}
Tensor leaky_relu(const Tensor& self, const Scalar& slope) {
  return at::where(at::gt(self, 0), self, at::mul(self, slope));
}
// `self` may be the result instead: it has the same sign, since slopes are positive in that case.
Tensor leaky_relu_backward(const Tensor& grad, const Tensor& self, const Scalar& slope, bool /*self_is_result*/) {
  return at::where(at::gt(self, 0), grad, at::mul(grad, slope));
}
// scale x above 0, and scale alpha (e^(input_scale x) - 1) below. expm1 is accurate for small x.
Tensor elu(const Tensor& self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  const Tensor x = computed_in(self);
  const Tensor below = at::mul(at::expm1(scaled(x, input_scale)), alpha.to<double>() * scale.to<double>());
  return like(at::where(at::gt(x, 0), scaled(x, scale), below), self);
}
// log(1 + e^(beta x)) / beta.
Tensor softplus(const Tensor& self, const Scalar& beta, const Scalar& threshold) {
  const Tensor x = computed_in(self);
  // Above the threshold softplus is nearly x, and exp could overflow.
  const Tensor z = scaled(x, beta);
  return like(at::where(at::gt(z, threshold), x, at::div(at::log1p(at::exp(z)), beta)), self);
}
Tensor hardsigmoid(const Tensor& self) {
  const Tensor x = computed_in(self);
  return like(at::div(at::clamp(at::add(x, 3), 0, 6), 6), self);
}
Tensor hardswish(const Tensor& self) {
  const Tensor x = computed_in(self);
  return like(at::div(at::mul(x, at::clamp(at::add(x, 3), 0, 6)), 6), self);
}
// x tanh(log(1 + e^x)).
Tensor mish(const Tensor& self) {
  const Tensor x = computed_in(self);
  return like(at::mul(x, at::tanh(at::log1p(at::exp(x)))), self);
}
Tensor native_dropout_backward(const Tensor& grad, const Tensor& mask, double scale) {
  return at::mul(grad, at::mul(mask.to(grad.scalar_type()), scale));
}

// Subtracts the maximum, so that exp cannot overflow; softmax is invariant to it.
Tensor shifted(const Tensor& self, int64_t dim) {
  if (self.numel() == 0) decline("it has no elements");
  const Tensor x = computed_in(self);
  return at::sub(x, at::amax(x, {dim}, /*keepdim=*/true));
}
Tensor softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  const Tensor e = at::exp(shifted(self, dim));
  const Tensor result = at::div(e, at::sum(e, {dim}, /*keepdim=*/true));
  return half_to_float ? result : like(result, self);
}
Tensor log_softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  const Tensor x = shifted(self, dim);
  const Tensor result = at::sub(x, at::log(at::sum(at::exp(x), {dim}, /*keepdim=*/true)));
  return half_to_float ? result : like(result, self);
}
// y (g - sum(g y)), with the result y of forward, so e^x is not needed.
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType input_dtype) {
  const Tensor y = computed_in(output);
  const Tensor weighted = at::mul(computed_in(grad), y);
  const Tensor result = at::sub(weighted, at::mul(y, at::sum(weighted, {dim}, /*keepdim=*/true)));
  return result.scalar_type() == input_dtype ? result : result.to(input_dtype);
}
// g - softmax sum(g), where softmax is exp of forward's result.
Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType input_dtype) {
  const Tensor g = computed_in(grad);
  const Tensor result = at::sub(g, at::mul(at::exp(computed_in(output)), at::sum(g, {dim}, /*keepdim=*/true)));
  return result.scalar_type() == input_dtype ? result : result.to(input_dtype);
}
// Fully masked rows are zero.
Tensor safe_softmax(const Tensor& self, int64_t dim, std::optional<at::ScalarType> dtype) {
  const Tensor x = dtype ? self.to(*dtype) : self;
  const Tensor masked = at::all(at::eq(x, -std::numeric_limits<double>::infinity()), dim, /*keepdim=*/true);
  return at::where(masked, Scalar(0), softmax(x, dim, false));
}

// Views and factories; all bitwise.
Tensor t(const Tensor& self) {
  if (self.dim() < 2) decline("it has fewer than two dimensions");
  return at::permute(self, {1, 0});
}
Tensor transpose(const Tensor& self, int64_t a, int64_t b) {
  if (self.dim() == 0) decline("it has no dimensions");
  std::vector<int64_t> order(static_cast<size_t>(self.dim()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  // A transpose is a permutation, so later passes handle one kind of view less.
  std::swap(order[static_cast<size_t>(c10::maybe_wrap_dim(a, self.dim()))],
            order[static_cast<size_t>(c10::maybe_wrap_dim(b, self.dim()))]);
  return at::permute(self, order);
}
std::vector<Tensor> unbind(const Tensor& self, int64_t dim) {
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < self.size(dim); ++i) parts.push_back(at::select(self, dim, i));
  return parts;
}
std::vector<Tensor> split(const Tensor& self, int64_t size, int64_t dim) {
  std::vector<Tensor> parts;
  const int64_t total = self.size(dim);
  if (size == 0) decline("its parts are empty");
  // An empty dimension still yields one (empty) part.
  for (int64_t i = 0; i < std::max<int64_t>(total, 1); i += size) {
    parts.push_back(at::slice(self, dim, i, std::min(i + size, total)));
  }
  return parts;
}
std::vector<Tensor> split_with_sizes(const Tensor& self, c10::IntArrayRef sizes, int64_t dim) {
  std::vector<Tensor> parts;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    parts.push_back(at::slice(self, dim, start, start + size));
    start += size;
  }
  return parts;
}
Tensor stack(at::TensorList tensors, int64_t dim) {
  std::vector<Tensor> unsqueezed;
  for (const Tensor& tensor : tensors) unsqueezed.push_back(tensor.unsqueeze(dim));
  return at::cat(unsqueezed, dim);
}
// The gradient of a view is zero outside the selected part.
Tensor slice_backward(const Tensor& grad, c10::IntArrayRef sizes, int64_t dim, int64_t start, int64_t end,
                      int64_t step) {
  return at::slice_scatter(at::full(sizes, 0, grad.options()), grad, dim, start, end, step);
}
Tensor select_backward(const Tensor& grad, c10::IntArrayRef sizes, int64_t dim, int64_t index) {
  return at::select_scatter(at::full(sizes, 0, grad.options()), grad, dim, index);
}

}  // namespace

void add_pointwise(ExpansionTable& table) {
  table.add("aten::addcmul", &addcmul);
  table.add("aten::addcdiv", &addcdiv);
  table.add("aten::addcmul_", &addcmul_);
  table.add("aten::addcdiv_", &addcdiv_);
  table.add("aten::lerp.Scalar", &lerp_scalar);
  table.add("aten::lerp.Tensor", &lerp_tensor);
  table.add("aten::lerp_.Scalar", &lerp_scalar_);
  table.add("aten::lerp_.Tensor", &lerp_tensor_);
  table.add("aten::rsub.Scalar", &rsub_scalar);
  table.add("aten::rsub.Tensor", &rsub_tensor);
  table.add("aten::masked_fill.Scalar", &masked_fill_scalar);
  table.add("aten::gelu", &gelu);
  table.add("aten::gelu_backward", &gelu_backward);
  table.add("aten::silu", &silu_parts);
  table.add("aten::silu_", &silu_);
  table.add("aten::silu_backward", &silu_backward);
  table.add("aten::sigmoid_backward", &sigmoid_backward);
  table.add("aten::tanh_backward", &tanh_backward);
  table.add("aten::threshold_backward", &threshold_backward);
  table.add("aten::hardtanh", &hardtanh);
  table.add("aten::hardtanh_backward", &hardtanh_backward);
  table.add("aten::leaky_relu", &leaky_relu);
  table.add("aten::leaky_relu_backward", &leaky_relu_backward);
  table.add("aten::elu", &elu);
  table.add("aten::softplus", &softplus);
  table.add("aten::hardsigmoid", &hardsigmoid);
  table.add("aten::hardswish", &hardswish);
  table.add("aten::mish", &mish);
  table.add("aten::native_dropout_backward", &native_dropout_backward);
}

void add_softmax(ExpansionTable& table) {
  table.add("aten::_softmax", &softmax);
  table.add("aten::_log_softmax", &log_softmax);
  table.add("aten::_softmax_backward_data", &softmax_backward);
  table.add("aten::_log_softmax_backward_data", &log_softmax_backward);
  table.add("aten::_safe_softmax", &safe_softmax);
}

void add_views(ExpansionTable& table) {
  table.add("aten::t", &t);
  table.add("aten::transpose.int", &transpose);
  table.add("aten::unbind.int", &unbind);
  table.add("aten::split.Tensor", &split);
  table.add("aten::split_with_sizes", &split_with_sizes);
  table.add("aten::stack", &stack);
  table.add("aten::slice_backward", &slice_backward);
  table.add("aten::select_backward", &select_backward);
}

}  // namespace shadowgraph::decompositions
