#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/compiler/operator_table.h"

namespace shadowgraph {
namespace {

Typed row_sum(Typed a) { return apply(Operation::kRowSum, a); }
Typed row_maximum(Typed a) { return apply(Operation::kRowMaximum, a); }

Typed floats_of(const Call& call, size_t i) {
  const Typed x = call.tensor(i);
  if (!c10::isFloatingType(x.dtype)) throw UnsupportedError("reductions of integers");
  return x;
}

// Returns argument 0 in the dtype of the result.
Typed input_of(const Call& call) { return convert(floats_of(call, 0), call.result_dtype()); }

Typed row_count(Typed like) {
  return {convert(like.build->row_size(), computed_as(like.dtype)).expression, like.dtype, like.build};
}

Typed row_mean(Typed a) {
  const Typed count = row_count(a);
  return row_sum(a) / count;
}

std::vector<int64_t> all_of(int64_t from, int64_t to) {
  std::vector<int64_t> dims;
  for (int64_t dim = from; dim < to; ++dim) dims.push_back(dim);
  return dims;
}

// Returns the dimension given by argument `kDim`.
template <size_t kDim>
std::vector<int64_t> one_dimension(const Call& call) {
  const int64_t rank = call.rank(0);
  if (rank == 0) throw UnsupportedError("a reduction of a 0-dim tensor");
  const int64_t dim = call.integer(kDim);
  return {dim < 0 ? dim + rank : dim};
}

// Returns the dimensions listed by argument 1, or all.
std::vector<int64_t> listed_dimensions(const Call& call) {
  const int64_t rank = call.rank(0);
  if (rank == 0) return {};  // 0-dim tensors accept dimensions 0 and -1
  if (call.argument_count() <= 2 || call.is_none(1) || !call.is_ints(1) || call.ints(1).empty()) {
    return all_of(0, rank);
  }
  std::vector<int64_t> dims;
  for (const int64_t dim : call.ints(1)) dims.push_back(dim < 0 ? dim + rank : dim);
  std::ranges::sort(dims);
  return dims;
}

template <size_t kInput, size_t kShape>
std::vector<int64_t> normalized_dimensions(const Call& call) {
  const int64_t rank = call.rank(kInput);
  return all_of(rank - static_cast<int64_t>(call.ints(kShape).size()), rank);
}
template <size_t kInput, size_t kShape>
std::vector<int64_t> other_dimensions(const Call& call) {
  return all_of(0, call.rank(kInput) - static_cast<int64_t>(call.ints(kShape).size()));
}

Results sum(const Call& call) { return {row_sum(input_of(call))}; }
Results mean(const Call& call) { return {row_mean(input_of(call))}; }

Results softmax(const Call& call) {
  const Typed x = input_of(call);
  const Typed e = exponential(x - row_maximum(x));
  return {e * (constant_of(1, e) / row_sum(e))};
}

// Returns zeros for a row of only -inf, where softmax would return NaNs.
Results safe_softmax(const Call& call) {
  const Typed x = input_of(call);
  const Typed highest = row_maximum(x);
  const Typed e = exponential(x - highest);
  const Typed y = e * (constant_of(1, e) / row_sum(e));
  const Typed lowest = constant_of(-std::numeric_limits<double>::infinity(), x);
  const Typed zero = constant_of(0, x);
  return {select(apply(Operation::kEqual, highest, lowest), zero, y)};
}

Results log_softmax(const Call& call) {
  const Typed x = input_of(call);
  const Typed moved = x - row_maximum(x);
  return {moved - apply(Operation::kLogarithm, row_sum(exponential(moved)))};
}

Results softmax_backward(const Call& call) {
  const Typed g = floats_of(call, 0), y = call.operand(1, g.dtype);
  return {(g - row_sum(g * y)) * y};
}

Results log_softmax_backward(const Call& call) {
  const Typed g = floats_of(call, 0), y = call.operand(1, g.dtype);
  return {g - exponential(y) * row_sum(g)};
}

Results layer_norm(const Call& call) {
  const Typed x = floats_of(call, 0);
  const Typed average = row_mean(x);
  const Typed moved = x - average;
  const Typed variance = row_mean(moved * moved);
  const Typed root = square_root(variance + call.operand(4, x.dtype));
  const Typed inverse = constant_of(1, x) / root;
  Typed y = moved * inverse;
  if (!call.is_none(2)) y = y * call.operand(2, x.dtype);
  if (!call.is_none(3)) y = y + call.operand(3, x.dtype);
  return {y, average, inverse};
}

// With y = (x - mean) rstd and h = g weight: rstd (h - mean(h) - y mean(h y)).
Results layer_norm_backward(const Call& call) {
  const Typed g = floats_of(call, 0), x = call.operand(1, g.dtype);
  const Typed inverse = call.operand(4, g.dtype);
  const Typed y = (x - call.operand(3, g.dtype)) * inverse;
  const Typed h = call.is_none(5) ? g : g * call.operand(5, g.dtype);
  const Typed slope = y * row_mean(h * y);
  return {inverse * (h - row_mean(h) - slope)};
}
Results layer_norm_parameters(const Call& call) {
  const Typed g = floats_of(call, 0);
  const Typed moved = call.operand(1, g.dtype) - call.operand(3, g.dtype);
  return {row_sum(g * (moved * call.operand(4, g.dtype))), row_sum(g)};
}

Results rms_norm(const Call& call) {
  const Typed x = floats_of(call, 0);
  // libtorch decomposes rms_norm into operators that each round.
  if (has_two_bytes(x.dtype)) throw UnsupportedError("rms_norm of two-byte elements");
  if (call.is_none(3)) throw UnsupportedError("rms_norm without an epsilon");
  const Typed mean_square = row_mean(x * x);
  const Typed root = square_root(mean_square + call.operand(3, x.dtype));
  const Typed inverse = constant_of(1, x) / root;
  Typed y = x * inverse;
  if (!call.is_none(2)) y = y * call.operand(2, x.dtype);
  return {y, inverse};
}

Results highest(const Call& call) { return {row_maximum(floats_of(call, 0))}; }
Results lowest(const Call& call) { return {-row_maximum(-floats_of(call, 0))}; }

// Returns the variance and the mean, which the planner ignores for var and std. Overloads: (self, unbiased), (self, dim, unbiased, keepdim), (self, dim,
// correction, keepdim). In the last one, a correction of None means 1.
Results variance_and_mean(const Call& call) {
  const Typed x = floats_of(call, 0);
  const size_t at = call.argument_count() == 2 ? 1 : 2;
  const double correction = call.is_none(at) ? 1 : call.number(at);
  const Typed average = row_mean(x);
  const Typed moved = x - average;
  const Typed count = row_count(x);
  const Typed freedom = apply(Operation::kMaximum, count - constant_of(correction, x), constant_of(0, x));
  return {row_sum(moved * moved) / freedom, average};
}
Results deviation_and_mean(const Call& call) {
  const Results moments = variance_and_mean(call);
  return {square_root(moments[0]), moments[1]};
}

}  // namespace

std::vector<KernelRow> row_reduction_rows() {
  constexpr bool kInexact = true;
  return {
      {"sum", sum, kInexact, listed_dimensions},
      {"mean", mean, kInexact, listed_dimensions},
      {"amax", highest, false, listed_dimensions},
      {"amin", lowest, false, listed_dimensions},
      {"var", variance_and_mean, kInexact, listed_dimensions},
      {"std", deviation_and_mean, kInexact, listed_dimensions},
      {"var_mean", variance_and_mean, kInexact, listed_dimensions},
      {"std_mean", deviation_and_mean, kInexact, listed_dimensions},
      {"_softmax", softmax, kInexact, one_dimension<1>},
      {"_safe_softmax", safe_softmax, kInexact, one_dimension<1>},
      {"_log_softmax", log_softmax, kInexact, one_dimension<1>},
      {"_softmax_backward_data", softmax_backward, kInexact, one_dimension<2>},
      {"_log_softmax_backward_data", log_softmax_backward, kInexact, one_dimension<2>},
      {"native_layer_norm", layer_norm, kInexact, normalized_dimensions<0, 1>},
      {.name = "native_layer_norm_backward",
       .make = layer_norm_backward,
       .inexact = kInexact,
       .reduced = normalized_dimensions<1, 2>,
       .input = 1,
       .make_second = layer_norm_parameters,
       .reduced_second = other_dimensions<1, 2>,
       .second_results = 1},
      {"_fused_rms_norm", rms_norm, kInexact, normalized_dimensions<0, 1>},
  };
}

// Operators that read at indices, and losses whose classes are indices.

namespace {

std::vector<int64_t> identity_dims(int64_t rank) {
  std::vector<int64_t> dims(static_cast<size_t>(rank));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

int64_t dimension(const Call& call, size_t i, int64_t rank) {
  if (rank == 0) throw UnsupportedError("an index into a 0-dim tensor");
  const int64_t dim = call.integer(i);
  return dim < 0 ? dim + rank : dim;
}

// (self, dim, index): a list of indices along one dimension.
Results index_select(const Call& call) {
  const int64_t rank = call.rank(0);
  const int64_t dim = dimension(call, 1, rank);
  std::vector<int64_t> dims = identity_dims(rank);
  dims[static_cast<size_t>(dim)] = -1;
  const Typed index = call.rank(2) == 0 ? call.tensor(2) : call.along(2, {dim});
  return {call.gathered(0, dims, index)};
}

// (weight, indices, ...)
Results embedding(const Call& call) {
  const int64_t rank = call.rank(1);
  if (call.rank(0) != 2) throw UnsupportedError("an embedding weight that is not a matrix");
  const Typed index = rank == 0 ? call.tensor(1) : call.along(1, identity_dims(rank));
  return {call.gathered(0, {-1, rank}, index)};
}

// (self, dim, index): an index per element.
Results gather(const Call& call) {
  const int64_t rank = call.rank(0);
  const int64_t dim = dimension(call, 1, rank);
  if (call.rank(2) != rank) throw UnsupportedError("an index with a different rank");
  std::vector<int64_t> dims = identity_dims(rank);
  dims[static_cast<size_t>(dim)] = -1;
  return {call.gathered(0, dims, call.tensor(2))};
}

constexpr int64_t kMean = 1;  // at::Reduction

// Targets of shape [N], and whether they are not ignored.
struct Targets {
  Typed index, counts;
};
Targets targets_of(const Call& call, size_t target, size_t ignored) {
  const Typed given = convert(call.along(target, {0}), ScalarType::Long);
  const Typed skipped = constant_of(static_cast<double>(call.integer(ignored)), given);
  const Typed counts = apply(Operation::kNotEqual, given, skipped);
  return {select(counts, given, constant_of(0, given)), counts};
}

std::vector<int64_t> all_targets(const Call& call) {
  if (call.rank(0) != 2 || call.rank(1) != 1) throw UnsupportedError("a loss whose input is not a matrix");
  if (call.integer(3) == 0) throw UnsupportedError("a loss without reduction");
  return {0};
}

// (self, target, weight, reduction, ignore_index): the loss, and the sum of the weights.
Results nll_loss(const Call& call) {
  const Targets targets = targets_of(call, 1, 4);
  const Typed x = call.gathered(0, {0, -1}, targets.index);
  if (!c10::isFloatingType(x.dtype)) throw UnsupportedError("a loss of integers");
  const Typed weight = call.is_none(2) ? constant_of(1, x) : call.gathered(2, {-1}, targets.index);
  const Typed zero = constant_of(0, x);
  const Typed own = select(targets.counts, weight, zero);
  const Typed loss = select(targets.counts, -(x * weight), zero);
  const Typed weights = row_sum(own);
  const Typed sum = row_sum(loss);
  return {call.integer(3) == kMean ? sum / weights : sum, weights};
}

// (grad_output, self, target, weight, reduction, ignore_index, total_weight)
Results nll_loss_backward(const Call& call) {
  if (call.rank(1) != 2 || call.rank(2) != 1) throw UnsupportedError("a loss whose input is not a matrix");
  const Targets targets = targets_of(call, 2, 5);
  const Typed g = call.rank(0) == 1 ? call.along(0, {0}) : call.tensor(0);
  const Typed index = call.in_range(1, 1, targets.index);
  const Typed here = apply(Operation::kAnd, apply(Operation::kEqual, call.build.column(), index), targets.counts);
  Typed slope = -g;
  if (call.integer(4) == kMean) slope = slope / call.operand(6, g.dtype);
  if (!call.is_none(3)) slope = slope * call.operand(3, g.dtype);
  return {select(here, slope, constant_of(0, g))};
}

}  // namespace

std::vector<KernelRow> gather_rows() {
  constexpr bool kInexact = true;
  return {
      {"index_select", index_select},
      {"embedding", embedding},
      {"gather", gather},
      {"nll_loss_forward", nll_loss, kInexact, all_targets, 1},
      {"nll_loss_backward", nll_loss_backward, kInexact},
  };
}

}  // namespace shadowgraph
