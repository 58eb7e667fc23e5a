// An operator of your own, made known in one statement: what its result looks like and what a call costs.
//
//     at::Tensor gated_mlp(const at::Tensor& x, const at::Tensor& weight, int64_t groups);   // a shape rule
//
//     sg::register_operator("my::gated_mlp", &gated_mlp, {
//         .flops = [](const sg::OperandShapes& call) { return 2 * element_count(call.argument(0)) * call.shape(1)[1]; },
//         .bytes = [](const sg::OperandShapes& call) { return byte_count(call.argument(0)) + byte_count(call.result(0)); },
//         .scratch = [](const sg::OperandShapes& call) { return byte_count(call.result(0)); }});
//
// The shape rule is that of shadowgraph/capture/shape_rules.h; leave it out for an operator that has a Meta kernel or
// is made of others. Costs are functions of the shapes, dtypes and numbers of one call (OperandShapes), each optional:
//   flops    2 a multiply-accumulate; counted as NodeFlops::matmul, of which PyTorch's FlopCounterMode knows nothing.
//            Without it, and without a row in the tables, the operator is listed as uncovered.
//   bytes    what a call reads and writes
//   scratch  memory that a call takes and gives back, alive beside its operands and results: in MemoryTimeline and so
//            in the peak, as temporary
// A rule that cannot tell, or that throws, answers as if it were not there: see Profile::custom_operators, which lists
// calls without an answer. For an operator of libtorch, what is registered here comes before the tables' rows.
//
// The name carries the overload ("my::op.out"); one without is taken for every overload that has none of its own. The
// operator need not be known yet. Thread-safe; a profile that runs meanwhile may not see it.
#pragma once

#include <string>
#include <utility>

#include "shadowgraph/capture/shape_rules.h"
#include "shadowgraph/export.h"
#include "shadowgraph/profile/operator_costs.h"

namespace SHADOWGRAPH_API shadowgraph {

template <class Return, class... Args>
void register_operator(const std::string& operator_name, Return (*shape)(Args...), OperatorCosts costs = {}) {
  register_operator(operator_name, std::move(costs));
  register_rule(operator_name, shape);
}

}  // namespace shadowgraph
