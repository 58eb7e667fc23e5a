// Registers the shape rule and costs of a custom operator.
//
//     at::Tensor gated_mlp(const at::Tensor& x, const at::Tensor& weight, int64_t groups);   // a shape rule
//
//     sg::register_operator("my::gated_mlp", &gated_mlp, {
//         .flops = [](const sg::OperandShapes& x) { return 2 * element_count(x.argument(0)) * x.shape(1)[1]; },
//         .bytes = [](const sg::OperandShapes& x) { return byte_count(x.argument(0)) + byte_count(x.result(0)); },
//         .scratch = [](const sg::OperandShapes& x) { return byte_count(x.result(0)); }});
//
// See shadowgraph/capture/shape_rules.h for shape rules; omit the rule if the operator has a Meta kernel or is
// composite. Costs are functions of the shapes, dtypes and numbers of a call (OperandShapes). All are optional:
//   flops    2 per multiply-accumulate; counted in NodeFlops::matmul, but not by PyTorch's FlopCounterMode. Without it,
//            and without a row in the built-in tables, the operator is listed as uncovered.
//   bytes    bytes read and written by a call
//   scratch  memory allocated and freed within a call, live together with its operands and results: counted in
//            MemoryTimeline and in the peak, as temporary
// A rule that returns std::nullopt or throws is ignored for that call; Profile::custom_operators counts such calls. For
// operators of libtorch, registered costs take precedence over the built-in tables.
//
// The name may include an overload ("my::op.out"); without one, it applies to all overloads that are not registered
// separately. The operator need not be defined yet. Thread-safe; profiles in progress may not see the registration.
#pragma once

#include <string>
#include <utility>

#include "shadowgraph/capture/shape_rules.h"
#include "shadowgraph/export.h"
#include "shadowgraph/profile/operator_costs.h"

namespace SHADOWGRAPH_API shadowgraph {

template <class Return, class... Args>
void register_operator(const std::string& operator_name, Return (*shape)(Args...), OperatorCosts costs = {}) {
  register_cost(operator_name, std::move(costs));
  register_rule(operator_name, shape);
}

}  // namespace shadowgraph
