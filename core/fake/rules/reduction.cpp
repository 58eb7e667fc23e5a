// Reductions without structured kernels. Their results are contiguous.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/addr.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cumprod_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <c10/core/ScalarTypeToTypeMeta.h>

#include "core/fake/rules/registry.h"

namespace shadowgraph::rules {
namespace {

ScalarType sum_type(const Tensor& x, std::optional<ScalarType> asked) {
  if (asked) return *asked;
  return c10::isIntegralType(x.scalar_type(), /*includeBool=*/true) ? c10::kLong : x.scalar_type();
}

void check_variance(const Tensor& x, const char* names) {
  TORCH_CHECK(x.is_floating_point() || x.is_complex(), names, " only support floating point and complex dtypes");
}

Tensor variance(const Tensor& x, OptionalIntArrayRef dims, bool keepdim) {
  check_variance(x, "std and var");
  return rules::empty(reduced_sizes(x, dims, keepdim), c10::toRealValueType(x.scalar_type()));
}

template <bool is_variance>
TwoTensors with_mean(const Tensor& x, OptionalIntArrayRef dims, bool keepdim) {
  check_variance(x, is_variance ? "var_mean" : "std_mean");
  const auto sizes = reduced_sizes(x, dims, keepdim);
  return {rules::empty(sizes, c10::toRealValueType(x.scalar_type())), rules::empty(sizes, x)};
}

template <bool is_max>
Tensor extremum(const Tensor& x) {
  TORCH_CHECK(x.numel() > 0, is_max ? "max" : "min",
              "(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
              "'dim' argument.");
  return rules::empty({}, x);
}

Tensor scalar_like(const Tensor& x) { return rules::empty({}, x); }

Tensor prod(const Tensor& x, std::optional<ScalarType> dtype) { return rules::empty({}, sum_type(x, dtype)); }

Tensor nansum(const Tensor& x, OptionalIntArrayRef dims, bool keepdim, std::optional<ScalarType> dtype) {
  TORCH_CHECK(!x.is_complex(), "nansum does not support complex inputs");
  return rules::empty(reduced_sizes(x, dims, keepdim), sum_type(x, dtype));
}

Tensor count_nonzero(const Tensor& x, IntArrayRef dims) {
  return rules::empty(reduced_sizes(x, dims, /*keepdim=*/false), c10::kLong);
}

Tensor trace(const Tensor& x) {
  TORCH_CHECK(x.dim() == 2, "trace: expected a matrix, but got tensor with dim ", x.dim());
  return rules::empty({}, sum_type(x, std::nullopt));
}

TwoTensors value_and_index(const Tensor& x, int64_t dim, bool keepdim, const char* name) {
  const int64_t d = c10::maybe_wrap_dim(dim, x.dim());
  TORCH_CHECK(x.dim() == 0 || x.size(d) != 0, name, "(): Expected reduction dim ", d, " to have non-zero size.");
  const auto sizes = reduced_sizes(x, d, keepdim);
  return {rules::empty(sizes, x), rules::empty(sizes, c10::kLong)};
}

TwoTensors median(const Tensor& x, int64_t dim, bool keepdim) { return value_and_index(x, dim, keepdim, "median"); }
TwoTensors mode(const Tensor& x, int64_t dim, bool keepdim) { return value_and_index(x, dim, keepdim, "mode"); }

TwoTensors kthvalue(const Tensor& x, int64_t k, int64_t dim, bool keepdim) {
  const int64_t d = c10::maybe_wrap_dim(dim, x.dim());
  TORCH_CHECK(k >= 1 && k <= (x.dim() > 0 ? x.size(d) : 1), "kthvalue(): selected number k out of range for dimension ",
              d);
  return value_and_index(x, dim, keepdim, "kthvalue");
}

Tensor logcumsumexp(const Tensor& x, int64_t dim) {
  (void)c10::maybe_wrap_dim(dim, x.dim());  // throws if there is no such dimension
  return rules::empty(x.sizes(), x);
}

void check_vectors(const Tensor& x, const Tensor& y) {
  TORCH_CHECK(x.dim() == 1 && y.dim() == 1, "1D tensors expected, but got ", x.dim(), "D and ", y.dim(), "D tensors");
  TORCH_CHECK(x.scalar_type() == y.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              x.scalar_type(), " and ", y.scalar_type());
  TORCH_CHECK(x.numel() == y.numel(), "inconsistent tensor size, expected tensor [", x.numel(), "] and src [",
              y.numel(), "] to have the same number of elements, but got ", x.numel(), " and ", y.numel(),
              " elements respectively");
}

Tensor dot(const Tensor& x, const Tensor& y) {
  check_vectors(x, y);
  return rules::empty({}, x);
}

// Eager returns a lazy conjugate of the result where it would have to conjugate both operands.
Tensor vdot(const Tensor& x, const Tensor& y) {
  check_vectors(x, y);
  const Tensor result = rules::empty({}, x);
  return !x.is_conj() && y.is_conj() ? result.conj() : result;
}

DimVector addbmm_sizes(const Tensor& added, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 3, "batch1 must be a 3D tensor");
  TORCH_CHECK(b.dim() == 3, "batch2 must be a 3D tensor");
  TORCH_CHECK(a.size(0) == b.size(0), "batch1 and batch2 must have same number of batches, got ", a.size(0), " and ",
              b.size(0));
  TORCH_CHECK(a.size(2) == b.size(1), "Incompatible matrix sizes for bmm (", a.size(1), "x", a.size(2), " and ",
              b.size(1), "x", b.size(2), ")");
  DimVector sizes{a.size(1), b.size(2)};
  (void)added.expand(sizes);  // throws if it does not fit
  return sizes;
}

// In place, the outer product must already have self's shape; it is not broadcast.
Tensor& addr_(Tensor& self, const Tensor& x, const Tensor& y, const Scalar& beta, const Scalar& alpha) {
  TORCH_CHECK(x.dim() == 1, "addr: Expected 1-D argument vec1, but got ", x.dim(), "-D");
  TORCH_CHECK(y.dim() == 1, "addr: Expected 1-D argument vec2, but got ", y.dim(), "-D");
  TORCH_CHECK(self.dim() == 2, "2D tensor expected, got ", self.dim(), "D tensor for input");
  TORCH_CHECK(self.size(0) == x.size(0) && self.size(1) == y.size(0), "size mismatch, input: ", self.sizes(),
              ", v1: ", x.sizes(), ", v2: ", y.sizes());
  return at::addr_out(self, self, x, y, beta, alpha);
}

Tensor addbmm(const Tensor& added, const Tensor& a, const Tensor& b) {
  return rules::empty(addbmm_sizes(added, a, b), added);
}

// Eager resizes a smaller self, with a warning.
Tensor& addbmm_(Tensor& self, const Tensor& a, const Tensor& b) {
  const auto sizes = addbmm_sizes(self, a, b);
  if (self.sizes() != sizes) self.resize_(sizes);
  return self;
}

Tensor int_mm(const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "_int_mm: cannot multiply ", a.sizes(), " and ",
              b.sizes());
  // The CPU's kernel also accepts torchao's unsigned operands.
  const bool left_fits =
      a.scalar_type() == c10::kChar || (a.scalar_type() == c10::kByte && simulated_device().is_cpu());
  TORCH_CHECK(left_fits && b.scalar_type() == c10::kChar, "Expected both operands to be int8, got ", a.scalar_type(),
              " and ", b.scalar_type());
  return rules::empty({a.size(0), b.size(1)}, c10::kInt);
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, OptionalDtype dtype) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "mat1 and mat2 must be matrices");
  TORCH_CHECK(a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (", a.size(0), "x", a.size(1), " and ",
              b.size(0), "x", b.size(1), ")");
  return rules::empty({a.size(0), b.size(1)}, dtype.value_or(a.scalar_type()));
}

