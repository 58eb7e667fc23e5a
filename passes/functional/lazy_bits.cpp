// Follows the bits of lazy conjugates and negatives along views, once through the graph.
//
//     %2 = aten::_conj(%1)       %2 has the bit
//     %3 = aten::view(%2, ..)    so has its view
//     %4 = aten::_conj(%3)       %4 has it no more
#include "passes/functional/lazy_bits.h"

#include <utility>

#include "ir/operators/operator_facts.h"

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
      // set_ keeps those of its self.
      const ValueId bits_of = facts.takes_storage ? arguments[0].ref.value : source;
      uint8_t toggled = facts.negates ? kNegativeBit : 0;
      if (facts.conjugates && c10::isComplexType(graph.value(source).dtype)) toggled |= kConjugateBit;
      graph.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
        // An operator that may copy has copied here, and a copy holds the values themselves.
        if (graph.value(v).storage != graph.value(source).storage) return;
        // Two conjugations cancel, so the bits are toggled and not set.
        if (const uint8_t now = std::as_const(bits)[bits_of] ^ toggled; now != 0) bits[v] = now;
      });
    }
  }
  return bits;
}

}  // namespace shadowgraph
