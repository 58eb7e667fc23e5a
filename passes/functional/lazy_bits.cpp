#include "passes/functional/lazy_bits.h"

#include <utility>

#include "ir/operators/operator_facts.h"
#include "ir/operators/operator_name.h"

namespace shadowgraph {

IdMap<ValueId, uint8_t> lazy_bits_of(const Graph& graph) {
  IdMap<ValueId, uint8_t> bits;
  for (const NodeId n : graph.nodes()) {
    const OperatorFacts& facts = graph.facts(n);
    if (facts.aliases.empty()) continue;
    const auto arguments = graph.arguments(n);
    const auto results = graph.results(n);
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (alias.result >= results.size() || alias.argument >= arguments.size()) continue;
      if (arguments[alias.argument].kind != ArgumentKind::kValue) continue;
      const ValueId source = arguments[alias.argument].ref.value;
      // set_ keeps the bits of self.
      const ValueId bits_of = facts.takes_storage ? arguments[0].ref.value : source;
      uint8_t toggled = facts.negates ? kNegativeBit : 0;
      if (facts.conjugates && c10::isComplexType(graph.value(source).dtype)) toggled |= kConjugateBit;
      graph.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
        // An operator that may copy did copy here, and a copy contains the actual values.
        if (graph.value(v).storage != graph.value(source).storage) return;
        // Two conjugations cancel, so bits are toggled.
        if (const uint8_t now = std::as_const(bits)[bits_of] ^ toggled; now != 0) bits[v] = now;
      });
    }
  }
  return bits;
}

namespace {

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
  if (signature.overload.find("mode") != std::string::npos) return false;  // div's
  const auto arguments = graph.arguments(node);
  for (size_t i = 0; i < arguments.size() && i < signature.arguments.size(); ++i) {
    if (narrow && signature.arguments[i].name == "alpha" && !is_one(arguments[i])) return false;
  }
  switch (operator_row(without_underscore(signature.name)).layout_free) {
    case LayoutFree::kIntegers:
      return false;
    case LayoutFree::kWide:
      return !complex && !narrow;
    case LayoutFree::kReal:
      return !complex;
    case LayoutFree::kComplex:
      return true;
  }
  return false;
}

}  // namespace shadowgraph
