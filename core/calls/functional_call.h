// Turns an operator that writes its arguments into a function that does not. It serves operators without a functional
// overload, and those whose functional overload does not give bitwise what they leave.
//
//     aten::cudnn_batch_norm(Tensor input, ..., Tensor? running_mean, Tensor? running_var, ...) -> (Tensor, ...)
//     sg_functional::aten__cudnn_batch_norm(<the same>) -> (Tensor, ..., Tensor running_mean, Tensor running_var)
//
// Results are those of the operator that do not alias a written argument, then every written argument as the operator
// leaves it.
//
// A call copies the whole storages of the written arguments, strides, offsets and gaps included. It puts every operand
// that shares one of them onto the copy, and runs the operator there. So the kernel sees what it would have seen,
// overlapping operands too, and what it refuses in place it refuses here. A returned tensor brings the whole storage
// with it: views that look at it elsewhere can be taken from it.
//
// PyTorch's auto_functionalized is the same idea for single operators; it copies tensors, not storages.
//
// The function needs no registration: find_function (shadowgraph/replay.h) makes it from its name.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "shadowgraph/graph/target.h"

namespace shadowgraph {

struct SHADOWGRAPH_API RegisteredFunction;

constexpr std::string_view kFunctionalCallNamespace = "sg_functional";

// Returns nullopt if nothing is written, if `op` is no operator, or if a result views an argument that is not written.
std::optional<Target> functional_call_of(const Target& op);

// Returns the operator that such a target stands for; nullopt if it is no such target, or this process does not have
// the operator.
std::optional<Target> operator_of_functional_call(const Target& target);

// Returns nullptr if `target` is no functional call, or stands for an operator that this process does not have.
std::shared_ptr<const RegisteredFunction> functional_call_function(const Target& target);

}  // namespace shadowgraph
