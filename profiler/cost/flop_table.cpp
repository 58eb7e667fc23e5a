// FLOP counts of dense factorizations and solves: leading terms, for the rows of flop_table.cpp.
//
// Counts are multiplications and additions of the usual algorithm on one m x n matrix, times the batch size. Complex
// numbers count as real ones; pivoting and permutations are free. Source: Golub & Van Loan, Matrix Computations (4th
// ed.), sections 3.2 (LU), 4.2 (Cholesky), 5.2 (QR), 7.5 (unsymmetric eigenvalues), 8.3 (symmetric), 8.6 (SVD). Counts
// of LAPACK's operations on factorizations are from LAPACK Working Note 41, appendix C.
//
// Iterative methods (eigenvalues, SVD) use the averages of those books; the actual number depends on the data.
#include "profiler/cost/flop_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "core/libtorch/kernels.h"
#include "ir/operators/operator_name.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {
namespace {

using Count = std::optional<int64_t>;

struct Matrices {
  double batch;
  double rows;
  double columns;
  double larger() const { return std::max(rows, columns); }
  double smaller() const { return std::min(rows, columns); }
};

std::optional<Matrices> matrices(Shape shape) {
  if (shape.size() < 2) return std::nullopt;
  const Shape leading = shape.first(shape.size() - 2);
  return Matrices{static_cast<double>(product_of(leading)), static_cast<double>(shape[shape.size() - 2]),
                  static_cast<double>(shape.back())};
}
std::optional<Matrices> square_matrices(Shape shape) {
  const auto found = matrices(shape);
  return found && found->rows == found->columns ? found : std::nullopt;
}

// Rounds a count. Integers up to 2^53 are exact; thirds are rounded once, at the end.
Count counted(double flops) {
  if (!(flops >= 0)) return std::nullopt;
  return flops < 9.2e18 ? Count(std::llround(flops)) : std::numeric_limits<int64_t>::max();
}

double cube(double n) { return n * n * n; }
double lu(const Matrices& a) { return a.batch * a.smaller() * a.smaller() * (a.larger() - a.smaller() / 3); }
double reflectors(const Matrices& a) { return 2 * lu(a); }

Count per_cube(Shape shape, double factor) {
  const auto a = square_matrices(shape);
  return a ? counted(a->batch * factor * cube(a->rows)) : std::nullopt;
}

// Counts the multiplication of k reflectors of length m into an m x n matrix.
double multiplied_out(double m, double n, double k) { return 4 * m * n * k - 2 * (m + n) * k * k + 4 * cube(k) / 3; }

// A: min(m, n)^2 (max(m, n) - min/3)
Count lu_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  return a ? counted(lu(*a)) : std::nullopt;
}

// A: n^3 / 3; LDL too
Count cholesky_flops(const OperandShapes& call) { return per_cube(call.shape(0), 1.0 / 3); }
// L: 2 n^3 / 3
Count cholesky_inverse_flops(const OperandShapes& call) { return per_cube(call.shape(0), 2.0 / 3); }
// A: 2 n^3
Count inverse_flops(const OperandShapes& call) { return per_cube(call.shape(0), 2); }
// A: 25 n^3, with vectors
Count eigen_flops(const OperandShapes& call) { return per_cube(call.shape(0), 25); }
// A: 10 n^3
Count eigenvalue_flops(const OperandShapes& call) { return per_cube(call.shape(0), 10); }
// A, uplo, vectors: 9 n^3, or 4/3 n^3
Count symmetric_eigen_flops(const OperandShapes& call) {
  return per_cube(call.shape(0), call.flag(2, true) ? 9 : 4.0 / 3);
}

// A: R and reflectors, as LAPACK's geqrf
Count reflector_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  return a ? counted(reflectors(*a)) : std::nullopt;
}

// A, mode; by the shape of Q
Count qr_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  if (!a) return std::nullopt;
  const auto q = matrices(call.result(0).shape);
  double flops = reflectors(*a);
  // Mode "r" returns an empty Q, which is never formed.
  if (q && q->rows == a->rows) flops += a->batch * multiplied_out(a->rows, q->columns, a->smaller());
  return counted(flops);
}

// reflectors, tau: orgqr
Count householder_product_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  if (!a || call.shape(1).empty()) return std::nullopt;
  return counted(a->batch * multiplied_out(a->rows, a->columns, static_cast<double>(call.shape(1).back())));
}

