// Decompositions: each row of the table against the operator itself on real tensors, whole models, the sets.
#include "shadowgraph/passes/decompose.h"

#include <ATen/native/ReductionType.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <set>

#include "models/registry.h"
#include "passes/decompose/decompositions.h"
#include "shadowgraph/capture.h"
#include "shadowgraph/replay.h"
#include "tests/passes/model_captures.h"
#include "tests/passes/replay_check.h"

namespace shadowgraph {
namespace {

using ::testing::HasSubstr;

struct Case {
  std::string op;  // that must go
  Program program;
  Tensors inputs;
  double tolerance = 1e-5;
};

at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) { return at::randn(sizes).to(dtype); }
at::Tensor classes(int64_t count, at::IntArrayRef sizes) { return at::randint(0, count, sizes, at::kLong); }

template <class... Results>
Tensors all_of(const std::tuple<Results...>& results) {
  return std::apply([](const auto&... each) { return Tensors{each...}; }, results);
}

std::vector<Case> cases() {
  at::manual_seed(21);
  std::vector<Case> list;
  const auto one = [&](const std::string& op, std::function<at::Tensor(const Tensors&)> f, Tensors inputs,
                       double tolerance = 1e-5) {
    list.push_back({op, [f](const Tensors& in) { return Tensors{f(in)}; }, std::move(inputs), tolerance});
  };
  const auto many = [&](const std::string& op, Program f, Tensors inputs, double tolerance = 1e-5) {
    list.push_back({op, std::move(f), std::move(inputs), tolerance});
  };
  const at::Tensor x = numbers({4, 6, 5});
  const at::Tensor y = numbers({4, 6, 5});
  const at::Tensor h = numbers({4, 33}, at::kBFloat16);
  const at::Tensor strided = numbers({6, 4}).t();
  // Pointwise, in float, in half precision and on strides that must be kept.
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
    for (const at::Tensor& input : {x, h, strided}) {
      one(
          op, [function](const Tensors& in) { return function(in[0]); }, {input},
          input.scalar_type() == at::kFloat ? 1e-5 : 1e-2);
    }
  }
  const std::vector<std::pair<std::string, std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>>> binary = {
      {"aten::gelu_backward", [](const auto& a, const auto& b) { return at::gelu_backward(a, b); }},
      {"aten::gelu_backward", [](const auto& a, const auto& b) { return at::gelu_backward(a, b, "tanh"); }},
      {"aten::silu_backward", [](const auto& a, const auto& b) { return at::silu_backward(a, b); }},
      {"aten::sigmoid_backward", [](const auto& a, const auto& b) { return at::sigmoid_backward(a, b); }},
      {"aten::tanh_backward", [](const auto& a, const auto& b) { return at::tanh_backward(a, b); }},
      {"aten::threshold_backward", [](const auto& a, const auto& b) { return at::threshold_backward(a, b, 0); }},
      {"aten::hardtanh_backward", [](const auto& a, const auto& b) { return at::hardtanh_backward(a, b, -1, 1); }},
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
    one(op, [function](const Tensors& in) { return function(in[0], in[1]); }, {x, y});
    if (op != "aten::lerp.Scalar" && op != "aten::mse_loss") {
      one(
          op, [function](const Tensors& in) { return function(in[0], in[1]); }, {h, h.flip(0)}, 2e-2);
    }
  }
  one("aten::mse_loss_backward",
      [](const Tensors& in) { return at::mse_loss_backward(in[2], in[0], in[1], at::Reduction::Mean); },
      {x, y, numbers({})});
  one("aten::addcmul", [](const Tensors& in) { return at::addcmul(in[0], in[1], in[2], 0.5); }, {x, y, x + 1});
  one("aten::addcdiv", [](const Tensors& in) { return at::addcdiv(in[0], in[1], in[2], 2); }, {x, y, x.abs() + 1});
  one("aten::addcdiv_",
      [](const Tensors& in) { return in[0].view({-1}).addcdiv_(in[1].view({-1}), in[2].view({-1}), 2); },
      {x, y, x.abs() + 1});
  one("aten::addcmul_", [](const Tensors& in) { return at::Tensor(in[0]).addcmul_(in[1], in[2], 2); }, {x, y, y});
  one("aten::lerp_.Scalar", [](const Tensors& in) { return at::Tensor(in[0]).lerp_(in[1], 0.9); }, {x, y});
  one("aten::lerp.Tensor", [](const Tensors& in) { return at::lerp(in[0], in[1], in[2]); }, {x, y, at::rand({5})});
  one("aten::silu_", [](const Tensors& in) { return at::silu_(const_cast<at::Tensor&>(in[0])); }, {x});
  one("aten::masked_fill.Scalar", [](const Tensors& in) { return in[0].masked_fill(in[1], -2.5); }, {x, x > 0});
  // Views.
  one("aten::t", [](const Tensors& in) { return in[0].t(); }, {numbers({3, 5})});
  one("aten::transpose.int", [](const Tensors& in) { return in[0].transpose(-1, 0).relu(); }, {x});
  many("aten::unbind.int", [](const Tensors& in) { return in[0].unbind(1); }, {x});
  many("aten::split.Tensor", [](const Tensors& in) { return in[0].split(4, 1); }, {x});
  many("aten::split_with_sizes", [](const Tensors& in) { return in[0].split_with_sizes({1, 3, 2}, 1); }, {x});
  one("aten::stack", [](const Tensors& in) { return at::stack({in[0], in[1]}, -1); }, {x, y});
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
  // Norms.
  const at::Tensor weight = numbers({5});
  const at::Tensor bias = numbers({5});
  for (const bool affine : {true, false}) {
    const std::optional<at::Tensor> none;
    many("aten::native_layer_norm",
         [=](const Tensors& in) {
           return all_of(at::native_layer_norm(in[0], {5}, affine ? std::optional(in[1]) : none,
                                               affine ? std::optional(in[2]) : none, 1e-5));
         },
         {x, weight, bias});
    many("aten::native_layer_norm_backward",
         [=](const Tensors& in) {
           const auto [out, mean, rstd] = at::native_layer_norm(in[0], {5}, in[1], in[2], 1e-5);
           return all_of(at::native_layer_norm_backward(in[3], in[0], {5}, mean, rstd,
                                                        affine ? std::optional(in[1]) : none,
                                                        affine ? std::optional(in[2]) : none, {true, affine, affine}));
         },
         {x, weight, bias, y});
  }
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
        return all_of(at::native_group_norm_backward(in[5], in[0], mean, rstd, in[1], 3, 6, 20, 2, {true, true, true}));
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
          const auto [out, mean, rstd] = at::native_batch_norm(in[0], in[1], in[2], in[3], in[4], training, 0.1, 1e-5);
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
  // Embedding and losses.
  one("aten::embedding", [](const Tensors& in) { return at::embedding(in[0], in[1]); },
      {numbers({11, 3}), classes(11, {2, 7})});
  one("aten::embedding_dense_backward",
      [](const Tensors& in) { return at::embedding_dense_backward(in[0], in[1], 11, -1, false); },
      {numbers({2, 7, 3}), classes(11, {2, 7})});
  one("aten::embedding_dense_backward",
      [](const Tensors& in) { return at::embedding_dense_backward(in[0], in[1], 11, 4, false); },
      {numbers({2, 7, 3}), classes(6, {2, 7})});
  const std::optional<at::Tensor> none;
  for (const int64_t reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
    for (const bool weighted : {true, false}) {
      many("aten::nll_loss_forward",
           [=](const Tensors& in) {
             return all_of(at::nll_loss_forward(in[0], in[1], weighted ? std::optional(in[2]) : none, reduction, 2));
           },
           {numbers({9, 5}), classes(5, {9}), at::rand({5})});
      one("aten::nll_loss_backward",
          [=](const Tensors& in) {
            const auto w = weighted ? std::optional(in[2]) : none;
            const auto [loss, total] = at::nll_loss_forward(in[0], in[1], w, reduction, 2);
            return at::nll_loss_backward(loss, in[0], in[1], w, reduction, 2, total);
          },
          {numbers({9, 5}), classes(5, {9}), at::rand({5})});
      many("aten::nll_loss2d_forward",
           [=](const Tensors& in) {
             return all_of(
                 at::nll_loss2d_forward(in[0], in[1], weighted ? std::optional(in[2]) : none, reduction, -100));
           },
           {numbers({3, 5, 4, 2}), classes(5, {3, 4, 2}), at::rand({5})});
    }
  }
  // Attention.
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
  // Lists.
  many("aten::_foreach_add_.Scalar",
       [](const Tensors& in) {
         at::_foreach_add_({in[0], in[1]}, 2.5);
         return in;
       },
       {x, weight});
  many("aten::_foreach_addcdiv_.Scalar",
       [](const Tensors& in) {
         at::_foreach_addcdiv_({in[0], in[1]}, {in[1], in[0]}, {in[2], in[2]}, -0.5);
         return in;
       },
       {x, y, x.abs() + 1});
  many("aten::_foreach_mul.List",
       [](const Tensors& in) {
         return at::_foreach_mul({in[0], in[1]}, {in[1], in[0]});
       },
       {x, y});
  many("aten::_foreach_sqrt", [](const Tensors& in) { return at::_foreach_sqrt({in[0], in[0]}); }, {x.abs()});
  many("aten::_foreach_div_.ScalarList",
       [](const Tensors& in) {
         at::_foreach_div_({in[0], in[1]}, std::vector<at::Scalar>{2, 4});
         return in;
       },
       {x, y});
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
  // Products.
  one("aten::addmm", [](const Tensors& in) { return at::addmm(in[0], in[1], in[2], 0.5, 2); },
      {numbers({5}), numbers({3, 7}), numbers({7, 5})});
  one("aten::addbmm", [](const Tensors& in) { return at::addbmm(in[0], in[1], in[2], 0.5, 2); },
      {numbers({3, 5}), numbers({4, 3, 7}), numbers({4, 7, 5})});
  return list;
}

