// What a call of an operator costs, by rules over the shapes of its operands. The tables of the profiler are written in
// them, and users add theirs for operators of their own (shadowgraph/operators.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/target.h"
#include "shadowgraph/profile/operand_shapes.h"

namespace SHADOWGRAPH_API shadowgraph {

// Empty: not known for these operands.
using CostRule = std::function<std::optional<int64_t>(const OperandShapes&)>;

struct OperatorCosts {
  CostRule flops;
  CostRule bytes;
  CostRule scratch;
};

// Throws Error if the name is none ("space::name") or has been given to register_operator before.
void register_operator(const std::string& operator_name, OperatorCosts costs);

// What was registered for a target, or for the operator that it calls functionally; nullptr if nothing was.
std::shared_ptr<const OperatorCosts> registered_costs(const Target& target);

// `rule`'s answer; empty if there is no rule, if it throws, or if the answer is negative.
std::optional<int64_t> evaluate(const CostRule& rule, const OperandShapes& call);

}  // namespace shadowgraph
