// Correctly rounded operators are bitwise equal to eager, for all dtypes, on edge cases.
#include <torch/torch.h>

#include "tests/kernels/cases.h"

namespace shadowgraph::kernel_tests {
namespace {

using c10::IValue;

// NaN, infinities, signed zeros, denormals, halves, large numbers; the length is not a multiple of the vector width.
at::Tensor hard_values(at::ScalarType dtype, int64_t count = 67) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {std::nan(""), inf, -inf, 0.0,  -0.0,  1e-40, -1e-40, 0.5,  -0.5,
                                      1.5,          2.5, -2.5, 1e30, -1e30, 65504, 1e-30,  3.7,  -3.7,
                                      8388609,      0.1, 1.0,  -1.0, 2.0,   7.0,   -7.0,   1e-8, 100.25};
  at::Tensor out = at::empty({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) {
    double v = values[static_cast<size_t>(i * 5 % static_cast<int64_t>(values.size()))];
    if (!c10::isFloatingType(dtype)) v = static_cast<double>((i * 37) % 251 - 120);
    if (dtype == at::kByte) v = static_cast<double>((i * 37) % 251);
    out[i] = v;
  }
  return out.to(dtype);
}

bool has_two_bytes(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// Expects that no kernel is made for the call and the stack is unchanged.
void refused(const char* name, std::vector<IValue> given) {
  const auto op = operator_named(name);
  torch::jit::Stack stack = call_of(op, std::move(given));
  const size_t size = stack.size();
  EXPECT_EQ(kernels().call(op, stack), OperatorKernels::Outcome::kUnsupported) << name;
  EXPECT_EQ(stack.size(), size);
}

const std::vector<at::ScalarType> kFloats = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
const std::vector<at::ScalarType> kIntegers = {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong};

TEST(KernelsPointwise, OneOperandOfAllFloats) {
  for (const at::ScalarType dtype : kFloats) {
    for (const char* name :
         {"neg", "abs", "reciprocal", "floor", "ceil", "trunc", "round", "relu", "clone", "neg_", "relu_"}) {
      compare(name, {hard_values(dtype)});
    }
    // Our kernel rounds as IEEE 754 requires; libtorch's, from MKL, does not: sqrt(65504.0f).
    for (const char* name : {"sqrt", "sqrt_"}) compare(name, {hard_values(dtype)}, 1);
  }
}

TEST(KernelsPointwise, OneOperandOfIntegers) {
  for (const at::ScalarType dtype : kIntegers) {
    for (const char* name : {"neg", "abs", "reciprocal", "relu", "bitwise_not", "logical_not"}) {
      compare(name, {hard_values(dtype)});
    }
    compare("sqrt", {hard_values(dtype)}, 1);
  }
  compare("logical_not", {hard_values(at::kInt).to(at::kBool)});
  compare("bitwise_not", {hard_values(at::kInt).to(at::kBool)});
}

TEST(KernelsPointwise, TwoOperandsOfAllPairsOfDtypes) {
  std::vector<at::ScalarType> all = kFloats;
  all.insert(all.end(), {at::kByte, at::kInt, at::kLong, at::kBool});
  for (const at::ScalarType a : all) {
    for (const at::ScalarType b : all) {
      const at::Tensor x = hard_values(a);
      const at::Tensor y = hard_values(b).flip(0).contiguous();
      for (const char* name : {"mul.Tensor", "lt.Tensor", "eq.Tensor", "add.Tensor"}) compare(name, {x, y});
      a != b&& has_two_bytes(at::promote_types(a, b)) ? refused("maximum", {x, y}) : compare("maximum", {x, y});
    }
  }
}

// A scalar promotes a tensor to its category: true times 3 is 3.
TEST(KernelsPointwise, NumbersOfAnotherKind) {
  const std::vector<at::ScalarType> integers{at::kBool, at::kByte, at::kInt, at::kLong};
  for (const at::ScalarType a : integers) {
    const at::Tensor x = hard_values(a);
    for (const at::ScalarType b : integers) {
      const at::Tensor number = at::full({}, 3, b);
      for (const char* name : {"mul.Tensor", "add.Tensor"}) compare(name, {x, number});
    }
    for (const char* name : {"mul.Scalar", "add.Scalar"}) compare(name, {x, IValue(3)});
  }
}

TEST(KernelsPointwise, TwoOperands) {
  for (const at::ScalarType dtype : kFloats) {
    const at::Tensor x = hard_values(dtype);
    const at::Tensor y = hard_values(dtype).flip(0).contiguous();
    for (const char* name :
         {"sub.Tensor", "div.Tensor", "minimum", "ne.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor", "logical_and",
          "logical_or", "logical_xor", "add_.Tensor", "mul_.Tensor", "div_.Tensor", "copy_"}) {
      compare(name, {x.clone(), y});
    }
    // Operators that libtorch rounds in a special way are left to it.
    const auto check = has_two_bytes(dtype) ? refused : +[](const char* name, std::vector<IValue> given) {
      compare(name, std::move(given));
    };
    for (const char* name : {"div.Scalar", "lt.Scalar"}) {
      compare(name, {x.clone(), IValue(0.1)});
      compare(name, {x.clone(), IValue(3)});
    }
    for (const char* name : {"mul.Scalar", "add.Scalar", "sub.Scalar", "mul_.Scalar"}) {
      check(name, {x.clone(), IValue(0.1)});
      check(name, {x.clone(), IValue(3)});
    }
    check("mul.Tensor", {x, at::ones({1}, dtype)});
    check("add.Tensor", {x, y, IValue(0.3)});
    check("sub.Tensor", {x, y, IValue(2)});
    compare("clamp", {x, IValue(-1.5), IValue(2)});
    compare("clamp", {x, IValue(), IValue(0.1)});
    compare("where.self", {x.gt(0), x, y});
    compare("masked_fill.Scalar", {x, x.gt(0), IValue(0.1)});
    compare("threshold_backward", {x, y, IValue(0)});
    compare("fill_.Scalar", {x.clone(), IValue(0.1)});
    compare("zero_", {x.clone()});
    for (const double exponent : {2.0, 3.0, 0.5, -1.0, -2.0}) {
      if (has_two_bytes(dtype)) {
        refused("pow.Tensor_Scalar", {x, IValue(exponent)});
      } else {
        compare("pow.Tensor_Scalar", {x, IValue(exponent)}, exponent == 0.5 ? 1 : 0);  // a square root
      }
    }
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::randn({1003}).to(dtype);
    const at::Tensor y = at::randn({1003}).to(dtype);
    const at::Tensor z = at::rand({1003}).to(dtype) + 0.5;
    compare("addcmul", {x, y, z, IValue(0.3)});
    compare("addcdiv", {x, y, z, IValue(-0.7)});
    compare("addcmul_", {x.clone(), y, y, IValue(0.001)});
    compare("addcdiv_", {x.clone(), y, z, IValue(-0.7)});
    compare("add.Tensor", {x, y, IValue(0.3)});
    compare("rsqrt", {z});
  }
}

TEST(KernelsPointwise, IntegersWrap) {
  for (const at::ScalarType dtype : kIntegers) {
    const at::Tensor x = hard_values(dtype);
    for (const char* name : {"mul.Tensor", "add.Tensor", "sub.Tensor", "bitwise_and.Tensor", "bitwise_or.Tensor",
                             "bitwise_xor.Tensor", "div.Tensor"}) {
      compare(name, {x, x.flip(0).contiguous()});
    }
    compare("mul.Tensor", {x, at::scalar_tensor(2.5)});
    compare("mul.Scalar", {x, IValue(3)});
  }
  const at::Tensor highest = at::full({5}, std::numeric_limits<int32_t>::max(), at::kInt);
  compare("add.Tensor", {highest, highest});
}

TEST(KernelsPointwise, Conversions) {
  for (const at::ScalarType from :
       {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kBool}) {
    for (const at::ScalarType to : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kBool}) {
      compare("_to_copy", {hard_values(from), IValue(static_cast<int64_t>(to))});
    }
  }
}

TEST(KernelsPointwise, Geometries) {
  const at::Tensor x = at::randn({6, 5, 7});
  const auto both = [](const at::Tensor& a, const at::Tensor& b) {
    compare("mul.Tensor", {a, b});
    compare("add.Tensor", {b, a});
  };
  both(x, at::randn({7}));
  both(x, at::randn({5, 1}));
  both(x, at::randn({6, 1, 1}));
  both(x, at::randn({}));
  both(at::randn({}), at::randn({}));
  both(x.transpose(0, 2), at::randn({7, 5, 6}));
  both(x.transpose(0, 1), at::randn({7}));
  both(x.slice(2, 0, 7, 2), at::randn({6, 5, 4}));
  both(x.permute({1, 2, 0}), at::randn({5, 7, 6}).permute({0, 2, 1}).transpose(1, 2));
  both(at::randn({4, 1}), at::randn({1, 9}));
  both(at::empty({0, 3}), at::empty({1, 3}));
  both(at::randn({1, 1, 1}), at::randn({1}));
  both(x.expand({3, 6, 5, 7}), at::randn({3, 1, 1, 1}));
  both(at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast), at::randn({1, 3, 1, 1}));
  // In place on non-contiguous tensors, with operands that share the storage.
  at::Tensor base = at::randn({8, 6});
  compare("add_.Tensor", {base.t(), at::randn({6, 8})});
  compare("mul_.Tensor", {base.slice(1, 1, 6, 2), at::randn({3})});
  compare("mul_.Tensor", {base, base});
  compare("add.Tensor", {base, base.t().t()});
}

TEST(KernelsPointwise, OverlapsAreLeftToEager) {
  at::Tensor base = at::randn({10});
  refused("add_.Tensor", {base.slice(0, 0, 8), base.slice(0, 1, 9)});
  refused("add_.Tensor", {at::randn({1}).expand({4}), at::randn({4})});
  refused("add.Tensor", {at::randn({3}), at::randn({4})});
  refused("add.Tensor", {at::randn({3}, at::kComplexFloat), at::randn({3})});
  refused("mm", {at::randn({3, 3}), at::randn({3, 3})});
  refused("neg", {at::randn({3}, at::kComplexFloat)});
}

}  // namespace
}  // namespace shadowgraph::kernel_tests
