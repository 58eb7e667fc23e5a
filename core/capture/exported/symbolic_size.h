// Sizes saved by torch.export (numbers or symbolic expressions) and its arithmetic nodes on sizes.
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

struct SizeNode;

// A size as an expression tree, serialized by SymPy as "FloorDiv(Add(Symbol('s77', positive=True, integer=True),
// Integer(3)), Integer(2))".
class SizeExpression {
 public:
  // Returns nullopt if the text is not in this notation.
  static std::optional<SizeExpression> parse(std::string_view text);

  // Returns nullopt if a symbol has no value, a function is unknown, or the result overflows.
  std::optional<int64_t> evaluate(const SymbolValues& values) const;
  // Returns the only symbol of the expression without a value; nullopt if there are none or several.
  std::optional<std::string> unknown(const SymbolValues& values) const;
  // Solves `expression == result` for `symbol`; nullopt if the expression is not linear in it or has no integer
  // solution.
  std::optional<int64_t> solve(const std::string& symbol, int64_t result, SymbolValues values) const;
  // Formats it for messages: "s77", "2*s77", "(s77 + 3) // 2".
  std::string to_string() const;

 private:
  std::shared_ptr<const SizeNode> root_;
};

// A size, a stride or an offset.
struct SymbolicSize {
  int64_t value = 0;                         // the value for the example inputs, -1 if unknown
  std::optional<SizeExpression> expression;  // empty: always `value`
};

// Evaluates an arithmetic or size operator with Python's semantics; nullopt if the target is not one. Throws Error for
// invalid operands, division by zero and integer overflow.
std::optional<c10::IValue> call_scalar_operator(std::string_view target, std::span<const c10::IValue> operands);

}  // namespace shadowgraph
