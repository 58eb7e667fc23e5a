#include <numbers>

#include "kernels/compiler/operator_table.h"

namespace shadowgraph {
namespace {

bool is_float(ScalarType dtype) { return c10::isFloatingType(dtype); }

// Rejects numbers and one-element tensors combined with two-byte tensors. libtorch's kernels round them per operator,
// and differently in vectorized and scalar code, so results would differ.
void reject_numbers_with_two_byte_dtypes(const Call& call, ScalarType common, std::initializer_list<size_t> arguments) {
  if (!has_two_bytes(common)) return;
  for (const size_t i : arguments) {
    if (call.is_single(i)) throw UnsupportedError("a number combined with a two-byte dtype");
  }
}

template <Operation kOperation>
Results rounding(const Call& call) {
  const Typed x = call.tensor(0);
  if (call.argument_count() > 1) throw UnsupportedError("rounding to a number of decimals");
  return {is_float(x.dtype) ? apply(kOperation, x) : x};
}

// Returns argument 0 with integers promoted to floating point.
Typed float_operand(const Call& call) { return call.operand(0, call.promoted_to_float({0})); }

template <Operation kOperation>
Results floating(const Call& call) {
  return {apply(kOperation, float_operand(call))};
}

Results identity(const Call& call) { return {call.tensor(0)}; }

Results absolute(const Call& call) {
  const Typed x = call.tensor(0);
  return {x.dtype == ScalarType::Bool || x.dtype == ScalarType::Byte ? x : apply(Operation::kAbsolute, x)};
}

Results negate(const Call& call) {
  const Typed x = call.tensor(0);
  if (x.dtype == ScalarType::Bool) throw UnsupportedError("negation of booleans");
  return {-x};
}

Typed reciprocal_of(Typed x) { return constant_of(1, x) / x; }

Results reciprocal(const Call& call) { return {reciprocal_of(float_operand(call))}; }
Results inverse_root(const Call& call) { return {reciprocal_of(square_root(float_operand(call)))}; }

Results relu(const Call& call) {
  const Typed x = call.tensor(0);
  if (x.dtype == ScalarType::Bool) throw UnsupportedError("relu of booleans");
  return {apply(Operation::kMaximum, x, constant_of(0, x))};
}

Typed sigmoid_of(Typed x) {
  const Typed one = constant_of(1, x);
  return one / (one + exponential(-x));
}

Results sigmoid(const Call& call) { return {sigmoid_of(float_operand(call))}; }

Results silu(const Call& call) {
  const Typed x = call.tensor(0);
  if (!is_float(x.dtype)) throw UnsupportedError("silu of integers");
  const Typed e = exponential(-x);
  return {x / (constant_of(1, x) + e)};
}

Results silu_backward(const Call& call) {
  const Typed g = call.tensor(0), x = call.operand(1, g.dtype);
  const Typed s = sigmoid_of(x);
  const Typed one = constant_of(1, x);
  return {g * (s * (one + x * (one - s)))};
}

// beta (x + kappa x^3), the argument of the tanh in gelu
constexpr double kGeluBeta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
constexpr double kGeluKappa = 0.044715;

Typed gelu_inner(Typed x) {
  const Typed cube = x * x * x;
  const Typed sum = x + constant_of(kGeluKappa, x) * cube;
  return constant_of(kGeluBeta, x) * sum;
}

Typed normal_cdf(Typed x) { return apply(Operation::kNormalDistribution, x); }

Results gelu(const Call& call) {
  const Typed x = call.tensor(0);
  if (!is_float(x.dtype)) throw UnsupportedError("gelu of integers");
  if (call.string(1) == "none") return {x * normal_cdf(x)};
  return {x / (constant_of(1, x) + exponential(constant_of(-2, x) * gelu_inner(x)))};
}

Results gelu_backward(const Call& call) {
  const Typed g = call.tensor(0), x = call.operand(1, g.dtype);
  const Typed one = constant_of(1, x);
  if (call.string(2) == "none") {
    const Typed square = x * x;
    const Typed density =
        constant_of(std::numbers::inv_sqrtpi / std::numbers::sqrt2, x) * exponential(constant_of(-0.5, x) * square);
    return {g * (normal_cdf(x) + x * density)};
  }
  // Half of 1 + tanh(u) is s = 1 / (1 + exp(-2 u)). Its derivative s (1 - s) is computed from exp(-2 |u|), without
  // cancellation.
  const Typed u = gelu_inner(x);
  const Typed e = exponential(constant_of(-2, x) * apply(Operation::kAbsolute, u));
  const Typed r = reciprocal_of(one + e);
  const Typed rest = e * r;
  const Typed s = select(apply(Operation::kLess, u, constant_of(0, u)), rest, r);
  const Typed slope = constant_of(2, x) * (r * rest);
  const Typed inner = constant_of(kGeluBeta, x) * (one + constant_of(3 * kGeluKappa, x) * (x * x));
  return {g * (s + x * slope * inner)};
}

Results sigmoid_backward(const Call& call) {
  const Typed g = call.tensor(0), y = call.operand(1, g.dtype);
  return {g * ((constant_of(1, y) - y) * y)};
}

Results tanh_backward(const Call& call) {
  const Typed g = call.tensor(0), y = call.operand(1, g.dtype);
  const Typed square = y * y;
  return {g * (constant_of(1, y) - square)};
}

Results threshold_backward(const Call& call) {
  const ScalarType common = call.promoted({0, 1});
  const Typed g = call.operand(0, common), x = call.operand(1, common);
  return {select(apply(Operation::kLessEqual, x, call.operand(2, common)), constant_of(0, g), g)};
}

template <Operation kOperation>
Results arithmetic(const Call& call) {
  const ScalarType common = call.promoted({0, 1});
  reject_numbers_with_two_byte_dtypes(call, common, {0, 1});
  return {apply(kOperation, call.operand(0, common), call.operand(1, common))};
}

Typed rounded(const Call& call, size_t i, ScalarType dtype) { return convert(call.operand(i, dtype), dtype); }

// Numbers are rounded too: results are rounded before a comparison or selection.
template <Operation kOperation, bool kSwapped = false>
Results choice(const Call& call) {
  const ScalarType common = call.promoted({0, 1});
  constexpr bool kOneOfBoth = kOperation == Operation::kMaximum || kOperation == Operation::kMinimum;
  // The order of +0 and -0 depends on the position in a vector.
  if (kOneOfBoth && has_two_bytes(common) && (call.tensor(0).dtype != common || call.tensor(1).dtype != common)) {
    throw UnsupportedError("a two-byte dtype combined with another dtype");
  }
  const Typed a = rounded(call, 0, common), b = rounded(call, 1, common);
  return {kSwapped ? apply(kOperation, b, a) : apply(kOperation, a, b)};
}

Results add_scaled(const Call& call, size_t a, size_t b, bool subtract) {
  const ScalarType common = call.promoted({0, 1});
  reject_numbers_with_two_byte_dtypes(call, common, {0, 1});
  const Typed x = call.operand(a, common), y = call.operand(b, common);
  if (call.argument_count() < 3 || call.number(2) == 1) return {subtract ? x - y : x + y};
  if (common == ScalarType::Bool) throw UnsupportedError("booleans with an alpha");
  if (has_two_bytes(common)) throw UnsupportedError("a two-byte dtype with an alpha");
  const Typed alpha = call.operand(2, common);
  return {multiply_add(y, subtract ? -alpha : alpha, x)};
}

Results add(const Call& call) { return add_scaled(call, 0, 1, false); }
Results subtract(const Call& call) { return add_scaled(call, 0, 1, true); }
Results reverse_subtract(const Call& call) { return add_scaled(call, 1, 0, true); }

Results divide(const Call& call) {
  if (call.argument_count() > 2 && !call.is_none(2)) throw UnsupportedError("division with a rounding mode");
  const ScalarType common = call.promoted_to_float({0, 1});
  return {call.operand(0, common) / call.operand(1, common)};
}

template <Operation kOperation>
Results logical(const Call& call) {
  return {apply(kOperation, call.operand(0, ScalarType::Bool), call.operand(1, ScalarType::Bool))};
}

Results logical_not(const Call& call) { return {apply(Operation::kNot, call.operand(0, ScalarType::Bool))}; }

template <Operation kOperation>
Results bitwise(const Call& call) {
  const ScalarType common = call.promoted({0, 1});
  if (is_float(common)) throw UnsupportedError("bitwise operations on floating-point numbers");
  return {apply(kOperation, call.operand(0, common), call.operand(1, common))};
}

Results bitwise_not(const Call& call) {
  const Typed x = call.tensor(0);
  if (is_float(x.dtype)) throw UnsupportedError("bitwise operations on floating-point numbers");
  return {apply(Operation::kNot, x)};
}

// Supports the exponents for which eager multiplies, divides or takes roots instead of calling pow.
Results power(const Call& call) {
  const ScalarType common = call.promoted({0, 1});
  const double exponent = call.number(1);
  const Typed x = call.operand(0, common);
  if (!is_float(common) && exponent != 2) throw UnsupportedError("integer powers other than 2");
  if (has_two_bytes(common)) throw UnsupportedError("powers of a two-byte dtype");
  if (exponent == 2) return {x * x};
  if (exponent == 3) return {x * x * x};
  if (exponent == 0.5) return {square_root(x)};
  if (exponent == -0.5) return {reciprocal_of(square_root(x))};
  if (exponent == -1) return {reciprocal_of(x)};
  if (exponent == -2) return {reciprocal_of(x * x)};
  throw UnsupportedError("powers other than 2, 3, 0.5, -0.5, -1 and -2");
}

Results where(const Call& call) {
  const ScalarType common = call.promoted({1, 2});
  const Typed condition = call.operand(0, ScalarType::Bool);
  const Typed a = rounded(call, 1, common);
  return {select(condition, a, rounded(call, 2, common))};
}

Results masked_fill(const Call& call) {
  const Typed x = call.tensor(0);
  const Typed mask = call.operand(1, ScalarType::Bool);
  return {select(mask, rounded(call, 2, x.dtype), x)};
}

// self + value * a * b, or with a / b.
Results add_product(const Call& call, bool divide_them) {
  const ScalarType common = call.promoted({0, 1, 2});
  if (!is_float(common)) throw UnsupportedError("addcmul of integers");
  const Typed a = call.operand(1, common), b = call.operand(2, common), x = call.operand(0, common);
  const Typed scaled = call.operand(3, common) * a;
  return {divide_them ? x + scaled / b : multiply_add(scaled, b, x)};
}

Results addcmul(const Call& call) { return add_product(call, false); }
Results addcdiv(const Call& call) { return add_product(call, true); }

// Interpolates from the nearer end, as libtorch does.
Results lerp(const Call& call) {
  const ScalarType common = call.promoted({0, 1});
  if (!is_float(common)) throw UnsupportedError("lerp of integers");
  const Typed a = call.operand(0, common), b = call.operand(1, common), weight = call.operand(2, common);
  const Typed magnitude = apply(Operation::kAbsolute, weight);
  const Typed near = apply(Operation::kLess, magnitude, constant_of(0.5, weight));
  const Typed less = weight - constant_of(1, weight);
  return {multiply_add(select(near, weight, less), b - a, select(near, a, b))};
}

Results clamp(const Call& call) {
  const ScalarType common = call.promoted({0, 1, 2});
  Typed x = call.operand(0, common);
  if (!call.is_none(1)) x = apply(Operation::kMaximum, x, rounded(call, 1, common));
  if (!call.is_none(2)) x = apply(Operation::kMinimum, x, rounded(call, 2, common));
  return {x};
}

Results second(const Call& call) { return {call.tensor(1)}; }
Results zero(const Call& call) { return {call.build.constant(0, call.result_dtype())}; }

}  // namespace

std::vector<KernelRow> pointwise_rows() {
  constexpr bool kInexact = true;
  return {
      {"clone", identity},
      {"_to_copy", identity},
      {"copy_", second},
      {"fill_", second},
      {"zero_", zero},
      {"neg", negate},
      {"abs", absolute},
      {"sqrt", floating<Operation::kSquareRoot>},
      {"rsqrt", inverse_root},
      {"reciprocal", reciprocal},
      {"floor", rounding<Operation::kFloor>},
      {"ceil", rounding<Operation::kCeil>},
      {"trunc", rounding<Operation::kTruncate>},
      {"round", rounding<Operation::kRoundToEven>},
      {"relu", relu},
      {"exp", floating<Operation::kExponential>, kInexact},
      {"expm1", floating<Operation::kExponentialMinusOne>, kInexact},
      {"log", floating<Operation::kLogarithm>, kInexact},
      {"tanh", floating<Operation::kTangentHyperbolic>, kInexact},
      {"erf", floating<Operation::kErrorFunction>, kInexact},
      {"sigmoid", sigmoid, kInexact},
      {"silu", silu, kInexact},
      {"silu_backward", silu_backward, kInexact},
      {"gelu", gelu, kInexact},
      {"gelu_backward", gelu_backward, kInexact},
      {"sigmoid_backward", sigmoid_backward, kInexact},
      {"tanh_backward", tanh_backward, kInexact},
      {"threshold_backward", threshold_backward},
      {"add", add},
      {"sub", subtract},
      {"rsub", reverse_subtract},
      {"mul", arithmetic<Operation::kMultiply>},
      {"div", divide},
      {"true_divide", divide},
      {"maximum", choice<Operation::kMaximum>},
      {"minimum", choice<Operation::kMinimum>},
      {"clamp", clamp},
      {"eq", choice<Operation::kEqual>},
      {"ne", choice<Operation::kNotEqual>},
      {"lt", choice<Operation::kLess>},
      {"le", choice<Operation::kLessEqual>},
      {"gt", choice<Operation::kLess, true>},
      {"ge", choice<Operation::kLessEqual, true>},
      {"logical_and", logical<Operation::kAnd>},
      {"logical_or", logical<Operation::kOr>},
      {"logical_xor", logical<Operation::kExclusiveOr>},
      {"logical_not", logical_not},
      {"bitwise_and", bitwise<Operation::kAnd>},
      {"bitwise_or", bitwise<Operation::kOr>},
      {"bitwise_xor", bitwise<Operation::kExclusiveOr>},
      {"bitwise_not", bitwise_not},
      {"pow.Tensor_Scalar", power},
      {"where.self", where},
      {"where.ScalarSelf", where},
      {"where.ScalarOther", where},
      {"where.Scalar", where},
      {"masked_fill", masked_fill},
      {"addcmul", addcmul},
      {"addcdiv", addcdiv},
      {"lerp", lerp},
  };
}

// Optimizer steps for one tensor of their lists; kernels/replay/call_graph.h splits the lists.

namespace {

Typed rest_of(Typed a) { return constant_of(1, a) - a; }
Typed number(const Call& call, size_t i) { return convert(call.tensor(i), ScalarType::Double); }

// Checks that the parameters have the same dtype and that the gradient scaler's arguments, from position `scaler` on,
// are absent.
ScalarType parameter_type(const Call& call, std::initializer_list<size_t> tensors, size_t scaler) {
  if (!call.is_none(scaler) || !call.is_none(scaler + 1))
    throw UnsupportedError("an optimizer step with a gradient scaler");
  const ScalarType dtype = call.tensor(0).dtype;
  if (dtype != ScalarType::Float && dtype != ScalarType::Double) {
    throw UnsupportedError("an optimizer step of parameters that are neither f32 nor f64");
  }
  for (const size_t i : tensors) {
    if (call.tensor(i).dtype != dtype) throw UnsupportedError("an optimizer step with several dtypes");
  }
  return dtype;
}

// Arguments:
//
//     0 parameter    3 exp_avg_sq              6 lr       9 weight_decay   12 maximize
//     1 gradient     4 max_exp_avg_sq or none  7 beta1   10 eps            13 grad_scale
//     2 exp_avg      5 step                    8 beta2   11 amsgrad        14 found_inf
//
// Values that depend only on numbers are computed in double, as in libtorch. AdamW subtracts the decay from the
// parameter, Adam adds it to the gradient.
Results adam_step(const Call& call, bool decoupled) {
  const ScalarType dtype = parameter_type(call, {1, 2, 3}, 13);
  const auto rounded = [&](Typed a) { return convert(a, dtype); };
  const Typed lr = number(call, 6), beta1 = number(call, 7), beta2 = number(call, 8);
  const Typed step = number(call, 5);
  const Typed correction1 = rest_of(apply(Operation::kPower, beta1, step));
  const Typed correction2 = square_root(rest_of(apply(Operation::kPower, beta2, step)));
  Typed parameter = call.tensor(0), gradient = call.tensor(1);
  if (call.flag(12)) gradient = -gradient;
  if (call.number(9) != 0) {
    const Typed decay = number(call, 9);
    if (decoupled) {
      parameter = parameter * rounded(rest_of(lr * decay));
    } else {
      gradient = multiply_add(parameter, rounded(decay), gradient);
    }
  }
  const Typed average = multiply_add(call.tensor(2), rounded(beta1), gradient * rounded(rest_of(beta1)));
  const Typed square = gradient * gradient * rounded(rest_of(beta2));
  const Typed second = multiply_add(call.tensor(3), rounded(beta2), square);
  Typed highest = second;
  if (call.flag(11)) highest = apply(Operation::kMaximum, call.tensor(4), second);
  const Typed scaled = square_root(highest) / rounded(correction2);
  const Typed denominator = scaled + rounded(number(call, 10));
  const Typed change = rounded(lr / correction1) * average / denominator;
  Results made = {parameter - change, average, second};
  if (call.flag(11)) made.push_back(highest);
  return made;
}

Results adam(const Call& call) { return adam_step(call, false); }
Results adamw(const Call& call) { return adam_step(call, true); }

// Arguments:
//
//     0 parameter           3 weight_decay  6 dampening   9 is_first_step
//     1 gradient            4 momentum      7 nesterov   10 grad_scale
//     2 momentum or none    5 lr            8 maximize   11 found_inf
Results sgd(const Call& call) {
  const ScalarType dtype = parameter_type(call, {1}, 10);
  const auto rounded = [&](size_t i) { return convert(number(call, i), dtype); };
  const Typed parameter = call.tensor(0);
  Typed gradient = call.tensor(1);
  if (call.flag(8)) gradient = -gradient;
  if (call.number(3) != 0) gradient = multiply_add(parameter, rounded(3), gradient);
  Results made(1);
  if (call.number(4) != 0) {
    if (call.tensor(2).dtype != dtype) throw UnsupportedError("an optimizer step with several dtypes");
    Typed momentum = gradient;
    if (!call.flag(9)) {
      const Typed kept = convert(rest_of(number(call, 6)), dtype);
      momentum = multiply_add(call.tensor(2), rounded(4), gradient * kept);
    }
    made.push_back(momentum);
    gradient = call.flag(7) ? multiply_add(momentum, rounded(4), gradient) : momentum;
  }
  made[0] = multiply_add(gradient, -rounded(5), parameter);
  return made;
}

}  // namespace

std::vector<KernelRow> optimizer_rows() {
  constexpr bool kInexact = true;
  return {
      {.name = "_fused_adam_", .make = adam, .inexact = kInexact, .writes = {0, 2, 3, 4}},
      {.name = "_fused_adamw_", .make = adamw, .inexact = kInexact, .writes = {0, 2, 3, 4}},
      {.name = "_fused_sgd_", .make = sgd, .inexact = kInexact, .writes = {0, 2}},
  };
}

}  // namespace shadowgraph
