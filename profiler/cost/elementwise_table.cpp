#include "profiler/cost/elementwise_table.h"

#include <bit>
#include <cmath>
#include <string>
#include <unordered_map>

#include "ir/operators/operator_name.h"

namespace shadowgraph {
namespace {

using Work = ElementwiseWork;
using MaybeWork = std::optional<ElementwiseWork>;

Work scaled(int64_t elements, Work each) {
  return {saturating_multiply(elements, each.flops), saturating_multiply(elements, each.transcendental)};
}

// ---- Which elements
// ---------------------------------------------------------------------------------------------------

MaybeWork nothing(const OperandShapes&, Work) { return Work(); }

// Elements of the first result; of the first argument where nothing is returned (foreach in place).
int64_t result_elements(const OperandShapes& call) {
  return element_count(call.results.empty() ? call.argument(0) : call.result(0));
}
MaybeWork per_result(const OperandShapes& call, Work each) { return scaled(result_elements(call), each); }

template <size_t kArgument>
MaybeWork per_argument(const OperandShapes& call, Work each) {
  return scaled(element_count(call.argument(kArgument)), each);
}

// ---- Operators whose cost depends on more than one size
// ---------------------------------------------------------------

// self + alpha * other: a second operation an element unless alpha is 1.
MaybeWork scaled_sum(const OperandShapes& call, Work each) {
  if (call.number(2, 1) != 1) each.flops += 1;
  return scaled(result_elements(call), each);
}
// Squares and cubes are multiplications; every other exponent is a transcendental evaluation.
MaybeWork power(const OperandShapes& call, Work each) {
  const double exponent = call.number(1, NAN);
  if (exponent == 1) each = {0, 0};
  if (exponent == 2) each = {1, 0};
  if (exponent == 3) each = {2, 0};
  return scaled(result_elements(call), each);
}
// Window size times results: kernel_size is argument 1, and a single number stands for all dimensions.
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
// avg_pool backward: every gradient element is spread over its window. pool(grad_output, self, kernel_size, ...)
template <size_t kDimensions>
MaybeWork pooling_backward(const OperandShapes& call, Work each) {
  return scaled(saturating_multiply(element_count(call.argument(0)), window<kDimensions>(call, 2)), each);
}
// Norms: `each` with an affine transform, one less without (weight is argument kWeight).
template <size_t kInput, size_t kWeight>
MaybeWork norm(const OperandShapes& call, Work each) {
  if (!call.argument(kWeight).present()) each.flops -= 1;
  return scaled(element_count(call.argument(kInput)), each);
}
// Batch norm: 5 an element when it computes statistics, 2 when it uses the running ones; one less without weight.
template <size_t kTraining>
MaybeWork batch_norm(const OperandShapes& call, Work each) {
  if (!call.flag(kTraining, true)) each.flops = 2;
  return norm<0, 1>(call, each);
}
// kAccumulate adds the values, otherwise they are copied.
template <size_t kValues, size_t kAccumulate>
MaybeWork per_accumulated(const OperandShapes& call, Work each) {
  return scaled(call.flag(kAccumulate) ? element_count(call.argument(kValues)) : 0, each);
}
// Comparison sort: elements times the binary logarithm of the longest side's size.
MaybeWork sorting(const OperandShapes& call, Work each) {
  uint64_t longest = 1;
  for (int64_t size : call.shape(0)) longest = std::max(longest, static_cast<uint64_t>(std::max<int64_t>(size, 1)));
  return scaled(saturating_multiply(element_count(call.argument(0)), std::bit_width(longest - 1)), each);
}
// The bias of a matrix product or convolution: one addition an element of the result, if there is one.
template <size_t kBias>
MaybeWork bias(const OperandShapes& call, Work each) {
  return scaled(call.argument(kBias).is_tensor() ? result_elements(call) : 0, each);
}
// The bias gradient: one addition an element of grad_output.
MaybeWork convolution_backward(const OperandShapes& call, Work each) {
  return scaled(call.element(10, 2, 0) != 0 ? element_count(call.argument(0)) : 0, each);
}
// Attention: work on every score; query and key follow `kQuery`. Packed calls bound the scores by their greatest
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

// Recurrent layers, per token and hidden unit. Mode as ATen numbers it: 0 relu, 1 tanh, 2 LSTM, 3 GRU.
//   relu, tanh: the sum of two products and two biases (3), the activation (1 operation or 1 transcendental)
//   LSTM: four such sums (12), three sigmoids (9 + 3), two tanh (2), c = f c + i g (3), h = o tanh c (1)
//   GRU:  three such sums (9), two sigmoids (6 + 2), one tanh (1), r n (1), h = n + z (h - n) (3)
Work recurrent_unit(double mode) {
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

constexpr Work kFree{0, 0};
constexpr Work kOne{1, 0};
constexpr Work kTranscendental{0, 1};

constexpr ElementwiseRow kElementwiseRows[] = {
    // ---- Pointwise arithmetic
    {"aten::add", scaled_sum, kOne},
    {"aten::sub", scaled_sum, kOne},
    {"aten::rsub", scaled_sum, kOne},
    {"aten::mul", per_result, kOne},
    {"aten::div", per_result, kOne},
    {"aten::floor_divide", per_result, kOne},
    {"aten::true_divide", per_result, kOne},
    {"aten::fmod", per_result, kOne},
    {"aten::remainder", per_result, kOne},
    {"aten::neg", per_result, kOne},
    {"aten::abs", per_result, kOne},
    {"aten::sign", per_result, kOne},
    {"aten::sgn", per_result, kOne},
    {"aten::ceil", per_result, kOne},
    {"aten::floor", per_result, kOne},
    {"aten::round", per_result, kOne},
    {"aten::trunc", per_result, kOne},
    {"aten::frac", per_result, kOne},
    {"aten::reciprocal", per_result, kOne},
    {"aten::square", per_result, kOne},
    {"aten::addcmul", per_result, {3, 0}},
    {"aten::addcdiv", per_result, {3, 0}},
    {"aten::lerp", per_result, {3, 0}},
    {"aten::maximum", per_result, kOne},
    {"aten::minimum", per_result, kOne},
    {"aten::fmax", per_result, kOne},
    {"aten::fmin", per_result, kOne},
    {"aten::clamp", per_result, kOne},
    {"aten::clamp_min", per_result, kOne},
    {"aten::clamp_max", per_result, kOne},
    {"aten::clip", per_result, kOne},
    {"aten::eq", per_result, kOne},
    {"aten::ne", per_result, kOne},
    {"aten::lt", per_result, kOne},
    {"aten::le", per_result, kOne},
    {"aten::gt", per_result, kOne},
    {"aten::ge", per_result, kOne},
    {"aten::isnan", per_result, kOne},
    {"aten::isinf", per_result, kOne},
    {"aten::isfinite", per_result, kOne},
    {"aten::logical_and", per_result, kOne},
    {"aten::logical_or", per_result, kOne},
    {"aten::logical_xor", per_result, kOne},
    {"aten::logical_not", per_result, kOne},
    {"aten::bitwise_and", per_result, kOne},
    {"aten::bitwise_or", per_result, kOne},
    {"aten::bitwise_xor", per_result, kOne},
    {"aten::bitwise_not", per_result, kOne},
    {"aten::__and__", per_result, kOne},
    {"aten::__or__", per_result, kOne},
    {"aten::__xor__", per_result, kOne},
    {"aten::where", per_result, kOne},
    {"aten::masked_fill", per_result, kOne},
    {"aten::ger", per_result, kOne},
    {"aten::outer", per_result, kOne},
    {"aten::nan_to_num", per_result, kOne},
    {"aten::_conj_physical", per_result, kOne},

    // ---- Pointwise, transcendental
    {"aten::exp", per_result, kTranscendental},
    {"aten::exp2", per_result, kTranscendental},
    {"aten::expm1", per_result, kTranscendental},
    {"aten::log", per_result, kTranscendental},
    {"aten::log2", per_result, kTranscendental},
    {"aten::log10", per_result, kTranscendental},
    {"aten::log1p", per_result, kTranscendental},
    {"aten::sqrt", per_result, kTranscendental},
    {"aten::rsqrt", per_result, kTranscendental},
    {"aten::sin", per_result, kTranscendental},
    {"aten::cos", per_result, kTranscendental},
    {"aten::tan", per_result, kTranscendental},
    {"aten::asin", per_result, kTranscendental},
    {"aten::acos", per_result, kTranscendental},
    {"aten::atan", per_result, kTranscendental},
    {"aten::atan2", per_result, kTranscendental},
    {"aten::sinh", per_result, kTranscendental},
    {"aten::cosh", per_result, kTranscendental},
    {"aten::tanh", per_result, kTranscendental},
    {"aten::erf", per_result, kTranscendental},
    {"aten::erfc", per_result, kTranscendental},
    {"aten::erfinv", per_result, kTranscendental},
    {"aten::lgamma", per_result, kTranscendental},
    {"aten::digamma", per_result, kTranscendental},
    {"aten::pow", power, kTranscendental},
    {"aten::xlogy", per_result, {1, 1}},
    {"aten::logit", per_result, {2, 1}},
    {"aten::logaddexp", per_result, {3, 2}},
    {"aten::hypot", per_result, {3, 1}},
    {"aten::polar", per_result, {2, 2}},

    // ---- Activations and their gradients
    {"aten::relu", per_result, kOne},
    {"aten::relu6", per_result, kOne},
    {"aten::threshold", per_result, kOne},
    {"aten::hardtanh", per_result, kOne},
    {"aten::leaky_relu", per_result, {2, 0}},
    {"aten::prelu", per_result, {2, 0}},
    {"aten::_prelu_kernel", per_result, {2, 0}},
    {"aten::hardsigmoid", per_result, {3, 0}},
    {"aten::hardswish", per_result, {4, 0}},
    {"aten::sigmoid", per_result, {3, 1}},  // 1 / (1 + exp(-x))
    {"aten::silu", per_result, {4, 1}},     // x * sigmoid(x)
    {"aten::gelu", per_result, {4, 1}},     // x / 2 * (1 + erf(x / sqrt 2))
    {"aten::mish", per_result, {3, 3}},     // x * tanh(log1p(exp x))
    {"aten::softplus", per_result, {3, 2}},
    {"aten::elu", per_result, {3, 1}},
    {"aten::selu", per_result, {3, 1}},
    {"aten::celu", per_result, {3, 1}},
    {"aten::glu", per_result, {4, 1}},
    {"aten::log_sigmoid_forward", per_result, {3, 2}},
    {"aten::threshold_backward", per_result, kOne},
    {"aten::hardtanh_backward", per_result, kOne},
    {"aten::leaky_relu_backward", per_result, {2, 0}},
    {"aten::_prelu_kernel_backward", per_result, {3, 0}},
    {"aten::hardsigmoid_backward", per_result, {2, 0}},
    {"aten::hardswish_backward", per_result, {4, 0}},
    {"aten::sigmoid_backward", per_result, {3, 0}},  // g * y * (1 - y)
    {"aten::tanh_backward", per_result, {3, 0}},     // g * (1 - y * y)
    {"aten::silu_backward", per_result, {8, 1}},     // g * s * (1 + x * (1 - s)), s = sigmoid(x)
    {"aten::gelu_backward", per_result, {9, 2}},     // g * (cdf + x * pdf)
    {"aten::mish_backward", per_result, {9, 4}},
    {"aten::softplus_backward", per_result, {4, 1}},
    {"aten::elu_backward", per_result, {3, 1}},
    {"aten::glu_backward", per_argument<0>, {12, 1}},
    {"aten::log_sigmoid_backward", per_result, {4, 1}},

    // ---- Softmax, losses
    {"aten::_softmax", per_result, {4, 1}},  // max, subtract, exp, sum, divide
    {"aten::_safe_softmax", per_result, {4, 1}},
    {"aten::_log_softmax", per_result, {4, 1}},
    {"aten::_softmax_backward_data", per_result, {4, 0}},      // y * (g - sum(g * y))
    {"aten::_log_softmax_backward_data", per_result, {3, 1}},  // g - exp(y) * sum(g)
    {"aten::logsumexp", per_argument<0>, {3, 1}},
    {"aten::nll_loss_forward", per_argument<1>, kOne},
    {"aten::nll_loss2d_forward", per_argument<1>, kOne},
    {"aten::nll_loss_backward", per_argument<2>, kOne},
    {"aten::nll_loss2d_backward", per_argument<2>, kOne},
    {"aten::mse_loss", per_argument<0>, {3, 0}},  // subtract, square, sum
    {"aten::mse_loss_backward", per_result, {3, 0}},
    {"aten::l1_loss", per_argument<0>, {3, 0}},
    {"aten::smooth_l1_loss", per_argument<0>, {4, 0}},
    {"aten::smooth_l1_loss_backward", per_result, {3, 0}},
    {"aten::huber_loss", per_argument<0>, {4, 0}},
    {"aten::huber_loss_backward", per_result, {3, 0}},
    {"aten::binary_cross_entropy", per_argument<0>, {5, 2}},
    {"aten::binary_cross_entropy_backward", per_result, {5, 0}},
    {"aten::binary_cross_entropy_with_logits", per_argument<0>, {5, 2}},

    // ---- Norms
    {"aten::native_layer_norm", norm<0, 2>, {5, 0}},
    {"aten::native_layer_norm_backward", norm<1, 5>, {5, 0}},
    {"aten::native_group_norm", norm<0, 1>, {5, 0}},
    {"aten::native_group_norm_backward", norm<1, 4>, {5, 0}},
    {"aten::_fused_rms_norm", norm<0, 2>, {4, 0}},
    {"aten::_fused_rms_norm_backward", norm<1, 4>, {5, 0}},
    {"aten::native_batch_norm", batch_norm<5>, {5, 0}},
    {"aten::_native_batch_norm_legit", batch_norm<5>, {5, 0}},
    {"aten::_native_batch_norm_legit.no_stats", batch_norm<3>, {5, 0}},
    {"aten::_native_batch_norm_legit_no_training", norm<0, 1>, {2, 0}},
    {"aten::_batch_norm_with_update", norm<0, 1>, {5, 0}},
    {"aten::_batch_norm_no_update", norm<0, 1>, {2, 0}},
    {"aten::_batch_norm_impl_index", batch_norm<5>, {5, 0}},
    {"aten::cudnn_batch_norm", batch_norm<5>, {5, 0}},
    {"aten::miopen_batch_norm", batch_norm<5>, {5, 0}},
    {"aten::native_batch_norm_backward", norm<1, 2>, {5, 0}},
    {"aten::batch_norm_backward", norm<1, 2>, {5, 0}},
    {"aten::cudnn_batch_norm_backward", norm<0, 2>, {5, 0}},
    {"aten::miopen_batch_norm_backward", norm<0, 2>, {5, 0}},
    {"aten::_weight_norm_interface", per_argument<0>, {3, 0}},
    {"aten::_weight_norm_interface_backward", per_argument<0>, {6, 0}},

    // ---- Reductions
    {"aten::sum", per_argument<0>, kOne},
    {"aten::nansum", per_argument<0>, {2, 0}},
    {"aten::mean", per_argument<0>, kOne},
    {"aten::prod", per_argument<0>, kOne},
    {"aten::amax", per_argument<0>, kOne},
    {"aten::amin", per_argument<0>, kOne},
    {"aten::aminmax", per_argument<0>, {2, 0}},
    {"aten::max", per_argument<0>, kOne},
    {"aten::min", per_argument<0>, kOne},
    {"aten::argmax", per_argument<0>, kOne},
    {"aten::argmin", per_argument<0>, kOne},
    {"aten::any", per_argument<0>, kOne},
    {"aten::all", per_argument<0>, kOne},
    {"aten::count_nonzero", per_argument<0>, kOne},
    {"aten::trace", per_result, kOne},
    {"aten::cumsum", per_argument<0>, kOne},
    {"aten::cumprod", per_argument<0>, kOne},
    {"aten::logcumsumexp", per_argument<0>, {3, 2}},
    {"aten::cummax", per_argument<0>, kOne},
    {"aten::cummin", per_argument<0>, kOne},
    {"aten::var", per_argument<0>, {4, 0}},  // mean; subtract, square, sum
    {"aten::std", per_argument<0>, {4, 0}},
    {"aten::var_mean", per_argument<0>, {4, 0}},
    {"aten::std_mean", per_argument<0>, {4, 0}},
    {"aten::norm", per_argument<0>, {2, 0}},
    {"aten::linalg_vector_norm", per_argument<0>, {2, 0}},
    {"aten::dist", per_argument<0>, {3, 0}},
    {"aten::sort", sorting, kOne},
    {"aten::argsort", sorting, kOne},
    {"aten::topk", per_argument<0>, kOne},
    {"aten::kthvalue", per_argument<0>, kOne},
    {"aten::median", per_argument<0>, kOne},
    {"aten::nonzero", per_argument<0>, kOne},
    {"aten::bincount", per_argument<0>, kOne},
    {"aten::histc", per_argument<0>, kOne},

    // ---- Pooling and resampling
    {"aten::max_pool1d", pooling<1>, kOne},
    {"aten::max_pool1d_with_indices", pooling<1>, kOne},
    {"aten::max_pool2d", pooling<2>, kOne},
    {"aten::max_pool2d_with_indices", pooling<2>, kOne},
    {"aten::max_pool3d_with_indices", pooling<3>, kOne},
    {"aten::mkldnn_max_pool2d", pooling<2>, kOne},
    {"aten::avg_pool1d", pooling<1>, kOne},
    {"aten::avg_pool2d", pooling<2>, kOne},
    {"aten::avg_pool3d", pooling<3>, kOne},
    {"aten::max_pool2d_with_indices_backward", per_argument<0>, kOne},
    {"aten::max_pool3d_with_indices_backward", per_argument<0>, kOne},
    {"aten::avg_pool2d_backward", pooling_backward<2>, kOne},
    {"aten::avg_pool3d_backward", pooling_backward<3>, kOne},
    {"aten::_adaptive_avg_pool2d", per_argument<0>, kOne},
    {"aten::_adaptive_avg_pool3d", per_argument<0>, kOne},
    {"aten::_adaptive_avg_pool2d_backward", per_result, kOne},
    {"aten::_adaptive_avg_pool3d_backward", per_result, kOne},
    {"aten::adaptive_max_pool2d", per_argument<0>, kOne},
    {"aten::adaptive_max_pool2d_backward", per_argument<0>, kOne},
    {"aten::upsample_nearest1d", nothing, kFree},
    {"aten::upsample_nearest2d", nothing, kFree},
    {"aten::upsample_nearest3d", nothing, kFree},
    {"aten::upsample_nearest2d_backward", per_argument<0>, kOne},
    {"aten::upsample_linear1d", per_result, {3, 0}},
    {"aten::upsample_bilinear2d", per_result, {7, 0}},  // 4 taps: 4 multiplications, 3 additions
    {"aten::upsample_trilinear3d", per_result, {15, 0}},
    {"aten::upsample_bicubic2d", per_result, {31, 0}},
    {"aten::upsample_bilinear2d_backward", per_argument<0>, {8, 0}},
    {"aten::upsample_bicubic2d_backward", per_argument<0>, {32, 0}},
    {"aten::im2col", nothing, kFree},
    {"aten::col2im", per_argument<0>, kOne},

    // ---- Dropout and random draws: the draw is no arithmetic, comparing and scaling are
    {"aten::native_dropout", per_result, {2, 0}},
    {"aten::_fused_dropout", per_result, {2, 0}},
    {"aten::native_dropout_backward", per_result, {2, 0}},
    {"aten::bernoulli", per_result, kOne},
    {"aten::rand", nothing, kFree},
    {"aten::randn", nothing, kFree},
    {"aten::randint", nothing, kFree},
    {"aten::randperm", nothing, kFree},
    {"aten::rand_like", nothing, kFree},
    {"aten::randn_like", nothing, kFree},
    {"aten::randint_like", nothing, kFree},
    {"aten::normal", nothing, kFree},
    {"aten::uniform", nothing, kFree},
    {"aten::random", nothing, kFree},
    {"aten::exponential", nothing, kFree},
    {"aten::multinomial", per_argument<0>, kOne},

    // ---- Gathering copies; scattering may add
    {"aten::embedding", nothing, kFree},
    {"aten::embedding_dense_backward", per_argument<0>, kOne},
    {"aten::embedding_renorm", nothing, kFree},
    {"aten::index_select", nothing, kFree},
    {"aten::gather", nothing, kFree},
    {"aten::index", nothing, kFree},
    {"aten::_unsafe_index", nothing, kFree},
    {"aten::take", nothing, kFree},
    {"aten::masked_select", nothing, kFree},
    {"aten::masked_scatter", nothing, kFree},
    {"aten::index_fill", nothing, kFree},
    {"aten::index_copy", nothing, kFree},
    {"aten::scatter", nothing, kFree},
    {"aten::scatter_add", per_argument<2>, kOne},
    {"aten::scatter_reduce", per_argument<2>, kOne},
    {"aten::index_add", per_argument<3>, kOne},
    {"aten::index_reduce", per_argument<3>, kOne},
    {"aten::index_put", per_accumulated<2, 3>, kOne},
    {"aten::_index_put_impl", per_accumulated<2, 3>, kOne},
    {"aten::_unsafe_index_put", per_accumulated<2, 3>, kOne},
    {"aten::searchsorted", nothing, kFree},
    {"aten::bucketize", nothing, kFree},

    // ---- Copies, allocations, fills, casts: no arithmetic
    {"aten::copy", nothing, kFree},
    {"aten::clone", nothing, kFree},
    {"aten::_to_copy", nothing, kFree},
    {"aten::_copy_from", nothing, kFree},
    {"aten::lift", nothing, kFree},
    {"aten::lift_fresh_copy", nothing, kFree},
    {"aten::_unsafe_view", nothing, kFree},
    {"aten::_reshape_copy", nothing, kFree},
    {"aten::view_copy", nothing, kFree},
    {"aten::expand_copy", nothing, kFree},
    {"aten::t_copy", nothing, kFree},
    {"aten::transpose_copy", nothing, kFree},
    {"aten::permute_copy", nothing, kFree},
    {"aten::cat", nothing, kFree},
    {"aten::stack", nothing, kFree},
    {"aten::_chunk_cat", nothing, kFree},
    {"aten::split_with_sizes_copy", nothing, kFree},
    {"aten::repeat", nothing, kFree},
    {"aten::repeat_interleave", nothing, kFree},
    {"aten::flip", nothing, kFree},
    {"aten::roll", nothing, kFree},
    {"aten::rot90", nothing, kFree},
    {"aten::tril", nothing, kFree},
    {"aten::triu", nothing, kFree},
    {"aten::tril_indices", nothing, kFree},
    {"aten::triu_indices", nothing, kFree},
    {"aten::diag_embed", nothing, kFree},
    {"aten::constant_pad_nd", nothing, kFree},
    {"aten::pad", nothing, kFree},
    {"aten::reflection_pad1d", nothing, kFree},
    {"aten::reflection_pad2d", nothing, kFree},
    {"aten::replication_pad2d", nothing, kFree},
    {"aten::pixel_shuffle", nothing, kFree},
    {"aten::pixel_unshuffle", nothing, kFree},
    {"aten::channel_shuffle", nothing, kFree},
    {"aten::select_backward", nothing, kFree},
    {"aten::slice_backward", nothing, kFree},
    {"aten::diagonal_backward", nothing, kFree},
    {"aten::select_scatter", nothing, kFree},
    {"aten::slice_scatter", nothing, kFree},
    {"aten::as_strided_scatter", nothing, kFree},
    {"aten::value_selecting_reduction_backward", nothing, kFree},
    {"aten::unfold_backward", per_argument<0>, kOne},
    {"aten::fill", nothing, kFree},
    {"aten::zero", nothing, kFree},
    {"aten::empty", nothing, kFree},
    {"aten::empty_like", nothing, kFree},
    {"aten::empty_strided", nothing, kFree},
    {"aten::empty_permuted", nothing, kFree},
    {"aten::new_empty", nothing, kFree},
    {"aten::new_empty_strided", nothing, kFree},
    {"aten::new_zeros", nothing, kFree},
    {"aten::new_ones", nothing, kFree},
    {"aten::new_full", nothing, kFree},
    {"aten::zeros", nothing, kFree},
    {"aten::zeros_like", nothing, kFree},
    {"aten::ones", nothing, kFree},
    {"aten::ones_like", nothing, kFree},
    {"aten::full", nothing, kFree},
    {"aten::full_like", nothing, kFree},
    {"aten::_efficientzerotensor", nothing, kFree},
    {"aten::scalar_tensor", nothing, kFree},
    {"aten::arange", nothing, kFree},
    {"aten::linspace", nothing, kFree},
    {"aten::eye", nothing, kFree},
    {"aten::complex", nothing, kFree},
    {"aten::_local_scalar_dense", nothing, kFree},
    {"aten::item", nothing, kFree},
    {"aten::equal", per_argument<0>, kOne},
    {"aten::is_same_size", nothing, kFree},
    {"aten::_fused_sdp_choice", nothing, kFree},
    {"aten::_assert_async", nothing, kFree},
    {"aten::_cudnn_rnn_flatten_weight", nothing, kFree},
    // In place forms of views: their schema writes, but only metadata.
    {"aten::t_", nothing, kFree},
    {"aten::transpose_", nothing, kFree},
    {"aten::squeeze_", nothing, kFree},
    {"aten::unsqueeze_", nothing, kFree},
    {"aten::as_strided_", nothing, kFree},
    {"aten::swapaxes_", nothing, kFree},
    {"aten::swapdims_", nothing, kFree},
    {"aten::detach_", nothing, kFree},
    {"sg_random::get_state", nothing, kFree},
    {"sg_random::exchange_state", nothing, kFree},
    {"sg_random::set_state", nothing, kFree},
    {"aten::set_", nothing, kFree},
    {"aten::resize_", nothing, kFree},
    {"aten::resize_as_", nothing, kFree},
    {"aten::requires_grad_", nothing, kFree},

    // ---- Fused optimizer steps, per parameter element, every option switched on but amsgrad
    {"aten::_fused_sgd", per_argument<0>, {7, 0}},    // weight decay 2, momentum 3, step 2
    {"aten::_fused_adam", per_argument<0>, {14, 1}},  // decay 2, moments 3 + 4, sqrt, corrected denominator 2, step 3
    {"aten::_fused_adamw", per_argument<0>, {13, 1}},
    {"aten::_fused_adagrad", per_argument<0>, {8, 1}},
    {"aten::_amp_foreach_non_finite_check_and_unscale", per_argument<0>, {2, 0}},
    {"aten::_amp_update_scale", nothing, kFree},

    // ---- What matrix products (flop_table.h) do besides
    {"aten::mm", nothing, kFree},
    {"aten::bmm", nothing, kFree},
    {"aten::mv", nothing, kFree},
    {"aten::dot", nothing, kFree},
    {"aten::vdot", nothing, kFree},
    {"aten::matmul", nothing, kFree},
    {"aten::addr", nothing, kFree},
    {"aten::_trilinear", nothing, kFree},
    {"aten::addmm", per_result, kOne},
    {"aten::baddbmm", per_result, kOne},
    {"aten::addbmm", per_result, kOne},
    {"aten::addmv", per_result, kOne},
    {"aten::_addmm_activation", per_result, {2, 0}},
    {"aten::_int_mm", nothing, kFree},
    {"aten::_scaled_mm", bias<4>, kOne},
    {"aten::_scaled_mm_v2", bias<8>, kOne},
    {"aten::_grouped_mm", bias<3>, kOne},
    {"aten::_scaled_grouped_mm", bias<5>, kOne},
    {"aten::linear", bias<2>, kOne},
    {"aten::mkldnn_linear", bias<2>, kOne},
    {"aten::convolution", bias<2>, kOne},
    {"aten::_convolution", bias<2>, kOne},
    {"aten::convolution_overrideable", bias<2>, kOne},
    {"aten::mkldnn_convolution", bias<2>, kOne},
    {"aten::miopen_convolution", bias<2>, kOne},
    {"aten::_slow_conv2d_forward", bias<3>, kOne},
    {"aten::_conv_depthwise2d", bias<3>, kOne},
    {"aten::conv_depthwise3d", bias<3>, kOne},
    {"aten::slow_conv3d_forward", bias<3>, kOne},
    {"aten::cudnn_convolution", nothing, kFree},
    {"aten::cudnn_convolution_transpose", nothing, kFree},
    {"aten::miopen_convolution_transpose", bias<2>, kOne},
    {"aten::convolution_backward", convolution_backward, kOne},
    // Per score: scale and softmax; backward: scale, exp(s - logsumexp), p * (dp - delta), scale.
    {"aten::_scaled_dot_product_efficient_attention", per_score<0>, {5, 1}},
    {"aten::_scaled_dot_product_flash_attention", per_score<0>, {5, 1}},
    {"aten::_scaled_dot_product_cudnn_attention", per_score<0>, {5, 1}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", per_score<0>, {5, 1}},
    {"aten::_scaled_dot_product_fused_attention_overrideable", per_score<0>, {5, 1}},
    {"aten::_scaled_dot_product_efficient_attention_backward", per_score<1>, {5, 1}},
    {"aten::_scaled_dot_product_flash_attention_backward", per_score<1>, {5, 1}},
    {"aten::_scaled_dot_product_cudnn_attention_backward", per_score<1>, {5, 1}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", per_score<1>, {5, 1}},
    {"aten::_scaled_dot_product_fused_attention_overrideable_backward", per_score<1>, {5, 1}},
    {"aten::_flash_attention_forward", per_packed_score<3, 0, 3, 5>, {5, 1}},
    {"aten::_efficient_attention_forward", per_packed_score<4, 0, 4, 6>, {5, 1}},
    {"aten::_flash_attention_backward", per_packed_score<3, 1, 6, 8>, {5, 1}},
    {"aten::_efficient_attention_backward", per_packed_score<4, 1, 6, 8>, {5, 1}},
    {"aten::mkldnn_rnn_layer", mkldnn_rnn<9>, kOne},
    {"aten::mkldnn_rnn_layer_backward", mkldnn_rnn<14>, {2, 0}},
    {"aten::_cudnn_rnn", cudnn_rnn<6>, kOne},
    {"aten::_cudnn_rnn_backward", cudnn_rnn<10>, {2, 0}},
    // Per hidden unit: the pointwise part of a cell (the gates' products are separate nodes).
    {"aten::_thnn_fused_lstm_cell", per_result, {25, 5}},
    {"aten::_thnn_fused_lstm_cell_backward_impl", per_argument<2>, {50, 10}},
    {"aten::_thnn_fused_gru_cell", per_result, {19, 3}},

    // ---- The graph's own nodes
    {"sg::parameter", nothing, kFree},
    {"sg::buffer", nothing, kFree},
    {"sg::input", nothing, kFree},
    {"sg::constant", nothing, kFree},
    {"sg::alias", nothing, kFree},
    {"sg::output", nothing, kFree},
    {"sg::gradient", nothing, kFree},
};

const std::unordered_map<std::string_view, const ElementwiseRow*>& elementwise_index() {
  static const auto* const map = [] {
    auto* rows = new std::unordered_map<std::string_view, const ElementwiseRow*>;
    for (const ElementwiseRow& row : kElementwiseRows) rows->emplace(row.name, &row);
    return rows;
  }();
  return *map;
}

// By its own name, that of all its overloads, or that of its plain form.
const ElementwiseRow* find_own_or_plain(std::string_view name) {
  const auto& index = elementwise_index();
  auto found = find_by_operator(index, name);
  if (found == index.end()) found = index.find(without_underscore(without_overload(name)));
  return found == index.end() ? nullptr : found->second;
}

}  // namespace

std::span<const ElementwiseRow> elementwise_table() { return kElementwiseRows; }

const ElementwiseRow* find_elementwise_row(std::string_view operator_name) {
  if (const ElementwiseRow* row = find_own_or_plain(operator_name)) return row;
  constexpr std::string_view kForeach = "aten::_foreach_";
  if (!operator_name.starts_with(kForeach)) return nullptr;
  return find_own_or_plain("aten::" + std::string(without_overload(operator_name.substr(kForeach.size()))));
}

ElementwiseFormula ElementwiseFormula::of(const Target& target) {
  if (const ElementwiseRow* row = find_elementwise_row(target.name())) return {ElementwiseCoverage::kRow, row};
  if (target.facts().is_view) return {ElementwiseCoverage::kView, nullptr};
  if (target.facts().pointwise) return {ElementwiseCoverage::kPointwiseTag, nullptr};
  return {};
}

std::optional<ElementwiseWork> ElementwiseFormula::evaluate(const OperandShapes& call) const {
  switch (coverage) {
    case ElementwiseCoverage::kRow:
      return row->rule(call, row->each);
    case ElementwiseCoverage::kView:
      return ElementwiseWork();
    case ElementwiseCoverage::kPointwiseTag:
      return per_result(call, kOne);
    case ElementwiseCoverage::kNone:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace shadowgraph
