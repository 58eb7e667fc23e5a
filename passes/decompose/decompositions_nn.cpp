// Decomposes matrix products with an addend, and convolutions with a bias, into a product and an addition.
//
//     addmm(self, a, b, beta, alpha)  =  beta * self + alpha * (a @ b)
//
// With beta = 0 the addend is not read: NaN and infinity in it do not propagate, as in eager.
#include <ATen/Functions.h>

#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "passes/decompose/decompositions.h"

namespace shadowgraph::decompositions {

using at::Scalar;
using at::Tensor;

Tensor scaled(const Tensor& x, const Scalar& alpha) { return alpha.equal(1) ? x : at::mul(x, alpha); }

namespace {

Tensor with_addend(const Tensor& product, const Tensor& self, const Scalar& beta, const Scalar& alpha) {
  const Tensor result = scaled(product, alpha);
  if (beta.equal(0)) return result;
  // Not at::add(product, self, beta), which rounds the scale separately for integers and half precision.
  return at::add(result, scaled(self, beta));
}

Tensor addmm_parts(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::mm(a, b), self, beta, alpha);
}
Tensor addmv_parts(const Tensor& self, const Tensor& a, const Tensor& v, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::mv(a, v), self, beta, alpha);
}
Tensor addr_parts(const Tensor& self, const Tensor& u, const Tensor& v, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::mul(u.unsqueeze(1), v.unsqueeze(0)), self, beta, alpha);
}
// Sums the products of all batches.
Tensor addbmm_parts(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::sum(at::bmm(a, b), {0}, /*keepdim=*/false, a.scalar_type()), self, beta, alpha);
}
Tensor baddbmm_parts(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return with_addend(at::bmm(a, b), self, beta, alpha);
}

// In-place forms compute a new sum and copy it to self, since the sum reads self.
using Product = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Scalar&, const Scalar&);
template <Product product>
Tensor& in_place(Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  return self.copy_(product(self, a, b, beta, alpha));
}

Tensor addmm_activation(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha,
                        bool use_gelu) {
  const Tensor sum = addmm_parts(self, a, b, beta, alpha);
  return use_gelu ? at::gelu(sum, "tanh") : at::relu(sum);
}

Tensor convolution_parts(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                         c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                         c10::IntArrayRef output_padding, int64_t groups) {
  if (!bias || !bias->defined()) decline("it has no bias");
  const Tensor output =
      at::convolution(input, weight, {}, stride, padding, dilation, transposed, output_padding, groups);
  std::vector<int64_t> sizes(static_cast<size_t>(output.dim()), 1);
  // Without a batch dimension, channels come first.
  sizes[output.dim() == weight.dim() ? 1 : 0] = bias->size(0);
  return at::add(output, bias->view(sizes));
}

}  // namespace

void add_matrix_products(ExpansionTable& table) {
  table.add("aten::addmm", &addmm_parts);
  table.add("aten::addmv", &addmv_parts);
  table.add("aten::addr", &addr_parts);
  table.add("aten::addbmm", &addbmm_parts);
  table.add("aten::baddbmm", &baddbmm_parts);
  table.add("aten::addmm_", &in_place<&addmm_parts>);
  table.add("aten::addmv_", &in_place<&addmv_parts>);
  table.add("aten::addr_", &in_place<&addr_parts>);
  table.add("aten::addbmm_", &in_place<&addbmm_parts>);
  table.add("aten::baddbmm_", &in_place<&baddbmm_parts>);
  table.add("aten::_addmm_activation", &addmm_activation);
}

void add_convolution_bias(ExpansionTable& table) { table.add("aten::convolution", &convolution_parts); }

// Decomposes normalization, embedding, losses and attention.
//
// Results that only a GPU kernel's own backward reads are undefined, since that backward is decomposed too.

using OptionalTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

