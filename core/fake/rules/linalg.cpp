// Linear algebra without structured kernels, and Fourier transforms. LAPACK works in place on column-major matrices, so
// most results are column-major, as are empty results of out= forms.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/LinearAlgebraUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/linalg_lu_solve_ops.h>
#include <ATen/ops/triangular_solve_ops.h>

#include <algorithm>

#include "core/fake/rules/registry.h"

namespace shadowgraph::rules {
namespace {

Tensor column_major(IntArrayRef sizes, ScalarType dtype) {
  return rules::empty_strided(sizes, at::native::batched_matrix_contiguous_strides(sizes, /*f_contig=*/true), dtype);
}

Tensor column_major_like(const Tensor& x) { return column_major(x.sizes(), x.scalar_type()); }

// Implements an out= form: takes `result`'s sizes, and its strides if resized.
void write_into(Tensor& out, const Tensor& result) {
  TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "result type ", result.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  if (at::native::resize_output(out, result.sizes())) out.as_strided_(result.sizes(), result.strides());
}

template <auto rule>
struct Out;
template <class... Args, Tensor (*rule)(Args...)>
struct Out<rule> {
  static Tensor& run(Args... args, Tensor& out) {
    write_into(out, rule(args...));
    return out;
  }
};
template <class... Args, TwoTensors (*rule)(Args...)>
struct Out<rule> {
  static std::tuple<Tensor&, Tensor&> run(Args... args, Tensor& first, Tensor& second) {
    const TwoTensors results = rule(args...);
    write_into(first, std::get<0>(results));
    write_into(second, std::get<1>(results));
    return {first, second};
  }
};

Tensor solve_triangular(const Tensor& a, const Tensor& b, bool /*upper*/, bool left, bool /*unitriangular*/) {
  at::native::checkInputsSolver(a, b, left, "linalg.solve_triangular");
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "linalg.solve_triangular: Expected A and B to have the same dtype, ",
              "but found A of type ", a.scalar_type(), " and B of type ", b.scalar_type(), " instead");
  const auto [b_sizes, a_sizes] = at::native::_linalg_broadcast_batch_dims(b, a);
  const Tensor broadcast = a.expand(a_sizes);
  // This case needs no copy of A and solves the transposed problem.
  if (broadcast.transpose(-2, -1).is_contiguous() && broadcast.is_conj()) return rules::empty(b_sizes, a);
  return column_major(b_sizes, a.scalar_type());
}

// The CPU kernel resets the strides of results without elements to column-major.
std::tuple<Tensor&, Tensor&> triangular_solve_out(const Tensor& b, const Tensor& a, bool upper, bool transpose,
                                                  bool unitriangular, Tensor& solution, Tensor& copied) {
  OnMeta<at::_ops::triangular_solve_X>::call(b, a, upper, transpose, unitriangular, solution, copied);
  for (Tensor* const result : {&solution, &copied}) {
    if (result->numel() != 0) continue;
    auto strides = c10::contiguous_strides(result->mT().sizes());
    std::swap(strides[strides.size() - 2], strides[strides.size() - 1]);
    result->as_strided_(result->sizes(), strides);
  }
  return {solution, copied};
}

// X A = B is solved as A^H X^H = B^H, and the result is its conjugate view.
void conjugate_if_right(const Tensor& result, bool left) {
  if (!left && result.is_complex() && result.numel() != 0) result._set_conj(!result.is_conj());
}

Tensor lu_solve(const Tensor& lu, const Tensor& pivots, const Tensor& b, bool left, bool adjoint) {
  Tensor result = OnMeta<at::_ops::linalg_lu_solve>::call(lu, pivots, b, left, adjoint);
  conjugate_if_right(result, left);
  return result;
}

Tensor& lu_solve_out(const Tensor& lu, const Tensor& pivots, const Tensor& b, bool left, bool adjoint, Tensor& out) {
  OnMeta<at::_ops::linalg_lu_solve_out>::call(lu, pivots, b, left, adjoint, out);
  conjugate_if_right(out, left);
  return out;
}

Tensor cholesky(const Tensor& x) {
  at::native::squareCheckInputs(x, "cholesky");
  return x.numel() == 0 ? rules::empty_contiguous_like(x) : column_major_like(x);
}

Tensor cholesky_inverse(const Tensor& x, bool /*upper*/) {
  at::native::squareCheckInputs(x, "cholesky_inverse");
  return column_major_like(x);
}

// A nonempty output that is resized becomes contiguous.
Tensor& cholesky_inverse_out(const Tensor& x, bool upper, Tensor& out) {
  if (out.numel() != 0) at::native::resize_output(out, x.sizes());
  return Out<&cholesky_inverse>::run(x, upper, out);
}

DimVector reflectors(const Tensor& x) {
  DimVector sizes(x.sizes().slice(0, static_cast<size_t>(x.dim()) - 2));
  sizes.push_back(std::min(x.size(-2), x.size(-1)));
  return sizes;
}

TwoTensors geqrf(const Tensor& x) {
  TORCH_CHECK(x.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  return {column_major_like(x), rules::empty(reflectors(x), x)};
}

void check_reflectors(const char* name, const Tensor& x, const Tensor& tau) {
  TORCH_CHECK(x.dim() >= 2, name, ": input must have at least 2 dimensions.");
  TORCH_CHECK(x.dim() - tau.dim() == 1, name, ": Expected tau to have one dimension less than input, ",
              "but got tau.ndim equal to ", tau.dim(), " and input.ndim is equal to ", x.dim());
  TORCH_CHECK(tau.size(-1) <= x.size(-1), name, ": input.shape[-1] must be greater than or equal to tau.shape[-1]");
  const auto batch = x.sizes().slice(0, static_cast<size_t>(x.dim()) - 2);
  TORCH_CHECK(tau.sizes().slice(0, static_cast<size_t>(tau.dim()) - 1) == batch, name,
              ": Expected batch dimensions of tau to be equal to input.shape[:-2], but got ", tau.sizes());
  TORCH_CHECK(tau.scalar_type() == x.scalar_type(), name, ": tau dtype ", tau.scalar_type(),
              " does not match input dtype ", x.scalar_type());
}

Tensor householder_product(const Tensor& x, const Tensor& tau) {
  TORCH_CHECK(x.dim() < 2 || x.size(-2) >= x.size(-1),
              "torch.linalg.householder_product: input.shape[-2] must be greater than or equal to input.shape[-1]");
  check_reflectors("torch.linalg.householder_product", x, tau);
  return column_major_like(x);
}

Tensor ormqr(const Tensor& x, const Tensor& tau, const Tensor& other, bool left, bool /*transpose*/) {
  check_reflectors("torch.ormqr", x, tau);
  TORCH_CHECK(other.dim() == x.dim(), "torch.ormqr: Expected other to have the same number of dimensions as input, ",
              "but got other.ndim equal to ", other.dim(), " and input.ndim is equal to ", x.dim());
  TORCH_CHECK(other.size(left ? -2 : -1) == x.size(-2), "torch.ormqr: other.shape[", left ? -2 : -1,
              "] must be equal to input.shape[-2]");
  const size_t batch = static_cast<size_t>(x.dim()) - 2;
  TORCH_CHECK(other.sizes().slice(0, batch) == x.sizes().slice(0, batch),
              "torch.ormqr: Expected batch dimensions of other to be equal to input.shape[:-2], but got ",
              other.sizes());
  TORCH_CHECK(other.scalar_type() == x.scalar_type(), "torch.ormqr: other dtype ", other.scalar_type(),
              " does not match input dtype ", x.scalar_type());
  return column_major_like(other);
}

ScalarType complex_type(const Tensor& x) { return c10::toComplexType(x.scalar_type()); }

Tensor eigenvalues(const Tensor& x) {
  at::native::squareCheckInputs(x, "linalg.eig");
  at::native::checkFloatingOrComplex(x, "linalg.eig");
  return rules::empty(x.sizes().slice(0, static_cast<size_t>(x.dim()) - 1), complex_type(x));
}

TwoTensors eig(const Tensor& x) {
  Tensor values = eigenvalues(x);
  return {std::move(values), column_major(x.sizes(), complex_type(x))};
}

Tensor matrix_exp(const Tensor& x) {
  at::native::squareCheckInputs(x, "linalg.matrix_exp");
  at::native::checkFloatingOrComplex(x, "linalg.matrix_exp");
  return rules::empty_contiguous_like(x);
}

Tensor matrix_sqrth(const Tensor& x) {
  at::native::squareCheckInputs(x, "linalg.matrix_sqrth");
  at::native::checkFloatingOrComplex(x, "linalg.matrix_sqrth", /*allow_low_precision_dtypes=*/false);
  return x.size(-1) == 0 ? rules::empty_like(x) : rules::empty_contiguous_like(x);
}

// Sums of matrices, one row of coefficients each. A result of another size is not resized.
Tensor linear_combination(const Tensor& x, const Tensor& coefficients) {
  TORCH_CHECK(x.dim() > 0 && x.numel() > 0, "Empty tensor not supported");
  DimVector sizes(x.sizes());
  sizes[0] = coefficients.size(0);
  return rules::empty(sizes, x);
}

Tensor& linear_combination_out(const Tensor& x, const Tensor& coefficients, Tensor& out) {
  const Tensor result = linear_combination(x, coefficients);
  TORCH_CHECK(out.sizes() == result.sizes(), "Expected a result of sizes ", result.sizes(), ", but got ", out.sizes());
  return out;
}

// ---- Fourier transforms. The libraries transform innermost dimensions, so the strides of a result follow the plan.

DimVector by_descending_stride(const Tensor& x, IntArrayRef dims) {
  DimVector sorted(dims);
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
  return sorted;
}

// A result whose memory order is the batch dimensions as in `x`, followed by `dims`. The CPU creates no plan for an
// empty tensor.
Tensor transformed(const Tensor& x, IntArrayRef sizes, IntArrayRef dims, ScalarType dtype) {
  if (x.numel() == 0 && !on_cuda()) return rules::empty(sizes, dtype);
  DimVector order;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
  }
  order = by_descending_stride(x, order);
  order.append(dims.begin(), dims.end());
  DimVector strides(sizes.size());
  int64_t stride = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[static_cast<size_t>(*d)] = stride;
    stride *= std::max<int64_t>(sizes[static_cast<size_t>(*d)], 1);
  }
  return rules::empty_strided(sizes, strides, dtype);
}

