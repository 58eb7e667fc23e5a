// What is not exactly rounded: transcendental functions within the units in the last place that docs/kernels.md states, of
// eager's; what is made of several of them, and sums in another order, within a part of the largest result.
#include <torch/torch.h>

#include "tests/kernels/cases.h"

namespace shadowgraph::kernel_tests {
namespace {

using c10::IValue;

// All magnitudes, both signs, and what is no number.
at::Tensor many_values(at::ScalarType dtype) {
  const at::Tensor magnitudes = at::exp2(at::linspace(-30, 6.4, 4001, at::kDouble));
  const double inf = std::numeric_limits<double>::infinity();
  const at::Tensor ends =
      at::tensor({0.0, -0.0, inf, -inf, std::nan(""), 88.7, -87.3, 709.7, -745.1, 1e30, -1e30}, at::kDouble);
  return at::cat({magnitudes, -magnitudes, ends}).to(dtype);
}

TEST(KernelsInexact, FunctionsOfOneNumber) {
  for (const char* name : {"exp", "expm1", "log", "tanh", "sigmoid", "silu"}) {
    compare(name, {many_values(at::kFloat)}, 2);
    compare(name, {many_values(at::kDouble)}, 2);
    compare(name, {many_values(at::kBFloat16)}, 1);
    compare(name, {many_values(at::kHalf)}, 1);
  }
  // libtorch's own error function of two-byte types is 0 where its argument is small.
  compare("erf", {many_values(at::kFloat)}, 2);
  compare("erf", {many_values(at::kDouble)}, 2);
}

// Within `epsilons` of the dtype, of the largest result.
void near(const std::string& name, std::vector<IValue> given, double epsilons) {
  const c10::OperatorHandle op = operator_named(name);
  torch::jit::Stack eager = call_of(op, std::move(given));
  torch::jit::Stack own = copy_of(eager);
  op.callBoxed(eager);
  ASSERT_EQ(kernels().call(op, own), OperatorKernels::Outcome::kRan) << name;
  ASSERT_EQ(eager.size(), own.size());
  for (size_t i = 0; i < eager.size(); ++i) {
    const at::Tensor x = eager[i].toTensor().to(at::kDouble);
    const at::Tensor y = own[i].toTensor().to(at::kDouble);
    ASSERT_EQ(x.sizes(), y.sizes());
    const double epsilon = own[i].toTensor().scalar_type() == at::kDouble  ? 0x1p-52
                           : own[i].toTensor().scalar_type() == at::kFloat ? 0x1p-23
                                                                           : 0x1p-7;
    EXPECT_LE((x - y).abs().max().item<double>(), epsilons * epsilon * x.abs().max().item<double>())
        << name << " result " << i << " of " << own[i].toTensor().scalar_type();
  }
}

TEST(KernelsInexact, WhatIsMadeOfSeveral) {
  torch::manual_seed(3);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = (at::randn({8013}) * 3).to(dtype);
    const at::Tensor g = at::randn({8013}).to(dtype);
    near("gelu", {x}, 4);
    near("gelu", {x, IValue("tanh")}, 4);
    near("gelu_backward", {g, x}, 8);
    near("gelu_backward", {g, x, IValue("tanh")}, 16);
    near("silu_backward", {g, x}, 4);
    near("sigmoid_backward", {g, x.sigmoid()}, 4);
    near("tanh_backward", {g, x.tanh()}, 4);
  }
}

TEST(KernelsInexact, Reductions) {
  torch::manual_seed(4);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t length : {1, 7, 511}) {
      const at::Tensor x = (at::randn({37, length}) * 3).to(dtype);
      const at::Tensor g = at::randn({37, length}).to(dtype);
      const auto number = static_cast<int64_t>(dtype);
      near("_softmax", {x, IValue(1), IValue(false)}, 8);
      near("_log_softmax", {x, IValue(1), IValue(false)}, 8);
      near("_softmax_backward_data", {g, x.softmax(1), IValue(1), IValue(number)}, 8);
      near("_log_softmax_backward_data", {g, x.log_softmax(1), IValue(1), IValue(number)}, 16);
      near("sum.dim_IntList", {x, IValue(std::vector<int64_t>{1})}, 8);
      near("mean.dim", {x, IValue(std::vector<int64_t>{1})}, 8);
      near("sum", {x}, 64);
      if (length == 1) continue;  // what is left of a number without itself: rounding alone
      near("native_layer_norm",
           {x, IValue(std::vector<int64_t>{length}), at::ones({length}).to(dtype), at::zeros({length}).to(dtype), 1e-5},
           32);
    }
  }
}

}  // namespace
}  // namespace shadowgraph::kernel_tests
