// Operators on lists of tensors: element by element equal to eager, or left to eager entirely.
#include <torch/torch.h>

#include "tests/kernels/cases.h"

namespace shadowgraph::kernel_tests {
namespace {

using c10::IValue;
using Tensors = std::vector<at::Tensor>;

Tensors some(int64_t seed, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(seed);
  Tensors out;
  for (const at::IntArrayRef sizes : {at::IntArrayRef({3, 5}), at::IntArrayRef({1}), at::IntArrayRef({1000}),
                                      at::IntArrayRef({64, 33}), at::IntArrayRef({0}), at::IntArrayRef({3, 5})}) {
    out.push_back((at::rand(sizes) + 0.1).to(dtype));
  }
  out.push_back((at::rand({8, 6}) + 0.1).to(dtype).t());
  return out;
}

Tensors copies(const Tensors& tensors) {
  Tensors out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.clone());
  return out;
}

// Runs eager and the kernel on copies; lists must agree within `epsilons` of each tensor's largest element.
void compare_lists(const std::string& name, const std::vector<IValue>& given, double epsilons = 0) {
  const c10::OperatorHandle op = operator_named(name);
  const auto copied = [&] {
    std::vector<IValue> own;
    for (const IValue& value : given) own.push_back(value.isTensorList() ? copies(value.toTensorVector()) : value);
    return call_of(op, own);
  };
  torch::jit::Stack eager = copied();
  torch::jit::Stack own = copied();
  const torch::jit::Stack eager_operands = eager;
  const torch::jit::Stack own_operands = own;
  op.callBoxed(eager);
  const auto outcome = kernels().call(op, own);
  for (const auto& report : kernels().report()) {
    const bool ran = outcome == OperatorKernels::Outcome::kRan || report.op != "aten::" + name;
    EXPECT_TRUE(ran) << name << " did not run: " << report.reason;
  }
  if (outcome != OperatorKernels::Outcome::kRan) return;
  const auto same = [&](const IValue& a, const IValue& b, const std::string& what) {
    if (!a.isTensorList()) return;
    const Tensors x = a.toTensorVector();
    const Tensors y = b.toTensorVector();
    ASSERT_EQ(x.size(), y.size()) << name << what;
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(x[i].sizes(), y[i].sizes()) << name << what << " " << i;
      ASSERT_EQ(x[i].scalar_type(), y[i].scalar_type()) << name << what << " " << i;
      if (epsilons == 0) {
        EXPECT_EQ(ulps_between(x[i], y[i]), 0) << name << what << " " << i;
      } else if (x[i].numel() > 0) {
        const double epsilon = x[i].scalar_type() == at::kDouble ? 0x1p-52 : 0x1p-23;
        EXPECT_LE((x[i] - y[i]).abs().max().item<double>(), epsilons * epsilon * x[i].abs().max().item<double>())
            << name << what << " " << i;
      }
    }
  };
  ASSERT_EQ(eager.size(), own.size());
  for (size_t i = 0; i < eager.size(); ++i) same(eager[i], own[i], " result");
  for (size_t i = 0; i < own_operands.size(); ++i)
    same(eager_operands[i], own_operands[i], " operand " + std::to_string(i));
}

std::vector<double> numbers() { return {0.5, -1, 2.25, 3, 4, 5, 0.125}; }

c10::List<c10::Scalar> scalars() {
  c10::List<c10::Scalar> out;
  for (const double number : numbers()) out.push_back(number);
  return out;
}

