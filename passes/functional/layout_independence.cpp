#include "passes/functional/layout_independence.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ir/operators/operator_name.h"

namespace shadowgraph {
namespace {

// Measured: 100,003 elements, contiguous and every second, AVX2. One operation, rounded once, of real numbers and
// (above) of complex ones, where a product is several.
constexpr std::array<std::string_view, 14> kOfComplexNumbers = {
    "add",  "sub",  "rsub",  "neg",         "negative",      "eq",       "ne", "copy",
    "fill", "zero", "where", "masked_fill", "conj_physical", "positive",
};
constexpr std::array<std::string_view, 36> kOfRealNumbers = {
    "mul",         "div",         "true_divide", "abs",         "absolute",    "relu",
    "clamp",       "clamp_min",   "clamp_max",   "clip",        "maximum",     "minimum",
    "lt",          "le",          "gt",          "ge",          "less",        "greater",
    "logical_and", "logical_or",  "logical_xor", "logical_not", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_not", "sign",        "signbit",     "floor",       "ceil",
    "trunc",       "sqrt",        "reciprocal",  "threshold",   "hardtanh",    "isnan",
};
// Several, the same ones in both loops. With bf16 and f16 only one of them rounds in between, a + alpha * b as well.
constexpr std::array<std::string_view, 4> kOfWideNumbers = {"addcmul", "addcdiv", "lerp", "rsqrt"};

template <size_t n>
bool contains(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_one(const Argument& argument) {
  if (argument.kind == ArgumentKind::kInt) return argument.i == 1;
  return argument.kind == ArgumentKind::kFloat && argument.d == 1.0;
}

}  // namespace

bool is_layout_independent(const Graph& graph, NodeId node) {
  bool complex = false;
  bool floating = false;
  bool narrow = false;
  const auto see = [&](ValueId v) {
    const Value& value = graph.value(v);
    if (value.kind != ValueKind::kTensor) return;
    complex = complex || c10::isComplexType(value.dtype);
    floating = floating || complex || c10::isFloatingType(value.dtype);
    narrow = narrow || c10::isReducedFloatingType(value.dtype);
  };
  graph.for_each_input(node, see);
  graph.for_each_output(node, see);
  // Integers and booleans are never rounded.
  if (!floating) return true;
  const Signature& signature = graph.target(node).signature();
  if (namespace_of(signature.name) != "aten") return false;
  const std::string_view name = without_underscore(without_namespace(signature.name));
  if (signature.overload.find("mode") != std::string::npos) return false;  // div's
  const auto arguments = graph.arguments(node);
  for (size_t i = 0; i < arguments.size() && i < signature.arguments.size(); ++i) {
    if (narrow && signature.arguments[i].name == "alpha" && !is_one(arguments[i])) return false;
  }
  if (contains(kOfComplexNumbers, name)) return true;
  return !complex && (contains(kOfRealNumbers, name) || (!narrow && contains(kOfWideNumbers, name)));
}

}  // namespace shadowgraph
