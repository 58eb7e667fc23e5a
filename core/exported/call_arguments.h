// Turns what a node is given into what calls want. Internal to core/exported.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <vector>

#include "core/exported/program.h"

namespace shadowgraph {

// What the nodes of a graph have made so far, by number.
using ValueTable = std::vector<c10::IValue>;

// Returns an operand as the schema's argument wants it. An integer for a float becomes a float. An integer in place of
// a tensor becomes a number that is not recorded as a tensor. Throws Error that names the argument.
c10::IValue argument_for(const c10::Argument& argument, const ExportedOperand& operand, const ValueTable& values);

// Returns all operands in order, lists flattened, for what has no schema. Throws Error for graphs.
std::vector<c10::IValue> plain_arguments(std::span<const NamedOperand> operands, const ValueTable& values);

}  // namespace shadowgraph