TEST(Decompose, EveryFormulaGivesWhatTheOperatorGives) {
  for (const Case& test : cases()) {
    SCOPED_TRACE(test.op);
    Graph graph = capture_on(test.program, test.inputs);
    ASSERT_GT(calls_of(graph, test.op), 0) << to_text(graph);
    const DecomposeResult result = decompose(graph, {.to = OperatorSet::named("basic")});
    EXPECT_EQ(calls_of(graph, test.op), 0) << to_text(graph) << ::testing::PrintToString(result.why);
    EXPECT_GT(result.expanded.at(test.op), 0);
    expect_same_values(graph, test.program, test.inputs, test.tolerance);
  }
}

// Captured on fake CUDA, run on the CPU: the GPU's attention kernels.
TEST(Decompose, AttentionOfAGpu) {
  at::manual_seed(5);
  const Tensors qkv{at::randn({2, 3, 64, 16}), at::randn({2, 3, 64, 16}), at::randn({2, 3, 64, 16})};
  for (const bool masked : {true, false}) {
    const Program program = [masked](const Tensors& in) {
      at::Tensor mask;
      if (masked) mask = at::zeros({64, 64}, in[0].options()).add_(in[0].sum());
      return Tensors{at::scaled_dot_product_attention(in[0], in[1], in[2], masked ? std::optional(mask) : std::nullopt,
                                                      0.0, !masked)};
    };
    Graph graph = capture_on(program, qkv, c10::Device("cuda:0"));
    const DecomposeResult result = decompose(graph, {.to = OperatorSet::named("no-fused")});
    EXPECT_EQ(result.expanded.size(), 1U) << to_text(graph);
    EXPECT_TRUE(result.remaining.empty()) << ::testing::PrintToString(result.why);
    Interpreter interpreter(graph, {.device = c10::Device("cpu")});
    const at::Tensor replayed = interpreter.run(Bindings().in_order(qkv)).outputs[0];
    EXPECT_TRUE(at::allclose(replayed, program(qkv)[0], 1e-4, 1e-4));
  }
}