constexpr size_t kCufftDimensions = 3;

bool one_cufft_plan(IntArrayRef dims) {
  return dims.size() <= kCufftDimensions && !(dims.size() >= 2 && dims[0] == 0 && dims[1] == 1);
}

// Up to three dimensions at a time, innermost first.
Tensor cufft_stages(Tensor x, IntArrayRef dims) {
  DimVector left(dims);
  while (!left.empty()) {
    left = by_descending_stride(x, left);
    const size_t count = std::min(kCufftDimensions, left.size());
    const DimVector stage(left.end() - static_cast<std::ptrdiff_t>(count), left.end());
    x = transformed(x, x.sizes(), stage, x.scalar_type());
    left.resize(left.size() - count);
  }
  return x;
}

DimVector with_size(const Tensor& x, int64_t dim, int64_t size) {
  DimVector sizes(x.sizes());
  sizes[static_cast<size_t>(dim)] = size;
  return sizes;
}

Tensor fft_c2c(const Tensor& x, IntArrayRef dims, int64_t /*normalization*/, bool /*forward*/) {
  TORCH_CHECK(x.is_complex(), "_fft_c2c expects a complex tensor, but got ", x.scalar_type());
  if (dims.empty()) return rules::empty_like(x);
  return on_cuda() ? cufft_stages(x, dims) : transformed(x, x.sizes(), by_descending_stride(x, dims), x.scalar_type());
}