namespace {

bool given(const OptionalTensor& tensor) { return tensor && tensor->defined(); }
std::vector<int64_t> range(int64_t first, int64_t last) {
  std::vector<int64_t> dims;
  for (int64_t i = first; i < last; ++i) dims.push_back(i);
  return dims;
}
// Keeps the dimension with size 1, so that the result broadcasts against x without a view.
Tensor mean_over(const Tensor& x, c10::IntArrayRef dims) { return at::mean(x, dims, /*keepdim=*/true); }
Tensor squared(const Tensor& x) { return at::mul(x, x); }

// Returns (x - mean) / sqrt(var + eps) over `dims`, mean, and 1 / sqrt(var + eps).
Three normalized(const Tensor& x, c10::IntArrayRef dims, double eps) {
  if (x.numel() == 0) decline("it has no elements");
  const Tensor mean = mean_over(x, dims);
  const Tensor centered = at::sub(x, mean);
  const Tensor rstd = at::rsqrt(at::add(mean_over(squared(centered), dims), eps));
  return {at::mul(centered, rstd), mean, rstd};
}
// Gradient through normalized(): with h = x_hat, rstd (g - mean(g) - h mean(g h)).
Tensor normalized_backward(const Tensor& grad, const Tensor& x_hat, const Tensor& rstd, c10::IntArrayRef dims) {
  const Tensor inner =
      at::sub(at::sub(grad, mean_over(grad, dims)), at::mul(x_hat, mean_over(at::mul(grad, x_hat), dims)));
  return at::mul(inner, rstd);
}
// Multiplies by the weight and adds the bias, if given; `shape` is the shape in which they broadcast.
Tensor affine(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, c10::IntArrayRef shape) {
  Tensor result = x;
  if (given(weight)) result = at::mul(result, computed_in(*weight).view(shape));
  if (given(bias)) result = at::add(result, computed_in(*bias).view(shape));
  return result;
}

Three native_layer_norm(const Tensor& input, c10::IntArrayRef normalized_shape, const OptionalTensor& weight,
                        const OptionalTensor& bias, double eps) {
  const auto dims = range(input.dim() - static_cast<int64_t>(normalized_shape.size()), input.dim());
  const auto [x_hat, mean, rstd] = normalized(computed_in(input), dims, eps);
  return {affine(x_hat, weight, bias, normalized_shape), mean, rstd};
}

Three native_layer_norm_backward(const Tensor& grad, const Tensor& input, c10::IntArrayRef normalized_shape,
                                 const Tensor& mean, const Tensor& rstd, const OptionalTensor& weight,
                                 const OptionalTensor& /*bias*/, std::array<bool, 3> wanted) {
  const int64_t outer = input.dim() - static_cast<int64_t>(normalized_shape.size());
  if (input.numel() == 0 || outer == 0) decline("there is nothing to reduce over");
  const auto dims = range(outer, input.dim());
  const Tensor g = computed_in(grad);
  const Tensor x_hat = at::mul(at::sub(computed_in(input), mean), rstd);
  Three result;
  // The output mask selects gradients; the others would be dead nodes in the graph.
  if (wanted[0]) std::get<0>(result) = normalized_backward(affine(g, weight, {}, normalized_shape), x_hat, rstd, dims);
  if (wanted[1]) std::get<1>(result) = at::sum(at::mul(g, x_hat), range(0, outer));
  if (wanted[2]) std::get<2>(result) = at::sum(g, range(0, outer));
  return result;
}

// Shape in which a vector of channels broadcasts against x: [1, C, 1, ...].
std::vector<int64_t> channel_shape(const Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = x.size(1);
  return shape;
}

Three native_group_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias, int64_t batch,
                        int64_t channels, int64_t area, int64_t groups, double eps) {
  // A group is one row of channels and area together, so the same formula applies.
  const Tensor grouped = at::reshape(computed_in(input), {batch, groups, channels / groups * area});
  const auto [x_hat, mean, rstd] = normalized(grouped, {2}, eps);
  const Tensor output = affine(x_hat.view(input.sizes()), weight, bias, channel_shape(input));
  return {output, at::squeeze(mean, 2), at::squeeze(rstd, 2)};
}

