// Says which elements an operator walks over, and how often. Each rule is a pure function of the call's shapes and of
// what the table's row says an element costs. Internal to elementwise_table.cpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "profiler/cost/elementwise_table.h"

namespace shadowgraph::elementwise_rules {

using Work = ElementwiseWork;
using MaybeWork = std::optional<ElementwiseWork>;

inline Work scaled(int64_t elements, Work each) {
  return {saturating_multiply(elements, each.flops), saturating_multiply(elements, each.transcendental)};
}

// ---- Which elements

inline MaybeWork nothing(const OperandShapes&, Work) { return Work(); }

// Counts elements of the first result, or of the first argument where nothing is returned (foreach in place).
inline int64_t result_elements(const OperandShapes& call) {
  return element_count(call.results.empty() ? call.argument(0) : call.result(0));
}
inline MaybeWork per_result(const OperandShapes& call, Work each) { return scaled(result_elements(call), each); }

template <size_t kArgument>
MaybeWork per_argument(const OperandShapes& call, Work each) {
  return scaled(element_count(call.argument(kArgument)), each);
}

// Counts elements of a matrix's diagonal.
inline MaybeWork diagonal(const OperandShapes& call, Work each) {
  const Shape matrix = call.shape(0);
  if (matrix.size() != 2) return std::nullopt;
  return scaled(std::min(matrix[0], matrix[1]), each);
}

// ---- Operators whose cost depends on more than one size

// Counts self + alpha * other: a second operation an element unless alpha is 1.
inline MaybeWork scaled_sum(const OperandShapes& call, Work each) {
  if (call.number(2, 1) != 1) each.flops += 1;
  return scaled(result_elements(call), each);
}
// Squares and cubes are multiplications; every other exponent is a transcendental evaluation.
inline MaybeWork power(const OperandShapes& call, Work each) {
  const double exponent = call.number(1, NAN);
  if (exponent == 1) each = {0, 0};
  if (exponent == 2) each = {1, 0};
  if (exponent == 3) each = {2, 0};
  return scaled(result_elements(call), each);
}
// Counts window size times results: kernel_size is argument 1, and a single number stands for all dimensions.
template <size_t kDimensions>
int64_t window(const OperandShapes& call, size_t kernel) {
  int64_t size = 1;
  for (size_t d = 0; d < kDimensions; ++d) {
    size = saturating_multiply(size, call.element(kernel, d, call.element(kernel, 0, 1)));
  }
  return size;
}
template <size_t kDimensions>
MaybeWork pooling(const OperandShapes& call, Work each) {
  return scaled(saturating_multiply(result_elements(call), window<kDimensions>(call, 1)), each);
}
// Counts avg_pool backward: every gradient element is spread over its window. pool(grad_output, self, kernel_size, ...)
template <size_t kDimensions>
MaybeWork pooling_backward(const OperandShapes& call, Work each) {
  return scaled(saturating_multiply(element_count(call.argument(0)), window<kDimensions>(call, 2)), each);
}
// Counts norms: `each` with an affine transform, one less without (weight is argument kWeight).
template <size_t kInput, size_t kWeight>
MaybeWork norm(const OperandShapes& call, Work each) {
  if (!call.argument(kWeight).present()) each.flops -= 1;
  return scaled(element_count(call.argument(kInput)), each);
}
// Counts batch norm: 5 an element when it computes statistics, 2 when it uses the running ones; one less without
// weight.
template <size_t kTraining>
MaybeWork batch_norm(const OperandShapes& call, Work each) {
  if (!call.flag(kTraining, true)) each.flops = 2;
  return norm<0, 1>(call, each);
}
// Counts additions of values if argument kAccumulate is set; otherwise values are copied.
template <size_t kValues, size_t kAccumulate>
MaybeWork per_accumulated(const OperandShapes& call, Work each) {
  return scaled(call.flag(kAccumulate) ? element_count(call.argument(kValues)) : 0, each);
}
// Counts a comparison sort: elements times the binary logarithm of the longest side's size.
inline MaybeWork sorting(const OperandShapes& call, Work each) {
  uint64_t longest = 1;
  for (int64_t size : call.shape(0)) longest = std::max(longest, static_cast<uint64_t>(std::max<int64_t>(size, 1)));
  return scaled(saturating_multiply(element_count(call.argument(0)), std::bit_width(longest - 1)), each);
}
// Counts a sort of all elements, whatever their sides (unique). With a second tensor it sorts both: isin looks one up
// in the other.
inline MaybeWork sorting_all(const OperandShapes& call, Work each) {
  const int64_t elements = saturating_add(element_count(call.argument(0)), element_count(call.argument(1)));
  const auto depth = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(elements, 1)) - 1);
  return scaled(saturating_multiply(elements, depth), each);
}
// Counts fast Fourier transforms in the usual way: 5 n log2 n for an n-point complex one, half of that where one side
// is real. (Frigo & Johnson, The Design and Implementation of FFTW3, 2005.) For fft(self, dim, ...), n is the product
// of the sizes that the dimensions have, in the complex or the real tensor.
inline MaybeWork fourier(const Operand& points, const OperandShapes& call, double factor) {
  const Operand& dimensions = call.argument(1);
  if (!points.is_tensor() || dimensions.kind != Operand::Kind::kInts) return std::nullopt;
  const auto rank = static_cast<int64_t>(points.shape.size());
  double depth = 0;
  for (int64_t dimension : dimensions.shape) {
    if (dimension < -rank || dimension >= rank) return std::nullopt;
    const int64_t size = points.shape[static_cast<size_t>(dimension < 0 ? dimension + rank : dimension)];
    if (size > 1) depth += std::log2(static_cast<double>(size));
  }
  const double flops = factor * static_cast<double>(element_count(points)) * depth;
  if (!(flops >= 0)) return std::nullopt;
  return Work{flops < 9.2e18 ? std::llround(flops) : std::numeric_limits<int64_t>::max(), 0};
}
inline MaybeWork fourier_complex(const OperandShapes& call, Work) { return fourier(call.argument(0), call, 5); }
inline MaybeWork fourier_of_real(const OperandShapes& call, Work) { return fourier(call.argument(0), call, 2.5); }
inline MaybeWork fourier_to_real(const OperandShapes& call, Work) { return fourier(call.result(0), call, 2.5); }

