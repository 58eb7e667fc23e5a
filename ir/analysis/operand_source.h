// Traces an operand through views, casts and gathers to the value it was made from, such as the parameter of a weight.
//
//     %5 = aten::_to_copy(self=%0, dtype=bf16)
//     %6 = aten::t(self=%5)
//     %7 = aten::mm(self=%1, mat2=%6)
//
// source_of(graph, %6, LookThrough::kViews) is %5, and with LookThrough::kCasts %0.
#pragma once

#include <string_view>

#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Operations to look through. Each level includes those before it.
enum class LookThrough : uint8_t {
  kViews,      // excludes wait_tensor, although it returns its operand
  kCasts,      // _to_copy
  kGathering,  // clone, cat and all_gather, with its wait
};

// Stops at placeholders. Linear in the length of the chain.
inline ValueId source_of(const Graph& graph, ValueId value, LookThrough behind) {
  const auto passes = [&](NodeId node) {
    const OperatorFacts& facts = graph.facts(node);
    if (facts.is_view && !facts.collective) return true;
    if (behind == LookThrough::kViews) return false;
    const std::string_view name = graph.target(node).name();
    if (name == "aten::_to_copy") return true;
    return behind == LookThrough::kGathering &&
           (name == "aten::clone" || name == "aten::cat" || name == "_c10d_functional::wait_tensor" ||
            name.starts_with("_c10d_functional::all_gather_into_tensor"));
  };
  for (;;) {
    const NodeId node = graph.value(value).producer;
    if (graph.is_placeholder(node) || !passes(node)) return value;
    ValueId from;
    graph.for_each_input(node, [&](ValueId input) {
      if (!from.valid()) from = input;
    });
    if (!from.valid()) return value;
    value = from;
  }
}

// Returns the placeholder of the parameter that an operand is made from; invalid if there is none.
inline NodeId parameter_of_operand(const Graph& graph, ValueId value, LookThrough behind) {
  const NodeId node = graph.value(source_of(graph, value, behind)).producer;
  return graph.node(node).target == target_of(Builtin::kParameter) ? node : NodeId();
}

}  // namespace shadowgraph
