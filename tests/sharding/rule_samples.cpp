#include "tests/sharding/rule_samples.h"

#include <ATen/ATen.h>

namespace shadowgraph {
namespace {

using at::Tensor;
using Sizes = at::IntArrayRef;

Tensor real(Sizes sizes) { return at::empty(sizes, at::kDouble); }
Tensor leaf(Sizes sizes) { return real(sizes).requires_grad_(); }
Tensor ints(Sizes sizes) { return at::empty(sizes, at::kLong); }
Tensor bools(Sizes sizes) { return at::empty(sizes, at::kBool); }

// Backward from a gradient of its own: that of a sum is expanded and the same everywhere.
void back(const Tensor& result) { result.backward(real(result.sizes())); }

// ---- Products
void products() {
  at::mm(real({4, 6}), real({6, 12}));
  at::bmm(real({2, 4, 6}), real({2, 6, 12}));
  at::mv(real({4, 6}), real({6}));
  at::dot(real({12}), real({12}));
  at::vdot(real({12}), real({12}));
  at::ger(real({4}), real({6}));
  for (const auto& bias : {real({12}), real({1, 12}), real({4, 12}), real({4, 1}), real({})}) {
    at::addmm(bias, real({4, 6}), real({6, 12}), 2, 3);
  }
  at::baddbmm(real({2, 4, 12}), real({2, 4, 6}), real({2, 6, 12}));
  at::baddbmm(real({4, 1}), real({2, 4, 6}), real({2, 6, 12}));
  at::addbmm(real({4, 12}), real({2, 4, 6}), real({2, 6, 12}));
  at::addmv(real({4}), real({4, 6}), real({6}));
  at::addr(real({4, 6}), real({4}), real({6}));
  real({4, 12}).addmm_(real({4, 6}), real({6, 12}));
  Tensor out = real({4, 12});
  at::mm_out(out, real({4, 6}), real({6, 12}));
}

void composites() {
  back(at::linear(leaf({2, 6, 4}), leaf({12, 4}), leaf({12})));
  back(at::matmul(leaf({2, 3, 4, 6}), leaf({6, 12})));
  back(at::einsum("bqhd,bkhd->bhqk", {leaf({2, 4, 6, 12}), leaf({2, 4, 6, 12})}));
}

// ---- Element by element
void pointwise() {
  const Tensor a = real({4, 6});
  for (const Tensor& b : {real({4, 6}), real({6}), real({4, 1}), real({1}), real({})}) {
    at::add(a, b, 2);
    at::sub(b, a);
    at::mul(a, b);
    at::div(a, b);
    at::maximum(a, b);
    at::where(at::gt(a, 0), a, b);
    at::lerp(a, b, 0.5);
    at::lerp(a, a, b);
    at::addcmul(a, b, a, 2);
    at::addcdiv(a, a, b, 2);
    at::pow(a, b);
    at::atan2(a, b);
  }
  at::rsub(a, 3);
  at::rsub(a, a);
  at::add(a, 3);
  at::mul(a, 3);
  at::neg(a);
  at::relu(a);
  at::clamp(a, -1, 2);
  at::clamp_min(a, 1);
  at::clamp_max(a, 1);
  at::floor(a);
  at::round(a);
  at::exp(a);
  at::tanh(a);
  at::sigmoid(a);
  at::sqrt(a);
  at::rsqrt(a);
  at::abs(a);
  at::sign(a);
  at::erf(a);
  at::logical_not(bools({4, 6}));
  at::bitwise_and(bools({4, 6}), bools({6}));
  at::eq(a, real({6}));
  at::isnan(a);
  at::masked_fill(a, bools({4, 6}), 2);
  at::masked_fill(a, bools({6}), real({}));
  at::masked_fill(a, bools({6}), 0);
  at::where(bools({6}), a, 0);
  at::where(bools({6}), a, 2);
  at::nan_to_num(a);
  a.to(at::kFloat);
  a.to(at::kFloat).to(at::kDouble);
  a.to(at::kLong);
  ints({4, 6}).to(at::kDouble);
  bools({4, 6}).to(at::kDouble);
  at::clone(a);
  a.t().contiguous();
  at::copy(a, real({6}));
  at::tril(a);
  at::triu(real({2, 4, 6}), 1);
  at::polar(a, a);
  at::complex(a, a);
  at::view_as_complex(real({4, 6, 2}));
  at::view_as_real(at::complex(a, a));
}

void activations() {
  for (const auto& activation :
       {at::gelu(leaf({4, 6})), at::silu(leaf({4, 6})), at::elu(leaf({4, 6})), at::leaky_relu(leaf({4, 6})),
        at::hardswish(leaf({4, 6})), at::hardsigmoid(leaf({4, 6})), at::hardtanh(leaf({4, 6})),
        at::softplus(leaf({4, 6})), at::mish(leaf({4, 6})), at::log_sigmoid(leaf({4, 6})), at::relu6(leaf({4, 6})),
        at::tanh(leaf({4, 6})), at::sigmoid(leaf({4, 6})), at::relu(leaf({4, 6}))}) {
    back(activation);
  }
  back(at::glu(leaf({4, 12})));
  back(at::glu(leaf({12, 4}), 0));
  back(at::prelu(leaf({4, 6}), leaf({6})));
}

void in_place() {
  const Tensor a = real({4, 6});
  a.add_(real({6}), 2);
  a.mul_(real({4, 1}));
  a.mul_(3);
  a.div_(real({4, 6}));
  a.addcmul_(a, real({6}));
  a.addcdiv_(real({4, 6}), real({6}));
  a.copy_(real({6}));
  a.copy_(at::empty({4, 6}, at::kFloat));
  at::empty({4, 6}, at::kFloat).copy_(a);
  ints({4, 6}).copy_(a);
  a.fill_(2);
  a.zero_();
  a.relu_();
  a.sqrt_();
  a.clamp_(-1, 1);
  a.masked_fill_(bools({4, 6}), 1);
  a.lerp_(real({4, 6}), 0.25);
  a.neg_();
  a.normal_();
  a.uniform_();
  a.bernoulli_(0.5);
  a.exponential_();
  a.sub_(real({4, 6}));
  a.t_();
  a.index_put_({ints({3})}, real({4}));
  Tensor out = real({4, 6});
  at::add_out(out, real({4, 6}), real({6}));
}

// ---- Reductions
void reductions() {
  const Tensor a = real({4, 6, 12});
  at::sum(a);
  at::sum(a, {1});
  at::sum(a, {0, 2}, true);
  at::sum(a, {-1});
  at::sum(bools({4, 6}));
  at::mean(a);
  at::mean(a, {1}, true);
  at::mean(a, {0, -1});
  at::amax(a, {1});
  at::amin(a, {0, 2}, true);
  at::max(a);
  at::min(a);
  at::max(a, 1);
  at::min(a, 1, true);
  at::any(bools({4, 6}));
  at::all(bools({4, 6}), 1);
  at::prod(a, 1);
  at::var(a, {1}, 1, true);
  at::std(a, {0});
  at::var_mean(a, {1, 2}, 0);
  at::logsumexp(a, {1});
  at::linalg_vector_norm(a, 2);
  at::linalg_vector_norm(a, 2, Sizes{1});
  at::norm(a);
  at::norm(a, 2, {1}, true);
  at::argmax(a, 1);
  at::argmin(a);
  at::count_nonzero(a);
  at::median(a, 1);
  at::cumsum(a, 1);
  at::cumprod(a, -1);
  at::sort(a, 1);
  at::topk(a, 2, 1);
  at::argsort(a, 2, true);
  at::kthvalue(a, 2, 1);
  at::nansum(a);
}

void softmax() {
  for (const int64_t dim : {0, 1, -1}) {
    back(at::softmax(leaf({4, 6, 12}), dim));
    back(at::log_softmax(leaf({4, 6, 12}), dim));
    at::_safe_softmax(real({4, 6, 12}), dim);
  }
}

// ---- Views
void views() {
  const Tensor a = real({4, 6, 12});
  a.view({24, 12});
  a.view({4, 72});
  a.view({-1});
  a.view({2, 2, 6, 3, 4});
  a.view({8, 36});
  a.view({6, 4, 12});
  a.view({4, 6, 1, 12});
  real({24, 12}).view({4, 6, 12});
  real({24, 12}).view({2, 12, 4, 3});
  real({3, 4}).view({4, 3});
  at::_unsafe_view(a, {24, 12});
  at::_reshape_alias(a, {24, 12}, {12, 1});
  at::_reshape_alias(a.transpose(1, 2), {4, 12, 6, 1}, {72, 1, 12, 1});
  a.as_strided({24, 12}, {12, 1});
  a.as_strided({4, 6}, {72, 12});
  a.transpose(0, 2);
  a.permute({2, 0, 1});
  real({4, 6}).t();
  real({6}).t();
  a.movedim(0, 2);
  a.unsqueeze(1);
  a.unsqueeze(-1);
  real({4, 1, 6}).squeeze(1);
  real({4, 1, 6}).squeeze();
  real({1, 4, 1}).squeeze(0);
  real({4, 1, 6}).expand({4, 3, 6});
  real({6}).expand({2, 4, 6});
  real({4, 1}).expand({-1, 12});
  a.select(1, 2);
  a.slice(1, 0, 3);
  a.slice(1, 3);
  a.slice(1, 2, 4);
  a.slice(1, 1, 4);
  a.slice(1, 0, 6, 2);
  a.slice(2, -6);
  a.narrow(2, 6, 6);
  a.split(3, 1);
  a.split(4, 2);
  a.split(5, 2);
  a.split_with_sizes({3, 3}, 1);
  a.split_with_sizes({2, 4}, 1);
  a.chunk(3, 2);
  a.unbind(1);
  a.unfold(1, 2, 2);
  a.diagonal(0, 0, 1);
  a.flatten(0, 1);
  a.unflatten(2, {3, 4});
  a.detach();
  a.repeat({1, 2, 1});
  a.repeat({3, 1, 1, 2});
}

void view_gradients() {
  const Tensor a = leaf({4, 6, 12});
  back(a.slice(1, 0, 3));
  back(a.slice(1, 2, 4));
  back(a.slice(2, 1, 4));
  back(a.select(1, 2));
  back(a.expand({2, 4, 6, 12}));
  back(a.unfold(1, 2, 2));
  back(a.diagonal(0, 0, 1));
  back(at::cat({a, a}, 1).split(4, 1)[1]);
}

void joining() {
  const Tensor a = real({4, 6, 12});
  at::cat({a, a}, 1);
  at::cat({a, real({4, 2, 12})}, 1);
  at::cat({a, a, a}, -1);
  at::cat({a}, 0);
  at::stack({a, a}, 0);
  at::stack({a, a}, 2);
  at::constant_pad_nd(a, {1, 1});
  at::constant_pad_nd(a, {0, 0, 1, -1}, 2);
  at::constant_pad_nd(a, {0, 0, 0, 2});
}

// ---- Norms
void norms() {
  back(at::layer_norm(leaf({4, 6, 12}), {12}, leaf({12}), leaf({12})));
  back(at::layer_norm(leaf({4, 6, 12}), {6, 12}, leaf({6, 12}), leaf({6, 12})));
  back(at::layer_norm(leaf({4, 6, 12}), {12}));
  back(at::rms_norm(leaf({4, 6, 12}), {12}, leaf({12})));
  back(at::group_norm(leaf({2, 12, 4, 4}), 4, leaf({12}), leaf({12})));
  back(at::group_norm(leaf({4, 12, 6}), 3));
  for (const bool train : {true, false}) {
    back(at::batch_norm(leaf({4, 6, 2, 4}), leaf({6}), leaf({6}), real({6}), real({6}), train, 0.1, 1e-5, false));
    back(at::batch_norm(leaf({4, 12}), leaf({12}), leaf({12}), real({12}), real({12}), train, 0.1, 1e-5, false));
  }
  back(at::batch_norm(leaf({4, 6, 2, 4}), leaf({6}), leaf({6}), {}, {}, true, 0.1, 1e-5, false));
  back(at::instance_norm(leaf({4, 6, 2, 4}), leaf({6}), leaf({6}), {}, {}, true, 0.1, 1e-5, false));
}

// ---- Convolution
void convolutions() {
  using Ints = std::vector<int64_t>;
  const auto convolve = [](const Tensor& input, const Tensor& weight, const Tensor& bias, int64_t stride,
                           int64_t padding, bool transposed, int64_t groups) {
    back(at::convolution(input, weight, bias, Ints(2, stride), Ints(2, padding), Ints(2, 1), transposed, Ints(2, 0),
                         groups));
  };
  for (const bool with_bias : {true, false}) {
    const Tensor bias = with_bias ? leaf({12}) : Tensor();
    convolve(leaf({4, 6, 5, 5}), leaf({12, 6, 3, 3}), bias, 1, 1, false, 1);
    convolve(leaf({4, 12, 5, 5}), leaf({12, 3, 3, 3}), bias, 2, 1, false, 4);
    convolve(leaf({2, 12, 4, 4}), leaf({12, 1, 3, 3}), bias, 1, 0, false, 12);
    convolve(leaf({4, 6, 3, 3}), leaf({6, 12, 2, 2}), bias, 2, 0, true, 1);
    convolve(leaf({4, 12, 3, 3}), leaf({12, 3, 2, 2}), bias, 1, 0, true, 4);
  }
  back(at::conv1d(leaf({4, 6, 8}), leaf({4, 6, 3}), leaf({4})));
  back(at::conv3d(leaf({4, 2, 3, 3, 3}), leaf({4, 2, 2, 2, 2}), leaf({4})));
}

void planes() {
  back(at::max_pool2d(leaf({4, 6, 4, 4}), 2));
  back(at::max_pool2d(leaf({6, 4, 4}), {2, 2}));
  back(at::avg_pool2d(leaf({4, 6, 4, 4}), 2));
  back(at::adaptive_avg_pool2d(leaf({4, 6, 4, 4}), {2, 2}));
  back(at::adaptive_avg_pool2d(leaf({4, 6, 4, 4}), {1, 1}));
  back(std::get<0>(at::adaptive_max_pool2d(leaf({4, 6, 4, 4}), {2, 2})));
  back(at::max_pool3d(leaf({2, 4, 4, 4, 4}), 2));
  back(at::avg_pool3d(leaf({2, 4, 4, 4, 4}), 2));
  back(at::avg_pool1d(leaf({4, 6, 8}), 2));
  back(at::upsample_nearest2d(leaf({4, 6, 2, 2}), at::OptionalIntArrayRef({4, 4}), std::nullopt));
  back(at::upsample_bilinear2d(leaf({4, 6, 2, 2}), {4, 4}, false));
  back(at::upsample_nearest1d(leaf({4, 6, 2}), {4}));
  back(at::upsample_bicubic2d(leaf({4, 6, 4, 4}), {8, 8}, false));
  back(at::reflection_pad2d(leaf({4, 6, 4, 4}), {1, 1, 1, 1}));
  back(at::replication_pad1d(leaf({4, 6, 4}), {1, 1}));
  back(at::grid_sampler_2d(leaf({4, 6, 4, 4}), leaf({4, 3, 3, 2}), 0, 0, false));
}

// ---- Losses
void losses() {
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    back(at::nll_loss(leaf({12, 6}), ints({12}), {}, reduction));
    back(at::nll_loss(leaf({12, 6}), ints({12}), real({6}), reduction, 1));
    back(at::nll_loss2d(leaf({4, 6, 3, 2}), ints({4, 3, 2}), {}, reduction));
    back(at::cross_entropy_loss(leaf({12, 6}), ints({12}), {}, reduction));
    back(at::mse_loss(leaf({4, 6}), leaf({4, 6}), reduction));
    back(at::mse_loss(leaf({4, 6}), leaf({6}), reduction));
    back(at::smooth_l1_loss(leaf({4, 6}), real({4, 6}), reduction));
    back(at::huber_loss(leaf({4, 6}), real({4, 6}), reduction));
    back(at::binary_cross_entropy_with_logits(leaf({4, 6}), real({4, 6}), real({6}), {}, reduction));
    at::soft_margin_loss(real({4, 6}), real({4, 6}), reduction);
    at::binary_cross_entropy(bools({4, 6}).to(at::kDouble), bools({4, 6}).to(at::kDouble), {}, reduction);
    at::binary_cross_entropy_backward(real({4, 6}), bools({4, 6}).to(at::kDouble), bools({4, 6}).to(at::kDouble), {},
                                      0);
    back(at::kl_div(leaf({4, 6}), real({4, 6}), reduction));
  }
  back(at::nll_loss(leaf({6}), ints({})));
}

// ---- Attention
void attention() {
  for (const bool causal : {false, true}) {
    back(at::scaled_dot_product_attention(leaf({2, 4, 6, 8}), leaf({2, 4, 6, 8}), leaf({2, 4, 6, 8}), {}, 0, causal));
  }
  back(at::scaled_dot_product_attention(leaf({2, 4, 6, 8}), leaf({2, 4, 12, 8}), leaf({2, 4, 12, 8}),
                                        real({2, 1, 6, 12})));
  back(at::scaled_dot_product_attention(leaf({2, 4, 6, 8}), leaf({2, 4, 12, 8}), leaf({2, 4, 12, 8}), real({6, 12})));
  at::_scaled_dot_product_attention_math(real({2, 4, 6, 8}), real({2, 4, 6, 8}), real({2, 4, 6, 8}), {}, 0, true);
  const auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(real({2, 4, 6, 8}), real({2, 4, 12, 8}), real({2, 4, 12, 8}));
  at::_scaled_dot_product_flash_attention_for_cpu_backward(real({2, 4, 6, 8}), real({2, 4, 6, 8}), real({2, 4, 12, 8}),
                                                           real({2, 4, 12, 8}), output, logsumexp, 0, false);
}

// Kernels that GPUs alone have; on a CPU nothing is called.
void gpu_forms() {
  if (!real({1}).is_cuda()) return;
  const auto half = [](Sizes sizes) { return at::empty(sizes, at::kHalf).requires_grad_(); };
  const auto [flash, logsumexp, cum_q, cum_k, max_q, max_k, state, unused, mask] =
      at::_scaled_dot_product_flash_attention(half({2, 4, 6, 8}), half({2, 4, 12, 8}), half({2, 4, 12, 8}));
  back(flash.to(at::kDouble));
  back(std::get<0>(at::_scaled_dot_product_efficient_attention(half({2, 4, 6, 8}), half({2, 4, 12, 8}),
                                                               half({2, 4, 12, 8}), {}, true))
           .to(at::kDouble));
  back(std::get<0>(at::_scaled_dot_product_cudnn_attention(half({2, 4, 6, 8}), half({2, 4, 12, 8}), half({2, 4, 12, 8}),
                                                           {}, true))
           .to(at::kDouble));
  const Tensor image = real({4, 6, 5, 5});
  const std::vector<int64_t> one{1, 1};
  at::cudnn_convolution(image, real({12, 6, 3, 3}), one, one, one, 1, false, false, false);
  at::cudnn_convolution(real({4, 12, 5, 5}), real({12, 3, 3, 3}), one, one, one, 4, false, false, false);
  for (const bool train : {true, false}) {
    at::cudnn_batch_norm(image, real({6}), real({6}), real({6}), real({6}), train, 0.1, 1e-5);
  }
  at::_thnn_fused_lstm_cell(real({4, 24}), real({4, 24}), real({4, 6}), real({24}), real({24}));
}

// ---- Indices
void indices() {
  const Tensor a = real({4, 6, 12});
  back(at::embedding(leaf({5, 12}), ints({4, 6})));
  back(at::embedding(leaf({5, 12}), ints({4, 6}), 1));
  at::index_select(a, 1, ints({4}));
  at::index_add(a, 1, ints({4}), real({4, 4, 12}));
  at::index_copy(a, 1, at::arange(6), real({4, 6, 12}));
  at::index_fill(a, 1, ints({4}), 2);
  at::gather(a, 1, ints({4, 6, 12}));
  at::gather(a, 1, ints({4, 2, 12}));
  at::gather(a, 1, ints({2, 2, 1}));
  at::scatter(a, 1, ints({4, 6, 12}), 2);
  at::scatter_add(a, 1, ints({4, 4, 12}), real({4, 4, 12}));
  at::scatter_add(a, 1, ints({2, 4, 12}), real({4, 6, 12}));
  back(at::gather(leaf({4, 6}), 1, ints({4, 6})));
  at::index(a, {ints({3}), {}, {}});
  at::index(a, {{}, ints({4})});
  at::index(a, {{}, ints({4, 2}), ints({2})});
  at::index(a, {ints({4}), {}, ints({4})});
  at::index_put(a, {{}, ints({4})}, real({4, 12}));
  at::index_put(a, {ints({4}), {}, ints({4})}, real({4, 6}), true);
  at::index_put(a, {ints({3})}, real({}), true);
  at::roll(a, 1, 1);
  at::roll(a, 1);
  at::flip(a, {0, -1});
  at::bucketize(a, real({6}));
}

// ---- Made of nothing, and drawn
void factories() {
  at::zeros({4, 6});
  at::ones({4, 6});
  at::full({4, 6}, 2);
  at::empty({4, 6});
  at::empty_strided({4, 6}, {1, 4});
  at::rand({4, 6});
  at::randn({4, 6});
  at::randint(5, {4, 6});
  at::randperm(12);
  at::arange(12);
  at::linspace(0, 1, 12);
  at::eye(6);
  at::scalar_tensor(2);
  const Tensor a = real({4, 6});
  at::zeros_like(a);
  at::ones_like(a);
  at::full_like(a, 2);
  at::empty_like(a);
  at::rand_like(a);
  a.new_zeros({12});
  a.new_full({12, 6}, 2);
  a.new_empty({4, 6});
  at::bernoulli(a, 0.5);
  back(std::get<0>(at::native_dropout(leaf({4, 6}), 0.5, true)));
}

// ---- Lists of parameters
void lists() {
  const std::vector<Tensor> a{real({4, 6}), real({12})};
  const std::vector<Tensor> b{real({4, 6}), real({12})};
  at::_foreach_add(a, b);
  at::_foreach_add_(a, b, 2);
  at::_foreach_mul_(a, 2);
  at::_foreach_addcdiv_(a, b, b, 2);
  at::_foreach_sqrt(a);
  at::_foreach_lerp_(a, b, 0.5);
  at::_foreach_norm(a);
  const std::vector<Tensor> steps{real({}), real({})};
  const std::vector<Tensor> c{real({4, 6}), real({12})};
  const std::vector<Tensor> d{real({4, 6}), real({12})};
  at::_fused_adamw_(a, b, c, d, {}, steps, 1e-3, 0.9, 0.999, 0.01, 1e-8, false, false);
  at::_fused_sgd_(a, b, {}, 0.01, 0, 1e-3, 0, false, false, true);
}

constexpr RuleSample kSamples[] = {
    {"products", products},
    {"composites", composites},
    {"pointwise", pointwise},
    {"activations", activations},
    {"in_place", in_place},
    {"reductions", reductions},
    {"softmax", softmax},
    {"views", views},
    {"view_gradients", view_gradients},
    {"joining", joining},
    {"norms", norms},
    {"convolutions", convolutions},
    {"planes", planes},
    {"losses", losses},
    {"attention", attention},
    {"gpu_forms", gpu_forms},
    {"indices", indices},
    {"factories", factories},
    {"lists", lists},
};

}  // namespace

std::span<const RuleSample> rule_samples() { return kSamples; }

}  // namespace shadowgraph