Tensor mm_dtype(const Tensor& a, const Tensor& b, ScalarType dtype) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "mat1 and mat2 shapes cannot be multiplied (",
              a.sizes(), " and ", b.sizes(), ")");
  return rules::empty({a.size(0), b.size(1)}, dtype);
}

Tensor bmm_dtype(const Tensor& a, const Tensor& b, ScalarType dtype) {
  TORCH_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1),
              "batch1 and batch2 shapes cannot be multiplied (", a.sizes(), " and ", b.sizes(), ")");
  return rules::empty({a.size(0), a.size(1), b.size(2)}, dtype);
}

// With an added operand, which must fit.
template <Tensor (*product)(const Tensor&, const Tensor&, ScalarType)>
Tensor added_dtype(const Tensor& added, const Tensor& a, const Tensor& b, ScalarType dtype) {
  Tensor result = product(a, b, dtype);
  (void)added.expand(result.sizes());  // throws if it does not fit
  return result;
}

// Structured operators whose Meta kernel does not check for internal overlap.
template <class Operator>
Tensor& scan_(Tensor& x, int64_t dim, std::optional<ScalarType> dtype) {
  at::assert_no_internal_overlap(x);
  TORCH_CHECK_NOT_IMPLEMENTED(x.scalar_type() != c10::kBool || x.numel() == 0 || x.dim() == 0 || on_cuda(), '"',
                              Operator::name, "\" not implemented for 'Bool'");
  return OnMeta<Operator>::call(x, dim, dtype);
}

