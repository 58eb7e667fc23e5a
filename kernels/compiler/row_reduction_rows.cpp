#include <algorithm>
#include <limits>

#include "kernels/compiler/operator_table.h"

namespace shadowgraph {
namespace {

using c10::ScalarType;
using Operation = KernelOperation;
using Call = OperatorCall;
using Results = std::vector<Typed>;

Typed times(const Call& call, Typed a, Typed b) { return call.apply(Operation::kMultiply, a, b); }
Typed minus(const Call& call, Typed a, Typed b) { return call.apply(Operation::kSubtract, a, b); }
Typed plus(const Call& call, Typed a, Typed b) { return call.apply(Operation::kAdd, a, b); }
Typed row_sum(const Call& call, Typed a) { return call.apply(Operation::kRowSum, a); }

Typed floats_of(const Call& call, size_t i) {
  const Typed x = call.tensor(i);
  if (!c10::isFloatingType(x.dtype)) throw KernelError("reductions of integers");
  return {x.expression, x.dtype};
}

Typed row_mean(const Call& call, Typed a) {
  const Typed count = {call.build.convert(call.build.row_size(), computed_as(a.dtype)).expression, a.dtype};
  return call.apply(Operation::kDivide, row_sum(call, a), count);
}

// The last dimension, or refusal.
template <size_t kDim>
int64_t last_dimension(const Call& call) {
  const int64_t rank = call.rank(kDim - 1);
  const int64_t dim = call.integer(kDim);
  if (rank == 0 || (dim != rank - 1 && dim != -1))
    throw KernelError("a reduction along another than the last dimension");
  return 1;
}

int64_t backward_dimension(const Call& call) {
  const int64_t rank = call.rank(0);
  const int64_t dim = call.integer(2);
  if (rank == 0 || (dim != rank - 1 && dim != -1))
    throw KernelError("a reduction along another than the last dimension");
  return 1;
}

// Dimensions to be summed: all, or the trailing ones.
int64_t summed_dimensions(const Call& call) {
  const int64_t rank = call.rank(0);
  if (call.argument_count() <= 2 || call.is_none(1) || call.ints(1).empty()) return rank;
  std::vector<int64_t> dims;
  for (const int64_t dim : call.ints(1)) dims.push_back(dim < 0 ? dim + rank : dim);
  std::ranges::sort(dims);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != rank - static_cast<int64_t>(dims.size() - i)) throw KernelError("a sum over leading dimensions");
  }
  return static_cast<int64_t>(dims.size());
}

int64_t normalized_dimensions(const Call& call) { return static_cast<int64_t>(call.ints(1).size()); }

Results sum(const Call& call) { return {row_sum(call, call.build.convert(floats_of(call, 0), call.result_dtype()))}; }
Results mean(const Call& call) { return {row_mean(call, call.build.convert(floats_of(call, 0), call.result_dtype()))}; }

Results softmax(const Call& call) {
  const Typed x = call.build.convert(floats_of(call, 0), call.result_dtype());
  const Typed e = call.apply(Operation::kExponential, minus(call, x, call.apply(Operation::kRowMaximum, x)));
  return {call.apply(Operation::kDivide, e, row_sum(call, e))};
}

// A row of -inf alone is no softmax but zeros.
Results safe_softmax(const Call& call) {
  const Typed x = call.build.convert(floats_of(call, 0), call.result_dtype());
  const Typed highest = call.apply(Operation::kRowMaximum, x);
  const Typed e = call.apply(Operation::kExponential, minus(call, x, highest));
  const Typed y = call.apply(Operation::kDivide, e, row_sum(call, e));
  const Typed lowest = {call.build.constant(-std::numeric_limits<double>::infinity(), x.dtype).expression, x.dtype};
  const Typed zero = {call.build.constant(0, x.dtype).expression, x.dtype};
  return {call.apply(Operation::kSelect, call.apply(Operation::kEqual, highest, lowest), zero, y)};
}

Results log_softmax(const Call& call) {
  const Typed x = call.build.convert(floats_of(call, 0), call.result_dtype());
  const Typed highest = call.apply(Operation::kRowMaximum, x);
  const Typed moved = minus(call, x, highest);
  const Typed total = row_sum(call, call.apply(Operation::kExponential, moved));
  return {minus(call, moved, call.apply(Operation::kLogarithm, total))};
}

Results softmax_backward(const Call& call) {
  const Typed g = floats_of(call, 0);
  const Typed y = call.operand(1, g.dtype);
  return {times(call, minus(call, g, row_sum(call, times(call, g, y))), y)};
}

Results log_softmax_backward(const Call& call) {
  const Typed g = floats_of(call, 0);
  const Typed y = call.operand(1, g.dtype);
  return {minus(call, g, times(call, call.apply(Operation::kExponential, y), row_sum(call, g)))};
}

Results layer_norm(const Call& call) {
  const Typed x = floats_of(call, 0);
  const Typed average = row_mean(call, x);
  const Typed moved = minus(call, x, average);
  const Typed variance = row_mean(call, times(call, moved, moved));
  const Typed root = call.apply(Operation::kSquareRoot, plus(call, variance, call.operand(4, x.dtype)));
  const Typed one = {call.build.constant(1, x.dtype).expression, x.dtype};
  const Typed inverse = call.apply(Operation::kDivide, one, root);
  Typed y = times(call, moved, inverse);
  if (!call.is_none(2)) y = times(call, y, call.operand(2, x.dtype));
  if (!call.is_none(3)) y = plus(call, y, call.operand(3, x.dtype));
  return {y, average, inverse};
}

}  // namespace

std::vector<OperatorRow> row_reduction_rows() {
  constexpr bool kInexact = true;
  return {
      {"sum", sum, kInexact, summed_dimensions},
      {"mean", mean, kInexact, summed_dimensions},
      {"_softmax", softmax, kInexact, last_dimension<1>},
      {"_safe_softmax", safe_softmax, kInexact, last_dimension<1>},
      {"_log_softmax", log_softmax, kInexact, last_dimension<1>},
      {"_softmax_backward_data", softmax_backward, kInexact, backward_dimension},
      {"_log_softmax_backward_data", log_softmax_backward, kInexact, backward_dimension},
      {"native_layer_norm", layer_norm, kInexact, normalized_dimensions},
  };
}

}  // namespace shadowgraph