// reflectors, tau, C, left: ormqr
Count reflector_product_flops(const OperandShapes& call) {
  const auto c = matrices(call.shape(2));
  if (!c || call.shape(1).empty()) return std::nullopt;
  const auto k = static_cast<double>(call.shape(1).back());
  // From the left, reflectors apply to columns; from the right, to rows.
  const double vectors = call.flag(3, true) ? c->columns : c->rows;
  return counted(c->batch * (4 * c->rows * c->columns * k - 2 * vectors * k * k));
}

// A, full matrices, vectors
Count svd_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  if (!a) return std::nullopt;
  const double m = a->larger();
  const double n = a->smaller();
  if (!call.flag(2, true)) return counted(a->batch * (4 * m * n * n - 4 * cube(n) / 3));
  if (call.flag(1)) return counted(a->batch * (4 * m * m * n + 8 * m * n * n + 9 * cube(n)));
  return counted(a->batch * (14 * m * n * n + 8 * cube(n)));
}

// A, B: by QR
Count least_squares_flops(const OperandShapes& call) {
  const auto a = matrices(call.shape(0));
  if (!a || !call.argument(1).is_tensor() || a->rows == 0) return std::nullopt;
  const double sides = static_cast<double>(element_count(call.argument(1))) / a->rows;
  const double n = a->smaller();
  return counted(reflectors(*a) + sides * (4 * a->larger() * n - n * n));
}

// Counts triangular solves, n^2 each per right-hand side, with an existing n x n factor (argument `kFactor`).
template <size_t kFactor, int kSolves>
Count triangular_solve_flops(const OperandShapes& call) {
  const auto a = square_matrices(call.shape(kFactor));
  if (!a || !call.result(0).is_tensor()) return std::nullopt;
  return counted(kSolves * a->rows * static_cast<double>(element_count(call.result(0))));
}

Count lu_and_solve_flops(const OperandShapes& call) {
  const auto a = square_matrices(call.shape(0));
  const Count solve = triangular_solve_flops<0, 2>(call);
  return a && solve ? counted(lu(*a) + static_cast<double>(*solve)) : std::nullopt;
}

constexpr int64_t kFlopsPerMac = 2;

// (..., m, k) x (..., k, n), with the same leading sizes.
Count batched_product(Shape a, Shape b, size_t rank) {
  if (a.size() != rank || b.size() != rank || a[rank - 1] != b[rank - 2]) return std::nullopt;
  for (size_t i = 0; i + 2 < rank; ++i) {
    if (a[i] != b[i]) return std::nullopt;
  }
  return product_of({kFlopsPerMac, product_of(a), b[rank - 1]});
}

