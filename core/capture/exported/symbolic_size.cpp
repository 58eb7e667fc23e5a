#include "core/capture/exported/symbolic_size.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <set>
#include <vector>

#include "shadowgraph/error.h"

namespace shadowgraph {

struct SizeNode {
  enum class Kind { kInteger, kSymbol, kCall };
  Kind kind = Kind::kInteger;
  int64_t integer = 0;
  std::string name;  // of the symbol or the function
  std::vector<std::shared_ptr<const SizeNode>> arguments;
};

namespace {

// More than any real size expression, and shallow enough for recursion.
constexpr int kMaxDepth = 200;

// Return nullopt if the result overflows or is undefined.

std::optional<int64_t> sum(int64_t a, int64_t b) {
  return __builtin_add_overflow(a, b, &a) ? std::nullopt : std::optional(a);
}

std::optional<int64_t> difference(int64_t a, int64_t b) {
  return __builtin_sub_overflow(a, b, &a) ? std::nullopt : std::optional(a);
}

std::optional<int64_t> product(int64_t a, int64_t b) {
  return __builtin_mul_overflow(a, b, &a) ? std::nullopt : std::optional(a);
}

std::optional<int64_t> floor_division(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return std::nullopt;
  const int64_t quotient = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? quotient - 1 : quotient;
}

std::optional<int64_t> power(int64_t base, int64_t exponent) {
  if (exponent < 0) return std::nullopt;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return std::nullopt;  // after at most 63 iterations
  }
  return result;
}

std::optional<int64_t> combine(std::string_view function, int64_t a, int64_t b) {
  if (function == "Add") return sum(a, b);
  if (function == "Mul") return product(a, b);
  if (function == "Max") return std::max(a, b);
  if (function == "Min") return std::min(a, b);
  if (function == "Pow" || function == "PowByNatural") return power(a, b);
  if (function == "FloorDiv" || function == "CleanDiv") return floor_division(a, b);
  if (function == "CeilDiv") {
    const auto down = floor_division(a, b);
    return down && a % b != 0 ? std::optional(*down + 1) : down;
  }
  if (function == "Mod" || function == "PythonMod") {
    const auto quotient = floor_division(a, b);
    return quotient ? std::optional(a - *quotient * b) : std::nullopt;
  }
  return std::nullopt;
}

class SizeParser {
 public:
  explicit SizeParser(std::string_view text) : rest_(text) {}