Tensor fft_r2c(const Tensor& x, IntArrayRef dims, int64_t /*normalization*/, bool onesided) {
  TORCH_CHECK(x.is_floating_point(), "_fft_r2c expects a floating-point tensor, but got ", x.scalar_type());
  const auto dtype = c10::toComplexType(x.scalar_type());
  const int64_t last = dims.back();
  const IntArrayRef others = dims.slice(0, dims.size() - 1);
  const auto half = with_size(x, last, x.size(last) / 2 + 1);
  if (!on_cuda()) {
    auto order = by_descending_stride(x, others);
    order.push_back(last);
    return transformed(x, onesided ? IntArrayRef(half) : x.sizes(), order, dtype);
  }
  Tensor result = one_cufft_plan(dims) ? transformed(x, half, dims, dtype)
                                       : cufft_stages(transformed(x, half, last, dtype), others);
  // The other half is computed into a contiguous tensor.
  return onesided ? result : rules::empty(x.sizes(), dtype);
}

Tensor fft_c2r(const Tensor& x, IntArrayRef dims, int64_t /*normalization*/, int64_t last_size) {
  TORCH_CHECK(x.is_complex(), "_fft_c2r expects a complex tensor, but got ", x.scalar_type());
  const auto dtype = c10::toRealValueType(x.scalar_type());
  const int64_t last = dims.back();
  const IntArrayRef others = dims.slice(0, dims.size() - 1);
  const auto sizes = with_size(x, last, last_size);
  if (on_cuda() && one_cufft_plan(dims)) return transformed(rules::empty(x.sizes(), x), sizes, dims, dtype);
  if (!others.empty()) return transformed(fft_c2c(x, others, 0, false), sizes, last, dtype);
  return transformed(on_cuda() ? rules::empty(x.sizes(), x) : x, sizes, last, dtype);
}

}  // namespace