template <size_t kFirst>
Count matrix_product(const OperandShapes& call) {
  return batched_product(call.shape(kFirst), call.shape(kFirst + 1), 2);
}
template <size_t kFirst>
Count batch_product(const OperandShapes& call) {
  return batched_product(call.shape(kFirst), call.shape(kFirst + 1), 3);
}
template <size_t kFirst>
Count matrix_vector(const OperandShapes& call) {
  const Shape matrix = call.shape(kFirst);
  const Shape vector = call.shape(kFirst + 1);
  if (matrix.size() != 2 || vector.size() != 1 || matrix[1] != vector[0]) return std::nullopt;
  return product_of({kFlopsPerMac, matrix[0], matrix[1]});
}
Count dot_product(const OperandShapes& call) {
  if (call.rank(0) != 1 || call.rank(1) != 1 || call.shape(0)[0] != call.shape(1)[0]) return std::nullopt;
  return saturating_multiply(kFlopsPerMac, call.shape(0)[0]);
}
// self + vec1 (x) vec2: one multiply-accumulate per element.
Count rank_one_update(const OperandShapes& call) {
  if (call.rank(1) != 1 || call.rank(2) != 1) return std::nullopt;
  return product_of({kFlopsPerMac, call.shape(1)[0], call.shape(2)[0]});
}
// input (..., k), weight (n, k) or (k).
Count linear(const OperandShapes& call) {
  const Shape input = call.shape(0);
  const Shape weight = call.shape(1);
  if (input.empty() || weight.empty() || weight.size() > 2 || input.back() != weight.back()) return std::nullopt;
  return product_of({kFlopsPerMac, product_of(input), weight.size() == 2 ? weight[0] : 1});
}
Count matmul(const OperandShapes& call) {
  const Shape a = call.shape(0);
  const Shape b = call.shape(1);
  if (a.empty() || b.empty() || !call.result(0).is_tensor()) return std::nullopt;
  if (a.back() != (b.size() == 1 ? b[0] : b[b.size() - 2])) return std::nullopt;
  return product_of({kFlopsPerMac, element_count(call.result(0)), a.back()});
}
// Groups along the dimension that `offs` splits; in every form, each row is multiplied with its columns once.
Count grouped_product(const OperandShapes& call) {
  const Shape a = call.shape(0);
  const Shape b = call.shape(1);
  if (a.size() < 2 || b.size() < 2 || a.size() > 3 || b.size() > 3) return std::nullopt;
  if (a.size() == 3 && b.size() == 3) return batched_product(a, b, 3);
  // 2-d x 3-d: rows are split among groups; 3-d x 2-d: columns are; 2-d x 2-d: the contracted dimension is.
  const int64_t rows = a[a.size() - 2];
  const int64_t columns = b.back();
  if (a.size() == 3 && b.size() == 2 && a[2] != b[0]) return std::nullopt;
  if (a.size() == 2 && b.size() == 3 && a[1] != b[1]) return std::nullopt;
  return product_of({kFlopsPerMac, rows, columns, a.back()});
}
// input (..., k) by weights packed in an opaque format; the work follows from the result.
Count packed_linear(const OperandShapes& call) {
  const Shape input = call.shape(0);
  if (input.empty() || !call.result(0).is_tensor()) return std::nullopt;
  return product_of({kFlopsPerMac, element_count(call.result(0)), input.back()});
}
// (n, ...) tensors, combined to m sums by coefficients (m, n).
Count linear_combination(const OperandShapes& call) {
  const Shape coefficients = call.shape(1);
  if (coefficients.size() != 2 || !call.result(0).is_tensor()) return std::nullopt;
  return product_of({kFlopsPerMac, element_count(call.result(0)), coefficients[1]});
}
// |x|^2 - 2 x y + |y|^2 as one product: (p, m) and (r, m) are extended by two columns.
Count euclidean_distance(const OperandShapes& call) {
  const Shape points = call.shape(0);
  if (points.empty() || !call.result(0).is_tensor()) return std::nullopt;
  return product_of({kFlopsPerMac, element_count(call.result(0)), saturating_add(points.back(), 2)});
}
Count trilinear(const OperandShapes& call) {
  // sum over `sumdim` of i1 * i2 * i3 in their common, expanded shape: two products and a sum per element.
  const Shape one = call.shape(0);
  const Operand& expand = call.argument(3);
  if (expand.kind != Operand::Kind::kInts) return std::nullopt;
  size_t rank = one.size() + expand.shape.size();
  std::vector<int64_t> sizes(rank, 1);
  for (size_t operand = 0; operand < 3; ++operand) {
    const Shape shape = call.shape(operand);
    const Shape added = call.argument(3 + operand).shape;
    if (shape.size() + added.size() != rank) return std::nullopt;
    size_t next = 0;
    for (size_t d = 0; d < rank; ++d) {
      if (std::find(added.begin(), added.end(), static_cast<int64_t>(d)) != added.end()) continue;
      if (next == shape.size()) return std::nullopt;
      sizes[d] = std::max(sizes[d], shape[next++]);
    }
  }
  return saturating_multiply(kFlopsPerMac + 1, product_of(sizes));
}

// One multiply-accumulate per window position, per point of `points`, per pair of connected channels.
Count convolution_count(int64_t batch, Shape weight, Shape points) {
  if (weight.size() < 2 || points.size() < 2) return std::nullopt;
  return product_of({kFlopsPerMac, batch, product_of(weight), product_of(points.subspan(2))});
}