Three native_group_norm_backward(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& rstd,
                                 const OptionalTensor& weight, int64_t batch, int64_t channels, int64_t area,
                                 int64_t groups, std::array<bool, 3> wanted) {
  if (input.numel() == 0) decline("it has no elements");
  const std::vector<int64_t> grouped{batch, groups, channels / groups * area};
  const Tensor g = computed_in(grad);
  const Tensor scale = computed_in(rstd).unsqueeze(2);
  const Tensor x_hat =
      at::mul(at::sub(at::reshape(computed_in(input), grouped), computed_in(mean).unsqueeze(2)), scale);
  Three result;
  if (wanted[0]) {
    const Tensor weighted = at::reshape(affine(g, weight, {}, channel_shape(input)), grouped);
    std::get<0>(result) = normalized_backward(weighted, x_hat, scale, {2}).view(input.sizes());
  }
  std::vector<int64_t> others = range(2, input.dim());
  others.insert(others.begin(), 0);
  if (wanted[1]) std::get<1>(result) = at::sum(at::mul(g, x_hat.view(input.sizes())), others);
  if (wanted[2]) std::get<2>(result) = at::sum(g, others);
  return result;
}

std::vector<int64_t> all_but_channels(const Tensor& x) {
  std::vector<int64_t> dims = range(2, x.dim());
  dims.insert(dims.begin(), 0);
  return dims;
}

// As in cuDNN, running statistics use the unbiased variance.
void update_running(const Tensor& x, const Tensor& mean, const Tensor& biased, const OptionalTensor& running_mean,
                    const OptionalTensor& running_var, double momentum) {
  const double count = static_cast<double>(x.numel() / x.size(1));
  if (given(running_mean)) {
    Tensor running = *running_mean;
    running.mul_(1 - momentum).add_(at::mul(mean.view({-1}), momentum));
  }
  if (given(running_var)) {
    Tensor running = *running_var;
    running.mul_(1 - momentum).add_(at::mul(biased.view({-1}), momentum * count / (count - 1)));
  }
}

Three batch_norm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                 const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training, double momentum,
                 double eps) {
  const Tensor x = computed_in(input);
  const auto shape = channel_shape(x);
  if (!training) {
    if (!given(running_mean) || !given(running_var)) decline("it has no running statistics");
    const Tensor rstd = at::rsqrt(at::add(computed_in(*running_var), eps)).view(shape);
    const Tensor x_hat = at::mul(at::sub(x, computed_in(*running_mean).view(shape)), rstd);
    // In evaluation the kernel returns empty statistics.
    const Tensor none = at::empty({0}, x.options());
    return {affine(x_hat, weight, bias, shape), none, at::empty({0}, x.options())};
  }
  if (x.numel() == 0) decline("it has no elements");
  const auto dims = all_but_channels(x);
  const Tensor mean = mean_over(x, dims);
  const Tensor centered = at::sub(x, mean);
  const Tensor biased = mean_over(squared(centered), dims);
  const Tensor rstd = at::rsqrt(at::add(biased, eps));
  update_running(x, mean, biased, running_mean, running_var, momentum);
  return {affine(at::mul(centered, rstd), weight, bias, shape), mean.view({-1}), rstd.view({-1})};
}

Three batch_norm_backward(const Tensor& grad, const Tensor& input, const OptionalTensor& weight,
                          const OptionalTensor& running_mean, const OptionalTensor& running_var,
                          const OptionalTensor& save_mean, const OptionalTensor& save_rstd, bool train, double eps,
                          std::array<bool, 3> wanted) {
  const Tensor x = computed_in(input);
  const Tensor g = computed_in(grad);
  const auto shape = channel_shape(x);
  const auto dims = all_but_channels(x);
  const Tensor mean = computed_in(train ? *save_mean : *running_mean).view(shape);
  const Tensor rstd =
      (train ? computed_in(*save_rstd) : at::rsqrt(at::add(computed_in(*running_var), eps))).view(shape);
  const Tensor x_hat = at::mul(at::sub(x, mean), rstd);
  Three result;
  if (wanted[0]) {
    const Tensor weighted = affine(g, weight, {}, shape);
    // In evaluation the statistics are constants and have no gradient.
    std::get<0>(result) = train ? normalized_backward(weighted, x_hat, rstd, dims) : at::mul(weighted, rstd);
  }
  if (wanted[1]) std::get<1>(result) = at::sum(at::mul(g, x_hat), dims);
  if (wanted[2]) std::get<2>(result) = at::sum(g, dims);
  return result;
}

