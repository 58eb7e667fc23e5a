#include "tests/sharding/rule_samples.h"

#include "tests/sharding/layer_samples.h"
#include "tests/sharding/sample_tensors.h"

namespace shadowgraph {
namespace samples_of_rules {
namespace {

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
  at::sum(a, at::IntArrayRef({0, 2}), true);
  at::sum(a, {-1});
  at::sum(bools({4, 6}));
  at::mean(a);
  at::mean(a, {1}, true);
  at::mean(a, at::IntArrayRef({0, -1}));
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
    {"packed_attention", packed_attention},
    {"grouped_products", grouped_products},
    {"indices", indices},
    {"factories", factories},
    {"lists", lists},
};

}  // namespace
}  // namespace samples_of_rules

std::span<const RuleSample> rule_samples() { return samples_of_rules::kSamples; }

}  // namespace shadowgraph
