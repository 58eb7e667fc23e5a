#include "core/exported/scalar_operators.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdlib>
#include <functional>

#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

using Operands = std::span<const c10::IValue>;

bool is_number(const c10::IValue& value) { return value.isInt() || value.isDouble() || value.isBool(); }
bool is_whole(const c10::IValue& value) { return value.isInt() || value.isBool(); }
int64_t whole(const c10::IValue& value) { return value.isBool() ? int64_t{value.toBool()} : value.toInt(); }
double real(const c10::IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(whole(value));
}

[[noreturn]] void overflow() { throw Error("the result does not fit into 64 bits"); }
[[noreturn]] void division_by_zero() { throw Error("a division by zero"); }

int64_t truncated(double value) {
  if (!(std::abs(value) < 9.2e18)) overflow();
  return static_cast<int64_t>(value);
}

c10::IValue floor_divide(Operands in) {
  if (!is_whole(in[0]) || !is_whole(in[1])) {
    if (real(in[1]) == 0) division_by_zero();
    return std::floor(real(in[0]) / real(in[1]));
  }
  const int64_t a = whole(in[0]);
  const int64_t b = whole(in[1]);
  if (b == 0) division_by_zero();
  if (b == -1 && a == INT64_MIN) overflow();
  return a / b - (a % b != 0 && ((a < 0) != (b < 0)) ? 1 : 0);
}

c10::IValue modulo(Operands in) {
  if (!is_whole(in[0]) || !is_whole(in[1])) {
    if (real(in[1]) == 0) division_by_zero();
    return real(in[0]) - std::floor(real(in[0]) / real(in[1])) * real(in[1]);
  }
  const int64_t b = whole(in[1]);
  if (b == 0) division_by_zero();
  if (b == -1) return int64_t{0};
  const int64_t rest = whole(in[0]) % b;
  return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}

c10::IValue raise(Operands in) {
  if (!is_whole(in[0]) || !is_whole(in[1]) || whole(in[1]) < 0) return std::pow(real(in[0]), real(in[1]));
  const int64_t base = whole(in[0]);
  const int64_t exponent = whole(in[1]);
  if (base == 0 || base == 1) return exponent == 0 ? int64_t{1} : base;
  if (base == -1) return exponent % 2 == 0 ? int64_t{1} : int64_t{-1};
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow();  // after 63 rounds at most
  }
  return result;
}

c10::IValue true_divide(Operands in) {
  if (real(in[1]) == 0) division_by_zero();
  return real(in[0]) / real(in[1]);
}

c10::IValue shift(Operands in, bool left) {
  const int64_t by = whole(in[1]);
  if (by < 0 || by > 62) overflow();
  if (!left) return whole(in[0]) >> by;
  int64_t result = 0;
  if (__builtin_mul_overflow(whole(in[0]), int64_t{1} << by, &result)) overflow();
  return result;
}

template <class Whole, class Real>
c10::IValue arithmetic(Operands in, Whole on_whole, Real on_real) {
  if (!is_whole(in[0]) || !is_whole(in[1])) return on_real(real(in[0]), real(in[1]));
  int64_t result = 0;
  if (on_whole(whole(in[0]), whole(in[1]), &result)) overflow();
  return result;
}

template <class Compare>
c10::IValue compared(Operands in, Compare compare) {
  if (is_whole(in[0]) && is_whole(in[1])) return compare(whole(in[0]), whole(in[1]));
  return compare(real(in[0]), real(in[1]));
}

c10::IValue negated(Operands in) {
  if (in[0].isDouble()) return -in[0].toDouble();
  int64_t result = 0;
  if (__builtin_sub_overflow(int64_t{0}, whole(in[0]), &result)) overflow();
  return result;
}

c10::IValue both(Operands in, bool is_and) {
  if (in[0].isBool() && in[1].isBool())
    return is_and ? in[0].toBool() && in[1].toBool() : in[0].toBool() || in[1].toBool();
  return is_and ? whole(in[0]) & whole(in[1]) : whole(in[0]) | whole(in[1]);
}

struct ScalarOperator {
  std::string_view target;
  size_t operands;
  c10::IValue (*compute)(Operands);
};