// Reserved results of cuDNN for its own backward are undefined; that backward is decomposed, too.
std::tuple<Tensor, Tensor, Tensor, Tensor> cudnn_batch_norm(const Tensor& input, const Tensor& weight,
                                                            const OptionalTensor& bias,
                                                            const OptionalTensor& running_mean,
                                                            const OptionalTensor& running_var, bool training,
                                                            double momentum, double eps) {
  const auto [output, mean, rstd] = batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
  return {output, mean, rstd, Tensor()};
}
Three cudnn_batch_norm_backward(const Tensor& input, const Tensor& grad, const Tensor& weight,
                                const OptionalTensor& running_mean, const OptionalTensor& running_var,
                                const OptionalTensor& save_mean, const OptionalTensor& save_rstd, double eps,
                                const Tensor& /*reserve*/) {
  return batch_norm_backward(grad, input, weight, running_mean, running_var, save_mean, save_rstd, true, eps,
                             std::array<bool, 3>{true, true, true});
}

Tensor embedding(const Tensor& weight, const Tensor& indices, int64_t /*padding_index*/, bool /*scale_by_frequency*/,
                 bool sparse) {
  if (sparse) decline("its gradient is sparse");
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(weight.size(1));
  return at::index_select(weight, 0, at::reshape(indices, {-1})).view(sizes);  // bitwise
}
// Adds each row of the gradient to the corresponding row of the weight's. Rows of the padding index are zero.
Tensor embedding_dense_backward(const Tensor& grad, const Tensor& indices, int64_t weights, int64_t padding_index,
                                bool scale_by_frequency) {
  if (scale_by_frequency) decline("it scales by frequency");
  const Tensor flat = at::reshape(indices, {-1});
  Tensor rows = at::reshape(grad, {flat.size(0), grad.size(-1)});
  if (padding_index >= 0) rows = at::where(at::eq(flat, padding_index).unsqueeze(1), Scalar(0), rows);
  return at::index_add(at::full({weights, grad.size(-1)}, 0, grad.options()), 0, flat, rows);
}

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

Tensor reduced(const Tensor& loss, int64_t reduction) {
  return reduction == kNone ? loss : reduction == kMean ? at::mean(loss) : at::sum(loss);
}

// Returns one weight per target (the class weight, or 0 if ignored), and the targets with valid indices.
std::pair<Tensor, Tensor> target_weights(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                                         int64_t ignored) {
  const Tensor kept = at::ne(target, ignored);
  // An ignored target, such as -100, is not an index. Class 0 is used, with weight zero.
  const Tensor valid = at::where(kept, target, Scalar(0));
  Tensor weights = kept.to(self.scalar_type());
  if (given(weight)) {
    weights = at::mul(at::index_select(*weight, 0, at::reshape(valid, {-1})).view(target.sizes()), weights);
  }
  return {weights, valid};
}

std::tuple<Tensor, Tensor> nll_loss(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                                    int64_t reduction, int64_t ignored) {
  if (self.dim() < 2) decline("it has no batch");
  const auto [weights, valid] = target_weights(self, target, weight, ignored);
  const Tensor picked = at::squeeze(at::gather(self, 1, valid.unsqueeze(1)), 1);
  const Tensor losses = at::neg(at::mul(picked, weights));
  if (reduction == kNone) return {losses, at::full({}, 0, self.options())};
  // The mean is weighted, so ignored targets do not count.
  const Tensor total = at::sum(weights);
  const Tensor sum = at::sum(losses);
  return {reduction == kMean ? at::div(sum, total) : sum, total};
}
// -weight at the target's class, 0 elsewhere.
Tensor nll_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                         int64_t reduction, int64_t ignored, const Tensor& total) {
  if (self.dim() < 2) decline("it has no batch");
  const auto [weights, valid] = target_weights(self, target, weight, ignored);
  const Tensor g = reduction == kMean ? at::div(grad, total) : grad;
  const Tensor back = at::neg(at::mul(weights, g));
  return at::scatter(at::full(self.sizes(), 0, self.options()), 1, valid.unsqueeze(1), back.unsqueeze(1));
}
Tensor mse_loss(const Tensor& self, const Tensor& target, int64_t reduction) {
  return reduced(squared(at::sub(self, target)), reduction);
}
Tensor mse_loss_backward(const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction) {
  // The derivative of (x - y)^2 is 2 (x - y), and a mean divides by the count.
  const double norm = reduction == kMean ? 2.0 / static_cast<double>(self.numel()) : 2.0;
  return at::mul(at::mul(at::sub(self, target), norm), grad);
}

