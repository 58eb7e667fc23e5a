// Operators that read where an index says, and losses whose classes are indices.
#include <algorithm>
#include <numeric>

#include "kernels/compiler/operator_table.h"

namespace shadowgraph {
namespace {

std::vector<int64_t> identity_dims(int64_t rank) {
  std::vector<int64_t> dims(static_cast<size_t>(rank));
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

int64_t dimension(const Call& call, size_t i, int64_t rank) {
  if (rank == 0) throw KernelError("an index into a number");
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
  if (call.rank(0) != 2) throw KernelError("an embedding of other than a matrix");
  const Typed index = rank == 0 ? call.tensor(1) : call.along(1, identity_dims(rank));
  return {call.gathered(0, {-1, rank}, index)};
}

// (self, dim, index): an index for each element.
Results gather(const Call& call) {
  const int64_t rank = call.rank(0);
  const int64_t dim = dimension(call, 1, rank);
  if (call.rank(2) != rank) throw KernelError("an index of another rank");
  std::vector<int64_t> dims = identity_dims(rank);
  dims[static_cast<size_t>(dim)] = -1;
  return {call.gathered(0, dims, call.tensor(2))};
}

constexpr int64_t kMean = 1;  // at::Reduction

// Targets of [N], and whether they count.
struct Targets {
  Typed index;
  Typed counts;
};
Targets targets_of(const Call& call, size_t target, size_t ignored) {
  const Typed given = call.build.convert(call.along(target, {0}), ScalarType::Long);
  const Typed skipped = call.build.constant(static_cast<double>(call.integer(ignored)), ScalarType::Long);
  const Typed counts = call.apply(Operation::kNotEqual, given, skipped);
  return {call.apply(Operation::kSelect, counts, given, constant_of(call, 0, given)), counts};
}

std::vector<int64_t> all_targets(const Call& call) {
  if (call.rank(0) != 2 || call.rank(1) != 1) throw KernelError("a loss of other than a matrix");
  if (call.integer(3) == 0) throw KernelError("a loss that is not reduced");
  return {0};
}

// (self, target, weight, reduction, ignore_index): the loss, and the sum of the weights.
Results nll_loss(const Call& call) {
  const Targets targets = targets_of(call, 1, 4);
  const Typed x = call.gathered(0, {0, -1}, targets.index);
  if (!c10::isFloatingType(x.dtype)) throw KernelError("a loss of integers");
  const Typed weight = call.is_none(2) ? constant_of(call, 1, x) : call.gathered(2, {-1}, targets.index);
  const Typed zero = constant_of(call, 0, x);
  const Typed own = call.apply(Operation::kSelect, targets.counts, weight, zero);
  const Typed loss =
      call.apply(Operation::kSelect, targets.counts, call.apply(Operation::kNegate, times(call, x, weight)), zero);
  const Typed weights = call.apply(Operation::kRowSum, own);
  const Typed sum = call.apply(Operation::kRowSum, loss);
  return {call.integer(3) == kMean ? divided(call, sum, weights) : sum, weights};
}

// (grad_output, self, target, weight, reduction, ignore_index, total_weight)
Results nll_loss_backward(const Call& call) {
  if (call.rank(1) != 2 || call.rank(2) != 1) throw KernelError("a loss of other than a matrix");
  const Targets targets = targets_of(call, 2, 5);
  const Typed g = call.rank(0) == 1 ? call.along(0, {0}) : call.tensor(0);
  const Typed index = call.in_range(1, 1, targets.index);
  const Typed here =
      call.apply(Operation::kAnd, call.apply(Operation::kEqual, call.build.column(), index), targets.counts);
  Typed slope = call.apply(Operation::kNegate, g);
  if (call.integer(4) == kMean) slope = divided(call, slope, call.operand(6, g.dtype));
  if (!call.is_none(3)) slope = times(call, slope, call.operand(3, g.dtype));
  return {call.apply(Operation::kSelect, here, slope, constant_of(call, 0, g))};
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