// Every output point covers the whole window; in a transposed convolution every input point does.
Count convolution_forward(const OperandShapes& call, bool transposed) {
  const Shape input = call.shape(0);
  const Shape output = call.result(0).shape;
  if (input.size() < 2 || output.size() != input.size() || call.rank(1) != input.size()) return std::nullopt;
  return convolution_count(input[0], call.shape(1), transposed ? input : output);
}
// convolution(input, weight, bias, stride, padding, dilation, transposed, ...)
Count convolution(const OperandShapes& call) { return convolution_forward(call, call.flag(6)); }
// Forms without a `transposed` argument. PyTorch's formula reads cudnn_convolution's `benchmark` in its place.
Count plain_convolution(const OperandShapes& call) { return convolution_forward(call, false); }
Count transposed_convolution(const OperandShapes& call) { return convolution_forward(call, true); }

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
//                      groups, output_mask)
Count convolution_backward(const OperandShapes& call) {
  const Shape gradient = call.shape(0);
  const Shape input = call.shape(1);
  const Shape weight = call.shape(2);
  const bool transposed = call.flag(7);
  if (gradient.size() < 2 || input.size() != gradient.size() || weight.size() != gradient.size()) return std::nullopt;
  int64_t flops = 0;
  if (call.element(10, 0, 0) != 0) {
    // The input's gradient is the opposite convolution of the output's gradient.
    const Count count = convolution_count(gradient[0], weight, transposed ? input : gradient);
    if (!count) return std::nullopt;
    flops = *count;
  }
  if (call.element(10, 1, 0) != 0) {
    // The weight's gradient pairs every channel of the input with every channel of the output. Groups are not
    // discounted, as in PyTorch 2.13.0 (pytorch/pytorch#183405 changes that later).
    const Shape points = transposed ? input : gradient;
    flops = saturating_add(flops, product_of({kFlopsPerMac, gradient[0], input[1], gradient[1],
                                              product_of(weight.subspan(2)), product_of(points.subspan(2))}));
  }
  return flops;
}

// time x batch x channels, weight (window, in, out).
Count convolution_tbc(const OperandShapes& call) {
  const Shape weight = call.shape(1);
  if (weight.size() != 3 || !call.result(0).is_tensor()) return std::nullopt;
  return product_of({kFlopsPerMac, element_count(call.result(0)), weight[0], weight[1]});
}
// _slow_conv2d_backward(grad_output, self, weight, kernel_size, stride, padding, output_mask): one group. The out=
// variant has no mask and computes all.
Count slow_convolution_backward(const OperandShapes& call) {
  const Shape gradient = call.shape(0);
  const Shape weight = call.shape(2);
  if (gradient.size() != 4 || weight.empty()) return std::nullopt;
  const int64_t one = product_of({kFlopsPerMac, gradient[0], product_of(weight), gradient[2], gradient[3]});
  return saturating_multiply(one, (call.element(6, 0, 1) != 0 ? 1 : 0) + (call.element(6, 1, 1) != 0 ? 1 : 0));
}

// Scores (query x key) and output (scores x value). With grouped queries, all query heads count.
Count attention_count(Shape query, Shape key, Shape value) {
  if (query.size() != 4 || key.size() != 4 || value.size() != 4) return std::nullopt;
  const bool fits = query[0] == key[0] && key[0] == value[0] && key[1] == value[1] && query[3] == key[3] &&
                    key[2] == value[2] && key[1] > 0 && query[1] >= key[1] && query[1] % key[1] == 0;
  if (!fits) return std::nullopt;
  return product_of({kFlopsPerMac, query[0], query[1], query[2], key[2], saturating_add(query[3], value[3])});
}
// Five products: scores again, gradients of scores, value, query and key.
Count attention_backward_count(Shape gradient, Shape query, Shape key, Shape value) {
  if (gradient.size() != 4 || !attention_count(query, key, value)) return std::nullopt;
  const bool fits =
      gradient[0] == query[0] && gradient[1] == query[1] && gradient[2] == query[2] && gradient[3] == value[3];
  if (!fits) return std::nullopt;
  const int64_t depth = saturating_add(saturating_multiply(3, query[3]), saturating_multiply(2, value[3]));
  return product_of({kFlopsPerMac, query[0], query[1], query[2], key[2], depth});
}

Count attention(const OperandShapes& call) { return attention_count(call.shape(0), call.shape(1), call.shape(2)); }
Count attention_backward(const OperandShapes& call) {
  return attention_backward_count(call.shape(0), call.shape(1), call.shape(2), call.shape(3));
}