constexpr ScalarOperator kScalarOperators[] = {
    {"_operator.add", 2,
     [](Operands in) {
       return arithmetic(
           in, [](auto a, auto b, auto* r) { return __builtin_add_overflow(a, b, r); }, std::plus<>());
     }},
    {"_operator.sub", 2,
     [](Operands in) {
       return arithmetic(
           in, [](auto a, auto b, auto* r) { return __builtin_sub_overflow(a, b, r); }, std::minus<>());
     }},
    {"_operator.mul", 2,
     [](Operands in) {
       return arithmetic(
           in, [](auto a, auto b, auto* r) { return __builtin_mul_overflow(a, b, r); }, std::multiplies<>());
     }},
    {"_operator.floordiv", 2, &floor_divide},
    {"_operator.truediv", 2, &true_divide},
    {"_operator.mod", 2, &modulo},
    {"_operator.pow", 2, &raise},
    {"_operator.neg", 1, &negated},
    {"_operator.pos", 1, [](Operands in) { return in[0]; }},
    {"_operator.eq", 2, [](Operands in) { return compared(in, std::equal_to<>()); }},
    {"_operator.ne", 2, [](Operands in) { return compared(in, std::not_equal_to<>()); }},
    {"_operator.lt", 2, [](Operands in) { return compared(in, std::less<>()); }},
    {"_operator.le", 2, [](Operands in) { return compared(in, std::less_equal<>()); }},
    {"_operator.gt", 2, [](Operands in) { return compared(in, std::greater<>()); }},
    {"_operator.ge", 2, [](Operands in) { return compared(in, std::greater_equal<>()); }},
    {"_operator.and_", 2, [](Operands in) { return both(in, true); }},
    {"_operator.or_", 2, [](Operands in) { return both(in, false); }},
    {"_operator.lshift", 2, [](Operands in) { return shift(in, true); }},
    {"_operator.rshift", 2, [](Operands in) { return shift(in, false); }},
    {"math.trunc", 1, [](Operands in) { return c10::IValue(truncated(real(in[0]))); }},
    {"math.floor", 1, [](Operands in) { return c10::IValue(truncated(std::floor(real(in[0])))); }},
    {"math.ceil", 1, [](Operands in) { return c10::IValue(truncated(std::ceil(real(in[0])))); }},
    {"torch.sym_float", 1, [](Operands in) { return c10::IValue(real(in[0])); }},
    {"torch.sym_int", 1,
     [](Operands in) { return c10::IValue(is_whole(in[0]) ? whole(in[0]) : truncated(real(in[0]))); }},
    {"torch.sym_max", 2, [](Operands in) { return real(in[0]) < real(in[1]) ? in[1] : in[0]; }},
    {"torch.sym_min", 2, [](Operands in) { return real(in[1]) < real(in[0]) ? in[1] : in[0]; }},
    {"torch.sym_not", 1, [](Operands in) { return c10::IValue(real(in[0]) == 0); }},
    {"torch.sym_ite", 3, [](Operands in) { return real(in[0]) != 0 ? in[1] : in[2]; }},
    {"torch.sym_sqrt", 1, [](Operands in) { return c10::IValue(std::sqrt(real(in[0]))); }},
    {"torch._sym_sqrt", 1, [](Operands in) { return c10::IValue(std::sqrt(real(in[0]))); }},
};

// The size is asked of the tensor itself, which notes that the program did.
std::optional<c10::IValue> size_question(std::string_view target, Operands in) {
  const auto dimension = [&] {
    if (in.size() != 2 || !in[1].isInt()) throw Error("it takes a tensor and a dimension");
    return in[1].toInt();
  };
  if (target == "torch.ops.aten.sym_size.int") return in[0].toTensor().size(dimension());
  if (target == "torch.ops.aten.sym_stride.int") return in[0].toTensor().stride(dimension());
  if (target == "torch.ops.aten.sym_numel.default") return in[0].toTensor().numel();
  if (target == "torch.ops.aten.sym_storage_offset.default") return in[0].toTensor().storage_offset();
  return std::nullopt;
}

}  // namespace

std::optional<c10::IValue> call_scalar_operator(std::string_view target, Operands operands) {
  if (target.starts_with("torch.ops.aten.sym_") && !operands.empty() && operands[0].isTensor()) {
    return size_question(target, operands);
  }
  for (const ScalarOperator& row : kScalarOperators) {
    if (row.target != target) continue;
    if (operands.size() != row.operands) throw Error("it takes " + std::to_string(row.operands) + " operands");
    for (const c10::IValue& operand : operands) {
      if (!is_number(operand)) throw Error("an operand of type " + operand.tagKind() + " is not a number");
    }
    return row.compute(operands);
  }
  return std::nullopt;
}

}  // namespace shadowgraph
