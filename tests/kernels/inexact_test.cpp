// Kernels without correct rounding: transcendental functions are within the ulps of eager that docs/kernels.md states;
// compositions of several, and reordered sums, are within a fraction of the largest result.
#include <torch/torch.h>

#include "tests/kernels/cases.h"

namespace shadowgraph::kernel_tests {
namespace {

using c10::IValue;

// All magnitudes, both signs, NaN and infinities.
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
  // libtorch's erf for two-byte types returns 0 for small arguments.
  compare("erf", {many_values(at::kFloat)}, 2);
  compare("erf", {many_values(at::kDouble)}, 2);
}

// Compares within `epsilons` of the dtype, relative to the largest result.
void near(const std::string& name, std::vector<IValue> given, double epsilons) {
  const c10::OperatorHandle op = operator_named(name);
  torch::jit::Stack eager = call_of(op, std::move(given));
  torch::jit::Stack own = copy_of(eager);
  op.callBoxed(eager);
  const auto outcome = kernels().call(op, own);
  for (const auto& report : kernels().report()) {
    const bool ran = outcome == OperatorKernels::Outcome::kRan || report.op != "aten::" + name;
    EXPECT_TRUE(ran) << name << " did not run: " << report.reason;
  }
  ASSERT_EQ(eager.size(), own.size());
  for (size_t i = 0; i < eager.size(); ++i) {
    ASSERT_EQ(eager[i].toTensor().defined(), own[i].toTensor().defined()) << name << " result " << i;
    if (!eager[i].toTensor().defined()) continue;
    EXPECT_EQ(eager[i].toTensor().scalar_type(), own[i].toTensor().scalar_type()) << name << " result " << i;
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
    near("gelu_backward", {g, x, IValue("tanh")}, 32);
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
      if (length == 1) continue;  // a value minus itself leaves only rounding errors
      near("native_layer_norm",
           {x, IValue(std::vector<int64_t>{length}), at::ones({length}).to(dtype), at::zeros({length}).to(dtype), 1e-5},
           32);
    }
  }
}

std::vector<int64_t> dims(std::initializer_list<int64_t> list) { return list; }

// Dimensions other than the last are reduced column by column, or row by row in several loops.
TEST(KernelsInexact, ReductionsOfAnyDimensions) {
  torch::manual_seed(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = (at::randn({5, 700, 9}) * 3 + 1).to(dtype);
    const at::Tensor wide = (at::randn({601, 1030}) + 0.5).to(dtype);
    const at::Tensor images = (at::randn({3, 6, 7, 8}) + 0.5).to(dtype);
    for (const char* name : {"sum.dim_IntList", "amax", "var_mean.correction"}) {
      for (const auto& over : {dims({0}), dims({1}), dims({0, 1}), dims({0, 2}), dims({1, -1})}) {
        near(name, {x, IValue(over)}, 64);
      }
      near(name, {wide, IValue(dims({0}))}, 64);
      near(name, {wide.slice(1, 3, 1000, 2), IValue(dims({0}))}, 64);
      near(name, {images, IValue(dims({0, 2, 3}))}, 64);
      near(name, {images.contiguous(at::MemoryFormat::ChannelsLast), IValue(dims({0, 2, 3}))}, 64);
      near(name, {images.transpose(0, 2), IValue(dims({0, 3}))}, 64);
    }
    near("amax", {images, IValue(dims({1})), IValue(true)}, 0);
    near("sum.dim_IntList", {at::scalar_tensor(2.5, dtype), IValue(dims({-1}))}, 0);
    if (dtype != at::kFloat) continue;
    for (const char* name : {"mean.dim", "amin", "var.correction", "std.correction", "std_mean.correction"}) {
      near(name, {x, IValue(dims({0, 2}))}, 64);
      near(name, {wide, IValue(dims({0}))}, 64);
    }
    near("sum.dim_IntList", {images, IValue(dims({0, 2, 3})), IValue(true)}, 16);
    near("std.correction", {x, IValue(dims({1})), IValue(3)}, 16);
    for (const int64_t dim : {0, 1, 2}) {
      near("_softmax", {images, IValue(dim), IValue(false)}, 8);
      near("_log_softmax", {images, IValue(dim), IValue(false)}, 8);
      near("_softmax_backward_data", {images, images.softmax(dim), IValue(dim), IValue(static_cast<int64_t>(dtype))},
           8);
    }
  }
}

TEST(KernelsInexact, MaximaKeepNaNs) {
  at::Tensor x = at::randn({40, 70});
  x[3][5] = std::nan("");
  x[3][7] = -std::nan("");
  x[9][9] = std::numeric_limits<double>::infinity();
  x[10].fill_(-std::numeric_limits<double>::infinity());
  for (const char* name : {"amax", "amin"}) {
    for (const int64_t dim : {0, 1}) compare(name, {x, IValue(dims({dim}))});
  }
}

TEST(KernelsInexact, Normalizations) {
  torch::manual_seed(6);
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const int64_t length : {7, 64, 769}) {
      const at::Tensor x = (at::randn({37, 3, length}) * 2 + 1).to(dtype);
      const at::Tensor g = at::randn({37, 3, length}).to(dtype);
      const at::Tensor weight = at::randn({length}).to(dtype);
      const at::Tensor bias = at::randn({length}).to(dtype);
      const auto shape = dims({length});
      const auto [y, mean, inverse] = at::native_layer_norm(x, shape, weight, bias, 1e-5);
      const auto masked = [&](const std::vector<bool>& mask) {
        near("native_layer_norm_backward",
             {g, x, shape, mean, inverse, weight, bias, c10::List<bool>({mask[0], mask[1], mask[2]})}, 64);
      };
      masked({true, true, true});
      masked({true, false, false});
      masked({false, true, true});
      if (dtype == at::kFloat || dtype == at::kDouble) {
        near("_fused_rms_norm", {x, shape, weight, 1e-5}, 16);
        near("_fused_rms_norm", {x, shape, IValue(), 1e-5}, 16);
      }
    }
  }
}

}  // namespace
}  // namespace shadowgraph::kernel_tests