class DecomposedModel : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, DecomposedModel,
                         ::testing::Values("resnet18", "vit_b_16", "bert_base", "gpt2", "llama3_8b", "unet",
                                           "lstm_lm"));

// A training step: loss, gradients and updated parameters of the decomposed graph against the captured one.
TEST_P(DecomposedModel, TrainsAsBefore) {
  Graph graph = capture_tiny(GetParam(), {.train = true});
  const auto run = [&](const Graph& what) {
    at::manual_seed(3);
    const models::BuiltModel model = models::build(GetParam(), {.batch = 2, .tiny = true});
    Bindings bindings;
    bindings.module(*model.module);
    for (size_t i = 0; i < model.inputs.size(); ++i) bindings.bind(model.input_names[i], model.inputs[i]);
    at::manual_seed(4);
    Interpreter interpreter(what, {.check_results = true});
    ReplayResult result = interpreter.run(bindings);
    for (const auto& entry : model.module->named_parameters()) {
      result.gradients["updated " + entry.key()] = entry.value().detach().clone();
    }
    for (const auto& entry : model.module->named_buffers()) {
      result.gradients["updated " + entry.key()] = entry.value().detach().clone();
    }
    return result;
  };
  const ReplayResult expected = run(graph);
  const DecomposeResult done = decompose(graph, {.to = OperatorSet::named("basic")});
  verify(graph);
  EXPECT_FALSE(done.expanded.empty());
  EXPECT_FALSE(done.expanded.contains("aten::native_dropout")) << "random operators stay";
  const ReplayResult actual = run(graph);
  expect_close(expected.outputs.at(0), actual.outputs.at(0), 1e-4, false, "loss");
  for (const auto& [name, gradient] : expected.gradients) {
    expect_close(gradient, actual.gradients.at(name), 2e-3, false, name);
  }
  // Every row that the model uses is gone.
  for (const std::string& name : decomposable_operators()) {
    if (done.why.contains(name)) continue;
    // A row without overload is one overload, not all.
    for (const NodeId node : nodes_calling(graph, name)) EXPECT_NE(graph.target(node).name(), name);
  }
}

