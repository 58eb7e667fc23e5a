#include "tests/sharding/layer_samples.h"

#include "tests/sharding/sample_tensors.h"

namespace shadowgraph::samples_of_rules {

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
  // Grouped-query attention: two query heads share one key/value head.
  for (const bool causal : {false, true}) {
    back(at::scaled_dot_product_attention(leaf({2, 8, 6, 8}), leaf({2, 4, 6, 8}), leaf({2, 4, 6, 8}), {}, 0, causal,
                                          std::nullopt, true));
  }
  at::_scaled_dot_product_attention_math(real({2, 4, 6, 8}), real({2, 4, 6, 8}), real({2, 4, 6, 8}), {}, 0, true);
  const auto [output, logsumexp] =
      at::_scaled_dot_product_flash_attention_for_cpu(real({2, 4, 6, 8}), real({2, 4, 12, 8}), real({2, 4, 12, 8}));
  at::_scaled_dot_product_flash_attention_for_cpu_backward(real({2, 4, 6, 8}), real({2, 4, 6, 8}), real({2, 4, 12, 8}),
                                                           real({2, 4, 12, 8}), output, logsumexp, 0, false);
}

// Kernels that exist only for GPUs; skipped on a CPU.
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
  back(
      std::get<0>(at::_scaled_dot_product_flash_attention(half({2, 8, 6, 8}), half({2, 4, 12, 8}), half({2, 4, 12, 8})))
          .to(at::kDouble));
  back(std::get<0>(at::_scaled_dot_product_cudnn_attention(half({2, 8, 6, 8}), half({2, 4, 12, 8}), half({2, 4, 12, 8}),
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

// Variable-length attention, paged key/value caches, and other kernels of GPU libraries.
void packed_attention() {
  if (!real({1}).is_cuda()) return;
  const auto half = [](Sizes sizes) { return at::empty(sizes, at::kHalf); };
  const auto ends = [] { return at::empty({3}, at::kInt); };
  for (const bool packed : {true, false}) {
    const Tensor query = packed ? half({12, 6, 8}) : half({2, 6, 6, 8});
    const Tensor key = packed ? half({12, 6, 8}) : half({2, 6, 6, 8});
    const std::optional<Tensor> cum = packed ? std::optional(ends()) : std::nullopt;
    const auto [output, logsumexp, state, unused, mask] =
        at::_flash_attention_forward(query, key, key, cum, cum, 6, 6, 0, true, false);
    at::_flash_attention_backward(output, query, key, key, output, logsumexp, packed ? ends() : Tensor(),
                                  packed ? ends() : Tensor(), 6, 6, 0, true, state, unused);
    at::_flash_attention_forward(query, key, key, cum, cum, 6, 6, 0, true, false, {}, {}, {}, {},
                                 packed ? at::empty({6}, at::kFloat) : at::empty({2, 6}, at::kFloat));
    const Tensor pages = half({10, 4, 6, 8});
    at::_flash_attention_forward(query, pages, pages, cum, cum, 6, 6, 0, true, false, {}, {}, {},
                                 at::empty({2}, at::kInt), {}, at::empty({2, 5}, at::kInt));
    Tensor out = at::empty_like(query);
    at::_flash_attention_forward_no_dropout_inplace(out, query, pages, pages, cum, cum, 6, 6, 0, true, false, {}, {},
                                                    {}, at::empty({2}, at::kInt), {}, at::empty({2, 5}, at::kInt));
    const Tensor heads = packed ? half({12, 6, 8}) : half({2, 6, 6, 8});
    const auto cudnn = at::_cudnn_attention_forward(heads, heads, heads, {}, cum, cum, 6, 6, true);
    at::_cudnn_attention_backward(heads, heads, heads, heads, std::get<0>(cudnn), std::get<1>(cudnn),
                                  std::get<6>(cudnn), std::get<7>(cudnn), Tensor(), packed ? ends() : Tensor(),
                                  packed ? ends() : Tensor(), 6, 6, 0, true);
    const Tensor rows = packed ? half({1, 12, 6, 8}) : half({2, 6, 6, 8});
    const auto efficient = at::_efficient_attention_forward(rows, rows, rows, {}, cum, cum, 6, 6, 0, 0, true);
    at::_efficient_attention_backward(rows, rows, rows, rows, {}, std::get<0>(efficient), cum, cum, 6, 6,
                                      std::get<1>(efficient), 0, std::get<2>(efficient), std::get<3>(efficient), 0,
                                      false);
  }
  const Tensor query = half({2, 6, 6, 8});
  const Tensor scale = at::empty({2, 6}, at::kFloat);
  at::_scaled_dot_product_flash_attention(query, query, query, scale, scale, scale);
  at::_flash_attention_forward(query, query, query, {}, {}, 6, 6, 0, true, false, scale, scale, scale);
  at::_scaled_dot_product_attention_math(half({2, 12, 6, 8}), query, query, {}, 0, false, {}, {}, true);
  const Tensor x = half({4, 6, 12});
  at::_native_multi_head_attention(x, x, x, 12, 3, half({36, 12}), half({36}), half({12, 12}), half({12}));
  at::_transform_bias_rescale_qkv(half({4, 6, 36}), half({36}), 3);
}

// Experts: contiguous rows with end offsets, or the same number of rows each.
void grouped_products() {
  if (!real({1}).is_cuda()) return;
  const auto half = [](Sizes sizes) { return at::empty(sizes, at::kBFloat16).requires_grad_(); };
  const Tensor ends = at::empty({6}, at::kInt);
  back(at::_grouped_mm(half({24, 48}), half({6, 48, 96}), ends));
  back(at::_grouped_mm(half({24, 48}), half({6, 96, 48}).transpose(1, 2), ends));
  back(at::_grouped_mm(half({6, 48, 96}), half({6, 96, 48})));
  at::_grouped_mm(half({48, 24}), half({24, 96}), ends);
  at::_grouped_mm(half({6, 48, 96}), half({96, 24}), ends);
  const auto eight = [](Sizes sizes) { return at::empty(sizes, at::kFloat8_e4m3fn); };
  const auto scales = [](Sizes sizes) { return at::empty(sizes, at::kFloat); };
  at::_scaled_grouped_mm(eight({24, 96}), eight({6, 96, 96}), scales({24}), scales({6, 96}), ends);
  at::_scaled_grouped_mm(eight({6, 96, 96}), eight({6, 96, 96}), scales({6, 96}), scales({6, 96}));
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

// ---- Factories and random tensors
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

}  // namespace shadowgraph::samples_of_rules
