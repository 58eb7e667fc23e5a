#include "tests/passes/decompose_cases.h"

#include <ATen/ATen.h>
#include <ATen/core/Reduction.h>

#include <limits>

namespace shadowgraph {
namespace {

at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) { return at::randn(sizes).to(dtype); }
at::Tensor classes(int64_t count, at::IntArrayRef sizes) { return at::randint(0, count, sizes, at::kLong); }

template <class... Results>
Tensors all_of(const std::tuple<Results...>& results) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, results);
}

// The cases, by kind. The order of the calls determines the random numbers.
class DecomposeCases {
 public:
  std::vector<DecomposeCase> all() {
    pointwise_unary();
    pointwise_binary();
    pointwise_more();
    views();
    layer_norms();
    image_norms();
    embeddings_and_losses();
    attention();
    lists();
    optimizers();
    products();
    return std::move(list_);
  }

 private:
  void one(const std::string& op, std::function<at::Tensor(const Tensors&)> f, Tensors inputs,
           double tolerance = 1e-5) {
    list_.push_back({op, [f](const Tensors& in) { return Tensors{f(in)}; }, std::move(inputs), tolerance});
  }
  void many(const std::string& op, Program f, Tensors inputs, double tolerance = 1e-5) {
    list_.push_back({op, std::move(f), std::move(inputs), tolerance});
  }