TEST_P(DecomposedModel, ForwardLinksAndLivesStayRight) {
  for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
    for (const char* to : {"core-aten", "no-fused", "basic"}) {
      Graph graph = capture_tiny(GetParam(), {.train = true, .device = device});
      decompose(graph, {.to = OperatorSet::named(to)});
      verify(graph);
      for (const NodeId node : graph.nodes()) {
        const NodeId forward = graph.node(node).forward;
        EXPECT_TRUE(!forward.valid() || !graph.is_erased(forward));
      }
      const std::string once = to_text(graph);
      const Pass* pass = find_pass("decompose");
      ASSERT_NE(pass, nullptr);
      EXPECT_FALSE(pass->run(graph, {{"to", to}}).changed);
      EXPECT_EQ(to_text(graph), once);
    }
  }
}

TEST(Decompose, SetsByNameByListAndByFile) {
  EXPECT_TRUE(OperatorSet::named("core-aten").has("aten::addmm"));
  EXPECT_FALSE(OperatorSet::named("core-aten").has("aten::silu_backward"));
  EXPECT_FALSE(OperatorSet::named("no-fused").has("aten::addmm"));
  EXPECT_TRUE(OperatorSet::named("no-fused").has("aten::gelu"));
  const OperatorSet listed = OperatorSet::named("aten::mm+aten::add.Tensor");
  EXPECT_TRUE(listed.has("aten::mm"));
  EXPECT_TRUE(listed.has("aten::add.Tensor"));
  EXPECT_FALSE(listed.has("aten::add.Scalar"));
  EXPECT_TRUE(OperatorSet::named("aten::add").has("aten::add.Scalar"));
  EXPECT_THROW(OperatorSet::named("everything"), Error);
  EXPECT_THROW(OperatorSet::named("@/nowhere/at/all"), FileError);
}

TEST(Decompose, ReportsWhatRemainsAndWhy) {
  const Program program = [](const Tensors& in) {
    return Tensors{at::scaled_dot_product_attention(in[0], in[0], in[0], {}, 0.5).tan()};
  };
  Graph graph = capture_on(program, {at::randn({1, 2, 64, 16})}, c10::Device("cuda:0"));
  const PassResult result = find_pass("decompose")->run(graph, {{"to", "aten::mm"}});
  EXPECT_FALSE(result.changed);
  EXPECT_THAT(result.report, HasSubstr("_attention x 1, because it drops out"));
  EXPECT_THAT(result.report, HasSubstr("remains: aten::tan x 1\n"));
}

// Rows whose operator or signature libtorch changed would be found when used; here all of them are.
TEST(Decompose, EveryRowNamesAnOperator) {
  const auto names = decomposable_operators();
  EXPECT_GT(names.size(), 80U);
  for (const std::string& name : names) {
    const size_t dot = name.find('.');
    EXPECT_TRUE(c10::Dispatcher::singleton().findSchema(
        {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)}))
        << name;
  }
}

}  // namespace
}  // namespace shadowgraph
