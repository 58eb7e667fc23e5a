// A graph's targets and constants as libtorch has them: schemas, operator handles, tensors. Everything else of a graph
// is read without this header, which brings ATen's core along.
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

// Good as long as a copy of the target.
const c10::FunctionSchema& function_schema(const Target& target);
// The operator in this process' dispatcher, if it is there with the very same schema.
std::optional<c10::OperatorHandle> find_operator(const Target& target);
// An operator by its full name: "aten::add.Tensor".
std::optional<c10::OperatorHandle> find_operator(std::string_view name);
TargetId intern_operator(Graph& graph, const c10::OperatorHandle& op);

FormalType formal_type(const c10::Type& type);
// Tensor(a!).
bool is_written(const c10::Argument& formal);

// "aten::add.Tensor" of a schema, and back.
std::string full_name(const c10::FunctionSchema& schema);
c10::OperatorName operator_name(std::string_view name);

}  // namespace shadowgraph