  void pointwise_unary() {
    // In float, in half precision, and with strides that must be preserved.
    const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&)>>> unary = {
        {"aten::gelu", [](const auto& a) { return at::gelu(a); }},
        {"aten::gelu", [](const auto& a) { return at::gelu(a, "tanh"); }},
        {"aten::silu", [](const auto& a) { return at::silu(a); }},
        {"aten::hardtanh", [](const auto& a) { return at::hardtanh(a, -0.5, 0.75); }},
        {"aten::leaky_relu", [](const auto& a) { return at::leaky_relu(a, 0.125); }},
        {"aten::elu", [](const auto& a) { return at::elu(a, 1.5, 1.25, 0.5); }},
        {"aten::softplus", [](const auto& a) { return at::softplus(a, 2, 1); }},
        {"aten::hardsigmoid", [](const auto& a) { return at::hardsigmoid(a); }},
        {"aten::hardswish", [](const auto& a) { return at::hardswish(a); }},
        {"aten::mish", [](const auto& a) { return at::mish(a); }},
        {"aten::_softmax", [](const auto& a) { return at::_softmax(a, -1, false); }},
        {"aten::_softmax", [](const auto& a) { return at::_softmax(a, 0, false); }},
        {"aten::_log_softmax", [](const auto& a) { return at::_log_softmax(a, 1, false); }},
        {"aten::rsub.Scalar", [](const auto& a) { return at::rsub(a, 2, 3); }},
    };
    for (const auto& [op, f] : unary) {
      const auto function = f;
      for (const at::Tensor& input : {x_, h_, strided_}) {
        one(
            op, [function](const Tensors& in) { return function(in[0]); }, {input},
            input.scalar_type() == at::kFloat ? 1e-5 : 1e-2);
      }
    }
  }

  void pointwise_binary() {
    const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>>> binary =
        {
            {"aten::gelu_backward", [](const auto& a, const auto& b) { return at::gelu_backward(a, b); }},
            {"aten::gelu_backward", [](const auto& a, const auto& b) { return at::gelu_backward(a, b, "tanh"); }},
            {"aten::silu_backward", [](const auto& a, const auto& b) { return at::silu_backward(a, b); }},
            {"aten::sigmoid_backward", [](const auto& a, const auto& b) { return at::sigmoid_backward(a, b); }},
            {"aten::tanh_backward", [](const auto& a, const auto& b) { return at::tanh_backward(a, b); }},
            {"aten::threshold_backward", [](const auto& a, const auto& b) { return at::threshold_backward(a, b, 0); }},
            {"aten::hardtanh_backward",
             [](const auto& a, const auto& b) { return at::hardtanh_backward(a, b, -1, 1); }},
            {"aten::leaky_relu_backward",
             [](const auto& a, const auto& b) { return at::leaky_relu_backward(a, b, 0.25, false); }},
            {"aten::lerp.Scalar", [](const auto& a, const auto& b) { return at::lerp(a, b, 0.25); }},
            {"aten::lerp.Scalar", [](const auto& a, const auto& b) { return at::lerp(a, b, 0.75); }},
            {"aten::rsub.Tensor", [](const auto& a, const auto& b) { return at::rsub(a, b, 2); }},
            {"aten::mse_loss", [](const auto& a, const auto& b) { return at::mse_loss(a, b, at::Reduction::Mean); }},
            {"aten::mse_loss", [](const auto& a, const auto& b) { return at::mse_loss(a, b, at::Reduction::None); }},
            {"aten::_softmax_backward_data",
             [](const auto& a, const auto& b) {
               return at::_softmax_backward_data(a, at::_softmax(b, -1, false), -1, b.scalar_type());
             }},
            {"aten::_log_softmax_backward_data",
             [](const auto& a, const auto& b) {
               return at::_log_softmax_backward_data(a, at::_log_softmax(b, -1, false), -1, b.scalar_type());
             }},
        };
    for (const auto& [op, f] : binary) {
      const auto function = f;
      one(op, [function](const Tensors& in) { return function(in[0], in[1]); }, {x_, y_});
      if (op != "aten::lerp.Scalar" && op != "aten::mse_loss") {
        one(
            op, [function](const Tensors& in) { return function(in[0], in[1]); }, {h_, h_.flip(0)}, 2e-2);
      }
    }
  }

  void pointwise_more() {
    one("aten::mse_loss_backward",
        [](const Tensors& in) { return at::mse_loss_backward(in[2], in[0], in[1], at::Reduction::Mean); },
        {x_, y_, numbers({})});
    one("aten::addcmul", [](const Tensors& in) { return at::addcmul(in[0], in[1], in[2], 0.5); }, {x_, y_, x_ + 1});
    one("aten::addcdiv", [](const Tensors& in) { return at::addcdiv(in[0], in[1], in[2], 2); }, {x_, y_, x_.abs() + 1});
    one("aten::addcdiv_",
        [](const Tensors& in) { return in[0].view({-1}).addcdiv_(in[1].view({-1}), in[2].view({-1}), 2); },
        {x_, y_, x_.abs() + 1});
    one("aten::addcmul_", [](const Tensors& in) { return at::Tensor(in[0]).addcmul_(in[1], in[2], 2); }, {x_, y_, y_});
    one("aten::lerp_.Scalar", [](const Tensors& in) { return at::Tensor(in[0]).lerp_(in[1], 0.9); }, {x_, y_});
    one("aten::lerp.Tensor", [](const Tensors& in) { return at::lerp(in[0], in[1], in[2]); }, {x_, y_, at::rand({5})});
    one("aten::silu_", [](const Tensors& in) { return at::silu_(const_cast<at::Tensor&>(in[0])); }, {x_});
    one("aten::masked_fill.Scalar", [](const Tensors& in) { return in[0].masked_fill(in[1], -2.5); }, {x_, x_ > 0});
  }

  void views() {
    one("aten::t", [](const Tensors& in) { return in[0].t(); }, {numbers({3, 5})});
    one("aten::transpose.int", [](const Tensors& in) { return in[0].transpose(-1, 0).relu(); }, {x_});
    many("aten::unbind.int", [](const Tensors& in) { return in[0].unbind(1); }, {x_});
    many("aten::split.Tensor", [](const Tensors& in) { return in[0].split(4, 1); }, {x_});
    many("aten::split_with_sizes", [](const Tensors& in) { return in[0].split_with_sizes({1, 3, 2}, 1); }, {x_});
    one("aten::stack", [](const Tensors& in) { return at::stack({in[0], in[1]}, -1); }, {x_, y_});
    one("aten::slice_backward",
        [](const Tensors& in) {
          return at::slice_backward(in[0], {4, 9, 5}, 1, 1, 8, 2);
        },
        {numbers({4, 4, 5})});
    one("aten::select_backward",
        [](const Tensors& in) {
          return at::select_backward(in[0], {4, 9, 5}, 1, -2);
        },
        {numbers({4, 5})});
  }

  void layer_norms() {
    for (const bool affine : {true, false}) {
      many("aten::native_layer_norm",
           [=](const Tensors& in) {
             return all_of(at::native_layer_norm(in[0], {5}, affine ? std::optional(in[1]) : kAbsent,
                                                 affine ? std::optional(in[2]) : kAbsent, 1e-5));
           },
           {x_, weight_, bias_});
      many("aten::native_layer_norm_backward",
           [=](const Tensors& in) {
             const auto [out, mean, rstd] = at::native_layer_norm(in[0], {5}, in[1], in[2], 1e-5);
             return all_of(
                 at::native_layer_norm_backward(in[3], in[0], {5}, mean, rstd, affine ? std::optional(in[1]) : kAbsent,
                                                affine ? std::optional(in[2]) : kAbsent, {true, affine, affine}));
           },
           {x_, weight_, bias_, y_});
    }
  }

  void image_norms() {
    const at::Tensor image = numbers({3, 6, 5, 4});
    const Tensors norm_inputs{image,         at::rand({6}),       at::rand({6}),
                              at::rand({6}), at::rand({6}) + 0.5, numbers({3, 6, 5, 4})};
    many(
        "aten::native_group_norm",
        [](const Tensors& in) { return all_of(at::native_group_norm(in[0], in[1], in[2], 3, 6, 20, 2, 1e-5)); },
        norm_inputs);
    many(
        "aten::native_group_norm_backward",
        [](const Tensors& in) {
          const auto [out, mean, rstd] = at::native_group_norm(in[0], in[1], in[2], 3, 6, 20, 2, 1e-5);
          return all_of(
              at::native_group_norm_backward(in[5], in[0], mean, rstd, in[1], 3, 6, 20, 2, {true, true, true}));
        },
        norm_inputs, 1e-4);
    for (const bool training : {true, false}) {
      many(
          "aten::native_batch_norm",
          [=](const Tensors& in) {
            return all_of(at::native_batch_norm(in[0], in[1], in[2], in[3], in[4], training, 0.1, 1e-5));
          },
          norm_inputs);
      many(
          "aten::native_batch_norm_backward",
          [=](const Tensors& in) {
            const auto [out, mean, rstd] =
                at::native_batch_norm(in[0], in[1], in[2], in[3], in[4], training, 0.1, 1e-5);
            return all_of(at::native_batch_norm_backward(in[5], in[0], in[1], in[3], in[4], mean, rstd, training, 1e-5,
                                                         {true, true, true}));
          },
          norm_inputs, 1e-4);
    }
    many("aten::native_batch_norm",
         [](const Tensors& in) {
           return all_of(at::native_batch_norm(in[0], in[1], in[2], in[3], in[4], true, 0.1, 1e-5));
         },
         {image.contiguous(at::MemoryFormat::ChannelsLast), norm_inputs[1], norm_inputs[2], norm_inputs[3],
          norm_inputs[4]});
  }

  void embeddings_and_losses() {
    one("aten::embedding", [](const Tensors& in) { return at::embedding(in[0], in[1]); },
        {numbers({11, 3}), classes(11, {2, 7})});
    one("aten::embedding_dense_backward",
        [](const Tensors& in) { return at::embedding_dense_backward(in[0], in[1], 11, -1, false); },
        {numbers({2, 7, 3}), classes(11, {2, 7})});
    one("aten::embedding_dense_backward",
        [](const Tensors& in) { return at::embedding_dense_backward(in[0], in[1], 11, 4, false); },
        {numbers({2, 7, 3}), classes(6, {2, 7})});
    for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
      for (const bool weighted : {true, false}) {
        many("aten::nll_loss_forward",
             [=](const Tensors& in) {
               return all_of(
                   at::nll_loss_forward(in[0], in[1], weighted ? std::optional(in[2]) : kAbsent, reduction, 2));
             },
             {numbers({9, 5}), classes(5, {9}), at::rand({5})});
        one("aten::nll_loss_backward",
            [=](const Tensors& in) {
              const auto w = weighted ? std::optional(in[2]) : kAbsent;
              const auto [loss, total] = at::nll_loss_forward(in[0], in[1], w, reduction, 2);
              return at::nll_loss_backward(loss, in[0], in[1], w, reduction, 2, total);
            },
            {numbers({9, 5}), classes(5, {9}), at::rand({5})});
        many("aten::nll_loss2d_forward",
             [=](const Tensors& in) {
               return all_of(
                   at::nll_loss2d_forward(in[0], in[1], weighted ? std::optional(in[2]) : kAbsent, reduction, -100));
             },
             {numbers({3, 5, 4, 2}), classes(5, {3, 4, 2}), at::rand({5})});
      }
    }
  }

  void attention() {
    for (const bool causal : {true, false}) {
      const Tensors qkv{numbers({2, 3, 6, 8}), numbers({2, 3, 6, 8}), numbers({2, 3, 6, 8}), numbers({2, 3, 6, 8})};
      many(
          "aten::_scaled_dot_product_flash_attention_for_cpu",
          [=](const Tensors& in) {
            return all_of(at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2], 0.0, causal));
          },
          qkv);
      many(
          "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
          [=](const Tensors& in) {
            const auto [out, statistics] =
                at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2], 0.0, causal, {}, 0.3);
            return all_of(at::_scaled_dot_product_flash_attention_for_cpu_backward(in[3], in[0], in[1], in[2], out,
                                                                                   statistics, 0.0, causal, {}, 0.3));
          },
          qkv, 1e-4);
    }
    many("aten::_scaled_dot_product_flash_attention_for_cpu",
         [](const Tensors& in) {
           return all_of(at::_scaled_dot_product_flash_attention_for_cpu(in[0], in[1], in[2], 0.0, false, in[3]));
         },
         {numbers({2, 3, 6, 8}), numbers({2, 3, 4, 8}), numbers({2, 3, 4, 8}), numbers({2, 1, 6, 4})});
    one("aten::_safe_softmax", [](const Tensors& in) { return at::_safe_softmax(in[0], -1); },
        {numbers({3, 4}).masked_fill(at::tensor({1, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1, 0}).view({3, 4}) == 1,
                                     -std::numeric_limits<double>::infinity())});
  }

  void lists() {
    many("aten::_foreach_add_.Scalar",
         [](const Tensors& in) {
           at::_foreach_add_({in[0], in[1]}, 2.5);
           return in;
         },
         {x_, weight_});
    many("aten::_foreach_addcdiv_.Scalar",
         [](const Tensors& in) {
           at::_foreach_addcdiv_({in[0], in[1]}, {in[1], in[0]}, {in[2], in[2]}, -0.5);
           return in;
         },
         {x_, y_, x_.abs() + 1});
    many("aten::_foreach_mul.List",
         [](const Tensors& in) {
           return at::_foreach_mul({in[0], in[1]}, {in[1], in[0]});
         },
         {x_, y_});
    many("aten::_foreach_sqrt", [](const Tensors& in) { return at::_foreach_sqrt({in[0], in[0]}); }, {x_.abs()});
    many("aten::_foreach_div_.ScalarList",
         [](const Tensors& in) {
           at::_foreach_div_({in[0], in[1]}, std::vector<at::Scalar>{2, 4});
           return in;
         },
         {x_, y_});
  }

  void optimizers() {
    const Tensors optimizer{numbers({7}),    numbers({3, 2}), numbers({7}),     numbers({3, 2}),   numbers({7}),
                            numbers({3, 2}), at::rand({7}),   at::rand({3, 2}), at::full({}, 3.0), at::full({}, 3.0)};
    for (const bool maximize : {true, false}) {
      many(
          "aten::_fused_adamw_",
          [=](const Tensors& in) {
            at::_fused_adamw_({in[0], in[1]}, {in[2], in[3]}, {in[4], in[5]}, {in[6], in[7]}, {}, {in[8], in[9]}, 1e-2,
                              0.9, 0.99, 0.1, 1e-8, false, maximize);
            return in;
          },
          optimizer);
      many(
          "aten::_fused_adam_",
          [=](const Tensors& in) {
            at::_fused_adam_({in[0], in[1]}, {in[2], in[3]}, {in[4], in[5]}, {in[6], in[7]}, {}, {in[8], in[9]}, 1e-2,
                             0.9, 0.99, 0.1, 1e-8, false, maximize);
            return in;
          },
          optimizer);
      many(
          "aten::_fused_sgd_",
          [=](const Tensors& in) {
            at::_fused_sgd_({in[0], in[1]}, {in[2], in[3]}, {in[4], in[5]}, 0.1, 0.9, 1e-2, 0.2, !maximize, maximize,
                            false);
            return in;
          },
          optimizer);
    }
  }

  void products() {
    one("aten::addmm", [](const Tensors& in) { return at::addmm(in[0], in[1], in[2], 0.5, 2); },
        {numbers({5}), numbers({3, 7}), numbers({7, 5})});
    one("aten::addbmm", [](const Tensors& in) { return at::addbmm(in[0], in[1], in[2], 0.5, 2); },
        {numbers({3, 5}), numbers({4, 3, 7}), numbers({4, 7, 5})});
  }

  std::vector<DecomposeCase> list_;
  const at::Tensor x_ = numbers({4, 6, 5});
  const at::Tensor y_ = numbers({4, 6, 5});
  const at::Tensor h_ = numbers({4, 33}, at::kBFloat16);
  const at::Tensor strided_ = numbers({6, 4}).t();
  // Weight of layer norms, and second tensor in lists.
  const at::Tensor weight_ = numbers({5});
  const at::Tensor bias_ = numbers({5});
  static inline const std::optional<at::Tensor> kAbsent;
};

}  // namespace

std::vector<DecomposeCase> decompose_cases() {
  at::manual_seed(21);
  return DecomposeCases().all();
}

}  // namespace shadowgraph