// A call on packed sequences (cumulative lengths given), as dense operands of one sequence. Every sequence counts with
// the maximum length, since the contents of fake tensors are unknown; PyTorch does the same.
struct PackedSequences {
  int64_t count;
  std::array<int64_t, 4> query, key, value;
};
// Tensors are (tokens, heads, depth) for flash attention, (1, tokens, heads, depth) for efficient attention. Query, key
// and value are arguments `query` and the next two.
std::optional<PackedSequences> packed_sequences(const OperandShapes& call, size_t rank, size_t query, size_t offsets,
                                                size_t longest) {
  if (call.rank(offsets) != 1 || call.rank(offsets + 1) != 1) return std::nullopt;
  if (call.shape(offsets)[0] != call.shape(offsets + 1)[0] || call.shape(offsets)[0] < 1) return std::nullopt;
  const Shape q = call.shape(query), k = call.shape(query + 1), v = call.shape(query + 2);
  if (q.size() != rank || k.size() != rank || v.size() != rank) return std::nullopt;
  const int64_t keys = call.integer(longest + 1, 0);
  return PackedSequences{call.shape(offsets)[0] - 1,
                         {1, q[rank - 2], call.integer(longest, 0), q[rank - 1]},
                         {1, k[rank - 2], keys, k[rank - 1]},
                         {1, v[rank - 2], keys, v[rank - 1]}};
}

// Flash attention has dense operands with heads after tokens; PyTorch's formula may or may not account for it.
std::array<int64_t, 4> heads_first(Shape of) {
  return kFlopsOfFlashReadHeadsLast ? std::array{of[0], of[2], of[1], of[3]} : std::array{of[0], of[1], of[2], of[3]};
}
Count dense_flash(const OperandShapes& call) {
  const Shape q = call.shape(0), k = call.shape(1), v = call.shape(2);
  if (q.size() != 4 || k.size() != 4 || v.size() != 4) return std::nullopt;
  return attention_count(heads_first(q), heads_first(k), heads_first(v));
}
Count dense_flash_backward(const OperandShapes& call) {
  const Shape gradient = call.shape(0), q = call.shape(1), k = call.shape(2), v = call.shape(3);
  if (gradient.size() != 4 || q.size() != 4 || k.size() != 4 || v.size() != 4) return std::nullopt;
  return attention_backward_count(heads_first(gradient), heads_first(q), heads_first(k), heads_first(v));
}

template <size_t kRank, size_t kOffsets, size_t kLongest, size_t kQuery = 0>
Count varlen_attention(const OperandShapes& call) {
  if (!call.argument(kOffsets).is_tensor()) {
    if (kQuery != 0) return std::nullopt;
    return kRank == 3 && kOffsets == 3 ? dense_flash(call) : attention(call);
  }
  const auto packed = packed_sequences(call, kRank, kQuery, kOffsets, kLongest);
  const Count one = packed ? attention_count(packed->query, packed->key, packed->value) : std::nullopt;
  return one ? Count(saturating_multiply(*one, packed->count)) : std::nullopt;
}
template <size_t kRank, size_t kOffsets = 6>
Count varlen_attention_backward(const OperandShapes& call) {
  if (!call.argument(kOffsets).is_tensor()) {
    return kRank == 3 && kOffsets == 6 ? dense_flash_backward(call) : attention_backward(call);
  }
  const auto packed = packed_sequences(call, kRank, 1, kOffsets, kOffsets + 2);
  if (!packed) return std::nullopt;
  const Count one = attention_backward_count(packed->query, packed->query, packed->key, packed->value);
  return one ? Count(saturating_multiply(*one, packed->count)) : std::nullopt;
}

// FlexAttention as one kernel (core/fake/rules/attention.cpp): argument `kScores` is the number of scores in blocks
// that its mask does not skip, over all samples and query heads; negative: all of them, as the mask's data is unknown.
// `kQuery`: query; key and value follow.
template <size_t kQuery, size_t kScores, int64_t kOfQuery, int64_t kOfValue>
Count flex_attention(const OperandShapes& call) {
  if (call.rank(kQuery) != 4 || call.rank(kQuery + 2) != 4) return std::nullopt;
  return product_of({kFlopsPerMac, std::abs(call.integer(kScores, 0)),
                     saturating_add(saturating_multiply(kOfQuery, call.shape(kQuery)[3]),
                                    saturating_multiply(kOfValue, call.shape(kQuery + 2)[3]))});
}