// Attention: softmax(scale * q k^T + mask) v, without dropout.
struct Scores {
  Tensor q, k, v;
  Tensor scores;  // scaled and masked
  double scale = 1;
};

Scores attention_scores(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                        double dropout, bool causal, std::optional<double> scale) {
  if (dropout != 0) decline("it has dropout, whose random numbers would differ");
  if (query.size(1) != key.size(1)) decline("it is grouped-query attention");
  Scores s{computed_in(query), computed_in(key), computed_in(value), {}, 1};
  s.scale = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
  s.scores = at::mul(at::matmul(s.q, at::transpose(s.k, -2, -1)), s.scale);
  if (given(mask)) s.scores = at::add(s.scores, computed_in(*mask));
  if (causal) {
    // Query i attends to keys 0 to i.
    const Tensor visible = at::tril(at::ones({query.size(-2), key.size(-2)}, query.options().dtype(at::kBool)));
    s.scores = at::where(visible, s.scores, Scalar(-std::numeric_limits<double>::infinity()));
  }
  return s;
}

std::pair<Tensor, Tensor> attention(const Scores& s) {
  const Tensor shift = at::amax(s.scores, {-1}, /*keepdim=*/true);
  const Tensor e = at::exp(at::sub(s.scores, shift));
  const Tensor sum = at::sum(e, {-1}, /*keepdim=*/true);
  // log(sum(exp(x))), which flash kernels save for backward instead of the whole softmax.
  const Tensor statistics = at::squeeze(at::add(at::log(sum), shift), -1);
  return {at::matmul(at::div(e, sum), s.v), statistics};
}

// With p = softmax(scores): dv = p^T g, dp = g v^T, ds = scale p (dp - sum(dp p)), dq = ds k, dk = ds^T q.
Three attention_backward(const Scores& s, const Tensor& grad_output) {
  const Tensor g = computed_in(grad_output);
  const Tensor shift = at::amax(s.scores, {-1}, /*keepdim=*/true);
  const Tensor e = at::exp(at::sub(s.scores, shift));
  const Tensor p = at::div(e, at::sum(e, {-1}, /*keepdim=*/true));
  const Tensor dv = at::matmul(at::transpose(p, -2, -1), g);
  const Tensor weighted = at::mul(at::matmul(g, at::transpose(s.v, -2, -1)), p);
  const Tensor ds = at::mul(at::sub(weighted, at::mul(p, at::sum(weighted, {-1}, /*keepdim=*/true))), s.scale);
  return {at::matmul(ds, s.k), at::matmul(at::transpose(ds, -2, -1), s.q), dv};
}

std::tuple<Tensor, Tensor> flash_for_cpu(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal,
                                         const OptionalTensor& mask, std::optional<double> scale) {
  return attention(attention_scores(q, k, v, mask, dropout, causal, scale));
}
Three flash_for_cpu_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                             const Tensor&, double dropout, bool causal, const OptionalTensor& mask,
                             std::optional<double> scale) {
  return attention_backward(attention_scores(q, k, v, mask, dropout, causal, scale), grad);
}