void register_linalg(RuleRegistry& registry) {
  registry.add("aten::linalg_solve_triangular", &solve_triangular);
  registry.add("aten::linalg_solve_triangular.out", &Out<&solve_triangular>::run);
  registry.add("aten::linalg_lu_solve", &lu_solve);
  registry.add("aten::linalg_lu_solve.out", &lu_solve_out);
  registry.add("aten::triangular_solve.X", &triangular_solve_out);
  registry.add_partial({"aten::_cholesky_solve_helper"}, &column_major_like);
  registry.add_partial({"aten::cholesky"}, &cholesky);
  registry.add("aten::cholesky_inverse", &cholesky_inverse);
  registry.add("aten::cholesky_inverse.out", &cholesky_inverse_out);
  registry.add("aten::geqrf", &geqrf);
  registry.add("aten::geqrf.a", &Out<&geqrf>::run);
  registry.add("aten::linalg_householder_product", &householder_product);
  registry.add("aten::linalg_householder_product.out", &Out<&householder_product>::run);
  registry.add("aten::ormqr", &ormqr);
  registry.add("aten::ormqr.out", &Out<&ormqr>::run);
  registry.add("aten::linalg_eig", &eig);
  registry.add("aten::linalg_eig.out", &Out<&eig>::run);
  registry.add("aten::_linalg_eigvals", &eigenvalues);
  registry.add("aten::linalg_eigvals.out", &Out<&eigenvalues>::run);
  registry.add("aten::linalg_matrix_exp", &matrix_exp);
  if (c10::Dispatcher::singleton().findSchema({"aten::linalg_matrix_sqrth", ""})) {  // since 2.14
    registry.add("aten::linalg_matrix_sqrth", &matrix_sqrth);
  }
  registry.add("aten::_compute_linear_combination", &linear_combination);
  registry.add("aten::_compute_linear_combination.out", &linear_combination_out);
  registry.add("aten::_fft_c2c", &fft_c2c);
  registry.add("aten::_fft_r2c", &fft_r2c);
  registry.add("aten::_fft_c2r", &fft_c2r);
}

}  // namespace shadowgraph::rules
