// Work of elementwise operators. Each rule is a pure function of the call's shapes and of the row's work per element.
#include "profiler/cost/elementwise_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "ir/operators/operator_name.h"
#include "profiler/cost/flop_table.h"

namespace shadowgraph {
namespace {

using Work = ElementwiseWork;
using MaybeWork = std::optional<ElementwiseWork>;

inline Work scaled(int64_t elements, Work each) {
  return {saturating_multiply(elements, each.flops), saturating_multiply(elements, each.transcendental)};
}

inline MaybeWork nothing(const OperandShapes&, Work) { return Work(); }

// Returns the elements of the first result, or of the first argument if there is no result (in-place foreach).
inline int64_t result_elements(const OperandShapes& call) {
  return element_count(call.results.empty() ? call.argument(0) : call.result(0));
}
inline MaybeWork per_result(const OperandShapes& call, Work each) { return scaled(result_elements(call), each); }

template <size_t kArgument>
MaybeWork per_argument(const OperandShapes& call, Work each) {
  return scaled(element_count(call.argument(kArgument)), each);
}

inline MaybeWork diagonal(const OperandShapes& call, Work each) {
  const Shape matrix = call.shape(0);
  if (matrix.size() != 2) return std::nullopt;
  return scaled(std::min(matrix[0], matrix[1]), each);
}

// Counts self + alpha * other: two operations an element, or one if alpha is 1.
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
// Returns window size times results. kernel_size is argument 1; a single number applies to all dimensions.
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
// Counts norms: `each` with an affine transform, one operation less without (weight is argument kWeight).
template <size_t kInput, size_t kWeight>
MaybeWork norm(const OperandShapes& call, Work each) {
  if (!call.argument(kWeight).present()) each.flops -= 1;
  return scaled(element_count(call.argument(kInput)), each);
}
// Counts batch norm: 5 operations an element if it computes statistics, 2 with running ones; one less without weight.
template <size_t kTraining>
MaybeWork batch_norm(const OperandShapes& call, Work each) {
  if (!call.flag(kTraining, true)) each.flops = 2;
  return norm<0, 1>(call, each);
}
// Counts additions of values if argument kAccumulate is set; otherwise values are only copied.
template <size_t kValues, size_t kAccumulate>
MaybeWork per_accumulated(const OperandShapes& call, Work each) {
  return scaled(call.flag(kAccumulate) ? element_count(call.argument(kValues)) : 0, each);
}
// Counts a comparison sort: elements times log2 of the size of the longest dimension.
inline MaybeWork sorting(const OperandShapes& call, Work each) {
  uint64_t longest = 1;
  for (int64_t size : call.shape(0)) longest = std::max(longest, static_cast<uint64_t>(std::max<int64_t>(size, 1)));
  return scaled(saturating_multiply(element_count(call.argument(0)), std::bit_width(longest - 1)), each);
}
// Counts a sort of all elements in one sequence (unique). With a second tensor, sorts both: isin searches one in the
// other.
inline MaybeWork sorting_all(const OperandShapes& call, Work each) {
  const int64_t elements = saturating_add(element_count(call.argument(0)), element_count(call.argument(1)));
  const auto depth = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(elements, 1)) - 1);
  return scaled(saturating_multiply(elements, depth), each);
}
// Counts fast Fourier transforms as usual: 5 n log2 n for a complex transform of n points, half of that if one side is
// real. (Frigo & Johnson, The Design and Implementation of FFTW3, 2005.) For fft(self, dim, ...), n is the product of
// the transformed dimensions, in the complex or the real tensor.
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

// Counts distances of points with m coordinates: subtract, power, add for each. Powers and the root are transcendental
// except for p = 0, 1, infinity (neither needed) and 2 (a multiplication). kPoints is an argument (..., m), kExponent
// the one with p.
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
// Counts gradients of distances. Each reaches all coordinates of one side: the difference, its power, a product with
// the gradient, an addition.
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

// Counts embedding bags: one addition of a weight row per index, plus a product if samples have weights. kWidth is an
// argument whose last dimension is that of a row, kIndices the indices, kWeights the sample weights.
template <size_t kWidth, size_t kIndices, size_t kWeights>
MaybeWork bags(const OperandShapes& call, Work each) {
  const Shape rows = call.shape(kWidth);
  if (rows.empty()) return std::nullopt;
  if (call.argument(kWeights).is_tensor()) each.flops += 1;
  return scaled(saturating_multiply(element_count(call.argument(kIndices)), rows.back()), each);
}

