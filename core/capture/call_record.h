// What a call on fake tensors was given and gave, in the graph's words: shared by the recorder and by passes that run
// something on fakes and keep what it calls (passes/decompose/expansion.h, shadowgraph/passes/rewrite.h). Which Value a
// tensor is only the caller knows, so it says that; everything else is here.
//
//     arguments.push_back(argument_of(graph, ivalue, [&](const at::Tensor& t) { return Argument::of_value(known[t]); }));
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include "core/fake/fake_tensor_impl.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// Called with defined tensors only.
using TensorArgument = c10::function_ref<Argument(const at::Tensor&)>;

// Lists nest; a process group and a reduction are their names (core/fake/process_groups.h); an object that a graph cannot
// hold becomes an opaque argument with the name of its type.
Argument argument_of(Graph& graph, const c10::IValue& value, TensorArgument tensor);

// Tensors, lists of them and fresh scalars; none for the rest.
Argument result_of(Graph& graph, NodeId node, const c10::IValue& value, TensorArgument tensor);

// A real 0-dimensional CPU tensor, such as the number that the C++ API wraps (x * 2): a number if an argument has its
// type, otherwise a constant of the graph.
Argument number_of(Graph& graph, const at::Tensor& tensor);

// A value as the fake is now, in `storage`. The spans are the fake's: use it before that changes.
TensorMeta spec_of(const FakeTensorImpl& fake, StorageId storage);

// The fake's storage, made by `born`; a temporary.
Storage storage_of(const FakeTensorImpl& fake, NodeId born);

}  // namespace shadowgraph