// The inference fast path of nn.MultiheadAttention and nn.TransformerEncoderLayer: projections of queries, keys and values
// by arguments kWeight, scores, values, and the projection by kWeight + 2.
template <size_t kWeight>
Count projected_attention(const OperandShapes& call, Shape query, Shape key) {
  const Shape in = call.shape(kWeight), out = call.shape(kWeight + 2);
  if (query.size() != 3 || key.size() != 3 || in.size() != 2 || out.size() != 2 || in[0] % 3 != 0) return std::nullopt;
  const int64_t tokens = saturating_multiply(query[0], query[1]), keys = saturating_multiply(key[0], key[1]);
  const int64_t rows = saturating_add(tokens, saturating_multiply(2, keys));
  const int64_t projections =
      saturating_add(product_of({rows, in[0] / 3, in[1]}), product_of({tokens, out[0], out[1]}));
  return saturating_multiply(kFlopsPerMac, saturating_add(projections, product_of({2, tokens, key[1], in[0] / 3})));
}
Count multi_head_attention(const OperandShapes& call) {
  return projected_attention<5>(call, call.shape(0), call.shape(1));
}
Count encoder_layer(const OperandShapes& call) {
  const Shape source = call.shape(0);
  const Count attention = projected_attention<3>(call, source, source);
  if (!attention) return std::nullopt;
  const int64_t weights = saturating_add(product_of(call.shape(14)), product_of(call.shape(16)));
  return saturating_add(*attention, product_of({kFlopsPerMac, source[0], source[1], weights}));
}

// Recurrent layers: the matrix products of the gates, once per token of the batch.
Count recurrent(Shape input, std::initializer_list<Shape> matrices, int64_t passes) {
  if (input.empty() || input.back() == 0) return std::nullopt;
  const int64_t tokens = product_of(input.first(input.size() - 1));
  int64_t weights = 0;
  for (Shape matrix : matrices) {
    if (matrix.size() == 2) weights = saturating_add(weights, product_of(matrix));
  }
  if (weights == 0) return std::nullopt;
  return product_of({kFlopsPerMac, passes, tokens, weights});
}
Count recurrent(Shape input, std::span<const Shape> weights, int64_t passes) {
  int64_t total = 0;
  for (Shape weight : weights) {
    const Count one = weight.size() == 2 ? recurrent(input, {weight}, passes) : Count(0);
    if (!one) return std::nullopt;
    total = saturating_add(total, *one);
  }
  return total > 0 ? Count(total) : std::nullopt;
}
// One layer and direction: weight0 (gates * hidden, input), weight1 (gates * hidden, hidden).
Count mkldnn_rnn(const OperandShapes& call) { return recurrent(call.shape(0), {call.shape(1), call.shape(2)}, 1); }
Count mkldnn_rnn_backward(const OperandShapes& call) {
  return recurrent(call.shape(0), {call.shape(1), call.shape(2)}, 2);
}
Count cudnn_rnn_backward(const OperandShapes& call) {
  return recurrent(call.shape(0), call.argument(1).tensors, call.element(21, 3, 1) != 0 ? 2 : 1);
}
// All layers and directions; the matrices among the weights are the rank-2 ones.
template <size_t kWeights>
Count layers_rnn(const OperandShapes& call) {
  return recurrent(call.shape(0), call.argument(kWeights).tensors, 1);
}

constexpr bool kExcludesGates = false;

