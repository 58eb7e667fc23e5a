// Sizes as torch.export writes them, numbers or expressions of symbols, and the arithmetic that it keeps as nodes.
// Internal to core/exported.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shadowgraph {

using SymbolValues = std::map<std::string, int64_t, std::less<>>;

// A size as a tree, which SymPy writes as "FloorDiv(Add(Symbol('s77', positive=True, integer=True), Integer(3)),
// Integer(2))".
class SizeExpression {
 public:
  // Returns nothing if the text is not of that notation.
  static std::optional<SizeExpression> parse(std::string_view text);

  // Returns nothing if a symbol has no value, a function is not known here or a number does not fit.
  std::optional<int64_t> evaluate(const SymbolValues& values) const;
  // Returns the only symbol of the expression that has no value; nothing if there are none or several.
  std::optional<std::string> unknown(const SymbolValues& values) const;
  // Returns the value of `symbol` for which the expression is `result`, if the expression is linear in it and there is
  // one.
  std::optional<int64_t> solve(const std::string& symbol, int64_t result, SymbolValues values) const;
  // Writes it for people: "s77", "2*s77", "(s77 + 3) // 2".
  std::string to_string() const;

 private:
  struct Node;
  std::shared_ptr<const Node> root_;
};

// A size, a stride or an offset.
struct SymbolicSize {
  int64_t value = 0;                         // what it was for the example inputs, -1 if that is not known
  std::optional<SizeExpression> expression;  // empty: it is always `value`
};

// Does arithmetic on sizes, which export keeps as nodes, and answers questions about sizes. Internal to core/exported.

// Computes as Python does; empty if the target is none of these. Throws Error for operands that the operator does not
// take, a division by zero, and integers that do not fit.
std::optional<c10::IValue> call_scalar_operator(std::string_view target, std::span<const c10::IValue> operands);

}  // namespace shadowgraph