// GPU kernels return statistics and random states in their own formats; their decomposed backwards do not need them.
using FlashResult = std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t, int64_t, Tensor, Tensor, Tensor>;
FlashResult flash(const Tensor& q, const Tensor& k, const Tensor& v, double dropout, bool causal, bool /*debug*/,
                  std::optional<double> scale) {
  const Tensor output = attention(attention_scores(q, k, v, {}, dropout, causal, scale)).first;
  return {output, {}, {}, {}, q.size(-2), k.size(-2), {}, {}, {}};
}
Three flash_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                     const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, double dropout, bool causal,
                     const Tensor&, const Tensor&, std::optional<double> scale) {
  return attention_backward(attention_scores(q, k, v, {}, dropout, causal, scale), grad);
}
// cuDNN's and the memory-efficient kernel take a bias, flash attention does not; further results are kernel-specific.
FlashResult cudnn(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& bias, bool /*statistics*/,
                  double dropout, bool causal, bool /*debug*/, std::optional<double> scale) {
  const Tensor output = attention(attention_scores(q, k, v, bias, dropout, causal, scale)).first;
  return {output, {}, {}, {}, q.size(-2), k.size(-2), {}, {}, {}};
}
Three cudnn_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor&,
                     const Tensor&, const Tensor&, const Tensor&, const Tensor& bias, const Tensor&, const Tensor&,
                     int64_t, int64_t, double dropout, bool causal, std::optional<double> scale) {
  return attention_backward(attention_scores(q, k, v, bias, dropout, causal, scale), grad);
}
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& q, const Tensor& k, const Tensor& v,
                                                     const OptionalTensor& bias, bool /*statistics*/, double dropout,
                                                     bool causal, std::optional<double> scale) {
  return {attention(attention_scores(q, k, v, bias, dropout, causal, scale)).first, {}, {}, {}};
}
std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(const Tensor& grad, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor& bias, const Tensor&,
                                                              const Tensor&, const Tensor&, const Tensor&,
                                                              double dropout, std::array<bool, 4> wanted, bool causal,
                                                              std::optional<double> scale) {
  if (wanted[3] && bias.defined()) decline("its mask has a gradient");
  const auto [dq, dk, dv] = attention_backward(attention_scores(q, k, v, bias, dropout, causal, scale), grad);
  return {dq, dk, dv, Tensor()};
}

}  // namespace

void add_normalization(ExpansionTable& table) {
  table.add("aten::native_layer_norm", &native_layer_norm);
  table.add("aten::native_layer_norm_backward", &native_layer_norm_backward);
  table.add("aten::native_group_norm", &native_group_norm);
  table.add("aten::native_group_norm_backward", &native_group_norm_backward);
  table.add("aten::native_batch_norm", &batch_norm);
  table.add("aten::native_batch_norm_backward", &batch_norm_backward);
  table.add("aten::cudnn_batch_norm", &cudnn_batch_norm);
  table.add("aten::cudnn_batch_norm_backward", &cudnn_batch_norm_backward);
}

void add_embedding_and_loss(ExpansionTable& table) {
  table.add("aten::embedding", &embedding);
  table.add("aten::embedding_dense_backward", &embedding_dense_backward);
  table.add("aten::nll_loss_forward", &nll_loss);
  table.add("aten::nll_loss_backward", &nll_loss_backward);
  table.add("aten::nll_loss2d_forward", &nll_loss);
  table.add("aten::nll_loss2d_backward", &nll_loss_backward);
  table.add("aten::mse_loss", &mse_loss);
  table.add("aten::mse_loss_backward", &mse_loss_backward);
}

void add_attention(ExpansionTable& table) {
  table.add("aten::_scaled_dot_product_flash_attention_for_cpu", &flash_for_cpu);
  table.add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", &flash_for_cpu_backward);
  table.add("aten::_scaled_dot_product_flash_attention", &flash);
  table.add("aten::_scaled_dot_product_flash_attention_backward", &flash_backward);
  table.add("aten::_scaled_dot_product_cudnn_attention", &cudnn);
  table.add("aten::_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
  table.add("aten::_scaled_dot_product_efficient_attention", &efficient);
  table.add("aten::_scaled_dot_product_efficient_attention_backward", &efficient_backward);
}

}  // namespace shadowgraph::decompositions