// Counts distances of points of m coordinates: subtract, power, add each. Powers and the root are evaluations unless p
// says otherwise: 0, 1 and infinity have neither, 2 multiplies. kPoints is an argument (..., m), kExponent the one with
// p.
template <size_t kPoints, size_t kExponent>
MaybeWork distances(const OperandShapes& call, Work each) {
  const Shape points = call.shape(kPoints);
  if (points.empty()) return std::nullopt;
  const double p = call.number(kExponent, 2);
  const int64_t count = result_elements(call);
  const int64_t coordinates = saturating_multiply(count, points.back());
  const bool plain = p == 0 || p == 1 || std::isinf(p);
  Work work = scaled(coordinates, each);
  if (!plain) work.transcendental = saturating_add(p == 2 ? 0 : coordinates, count);
  return work;
}
// Counts gradients of distances. Each goes to all coordinates of one side: the distance's difference, its power, a
// product with the gradient, an addition.
template <size_t kPoints, size_t kExponent>
MaybeWork distances_backward(const OperandShapes& call, Work each) {
  const Shape points = call.shape(kPoints);
  if (points.empty()) return std::nullopt;
  const double p = call.number(kExponent, 2);
  const int64_t coordinates = saturating_multiply(element_count(call.argument(0)), points.back());
  Work work = scaled(coordinates, each);
  if (p != 0 && p != 1 && p != 2 && !std::isinf(p)) work.transcendental = coordinates;
  return work;
}

// Counts bags of embeddings: a row of the weight is added for every index, after a product where samples have weights.
// kWidth is an argument whose last side is a row's, kIndices that of the indices, kWeights that of the weights.
template <size_t kWidth, size_t kIndices, size_t kWeights>
MaybeWork bags(const OperandShapes& call, Work each) {
  const Shape rows = call.shape(kWidth);
  if (rows.empty()) return std::nullopt;
  if (call.argument(kWeights).is_tensor()) each.flops += 1;
  return scaled(saturating_multiply(element_count(call.argument(kIndices)), rows.back()), each);
}

// Returns the taps of an interpolation in so many dimensions: products and additions a result. `mode` is ATen's number.
inline int64_t taps(int64_t dimensions, int64_t mode) {
  if (mode == 1) return 0;  // nearest
  return mode == 2 ? 16 : int64_t{1} << dimensions;
}
// grid_sampler(input, grid, mode, ...)
template <int64_t kDimensions>
MaybeWork grid_sampler(const OperandShapes& call, Work) {
  const int64_t count = taps(kDimensions, call.integer(2, 0));
  return scaled(result_elements(call), {count > 0 ? 2 * count - 1 : 0, 0});
}
// Counts a product and an addition a tap, for every element of grad_output: for the input, and for each coordinate of
// the grid.
template <int64_t kDimensions, size_t kGradient, size_t kMode>
MaybeWork grid_sampler_backward(const OperandShapes& call, Work) {
  const int64_t count = taps(kDimensions, call.integer(kMode, 0));
  return scaled(element_count(call.argument(kGradient)), {2 * (count > 0 ? count * (1 + kDimensions) : 1), 0});
}
// A coordinate is the product of a row of theta with a position.
inline MaybeWork affine_grid(const OperandShapes& call, Work) {
  const Shape theta = call.shape(0);
  if (theta.empty() || theta.back() < 1) return std::nullopt;
  return scaled(result_elements(call), {saturating_add(saturating_multiply(2, theta.back()), -1), 0});
}
// Counts resampling with antialiasing: rows, then columns. A result's window grows with the factor by which a side
// shrinks. kSupport is that of the filter, in elements: 1 bilinear, 2 bicubic, 3 Lanczos.
template <int64_t kSupport>
MaybeWork antialiased_sides(Shape input, Shape output) {
  if (input.size() != 4 || output.size() != 4) return std::nullopt;
  const auto filter = [&](size_t side) {
    const double shrinks = output[side] > 0 ? static_cast<double>(input[side]) / static_cast<double>(output[side]) : 1;
    return static_cast<int64_t>(std::min(std::ceil(static_cast<double>(2 * kSupport) * std::max(shrinks, 1.0)), 1e9));
  };
  const int64_t along = product_of({2, input[0], input[1], input[2], output[3], filter(3)});
  return Work{saturating_add(along, product_of({2, input[0], input[1], output[2], output[3], filter(2)})), 0};
}
template <int64_t kSupport>
MaybeWork antialiased(const OperandShapes& call, Work) {
  return antialiased_sides<kSupport>(call.shape(0), call.result(0).shape);
}
// (grad_output, output_size, input_size, ...)
template <int64_t kSupport>
MaybeWork antialiased_backward(const OperandShapes& call, Work) {
  return antialiased_sides<kSupport>(call.result(0).shape, call.shape(0));
}
template <size_t kResult>
MaybeWork per_other_result(const OperandShapes& call, Work each) {
  return scaled(element_count(call.result(kResult)), each);
}

