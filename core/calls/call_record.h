// Writes a call on fake tensors in the graph's words: what it was given and what it gave. The recorder uses it, and so
// do passes that run something on fakes and keep what it calls (passes/decompose/expansion.h,
// shadowgraph/passes/rewrite.h). Only the caller knows which Value a tensor is, so it says that; everything else is
// here.
//
//     arguments.push_back(argument_of(graph, ivalue, [&](const at::Tensor& t) { return Argument::of_value(known[t]); }));
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include "shadowgraph/graph.h"

namespace shadowgraph {

class FakeTensorImpl;

// It is called with defined tensors only.
using TensorArgument = c10::function_ref<Argument(const at::Tensor&)>;

// Returns an argument for any value; lists nest. A process group and a reduction become their names
// (core/fake/process_groups.h). An object that a graph cannot hold becomes an opaque argument with the name of its
// type.
Argument argument_of(Graph& graph, const c10::IValue& value, TensorArgument tensor);

// Returns tensors, lists of them and fresh scalars as arguments; none for anything else.
Argument result_of(Graph& graph, NodeId node, const c10::IValue& value, TensorArgument tensor);

// Returns a real 0-dimensional CPU tensor, such as the number that the C++ API wraps (x * 2). It becomes a number if an
// argument has its type, otherwise a constant of the graph.
Argument number_of(Graph& graph, const at::Tensor& tensor);

// Describes a value as the fake is now, in `storage`. The spans are the fake's: use them before that changes.
TensorMeta spec_of(const FakeTensorImpl& fake, StorageId storage);
TensorMeta spec_of(const at::Tensor& fake, StorageId storage);

// Describes the fake's storage as a temporary that `born` made.
Storage storage_of(const FakeTensorImpl& fake, NodeId born);
Storage storage_of(const at::Tensor& fake, NodeId born);

}  // namespace shadowgraph
