#include "core/exported/symbolic_size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>
#include <vector>

namespace shadowgraph {

struct SizeExpression::Node {
  enum class Kind { kInteger, kSymbol, kCall };
  Kind kind = Kind::kInteger;
  int64_t integer = 0;
  std::string name;  // of the symbol or the function
  std::vector<std::shared_ptr<const Node>> arguments;
};

namespace {

// Deeper than any size that a program computes, and shallow enough for recursion.
constexpr int kDeepest = 200;

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
    if (__builtin_mul_overflow(result, base, &result)) return std::nullopt;  // after 63 rounds at most
  }
  return result;
}

std::optional<int64_t> combine(std::string_view function, int64_t a, int64_t b) {
  int64_t result = 0;
  if (function == "Add") return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
  if (function == "Mul") return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
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

}  // namespace

// ---- Reading

namespace {

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
    if (!take('\'')) return std::nullopt;
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) return std::nullopt;
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

// Node is private to SizeExpression: a template takes it.
template <class Node>
std::shared_ptr<const Node> parse_size(SizeParser& in, int depth) {
  if (depth > kDeepest) return nullptr;
  auto node = std::make_shared<Node>();
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
    node->kind = Node::Kind::kSymbol;
    node->name = *name;
    while (in.take(',')) {  // what SymPy assumes of it: positive=True
      if (in.word().empty() || !in.take('=') || in.word().empty()) return nullptr;
    }
    return in.take(')') ? node : nullptr;
  }
  node->kind = Node::Kind::kCall;
  if (in.take(')')) return node;
  do {
    auto argument = parse_size<Node>(in, depth + 1);
    if (!argument) return nullptr;
    node->arguments.push_back(std::move(argument));
  } while (in.take(','));
  return in.take(')') ? node : nullptr;
}

template <class Node>
std::optional<int64_t> evaluate_size(const Node& node, const SymbolValues& values) {
  switch (node.kind) {
    case Node::Kind::kInteger:
      return node.integer;
    case Node::Kind::kSymbol: {
      const auto found = values.find(node.name);
      return found == values.end() ? std::nullopt : std::optional(found->second);
    }
    case Node::Kind::kCall:
      break;
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

template <class Node>
void unknown_symbols(const Node& node, const SymbolValues& values, std::set<std::string>& unknown) {
  if (node.kind == Node::Kind::kSymbol && !values.contains(node.name)) unknown.insert(node.name);
  for (const auto& argument : node.arguments) unknown_symbols(*argument, values, unknown);
}

template <class Node>
std::string size_text(const Node& node) {
  if (node.kind == Node::Kind::kInteger) return std::to_string(node.integer);
  if (node.kind == Node::Kind::kSymbol) return node.name;
  const std::string_view infix = node.name == "Add"        ? " + "
                                 : node.name == "Mul"      ? "*"
                                 : node.name == "FloorDiv" ? " // "
                                 : node.name == "Mod"      ? " % "
                                                           : "";
  std::string text = infix.empty() ? node.name + "(" : "";
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    if (i != 0) text += infix.empty() ? ", " : infix;
    const bool nested = !infix.empty() && node.arguments[i]->kind == Node::Kind::kCall;
    text += nested ? "(" + size_text(*node.arguments[i]) + ")" : size_text(*node.arguments[i]);
  }
  return infix.empty() ? text + ")" : text;
}

}  // namespace

std::optional<SizeExpression> SizeExpression::parse(std::string_view text) {
  SizeParser in(text);
  SizeExpression expression;
  expression.root_ = parse_size<Node>(in, 0);
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
  if (!constant || !with_one || *constant == *with_one) return std::nullopt;
  int64_t difference = 0;
  int64_t slope = 0;
  if (__builtin_sub_overflow(result, *constant, &difference)) return std::nullopt;
  if (__builtin_sub_overflow(*with_one, *constant, &slope)) return std::nullopt;
  const auto value = floor_division(difference, slope);
  return value && at(*value) == result ? value : std::nullopt;
}

std::string SizeExpression::to_string() const { return size_text(*root_); }

}  // namespace shadowgraph