// Returns the filter taps of an interpolation: products and additions per result. `mode` is ATen's enumerator.
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
// Counts a product and an addition per tap and element of grad_output, for the input and for each grid coordinate.
template <int64_t kDimensions, size_t kGradient, size_t kMode>
MaybeWork grid_sampler_backward(const OperandShapes& call, Work) {
  const int64_t count = taps(kDimensions, call.integer(kMode, 0));
  return scaled(element_count(call.argument(kGradient)), {2 * (count > 0 ? count * (1 + kDimensions) : 1), 0});
}
// Each coordinate is the product of a row of theta with a position.
inline MaybeWork affine_grid(const OperandShapes& call, Work) {
  const Shape theta = call.shape(0);
  if (theta.empty() || theta.back() < 1) return std::nullopt;
  return scaled(result_elements(call), {saturating_add(saturating_multiply(2, theta.back()), -1), 0});
}
// Counts antialiased resampling: rows, then columns. A result's window grows with the downsampling factor. kSupport is
// the filter's, in elements: 1 bilinear, 2 bicubic, 3 Lanczos. Backward takes (grad_output, output_size, input_size, ...).
template <int64_t kSupport, bool kBackward = false>
MaybeWork antialiased(const OperandShapes& call, Work) {
  const Shape input = kBackward ? call.result(0).shape : call.shape(0);
  const Shape output = kBackward ? call.shape(0) : call.result(0).shape;
  if (input.size() != 4 || output.size() != 4) return std::nullopt;
  const auto filter = [&](size_t side) {
    const double shrinks = output[side] > 0 ? static_cast<double>(input[side]) / static_cast<double>(output[side]) : 1;
    return static_cast<int64_t>(std::min(std::ceil(static_cast<double>(2 * kSupport) * std::max(shrinks, 1.0)), 1e9));
  };
  const int64_t along = product_of({2, input[0], input[1], input[2], output[3], filter(3)});
  return Work{saturating_add(along, product_of({2, input[0], input[1], output[2], output[3], filter(2)})), 0};
}
template <size_t kResult>
MaybeWork per_other_result(const OperandShapes& call, Work each) {
  return scaled(element_count(call.result(kResult)), each);
}

// Counts the bias of a matrix product or convolution: one addition per element of the result, if there is a bias.
template <size_t kBias>
MaybeWork bias(const OperandShapes& call, Work each) {
  return scaled(call.argument(kBias).is_tensor() ? result_elements(call) : 0, each);
}
// Counts the bias gradient: one addition per element of grad_output.
inline MaybeWork convolution_backward(const OperandShapes& call, Work each) {
  return scaled(call.element(10, 2, 0) != 0 ? element_count(call.argument(0)) : 0, each);
}
// Counts attention: `each` per score; query and key are arguments `kQuery` and the next. Packed calls use the maximum
// sequence lengths as an upper bound.
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

// FlexAttention: argument `kScores` is the number of scores computed.
template <size_t kScores>
MaybeWork per_counted_score(const OperandShapes& call, Work each) {
  return scaled(std::abs(call.integer(kScores, 0)), each);
}