// Sorted by family; counted_by_pytorch marks operators that this version's flop_registry has.
constexpr FlopRow kFlopRows[] = {
    {matrix_product<0>, true, "2mnk", "mm _scaled_mm"},
    {matrix_product<1>, true, "2mnk", "addmm"},
    {batch_product<0>, true, "2bmnk", "bmm"},
    {batch_product<1>, true, "2bmnk", "baddbmm"},
    {matrix_product<1>, false, "2mnk", "addmm_ _addmm_activation"},
    {batch_product<1>, false, "2bmnk", "baddbmm_ addbmm addbmm_"},
    {matrix_product<0>, false, "2mnk", "_scaled_mm_v2 _int_mm"},
    {grouped_product, false, "2mnk over all groups", "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"},
    {matrix_vector<0>, false, "2mk", "mv"},
    {matrix_vector<1>, false, "2mk", "addmv addmv_"},
    {dot_product, false, "2n", "dot vdot"},
    {rank_one_update, false, "2mn", "addr addr_"},
    {linear, false, "2 numel(input) n", "linear mkldnn_linear"},
    {matmul, false, "2 numel(out) k", "matmul"},
    {trilinear, false, "3 numel of the expanded product", "_trilinear"},
    {packed_linear, false, "2 numel(out) k", R"(
        _mixed_dtypes_linear _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu
        _weight_int4pack_mm_with_scales_and_zeros _dyn_quant_matmul_4bit
        bitsandbytes::gemv_4bit bitsandbytes::gemm_4bit bitsandbytes::int8_linear_matmul bitsandbytes::int8_scaled_mm
        bitsandbytes::int8_mixed_scaled_mm)"},
    {linear_combination, false, "2 numel(out) n", "_compute_linear_combination"},
    {euclidean_distance, false, "2 numel(out) (k + 2)", "_euclidean_dist"},

    {lu_flops, false, "2/3 n^3", "_linalg_det _linalg_slogdet"},
    {lu_flops, false, "mn^2 - n^3/3, m >= n", "linalg_lu linalg_lu_factor_ex"},
    {inverse_flops, false, "2n^3", "linalg_inv_ex"},
    {lu_and_solve_flops, false, "2/3 n^3 + 2n^2 k", "_linalg_solve_ex"},
    {triangular_solve_flops<0, 2>, false, "2n^2 k", "linalg_lu_solve linalg_ldl_solve"},
    {cholesky_flops, false, "n^3/3", "linalg_cholesky_ex cholesky linalg_ldl_factor_ex"},
    {cholesky_inverse_flops, false, "2/3 n^3", "cholesky_inverse"},
    {triangular_solve_flops<1, 2>, false, "2n^2 k", "cholesky_solve _cholesky_solve_helper"},
    {triangular_solve_flops<0, 1>, false, "n^2 k", "linalg_solve_triangular"},
    {triangular_solve_flops<1, 1>, false, "n^2 k", "triangular_solve"},
    {qr_flops, false, "2mn^2 - 2/3 n^3; with Q twice that, with all of Q 4m^2 n - 4mn^2 + 4/3 n^3 more", "linalg_qr"},
    {reflector_flops, false, "2mn^2 - 2/3 n^3, m >= n", "geqrf"},
    {householder_product_flops, false, "4mnk - 2(m + n)k^2 + 4/3 k^3", "linalg_householder_product"},
    {reflector_product_flops, false, "4mnk - 2nk^2 from the left, 4mnk - 2mk^2 from the right", "ormqr"},
    {least_squares_flops, false, "2mn^2 - 2/3 n^3 + (4mn - n^2) k", "linalg_lstsq"},
    {symmetric_eigen_flops, false, "9n^3, 4/3 n^3 without vectors", "_linalg_eigh"},
    {eigen_flops, false, "25n^3", "linalg_eig"},
    {eigenvalue_flops, false, "10n^3", "_linalg_eigvals linalg_eigvals"},
    {svd_flops, false, "14mn^2 + 8n^3; full 4m^2 n + 8mn^2 + 9n^3; without vectors 4mn^2 - 4/3 n^3", "_linalg_svd"},

    {convolution, true, "2 N prod(weight) prod(spatial)", "convolution _convolution convolution_overrideable"},
    {plain_convolution, true, "2 N prod(weight) prod(out spatial)", "cudnn_convolution"},
    {plain_convolution, false, "2 N prod(weight) prod(out spatial)", R"(
        cudnn_convolution_relu cudnn_convolution_add_relu slow_conv_dilated2d slow_conv_dilated3d
        mkldnn_convolution miopen_convolution miopen_depthwise_convolution _nnpack_spatial_convolution
        _conv_depthwise2d conv_depthwise3d slow_conv3d_forward)"},
    {transposed_convolution, false, "2 N prod(weight) prod(in spatial)", R"(
        slow_conv_transpose2d slow_conv_transpose3d cudnn_convolution_transpose miopen_convolution_transpose)"},
    {convolution_tbc, false, "2 numel(out) window Cin", "conv_tbc"},
    {slow_convolution_backward, false, "masked: 2 N prod(weight) prod(out spatial) each", "_slow_conv2d_backward"},
    // In the registry, but the formula there cannot take this operator's six arguments and throws.
    {plain_convolution, false, "2 N prod(weight) prod(out spatial)", "_slow_conv2d_forward"},
    {convolution_backward, true, "masked: 2 N prod(weight) prod(spatial) + 2 N Cin Cout prod(window) prod(spatial)", R"(
        convolution_backward)"},

    {attention, true, "2 B H Sq Sk (D + Dv)", R"(
        _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_cudnn_attention)"},
    {attention, kFlopsOfCpuFlashCounted, "2 B H Sq Sk (D + Dv)", "_scaled_dot_product_flash_attention_for_cpu"},
    {attention, false, "2 B H Sq Sk (D + Dv)", "_scaled_dot_product_fused_attention_overrideable"},
    {multi_head_attention, false, "2 B (Sq + 2 Sk) E^2 + 4 B Sq Sk E + 2 B Sq E^2", "_native_multi_head_attention"},
    {encoder_layer, false, "2 B S (4 E^2 + 2 S E + 2 E F)", "_transformer_encoder_layer_fwd"},
    {attention_backward, true, "2 B H Sq Sk (3D + 2Dv)", R"(
        _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_cudnn_attention_backward)"},
    {attention_backward, kFlopsOfCpuFlashCounted, "2 B H Sq Sk (3D + 2Dv)",
     "_scaled_dot_product_flash_attention_for_cpu_backward"},
    {attention_backward, false, "2 B H Sq Sk (3D + 2Dv)", R"(
        _scaled_dot_product_fused_attention_overrideable_backward)"},
    {varlen_attention_backward<3, 9>, false, "2 B H Sq Sk (3D + 2Dv), per sequence", "_cudnn_attention_backward"},
    {varlen_attention<3, 3, 5>, true, "2 B H Sq Sk (D + Dv), per sequence", "_flash_attention_forward"},
    {varlen_attention<3, 4, 6>, false, "2 B H Sq Sk (D + Dv), per sequence", "_cudnn_attention_forward"},
    {varlen_attention<4, 4, 6>, true, "2 B H Sq Sk (D + Dv), per sequence", "_efficient_attention_forward"},
    {varlen_attention_backward<3>, true, "2 B H Sq Sk (3D + 2Dv), per sequence", "_flash_attention_backward"},
    {varlen_attention_backward<4>, true, "2 B H Sq Sk (3D + 2Dv), per sequence", "_efficient_attention_backward"},

    {varlen_attention<3, 3, 5>, false, "2 B H Sq Sk (D + Dv), per sequence", "torch_attn::_varlen_attn"},
    {varlen_attention<3, 4, 6, 1>, false, "2 B H Sq Sk (D + Dv), per sequence", R"(
        torch_attn::_varlen_attn_out _flash_attention_forward_no_dropout_inplace)"},
    {varlen_attention_backward<3>, false, "2 B H Sq Sk (3D + 2Dv), per sequence", "torch_attn::_varlen_attn_backward"},
    {flex_attention<0, 3, 1, 1>, false, "2 scores (D + Dv)", "shadowgraph::flex_attention"},
    {flex_attention<1, 6, 3, 2>, false, "2 scores (3D + 2Dv)", "shadowgraph::flex_attention_backward"},

    {mkldnn_rnn, false, "2 T N prod(matrices)", "mkldnn_rnn_layer"},
    {mkldnn_rnn_backward, false, "4 T N prod(matrices)", "mkldnn_rnn_layer_backward"},
    {layers_rnn<1>, false, "2 T N prod(matrices)", "_cudnn_rnn"},
    {cudnn_rnn_backward, false, "4 T N prod(matrices), 2 without weight gradients", "_cudnn_rnn_backward"},
    {layers_rnn<1>, false, "2 T N prod(matrices)", "miopen_rnn", kExcludesGates},
    {layers_rnn<2>, false, "2 T N prod(matrices)", "lstm gru rnn_tanh rnn_relu", kExcludesGates},
    {layers_rnn<3>, false, "2 T N prod(matrices)", "lstm.data gru.data rnn_tanh.data rnn_relu.data", kExcludesGates},
};

}  // namespace

std::span<const FlopRow> flop_table() { return kFlopRows; }

const FlopRow* find_flop_row(std::string_view operator_name) {
  static const OperatorRows<FlopRow> index(kFlopRows);
  return index.find(operator_name);
}

}  // namespace shadowgraph
