// Elements grouped by value (histograms) or by segment. How many groups there are is an argument or a size.
#include "core/rules/families.h"
#include "core/rules/registry.h"
#include "shadowgraph/shape_rules.h"

namespace shadowgraph::rules {
namespace {

using at::Scalar;
using at::Tensor;
using c10::IntArrayRef;
using Pair = std::tuple<Tensor, Tensor>;
using Range = std::optional<c10::ArrayRef<double>>;

// ---- Histograms: counts, and the edges of the bins

// `dimensions` coordinates a row; the innermost dimension of `x` holds them.
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

// A bin between each pair of edges.
c10::DimVector bins_between(const Tensor& x, at::TensorList edges) {
  c10::DimVector bins;
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

std::vector<Tensor> histogramdd_bin_edges(const Tensor& x, IntArrayRef bins, Range range, const OptionalTensor& weight,
                                          bool /*density*/) {
  check_histogram(x, bins, weight, range);
  std::vector<Tensor> edges;
  for (const int64_t count : bins) edges.push_back(rules::empty({count + 1}, x));
  return edges;
}

Tensor histogramdd_from_counts(const Tensor& x, IntArrayRef bins, Range range, const OptionalTensor& weight,
                               bool /*density*/) {
  check_histogram(x, bins, weight, range);
  return rules::empty(bins, x);
}

Tensor histogramdd_from_edges(const Tensor& x, at::TensorList edges, const OptionalTensor& weight, bool /*density*/) {
  const auto bins = bins_between(x, edges);
  check_histogram(x, bins, weight, std::nullopt);
  return rules::empty(bins, x);
}

// Takes all elements as rows of one coordinate.
Tensor as_rows(const Tensor& x) { return rules::empty({x.numel(), 1}, x); }
OptionalTensor as_rows(const OptionalTensor& weight, const Tensor& x) {
  if (!given(weight)) return weight;
  TORCH_CHECK(weight->sizes() == x.sizes(), "torch.histogram: if weight tensor is provided it should have the same ",
              "shape as the input tensor, but got input with shape ", x.sizes(), " and weight with shape ",
              weight->sizes());
  return rules::empty({x.numel()}, *weight);
}

Pair histogram_of_counts(const Tensor& x, int64_t bins, Range range, const OptionalTensor& weight, bool /*density*/) {
  check_histogram(as_rows(x), {bins}, as_rows(weight, x), range);
  return {rules::empty({bins}, x), rules::empty({bins + 1}, x)};
}

Pair histogram_of_edges(const Tensor& x, const Tensor& edges, const OptionalTensor& weight, bool density) {
  return {histogramdd_from_edges(as_rows(x), edges, as_rows(weight, x), density), rules::empty(edges.sizes(), edges)};
}

Tensor histc(const Tensor& x, int64_t bins, const Scalar& low, const Scalar& high) {
  TORCH_CHECK(bins > 0, "bins must be > 0");
  TORCH_CHECK(low.to<double>() <= high.to<double>(), "max must be larger than min");
  return rules::empty({bins}, x);
}

// ---- Segments: runs of an axis, by their lengths or by where they begin

Tensor segment_reduce(const Tensor& x, std::string_view reduce, const OptionalTensor& lengths,
                      const OptionalTensor& indices, const OptionalTensor& offsets, int64_t axis, bool /*unsafe*/,
                      const std::optional<Scalar>& /*initial*/) {
  TORCH_CHECK(reduce == "max" || reduce == "mean" || reduce == "min" || reduce == "sum" || reduce == "prod",
              "unsupported reduction given! ", reduce);
  TORCH_CHECK(!given(indices), "segment_reduce(): indices based reduction is not supported yet.");
  TORCH_CHECK(given(lengths) || given(offsets), "segment_reduce(): Either lengths or offsets must be defined.");
  const int64_t along = c10::maybe_wrap_dim(axis, x.dim());
  TORCH_CHECK(x.numel() >= 0 && x.dim() > 0);
  const Tensor& segments = given(lengths) ? *lengths : *offsets;
  TORCH_CHECK(along == segments.dim() - 1, "segment_reduce(): Expected axis to be the last dimension of ",
              given(lengths) ? "lengths" : "offsets", " but got ", axis, ".");
  c10::DimVector sizes(x.sizes());
  sizes[static_cast<size_t>(along)] = segments.size(along) - (given(lengths) ? 0 : 1);
  return rules::empty(sizes, x);
}

Tensor segment_reduce_backward(const Tensor& /*grad*/, const Tensor& /*result*/, const Tensor& x,
                               std::string_view /*reduce*/, const OptionalTensor& /*lengths*/,
                               const OptionalTensor& /*offsets*/, int64_t /*axis*/,
                               const std::optional<Scalar>& /*initial*/) {
  return rules::empty_contiguous_like(x);
}

}  // namespace

void register_grouping(RuleRegistry& registry) {
  registry.add("aten::_histogramdd_bin_edges", &histogramdd_bin_edges);
  registry.add("aten::_histogramdd_from_bin_cts", &histogramdd_from_counts);
  registry.add("aten::_histogramdd_from_bin_tensors", &histogramdd_from_edges);
  registry.add("aten::histogram.bin_ct", &histogram_of_counts);
  registry.add("aten::histogram.bins_tensor", &histogram_of_edges);
  registry.add("aten::histc", &histc);
  registry.add("aten::segment_reduce", &segment_reduce);
  registry.add("aten::_segment_reduce_backward", &segment_reduce_backward);
}

}  // namespace shadowgraph::rules