// Counts the fast path of nn.MultiheadAttention: `each` per score, and the biases of both projections.
template <size_t kWeight>
MaybeWork projected_attention(const OperandShapes& call, Shape query, Shape key, int64_t heads, Work each) {
  if (query.size() != 3 || key.size() != 3 || call.rank(kWeight) != 2) return std::nullopt;
  Work work = scaled(product_of({query[0], heads, query[1], key[1]}), each);
  const int64_t tokens = saturating_multiply(query[0], query[1]), keys = saturating_multiply(key[0], key[1]);
  const int64_t biases = product_of({2, saturating_add(tokens, keys), query[2]});
  return Work{saturating_add(work.flops, biases), work.transcendental};
}
inline MaybeWork multi_head_attention(const OperandShapes& call, Work each) {
  return projected_attention<5>(call, call.shape(0), call.shape(1), call.integer(4, 1), each);
}
// nn.TransformerEncoderLayer's: also two layer norms (5) and residual sums (1), two biases and the activation.
inline MaybeWork encoder_layer(const OperandShapes& call, Work each) {
  const Shape source = call.shape(0);
  const MaybeWork attention = projected_attention<3>(call, source, source, call.integer(2, 1), each);
  if (!attention || call.rank(14) != 2) return std::nullopt;
  const int64_t tokens = saturating_multiply(source[0], source[1]);
  const Work rest = scaled(saturating_multiply(tokens, source[2]), {13, 0});
  const Work hidden = scaled(saturating_multiply(tokens, call.shape(14)[0]), call.flag(7) ? Work{5, 1} : Work{2, 0});
  return Work{saturating_add(attention->flops, saturating_add(rest.flops, hidden.flops)),
              saturating_add(attention->transcendental, hidden.transcendental)};
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
// mkldnn_rnn_layer(..., mode 9, hidden_size 10, ...): one layer, one direction; backward does twice the work.
template <size_t kMode>
MaybeWork mkldnn_rnn(const OperandShapes& call, Work each) {
  const Shape input = call.shape(0);
  if (input.empty()) return std::nullopt;
  const int64_t tokens = product_of(input.first(input.size() - 1));
  const Work unit = recurrent_unit(call.number(kMode, 2));
  return scaled(product_of({each.flops, tokens, call.integer(kMode + 1, 0)}), unit);
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

using K = KernelClass;

constexpr Work kFree{0, 0};
constexpr Work kOne{1, 0};
constexpr Work kTranscendental{0, 1};
constexpr KernelClass kByName = KernelClass::kOther;

// Rows by kernel class. `names` lists operators with the same work per element.
constexpr ElementwiseRow kRows[] = {
    // ---- Pointwise arithmetic. A pointwise-tagged operator with one operation needs a row only for out= and foreach.
    {K::kPointwise, scaled_sum, kOne, "add sub rsub"},
    {K::kPointwise, per_result, kOne, R"(
        mul div floor_divide true_divide fmod remainder neg abs sign sgn ceil floor round trunc frac reciprocal square
        maximum minimum fmax fmin clamp clamp_min clamp_max clip eq ne lt le gt ge isnan isinf isfinite
        logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not
        __and__ __or__ __xor__ __lshift__ __rshift__ __ilshift__ __irshift__ bitwise_left_shift bitwise_right_shift
        where masked_fill ger outer nan_to_num _conj_physical copysign heaviside gcd lcm)"},
    {K::kPointwise, per_result, {3, 0}, "addcmul addcdiv lerp linalg_cross"},
    // Per element: the entry of a table of 16 or 256 by its block's scale; back: scale, then the nearest entry by
    // bisection (4 comparisons, or 8).
    {K::kPointwise, per_result, {2, 0}, R"(
        bitsandbytes::dequantize_4bit bitsandbytes::dequantize_blockwise bitsandbytes::int8_vectorwise_dequant)"},
    {K::kPointwise, per_argument<0>, {7, 0}, "bitsandbytes::quantize_4bit"},  // abs and max, scale, bisect
    {K::kPointwise, per_argument<0>, {11, 0}, "bitsandbytes::quantize_blockwise"},
    {K::kPointwise, per_argument<0>, {4, 0}, "bitsandbytes::int8_vectorwise_quant"},  // abs and max, scale, round
    {K::kPointwise, per_argument<0>, {8, 0}, "bitsandbytes::int8_double_quant"},      // by rows and by columns
    {K::kPointwise, per_result, {3, 0}, "bitsandbytes::int8_mm_dequant"},             // two scales and a bias
    {K::kPointwise, per_result, {6, 0}, R"(
        fake_quantize_per_tensor_affine_cachemask fake_quantize_per_channel_affine_cachemask
        _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
        _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_channel_affine)"},
    {K::kPointwise, per_argument<0>, kOne, "equal"},
    {K::kPointwise, nothing, kFree, "complex tril triu"},
    {kByName, sorting_all, kOne, "isin.Scalar_Tensor isin"},
    {kByName, per_argument<0>, kOne, "isin.Tensor_Scalar"},

    {K::kPointwise, per_result, kTranscendental, R"(
        exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan atan2 sinh cosh tanh erf erfc erfinv
        lgamma digamma)"},
    {K::kPointwise, power, kTranscendental, "pow"},
    {K::kPointwise, per_result, {1, 1}, "xlogy"},
    {K::kPointwise, per_result, {2, 1}, "logit"},
    {K::kPointwise, per_result, {3, 2}, "logaddexp"},
    {K::kPointwise, per_argument<0>, kOne, "_transform_bias_rescale_qkv"},
    {K::kPointwise, per_result, {3, 1}, "hypot"},
    {K::kPointwise, per_result, {2, 2}, "polar"},

    // ---- Activations and their gradients
    {K::kPointwise, per_result, kOne, R"(
        relu relu6 threshold hardtanh hardshrink
        threshold_backward hardtanh_backward hardshrink_backward softshrink_backward rrelu_with_noise_backward)"},
    {K::kPointwise, per_result, {2, 0}, R"(
        leaky_relu prelu _prelu_kernel softshrink _add_relu leaky_relu_backward hardsigmoid_backward)"},
    {K::kRandom, per_result, {2, 0}, "rrelu_with_noise rrelu_with_noise_functional"},
    {K::kPointwise, per_result, {3, 0}, R"(
        hardsigmoid _prelu_kernel_backward
        sigmoid_backward tanh_backward)"},  // g * y * (1 - y), g * (1 - y * y)
    {K::kPointwise, per_result, {4, 0}, "hardswish hardswish_backward"},
    {K::kPointwise, per_result, {3, 1}, "sigmoid elu selu celu elu_backward"},  // sigmoid: 1 / (1 + exp(-x))
    // silu is x * sigmoid(x), gelu is x / 2 * (1 + erf(x / sqrt 2)).
    {K::kPointwise, per_result, {4, 1}, "silu gelu glu softplus_backward log_sigmoid_backward"},
    {K::kPointwise, per_result, {3, 2}, "softplus log_sigmoid_forward"},
    {K::kPointwise, per_result, {3, 3}, "mish"},           // x * tanh(log1p(exp x))
    {K::kPointwise, per_result, {8, 1}, "silu_backward"},  // g * s * (1 + x * (1 - s)), s = sigmoid(x)
    {K::kPointwise, per_result, {9, 2}, "gelu_backward"},  // g * (cdf + x * pdf)
    {K::kPointwise, per_result, {9, 4}, "mish_backward"},
    {K::kPointwise, per_argument<0>, {12, 1}, "glu_backward"},

    // ---- Softmax, losses
    // Softmax: max, subtract, exp, sum, divide. Its gradient: y * (g - sum(g * y)).
    {kByName, per_result, {4, 1}, "_softmax _safe_softmax _log_softmax _masked_softmax softmax log_softmax"},
    {kByName, per_result, {4, 0}, "_softmax_backward_data _masked_softmax_backward"},
    {kByName, per_result, {3, 1}, "_log_softmax_backward_data"},  // g - exp(y) * sum(g)
    {K::kReduction, per_argument<0>, {3, 1}, "logsumexp"},
    // A CTC step is a logsumexp of three paths plus a log probability: 2 operations for the maximum, 3 subtractions, 2
    // additions, 1 each for adding it and the probability; 3 exp, 1 log. Backward does the same from the end and adds
    // both directions (4 and 2).
    {kByName, per_other_result<1>, {9, 4}, "_ctc_loss"},
    {kByName, per_argument<6>, {13, 6}, "_ctc_loss_backward"},
    {kByName, per_argument<0>, {4, 2}, "soft_margin_loss"},                             // log1p(exp(-y x)), sum
    {kByName, per_argument<0>, {4, 0}, "multi_margin_loss smooth_l1_loss huber_loss"},  // margin - x_y + x_i, max, sum
    {kByName, per_argument<0>, {3, 0}, "mse_loss l1_loss"},                             // subtract, square, sum
    {kByName, per_argument<0>, {5, 2}, "binary_cross_entropy binary_cross_entropy_with_logits"},
    {kByName, per_result, {4, 0}, "multi_margin_loss_backward"},
    {K::kPointwise, per_result, {5, 1}, "soft_margin_loss_backward"},
    {K::kPointwise, per_result, {3, 0}, "mse_loss_backward smooth_l1_loss_backward huber_loss_backward"},
    {K::kPointwise, per_result, {5, 0}, "binary_cross_entropy_backward"},
    {K::kReduction, per_argument<1>, kOne, "nll_loss_forward nll_loss2d_forward"},
    {K::kScatter, per_argument<2>, kOne, "nll_loss_backward nll_loss2d_backward"},

    {kByName, norm<0, 2>, {5, 0}, "native_layer_norm cudnn_batch_norm_backward miopen_batch_norm_backward"},
    {kByName, norm<1, 5>, {5, 0}, "native_layer_norm_backward"},
    {kByName, norm<1, 4>, {5, 0}, "native_group_norm_backward _fused_rms_norm_backward"},
    {kByName, norm<0, 2>, {4, 0}, "_fused_rms_norm"},
    {kByName, norm<0, 1>, {5, 0}, R"(
        native_group_norm _batch_norm_with_update _batch_norm_with_update_functional)"},
    {kByName, norm<0, 1>, {2, 0}, "_native_batch_norm_legit_no_training _batch_norm_no_update"},
    {kByName, batch_norm<5>, {5, 0}, R"(
        native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional _batch_norm_impl_index
        cudnn_batch_norm miopen_batch_norm)"},
    {kByName, batch_norm<3>, {5, 0}, "_native_batch_norm_legit.no_stats"},
    {kByName, norm<1, 2>, {5, 0}, "native_batch_norm_backward batch_norm_backward"},
    // Statistics as var; the backward's sums are those of g and of g (x - mean).
    {kByName, per_argument<0>, {4, 0}, "batch_norm_stats batch_norm_update_stats batch_norm_backward_reduce"},
    {kByName, per_result, {2, 0}, "batch_norm_elemt"},           // as with running statistics
    {kByName, per_result, {5, 0}, "batch_norm_backward_elemt"},  // (g - mean g - (x - mean) a) b
    {kByName, per_argument<0>, {3, 0}, "_weight_norm_interface renorm"},
    {kByName, per_argument<0>, {6, 0}, "_weight_norm_interface_backward"},

    {K::kReduction, per_argument<0>, kOne, R"(
        sum mean prod amax amin max min argmax argmin any all count_nonzero _is_all_true _is_any_true hash_tensor
        segment_reduce cumsum cumprod cummax cummin _cummax_helper _cummin_helper)"},
    {K::kReduction, per_argument<0>, {2, 0}, R"(
        nansum aminmax _aminmax norm linalg_vector_norm linalg__powsum _foreach_powsum
        _histogramdd_bin_edges)"},  // least and greatest
    {K::kReduction, per_argument<0>, {3, 0}, "dist"},
    {K::kReduction, per_argument<0>, {3, 2}, "logcumsumexp _logcumsumexp"},
    {K::kReduction, per_argument<0>, {4, 0}, "var std var_mean std_mean"},  // mean; subtract, square, sum
    {K::kReduction, diagonal, kOne, "trace"},
    {kByName, per_argument<0>, {5, 0}, "allclose"},  // |a - b| <= t + r |b|
    {kByName, distances<0, 2>, {3, 0}, "_cdist_forward"},
    {kByName, distances_backward<1, 3>, {4, 0}, "_cdist_backward"},
    {kByName, distances<0, 1>, {3, 0}, "_pdist_forward"},
    {kByName, distances_backward<1, 2>, {5, 0}, "_pdist_backward"},  // each distance goes to both of its points
    {kByName, fourier_complex, kOne, "_fft_c2c"},
    {kByName, fourier_of_real, kOne, "_fft_r2c"},
    {kByName, fourier_to_real, kOne, "_fft_c2r"},
    {K::kSort, sorting, kOne, "sort argsort mode"},
    {K::kSort, sorting_all, kOne, "_unique _unique2 unique_dim"},
    {K::kSort, per_argument<0>, kOne, "topk kthvalue median nanmedian"},
    {kByName, per_argument<0>, kOne, R"(
        unique_dim_consecutive unique_consecutive bincount histc histogram _histogramdd_from_bin_cts
        _histogramdd_from_bin_tensors)"},

    // ---- Pooling and resampling
    {kByName, pooling<1>, kOne, "max_pool1d max_pool1d_with_indices avg_pool1d"},
    {kByName, pooling<2>, kOne, R"(
        max_pool2d max_pool2d_with_indices mkldnn_max_pool2d avg_pool2d fractional_max_pool2d)"},
    {kByName, pooling<3>, kOne, "max_pool3d_with_indices avg_pool3d fractional_max_pool3d"},
    {kByName, pooling_backward<2>, kOne, "avg_pool2d_backward"},
    {kByName, pooling_backward<3>, kOne, "avg_pool3d_backward"},
    {kByName, per_result, kOne, R"(
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward)"},
    {kByName, per_argument<0>, kOne, R"(
        _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d adaptive_avg_pool3d
        adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool2d_backward adaptive_max_pool3d_backward
        max_pool2d_with_indices_backward max_pool3d_with_indices_backward
        fractional_max_pool2d_backward fractional_max_pool3d_backward
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward)"},
    {kByName, nothing, kFree, R"(
        max_unpool2d max_unpool3d upsample_nearest1d upsample_nearest2d upsample_nearest3d
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d)"},
    {kByName, per_result, {3, 0}, "upsample_linear1d"},
    {kByName, per_result, {7, 0}, "upsample_bilinear2d"},  // 4 taps: 4 multiplications, 3 additions
    {kByName, per_result, {15, 0}, "upsample_trilinear3d"},
    {kByName, per_result, {31, 0}, "upsample_bicubic2d"},
    {kByName, per_argument<0>, {4, 0}, "upsample_linear1d_backward"},
    {kByName, per_argument<0>, {8, 0}, "upsample_bilinear2d_backward"},
    {kByName, per_argument<0>, {16, 0}, "upsample_trilinear3d_backward"},
    {kByName, per_argument<0>, {32, 0}, "upsample_bicubic2d_backward"},
    {kByName, antialiased<1>, kOne, "_upsample_bilinear2d_aa"},
    {kByName, antialiased<2>, kOne, "_upsample_bicubic2d_aa"},
    {kByName, antialiased<3>, kOne, "_upsample_lanczos2d_aa"},
    {kByName, antialiased<1, true>, kOne, "_upsample_bilinear2d_aa_backward"},
    {kByName, antialiased<2, true>, kOne, "_upsample_bicubic2d_aa_backward"},
    {kByName, antialiased<3, true>, kOne, "_upsample_lanczos2d_aa_backward"},
    {kByName, grid_sampler<2>, kOne, "grid_sampler_2d _grid_sampler_2d_cpu_fallback cudnn_grid_sampler"},
    {kByName, grid_sampler<3>, kOne, "grid_sampler_3d"},
    {kByName, grid_sampler_backward<2, 0, 3>, kOne, "grid_sampler_2d_backward _grid_sampler_2d_cpu_fallback_backward"},
    {kByName, grid_sampler_backward<3, 0, 3>, kOne, "grid_sampler_3d_backward"},
    {kByName, grid_sampler_backward<2, 2, 3>, kOne, "cudnn_grid_sampler_backward"},
    {kByName, affine_grid, kOne, "affine_grid_generator cudnn_affine_grid_generator"},
    {kByName, per_argument<0>, {6, 0}, "cudnn_affine_grid_generator_backward"},  // into the 3 of its row of theta
    {K::kCopy, nothing, kFree, R"(
        im2col _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _dyn_quant_pack_4bit_weight)"},
    {K::kCopy, per_argument<0>, kOne, "col2im"},

    // ---- Dropout and random draws: the draw is free, comparison and scaling count
    {K::kRandom, per_result, {2, 0}, "native_dropout _fused_dropout"},
    {K::kPointwise, per_result, {2, 0}, "native_dropout_backward _masked_scale"},
    {K::kRandom, per_result, kOne, "bernoulli"},
    {K::kRandom, per_argument<0>, kOne, "multinomial"},
    {K::kRandom, nothing, kFree, R"(
        rand randn randint randperm rand_like randn_like randint_like normal normal_functional uniform random
        exponential log_normal cauchy geometric poisson binomial _standard_gamma _sample_dirichlet
        _philox_normal _philox_uniform _philox_key_split _philox_key_fold_in
        _fill_mem_eff_dropout_mask _cudnn_init_dropout_state)"},

    // ---- Gathering copies; scattering may add
    {K::kGather, nothing, kFree, R"(
        embedding index _unsafe_index index_select gather take masked_select _unsafe_masked_index
        masked_scatter_backward)"},
    {K::kGather, per_argument<0>, kOne, "nonzero nonzero_static"},
    {K::kSort, nothing, kFree, "searchsorted bucketize"},
    {kByName, nothing, kFree, "embedding_renorm"},
    {K::kScatter, nothing, kFree, R"(
        index_fill index_copy scatter masked_scatter select_backward slice_backward diagonal_backward
        value_selecting_reduction_backward)"},
    {K::kScatter, per_argument<0>, kOne, "embedding_dense_backward"},
    {K::kScatter, per_argument<2>, kOne, "scatter_add scatter_reduce"},
    {K::kScatter, per_argument<3>, kOne, "index_add index_reduce _unsafe_masked_index_put_accumulate"},
    {K::kScatter, per_accumulated<2, 3>, kOne, "index_put _index_put_impl _unsafe_index_put put"},
    {K::kGather, bags<0, 1, 6>, kOne, "_embedding_bag _embedding_bag_forward_only"},
    {K::kScatter, bags<0, 1, 10>, kOne, "_embedding_bag_backward"},
    {K::kScatter, bags<0, 1, 8>, kOne, "_embedding_bag_dense_backward"},
    // With given offsets: 2, a dot product.
    {K::kGather, bags<0, 2, 3>, kOne, "_embedding_bag_per_sample_weights_backward"},

    {K::kCopy, nothing, kFree, R"(
        copy clone _to_copy _copy_from _reshape_copy _lazy_clone lift lift_fresh_copy _unsafe_view unsafe_split
        unsafe_split_with_sizes cat stack _stack _chunk_cat block_diag repeat repeat_interleave flip roll rot90
        diag_embed constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
        replication_pad2d replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle select_scatter slice_scatter
        as_strided_scatter diagonal_scatter lu_unpack _pin_memory _pack_padded_sequence _jagged_to_padded_dense_forward
        _padded_dense_to_jagged_forward
        view_copy expand_copy t_copy transpose_copy permute_copy split_copy split_with_sizes_copy alias_copy
        as_strided_copy detach_copy diagonal_copy narrow_copy select_copy slice_copy squeeze_copy unsqueeze_copy
        unbind_copy unfold_copy values_copy indices_copy view_as_complex_copy view_as_real_copy _conj_copy
        _neg_view_copy _reshape_alias_copy _fw_primal_copy _make_dual_copy
        fsdp::all_gather_copy_in fsdp::split_with_sizes_copy fsdp::chunk_cat fsdp::chunk_cat_mixed_dtype)"},
    {kByName, per_argument<0>, kOne, R"(
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward
        replication_pad2d_backward replication_pad3d_backward unfold_backward)"},

    // ---- Fills that operator facts do not mark as such in all forms
    {K::kFill, nothing, kFree, "fill zero linspace"},
    {K::kFill, per_result, {1, 1}, "logspace"},
    {kByName, per_result, kOne, "fft_fftfreq fft_rfftfreq"},
    {kByName, per_result, {2, 0}, "bartlett_window"},
    {kByName, per_result, {3, 1}, "hann_window hamming_window"},  // 0.5 - 0.5 cos(c n)
    {kByName, per_result, {6, 2}, "blackman_window"},
    {kByName, per_result, {5, 2}, "kaiser_window"},  // i0(b sqrt(1 - ((n - c) / c)^2)) / i0(b)

    // ---- No arithmetic: numbers for the host, checks, tensor objects
    {kByName, nothing, kFree, R"(
        _local_scalar_dense item is_same_size is_set_to is_pinned is_coalesced dense_dim sparse_dim
        _has_same_storage_numel _use_cudnn_ctc_loss _use_miopen_ctc_loss _fused_sdp_choice
        _assert_scalar _assert_tensor_metadata _assert_async _functional_assert_async _functional_assert_scalar
        sym_constrain_range sym_constrain_range_for_size _functional_sym_constrain_range
        _functional_sym_constrain_range_for_size _linalg_check_errors _make_dep_token _print record_stream
        resize resize_as _resize_output set requires_grad_ detach_ t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_
        as_strided_ _efficientzerotensor from_file _cudnn_rnn_flatten_weight
        sg_random::get_state sg_random::exchange_state sg_random::set_state sg_random::seed)"},
    {K::kCopy, nothing, kFree, "_convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo"},

    // ---- Fused optimizer steps, per parameter element, with every option on except amsgrad
    {kByName, per_argument<0>, {7, 0}, "_fused_sgd"},  // weight decay 2, momentum 3, step 2
    // Decay 2, moments 3 + 4, sqrt, corrected denominator 2, step 3.
    {kByName, per_argument<0>, {14, 1}, "_fused_adam"},
    {kByName, per_argument<0>, {13, 1}, "_fused_adamw"},
    {kByName, per_argument<0>, {8, 1}, "_fused_adagrad"},
    {kByName, per_argument<0>, {2, 0}, "_amp_foreach_non_finite_check_and_unscale"},
    {kByName, nothing, kFree, "_amp_update_scale"},
    // With 8-bit states also two conversions each way: 2 + 8 each.
    {kByName, per_argument<2>, {13, 1}, "bitsandbytes::optimizer_update_32bit"},
    {kByName, per_argument<2>, {33, 1}, "bitsandbytes::optimizer_update_8bit_blockwise"},

    // ---- Elementwise work fused into matrix products (flop_table.h); products without any have no row
    {kByName, per_result, kTranscendental, "_euclidean_dist"},
    {kByName, per_result, kOne, "addmm baddbmm addbmm addmv"},
    {kByName, per_result, {2, 0}, "_addmm_activation cudnn_convolution_relu"},  // bias, relu
    {kByName, per_result, {4, 0}, "cudnn_convolution_add_relu"},                // alpha z added, bias, relu
    {kByName, bias<2>, kOne, R"(
        linear mkldnn_linear convolution _convolution convolution_overrideable mkldnn_convolution miopen_convolution
        miopen_convolution_transpose conv_tbc)"},
    {kByName, bias<3>, kOne, R"(
        _grouped_mm _slow_conv2d_forward _conv_depthwise2d conv_depthwise3d slow_conv3d_forward slow_conv_dilated2d
        slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d)"},
    {kByName, bias<4>, kOne, "_scaled_mm"},
    {kByName, bias<5>, kOne, "_scaled_grouped_mm"},
    {kByName, bias<8>, kOne, "_scaled_mm_v2"},
    {kByName, per_result, {2, 0}, "bitsandbytes::int8_scaled_mm bitsandbytes::int8_mixed_scaled_mm"},  // two scales
    {kByName, per_argument<0>, kOne, "_slow_conv2d_backward"},
    {kByName, convolution_backward, kOne, "convolution_backward"},
    // Per score: scale and softmax; backward: scale, exp(s - logsumexp), p * (dp - delta), scale.
    {kByName, per_score<0>, {5, 1}, R"(
        _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
        _scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_fused_attention_overrideable)"},
    {kByName, per_score<1>, {5, 1}, R"(
        _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward
        _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_fused_attention_overrideable_backward)"},
    {kByName, per_packed_score<3, 1, 9, 11>, {5, 1}, "_cudnn_attention_backward"},
    {K::kMatmul, multi_head_attention, {5, 1}, "_native_multi_head_attention"},
    {K::kMatmul, encoder_layer, {5, 1}, "_transformer_encoder_layer_fwd"},
    {kByName, per_packed_score<3, 0, 3, 5>, {5, 1}, "_flash_attention_forward"},
    {kByName, per_packed_score<3, 0, 4, 6>, {5, 1}, "_cudnn_attention_forward"},
    {kByName, per_packed_score<4, 0, 4, 6>, {5, 1}, "_efficient_attention_forward"},
    {kByName, per_packed_score<3, 1, 6, 8>, {5, 1}, "_flash_attention_backward"},
    {kByName, per_packed_score<4, 1, 6, 8>, {5, 1}, "_efficient_attention_backward"},
    {kByName, per_packed_score<3, 0, 3, 5>, {5, 1}, "torch_attn::_varlen_attn"},
    {kByName, per_packed_score<3, 1, 4, 6>, {5, 1}, R"(
        torch_attn::_varlen_attn_out _flash_attention_forward_no_dropout_inplace)"},
    {kByName, per_packed_score<3, 1, 6, 8>, {5, 1}, "torch_attn::_varlen_attn_backward"},
    {kByName, per_counted_score<3>, {5, 1}, "shadowgraph::flex_attention"},
    {kByName, per_counted_score<6>, {5, 1}, "shadowgraph::flex_attention_backward"},
    {kByName, mkldnn_rnn<9>, kOne, "mkldnn_rnn_layer"},
    {kByName, mkldnn_rnn<14>, {2, 0}, "mkldnn_rnn_layer_backward"},
    {kByName, cudnn_rnn<6>, kOne, "_cudnn_rnn"},
    {kByName, cudnn_rnn<10>, {2, 0}, "_cudnn_rnn_backward"},
    // Per hidden unit: the pointwise part of a cell (the gates' products are separate nodes).
    {kByName, per_result, {25, 5}, "_thnn_fused_lstm_cell"},
    {kByName, per_argument<2>, {50, 10}, "_thnn_fused_lstm_cell_backward_impl"},
    {kByName, per_result, {19, 3}, "_thnn_fused_gru_cell"},
    {kByName, per_argument<0>, {38, 6}, "_thnn_fused_gru_cell_backward"},
};

const OperatorRows<ElementwiseRow>& elementwise_index() {
  static const OperatorRows<ElementwiseRow> index(kRows);
  return index;
}

// Finds a row by the operator's full name, by its name without overload, or by its functional form.
const ElementwiseRow* find_own_or_plain(std::string_view name) {
  const ElementwiseRow* own = elementwise_index().find(name);
  return own != nullptr ? own : elementwise_index().find(without_underscore(without_overload(name)));
}

// Returns true if other tables show that the operator does no arithmetic: views, fills, uninitialized memory. Matrix
// products with additional elementwise work have their rows.
bool is_free(const Target& target) {
  if (target.kind() == TargetKind::kBuiltin) return true;
  const OperatorFacts& facts = target.facts();
  if (facts.is_view || facts.fills || facts.uninitialized) return true;
  const FlopRow* product = find_flop_row(target.name());
  return product != nullptr && product->counts_all;
}

}  // namespace

std::span<const ElementwiseRow> elementwise_table() { return kRows; }

const ElementwiseRow* find_elementwise_row(std::string_view operator_name) {
  if (const ElementwiseRow* row = find_own_or_plain(operator_name)) return row;
  constexpr std::string_view kForeach = "aten::_foreach_";
  if (!operator_name.starts_with(kForeach)) return nullptr;
  return find_own_or_plain("aten::" + std::string(without_overload(operator_name.substr(kForeach.size()))));
}

ElementwiseFormula ElementwiseFormula::of(const Target& target) {
  if (const ElementwiseRow* row = find_elementwise_row(target.name())) return {ElementwiseCoverage::kRow, row};
  if (is_free(target)) return {ElementwiseCoverage::kFree, nullptr};
  if (target.facts().pointwise) return {ElementwiseCoverage::kPointwiseTag, nullptr};
  return {};
}

std::optional<ElementwiseWork> ElementwiseFormula::evaluate(const OperandShapes& call) const {
  switch (coverage) {
    case ElementwiseCoverage::kRow:
      return row->rule(call, row->each);
    case ElementwiseCoverage::kFree:
      return ElementwiseWork();
    case ElementwiseCoverage::kPointwiseTag:
      return per_result(call, kOne);
    case ElementwiseCoverage::kNone:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace shadowgraph
