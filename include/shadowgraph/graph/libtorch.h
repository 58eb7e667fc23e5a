// libtorch representations of a graph's targets and constants: schemas, operator handles, tensors.
//
//     if (const auto op = find_operator(graph.target(node))) op->callBoxed(&stack);
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/operator_name.h>

#include <optional>
#include <string>
#include <string_view>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

// Valid as long as a copy of the target exists.
const c10::FunctionSchema& function_schema(const Target& target);
// Returns the dispatcher's operator, or std::nullopt if it is not registered with exactly the same schema.
std::optional<c10::OperatorHandle> find_operator(const Target& target);
// Returns an operator by its full name, "aten::add.Tensor".
std::optional<c10::OperatorHandle> find_operator(std::string_view name);
TargetId intern_operator(Graph& graph, const c10::OperatorHandle& op);

FormalType formal_type(const c10::Type& type);
// Returns whether the argument is written, as in Tensor(a!).
bool is_written(const c10::Argument& formal);

// Convert between schemas and full names, "aten::add.Tensor".
std::string full_name(const c10::FunctionSchema& schema);
c10::OperatorName operator_name(std::string_view name);

}  // namespace shadowgraph