TwoTensors aminmax(const Tensor& x) { return at::aminmax(x); }
TwoTensors aminmax_of_dim(const Tensor& x, int64_t dim, bool keepdim) { return at::aminmax(x, dim, keepdim); }

// Scans that fill their operands, and assertions about data, which always pass.
void nothing() {}

// ---- Histograms: counts, and the edges of the bins

using Range = std::optional<c10::ArrayRef<double>>;

// The innermost dimension of `x` holds the coordinates of a point.
void check_histogram(const Tensor& x, IntArrayRef bins, const OptionalTensor& weight, const Range& range) {
  TORCH_CHECK(x.dim() >= 2, "torch.histogramdd: input tensor should have at least 2 dimensions, but got ", x.dim());
  const int64_t dimensions = x.size(-1);
  TORCH_CHECK(static_cast<int64_t>(bins.size()) == dimensions, "torch.histogramdd: expected ", dimensions,
              " sequences of bin edges for a ", dimensions, "-dimensional histogram but got ", bins.size());
  TORCH_CHECK(!range || static_cast<int64_t>(range->size()) == 2 * dimensions, "torch.histogramdd: for a ", dimensions,
              "-dimensional histogram range should have ", 2 * dimensions, " elements, but got ",
              range ? range->size() : 0);
  for (const int64_t count : bins) TORCH_CHECK(count > 0, "torch.histogram(): bins must be > 0, but got ", count);
  if (!given(weight)) return;
  TORCH_CHECK(weight->scalar_type() == x.scalar_type(),
              "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same ",
              "dtype, but got input(", x.scalar_type(), "), and weight(", weight->scalar_type(), ")");
  TORCH_CHECK(weight->sizes() == x.sizes().slice(0, static_cast<size_t>(x.dim()) - 1),
              "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor ",
              "excluding its innermost dimension, but got input with shape ", x.sizes(), " and weight with shape ",
              weight->sizes());
}

// One bin between each pair of edges.
DimVector bins_between(const Tensor& x, TensorList edges) {
  DimVector bins;
  for (const Tensor& along : edges) {
    TORCH_CHECK(
        along.scalar_type() == x.scalar_type(),
        "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input with dtype ",
        x.scalar_type(), " and bins with dtype ", along.scalar_type());
    TORCH_CHECK(along.dim() == 1, "torch.histogramdd: bins tensor should have one dimension, but got ", along.dim());
    bins.push_back(along.numel() - 1);
  }
  return bins;
}

std::vector<Tensor> histogramdd_bin_edges(const Tensor& x, IntArrayRef bins, Range range,
                                          const OptionalTensor& weight) {
  check_histogram(x, bins, weight, range);
  std::vector<Tensor> edges;
  for (const int64_t count : bins) edges.push_back(rules::empty({count + 1}, x));
  return edges;
}

Tensor histogramdd_from_counts(const Tensor& x, IntArrayRef bins, Range range, const OptionalTensor& weight) {
  check_histogram(x, bins, weight, range);
  return rules::empty(bins, x);
}

Tensor histogramdd_from_edges(const Tensor& x, TensorList edges, const OptionalTensor& weight) {
  const auto bins = bins_between(x, edges);
  check_histogram(x, bins, weight, std::nullopt);
  return rules::empty(bins, x);
}

// Views all elements as points with one coordinate.
Tensor as_rows(const Tensor& x) { return rules::empty({x.numel(), 1}, x); }
OptionalTensor as_rows(const OptionalTensor& weight, const Tensor& x) {
  if (!given(weight)) return weight;
  TORCH_CHECK(weight->sizes() == x.sizes(), "torch.histogram: if weight tensor is provided it should have the same ",
              "shape as the input tensor, but got input with shape ", x.sizes(), " and weight with shape ",
              weight->sizes());
  return rules::empty({x.numel()}, *weight);
}

TwoTensors histogram_of_counts(const Tensor& x, int64_t bins, Range range, const OptionalTensor& weight) {
  check_histogram(as_rows(x), {bins}, as_rows(weight, x), range);
  return {rules::empty({bins}, x), rules::empty({bins + 1}, x)};
}

TwoTensors histogram_of_edges(const Tensor& x, const Tensor& edges, const OptionalTensor& weight) {
  return {histogramdd_from_edges(as_rows(x), edges, as_rows(weight, x)), rules::empty(edges.sizes(), edges)};
}

