#include "passes/functional/lazy_bits.h"

#include <utility>

#include "ir/operators/operator_facts.h"

namespace shadowgraph {

IdMap<ValueId, uint8_t> lazy_bits_of(const Graph& graph) {
  IdMap<ValueId, uint8_t> bits;
  OperatorFactsCache cache;
  for (const NodeId n : graph.nodes()) {
    const OperatorFacts& facts = cache.of(graph, graph.node(n).target);
    if (facts.aliases.empty()) continue;
    const std::string& name = graph.target(n).name();
    const auto arguments = graph.arguments(n);
    const auto results = graph.results(n);
    uint8_t toggled = 0;
    if (name == "aten::_conj") toggled = kConjugateBit;
    if (name == "aten::_neg_view") toggled = kNegativeBit;
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (alias.result >= results.size() || alias.argument >= arguments.size()) continue;
      if (arguments[alias.argument].kind != ArgumentKind::kValue) continue;
      const ValueId source = arguments[alias.argument].ref.value;
      // set_ keeps those of its self.
      const ValueId bits_of = name == "aten::set_.source_Tensor" ? arguments[0].ref.value : source;
      graph.for_each_value(results.subspan(alias.result, 1), [&](ValueId v) {
        if (graph.value(v).storage != graph.value(source).storage) return;
        if (const uint8_t now = std::as_const(bits)[bits_of] ^ toggled; now != 0) bits[v] = now;
      });
    }
  }
  return bits;
}

}  // namespace shadowgraph