  bool take(char c) {
    skip_spaces();
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::string_view word() {
    skip_spaces();
    size_t end = 0;
    while (end < rest_.size() && (std::isalnum(static_cast<unsigned char>(rest_[end])) || rest_[end] == '_')) ++end;
    return taken(end);
  }
  std::optional<std::string_view> quoted() {
    const size_t end = take('\'') ? rest_.find('\'') : rest_.npos;
    if (end == rest_.npos) return std::nullopt;
    const std::string_view text = taken(end);
    rest_.remove_prefix(1);
    return text;
  }
  std::optional<int64_t> integer() {
    skip_spaces();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return value;
  }
  bool at_end() {
    skip_spaces();
    return rest_.empty();
  }

 private:
  void skip_spaces() {
    while (rest_.starts_with(' ')) rest_.remove_prefix(1);
  }
  std::string_view taken(size_t size) {
    const std::string_view text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return text;
  }
  std::string_view rest_;
};

std::shared_ptr<const SizeNode> parse_size(SizeParser& in, int depth) {
  if (depth > kMaxDepth) return nullptr;
  auto node = std::make_shared<SizeNode>();
  node->name = in.word();
  if (node->name.empty() || !in.take('(')) return nullptr;
  if (node->name == "Integer") {
    const auto value = in.integer();
    if (!value || !in.take(')')) return nullptr;
    node->integer = *value;
    return node;
  }
  if (node->name == "Symbol") {
    const auto name = in.quoted();
    if (!name) return nullptr;
    node->kind = SizeNode::Kind::kSymbol;
    node->name = *name;
    while (in.take(',')) {  // SymPy's assumptions: positive=True
      if (in.word().empty() || !in.take('=') || in.word().empty()) return nullptr;
    }
    return in.take(')') ? node : nullptr;
  }
  node->kind = SizeNode::Kind::kCall;
  if (in.take(')')) return node;
  do {
    auto argument = parse_size(in, depth + 1);
    if (!argument) return nullptr;
    node->arguments.push_back(std::move(argument));
  } while (in.take(','));
  return in.take(')') ? node : nullptr;
}

std::optional<int64_t> evaluate_size(const SizeNode& node, const SymbolValues& values) {
  if (node.kind == SizeNode::Kind::kInteger) return node.integer;
  if (node.kind == SizeNode::Kind::kSymbol) {
    const auto found = values.find(node.name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<int64_t> result;
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    const auto argument = evaluate_size(*node.arguments[i], values);
    if (!argument) return std::nullopt;
    result = i == 0 ? argument : combine(node.name, *result, *argument);
    if (!result) return std::nullopt;
  }
  return node.arguments.size() < 2 ? std::nullopt : result;
}

void unknown_symbols(const SizeNode& node, const SymbolValues& values, std::set<std::string>& unknown) {
  if (node.kind == SizeNode::Kind::kSymbol && !values.contains(node.name)) unknown.insert(node.name);
  for (const auto& argument : node.arguments) unknown_symbols(*argument, values, unknown);
}

std::string size_text(const SizeNode& node) {
  if (node.kind == SizeNode::Kind::kInteger) return std::to_string(node.integer);
  if (node.kind == SizeNode::Kind::kSymbol) return node.name;
  const std::string_view infix = node.name == "Add"        ? " + "
                                 : node.name == "Mul"      ? "*"
                                 : node.name == "FloorDiv" ? " // "
                                 : node.name == "Mod"      ? " % "
                                                           : "";
  std::string text = infix.empty() ? node.name + "(" : "";
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    if (i != 0) text += infix.empty() ? ", " : infix;
    const bool nested = !infix.empty() && node.arguments[i]->kind == SizeNode::Kind::kCall;
    text += nested ? "(" + size_text(*node.arguments[i]) + ")" : size_text(*node.arguments[i]);
  }
  return infix.empty() ? text + ")" : text;
}

using Operands = std::span<const c10::IValue>;

bool is_number(const c10::IValue& value) { return value.isInt() || value.isDouble() || value.isBool(); }
bool is_whole(const c10::IValue& value) { return value.isInt() || value.isBool(); }
int64_t whole(const c10::IValue& value) { return value.isBool() ? int64_t{value.toBool()} : value.toInt(); }
double real(const c10::IValue& value) {
  return value.isDouble() ? value.toDouble() : static_cast<double>(whole(value));
}

[[noreturn]] void overflow() { throw Error("the result overflows a 64-bit integer"); }
int64_t fitting(std::optional<int64_t> result) {
  if (!result) overflow();
  return *result;
}

int64_t truncated(double value) {
  if (!(std::abs(value) < 9.2e18)) overflow();
  return static_cast<int64_t>(value);
}

double divisor(const c10::IValue& value) {
  if (real(value) == 0) throw Error("division by zero");
  return real(value);
}

c10::IValue floor_divide(Operands in) {
  const double by = divisor(in[1]);
  if (!is_whole(in[0]) || !is_whole(in[1])) return std::floor(real(in[0]) / by);
  return fitting(floor_division(whole(in[0]), whole(in[1])));
}

c10::IValue modulo(Operands in) {
  const double by = divisor(in[1]);
  if (!is_whole(in[0]) || !is_whole(in[1])) return real(in[0]) - std::floor(real(in[0]) / by) * by;
  const int64_t b = whole(in[1]);
  if (b == -1) return int64_t{0};
  const int64_t rest = whole(in[0]) % b;
  return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}

c10::IValue raise(Operands in) {
  if (!is_whole(in[0]) || !is_whole(in[1]) || whole(in[1]) < 0) return std::pow(real(in[0]), real(in[1]));
  return fitting(power(whole(in[0]), whole(in[1])));
}

c10::IValue shift(Operands in, bool left) {
  const int64_t by = whole(in[1]);
  if (by < 0 || by > 62) overflow();
  return left ? fitting(product(whole(in[0]), int64_t{1} << by)) : whole(in[0]) >> by;
}

template <class Whole, class Real>
c10::IValue arithmetic(Operands in, Whole on_whole, Real on_real) {
  if (!is_whole(in[0]) || !is_whole(in[1])) return on_real(real(in[0]), real(in[1]));
  return fitting(on_whole(whole(in[0]), whole(in[1])));
}

template <class Compare>
c10::IValue compared(Operands in, Compare compare) {
  if (is_whole(in[0]) && is_whole(in[1])) return compare(whole(in[0]), whole(in[1]));
  return compare(real(in[0]), real(in[1]));
}

c10::IValue negated(Operands in) {
  if (in[0].isDouble()) return -in[0].toDouble();
  return fitting(difference(0, whole(in[0])));
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
    {"_operator.add", 2, [](Operands in) { return arithmetic(in, &sum, std::plus<>()); }},
    {"_operator.sub", 2, [](Operands in) { return arithmetic(in, &difference, std::minus<>()); }},
    {"_operator.mul", 2, [](Operands in) { return arithmetic(in, &product, std::multiplies<>()); }},
    {"_operator.floordiv", 2, &floor_divide},
    {"_operator.truediv", 2, [](Operands in) { return c10::IValue(real(in[0]) / divisor(in[1])); }},
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

// Reads the size from the tensor itself, which records a guard on it.
std::optional<c10::IValue> read_size(std::string_view target, Operands in) {
  const auto dimension = [&] {
    if (in.size() != 2 || !in[1].isInt()) throw Error("expected a tensor and a dimension");
    return in[1].toInt();
  };
  if (target == "torch.ops.aten.sym_size.int") return in[0].toTensor().size(dimension());
  if (target == "torch.ops.aten.sym_stride.int") return in[0].toTensor().stride(dimension());
  if (target == "torch.ops.aten.sym_numel.default") return in[0].toTensor().numel();
  if (target == "torch.ops.aten.sym_storage_offset.default") return in[0].toTensor().storage_offset();
  return std::nullopt;
}

}  // namespace

std::optional<SizeExpression> SizeExpression::parse(std::string_view text) {
  SizeParser in(text);
  SizeExpression expression;
  expression.root_ = parse_size(in, 0);
  if (!expression.root_ || !in.at_end()) return std::nullopt;
  return expression;
}

std::optional<int64_t> SizeExpression::evaluate(const SymbolValues& values) const {
  return evaluate_size(*root_, values);
}

std::optional<std::string> SizeExpression::unknown(const SymbolValues& values) const {
  std::set<std::string> unknown;
  unknown_symbols(*root_, values, unknown);
  return unknown.size() == 1 ? std::optional(*unknown.begin()) : std::nullopt;
}

std::optional<int64_t> SizeExpression::solve(const std::string& symbol, int64_t result, SymbolValues values) const {
  const auto at = [&](int64_t value) {
    values[symbol] = value;
    return evaluate(values);
  };
  const auto constant = at(0);
  const auto with_one = at(1);
  if (!constant || !with_one) return std::nullopt;
  const auto rest = difference(result, *constant);
  const auto slope = difference(*with_one, *constant);
  const auto value = rest && slope ? floor_division(*rest, *slope) : std::nullopt;  // a slope of 0 has no solution
  return value && at(*value) == result ? value : std::nullopt;
}

std::string SizeExpression::to_string() const { return size_text(*root_); }

std::optional<c10::IValue> call_scalar_operator(std::string_view target, Operands operands) {
  if (target.starts_with("torch.ops.aten.sym_") && !operands.empty() && operands[0].isTensor()) {
    return read_size(target, operands);
  }
  for (const ScalarOperator& row : kScalarOperators) {
    if (row.target != target) continue;
    if (operands.size() != row.operands) {
      throw Error("expected " + std::to_string(row.operands) + " operands, got " + std::to_string(operands.size()));
    }
    for (const c10::IValue& operand : operands) {
      if (!is_number(operand)) throw Error("operand of type " + operand.tagKind() + " is not a number");
    }
    return row.compute(operands);
  }
  return std::nullopt;
}

}  // namespace shadowgraph