Tensor histc(const Tensor& x, int64_t bins, const Scalar& low, const Scalar& high) {
  TORCH_CHECK(bins > 0, "bins must be > 0");
  TORCH_CHECK(low.to<double>() <= high.to<double>(), "max must be larger than min");
  return rules::empty({bins}, x);
}

// ---- Segments along an axis, by their lengths or offsets

Tensor segment_reduce(const Tensor& x, std::string_view reduce, const OptionalTensor& lengths,
                      const OptionalTensor& indices, const OptionalTensor& offsets, int64_t axis) {
  TORCH_CHECK(reduce == "max" || reduce == "mean" || reduce == "min" || reduce == "sum" || reduce == "prod",
              "unsupported reduction given! ", reduce);
  TORCH_CHECK(!given(indices), "segment_reduce(): indices based reduction is not supported yet.");
  TORCH_CHECK(given(lengths) || given(offsets), "segment_reduce(): Either lengths or offsets must be defined.");
  const int64_t along = c10::maybe_wrap_dim(axis, x.dim());
  TORCH_CHECK(x.numel() >= 0 && x.dim() > 0);
  const Tensor& segments = given(lengths) ? *lengths : *offsets;
  TORCH_CHECK(along == segments.dim() - 1, "segment_reduce(): Expected axis to be the last dimension of ",
              given(lengths) ? "lengths" : "offsets", " but got ", axis, ".");
  DimVector sizes(x.sizes());
  sizes[static_cast<size_t>(along)] = segments.size(along) - (given(lengths) ? 0 : 1);
  return rules::empty(sizes, x);
}

}  // namespace

void register_reduction(RuleRegistry& registry) {
  registry.add_partial({"aten::var.correction", "aten::std.correction"}, &variance, {"self", "dim", "keepdim"});
  registry.add_partial({"aten::var_mean.correction"}, &with_mean<true>, {"self", "dim", "keepdim"});
  registry.add_partial({"aten::std_mean.correction"}, &with_mean<false>, {"self", "dim", "keepdim"});
  registry.add("aten::max", &extremum<true>);
  registry.add("aten::min", &extremum<false>);
  registry.add("aten::median", &scalar_like);
  registry.add("aten::nanmedian", &scalar_like);
  registry.add("aten::prod", &prod);
  registry.add("aten::nansum", &nansum);
  registry.add("aten::count_nonzero.dim_IntList", &count_nonzero);
  registry.add("aten::trace", &trace);
  registry.add("aten::median.dim", &median);
  registry.add("aten::nanmedian.dim", &median);
  registry.add("aten::mode", &mode);
  registry.add("aten::kthvalue", &kthvalue);
  registry.add("aten::_logcumsumexp", &logcumsumexp);
  registry.add("aten::dot", &dot);
  registry.add("aten::vdot", &vdot);
  registry.add("aten::addr_", &addr_);
  registry.add_partial({"aten::addbmm"}, &addbmm);
  registry.add_partial({"aten::addbmm_"}, &addbmm_);
  registry.add("aten::_int_mm", &int_mm);
  registry.add_partial({"aten::_scaled_mm"}, &scaled_mm, {"self", "mat2", "out_dtype"});
  registry.add("aten::mm.dtype", &mm_dtype);
  registry.add("aten::bmm.dtype", &bmm_dtype);
  registry.add_partial({"aten::addmm.dtype"}, &added_dtype<&mm_dtype>);
  registry.add_partial({"aten::baddbmm.dtype"}, &added_dtype<&bmm_dtype>);
  registry.add("aten::cumsum_", &scan_<at::_ops::cumsum_>);
  registry.add("aten::cumprod_", &scan_<at::_ops::cumprod_>);
  registry.add("aten::_aminmax", &aminmax);
  registry.add("aten::_aminmax.dim", &aminmax_of_dim);
  registry.add_partial(
      {"aten::_cummax_helper", "aten::_cummin_helper", "aten::_assert_async", "aten::_assert_async.msg"}, &nothing);
  registry.add_partial({"aten::_histogramdd_bin_edges"}, &histogramdd_bin_edges);
  registry.add_partial({"aten::_histogramdd_from_bin_cts"}, &histogramdd_from_counts);
  registry.add_partial({"aten::_histogramdd_from_bin_tensors"}, &histogramdd_from_edges);
  registry.add_partial({"aten::histogram.bin_ct"}, &histogram_of_counts);
  registry.add_partial({"aten::histogram.bins_tensor"}, &histogram_of_edges);
  registry.add("aten::histc", &histc);
  registry.add_partial({"aten::segment_reduce"}, &segment_reduce);
  add_like(registry, {"aten::_segment_reduce_backward"}, {2}, &empty_contiguous_like);
}

}  // namespace shadowgraph::rules