TEST(KernelsLists, WhatOptimizersCall) {
  const Tensors a = some(1);
  const Tensors b = some(2);
  const Tensors c = some(3);
  for (const char* name : {"_foreach_add_.List", "_foreach_mul_.List", "_foreach_sub_.List", "_foreach_div_.List",
                           "_foreach_add.List", "_foreach_mul.List", "_foreach_sub.List", "_foreach_div.List"}) {
    compare_lists(name, {a, b});
  }
  compare_lists("_foreach_add_.List", {a, b, IValue(0.3)});
  for (const char* name : {"_foreach_add_.Scalar", "_foreach_mul_.Scalar", "_foreach_div_.Scalar",
                           "_foreach_add.Scalar", "_foreach_mul.Scalar", "_foreach_div.Scalar"}) {
    compare_lists(name, {a, IValue(0.3)});
  }
  for (const char* name : {"_foreach_add_.ScalarList", "_foreach_mul_.ScalarList", "_foreach_div_.ScalarList"}) {
    compare_lists(name, {a, scalars()});
  }
  compare_lists("_foreach_addcmul_.Scalar", {a, b, c, IValue(0.001)});
  compare_lists("_foreach_addcdiv_.Scalar", {a, b, c, IValue(-0.01)});
  compare_lists("_foreach_addcdiv_.ScalarList", {a, b, c, scalars()});
  compare_lists("_foreach_lerp_.Scalar", {a, b, IValue(0.1)});
  compare_lists("_foreach_lerp_.Scalar", {a, b, IValue(0.9)});
  compare_lists("_foreach_neg", {a});
  compare_lists("_foreach_zero_", {a});
  compare_lists("_foreach_copy_", {a, b});
  compare_lists("_foreach_mul_.Tensor", {a, at::scalar_tensor(0.7)});
  compare_lists("_foreach_sqrt", {a}, 1);
  compare_lists("_foreach_sqrt_", {a}, 1);
  compare_lists("_foreach_reciprocal_", {a});
}

// If one element has no kernel, the whole call is left to eager.
TEST(KernelsLists, AllOrNothing) {
  Tensors a = some(1);
  a.push_back(at::ones({1}).expand({4}));
  const auto op = operator_named("_foreach_add_.Scalar");
  torch::jit::Stack stack = call_of(op, {IValue(a), IValue(1)});
  const at::Tensor before = a[0].clone();
  EXPECT_EQ(kernels().call(op, stack), OperatorKernels::Outcome::kUnsupported);
  EXPECT_EQ(stack.size(), 2U);
  EXPECT_TRUE(at::equal(a[0], before));
}

Tensors steps(size_t count, double step) {
  Tensors out;
  for (size_t i = 0; i < count; ++i) out.push_back(at::scalar_tensor(step));
  return out;
}

TEST(KernelsLists, FusedAdam) {
  for (const char* name : {"_fused_adamw_", "_fused_adam_"}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      for (const double decay : {0.0, 0.01}) {
        for (const bool amsgrad : {false, true}) {
          for (const bool maximize : {false, true}) {
            Tensors parameters = some(1, dtype);
            parameters.pop_back();  // libtorch assumes that they are contiguous
            const auto sized = [&](int64_t seed) {
              Tensors out = some(seed, dtype);
              out.pop_back();
              return out;
            };
            compare_lists(name,
                          {parameters, sized(2), sized(3), sized(4), amsgrad ? sized(5) : Tensors(),
                           steps(parameters.size(), 3), 1e-2, 0.9, 0.999, decay, 1e-8, amsgrad, maximize},
                          4);
          }
        }
      }
    }
  }
}

TEST(KernelsLists, FusedSgd) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      for (const bool first : {false, true}) {
        Tensors parameters = some(1);
        parameters.pop_back();
        Tensors gradients = some(2);
        gradients.pop_back();
        Tensors buffers = some(3);
        buffers.pop_back();
        compare_lists("_fused_sgd_",
                      {parameters, gradients, momentum == 0 ? Tensors() : buffers, 0.01, momentum, 0.1, 0.2,
                       nesterov && momentum != 0, false, first},
                      4);
      }
    }
  }
}

// Among a step's scalars, only whether weight decay is zero affects the compiled code.
TEST(KernelsLists, AnotherLearningRateOrStepCompilesNothing) {
  Tensors parameters = some(1);
  parameters.pop_back();
  const auto step = [&](double count, double rate) {
    Tensors average = some(2);
    average.pop_back();
    torch::jit::Stack stack = call_of(operator_named("_fused_adamw_"),
                                      {parameters, copies(parameters), average, copies(average), Tensors(),
                                       steps(parameters.size(), count), rate, 0.9, 0.999, 0.01, 1e-8, false, false});
    EXPECT_EQ(kernels().call(operator_named("_fused_adamw_"), stack), OperatorKernels::Outcome::kRan);
  };
  step(1, 1e-2);
  const int64_t compiled = kernels().cache().stats().compiled;
  step(2, 1e-2);
  step(3, 2e-2);
  EXPECT_EQ(kernels().cache().stats().compiled, compiled);
}

}  // namespace
}  // namespace shadowgraph::kernel_tests