// Counts the bias of a matrix product or convolution: one addition an element of the result, if there is one.
template <size_t kBias>
MaybeWork bias(const OperandShapes& call, Work each) {
  return scaled(call.argument(kBias).is_tensor() ? result_elements(call) : 0, each);
}
// Counts the bias gradient: one addition an element of grad_output.
inline MaybeWork convolution_backward(const OperandShapes& call, Work each) {
  return scaled(call.element(10, 2, 0) != 0 ? element_count(call.argument(0)) : 0, each);
}
// Counts attention: work on every score; query and key follow `kQuery`. Packed calls bound the scores by their greatest
// lengths.
template <size_t kQuery>
MaybeWork per_score(const OperandShapes& call, Work each) {
  const Shape query = call.shape(kQuery);
  const Shape key = call.shape(kQuery + 1);
  if (query.size() != 4 || key.size() != 4) return std::nullopt;
  return scaled(product_of({query[0], query[1], query[2], key[2]}), each);
}
template <size_t kRank, size_t kQuery, size_t kOffsets, size_t kLongest>
MaybeWork per_packed_score(const OperandShapes& call, Work each) {
  if (!call.argument(kOffsets).is_tensor()) return per_score<kQuery>(call, each);
  const Shape query = call.shape(kQuery);
  if (query.size() != kRank || call.rank(kOffsets) != 1) return std::nullopt;
  const int64_t longest_query = call.integer(kLongest, 0);
  const int64_t longest_key = call.integer(kLongest + 1, 0);
  const int64_t sequences = std::max<int64_t>(call.shape(kOffsets)[0] - 1, 0);
  return scaled(product_of({sequences, query[kRank - 2], longest_query, longest_key}), each);
}

// Counts recurrent layers, per token and hidden unit. `mode` is ATen's number: 0 relu, 1 tanh, 2 LSTM, 3 GRU.
//
//     relu, tanh  the sum of two products and two biases (3), the activation (1 operation or 1 transcendental)
//     LSTM        four such sums (12), three sigmoids (9 + 3), two tanh (2), c = f c + i g (3), h = o tanh c (1)
//     GRU         three such sums (9), two sigmoids (6 + 2), one tanh (1), r n (1), h = n + z (h - n) (3)
inline Work recurrent_unit(double mode) {
  if (mode == 2) return {25, 5};
  if (mode == 3) return {19, 3};
  return mode == 1 ? Work{3, 1} : Work{4, 0};
}
// mkldnn_rnn_layer(..., mode 9, hidden_size 10, ...): one layer, one direction; the backward does it twice.
template <size_t kMode>
MaybeWork mkldnn_rnn(const OperandShapes& call, Work each) {
  const Shape input = call.shape(0);
  if (input.empty()) return std::nullopt;
  const int64_t tokens = product_of(input.first(input.size() - 1));
  const Work unit = recurrent_unit(call.number(kMode, 2));
  const int64_t units = product_of({each.flops, tokens, call.integer(kMode + 1, 0)});
  return scaled(units, unit);
}
// _cudnn_rnn(input, weight[], ..., mode, hidden_size, proj_size, num_layers, ..., bidirectional 7 after mode)
template <size_t kMode>
MaybeWork cudnn_rnn(const OperandShapes& call, Work each) {
  const Shape input = call.shape(0);
  if (input.empty()) return std::nullopt;
  const int64_t tokens = product_of(input.first(input.size() - 1));
  const int64_t directions = call.flag(kMode + 7) ? 2 : 1;
  const int64_t units =
      product_of({each.flops, tokens, directions, call.integer(kMode + 1, 0), call.integer(kMode + 3, 1)});
  return scaled(units, recurrent_unit(call.number(kMode, 2)));
}

}  // namespace shadowgraph::elementwise_rules
