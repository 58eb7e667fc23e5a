// A graph as C++ with kernels in it: emit_cpp, with groups of nodes written as the loops that a back end would compile.
//
//     const auto groups = group_kernels(graph);                 // perhaps measured by some runs of an Interpreter
//     write_code(emit_cpp_with_kernels(graph, *groups, {.name = "gpt2_step"}), "out");
//
// Beside emit_cpp's files come NAME_kernels.cpp, loops that include nothing, and NAME_kernels.h, which calls them on
// tensors; NAME.cpp calls that. All of it needs libtorch alone: no library of shadowgraph, no cache, no compiler at run
// time. CMakeLists.txt compiles the loops for the processor that builds them (NAME_KERNEL_FLAGS), so build where it runs.
// Groups that were measured and are slower than their nodes stay nodes. So do those that write in place and give more
// results besides. All others are kernels.
//
// Tensors that one call writes must not overlap others that it is given, unless they do in the graph: such a call throws
// std::invalid_argument. Plain replay and emit_cpp without kernels run it as eager does.
#pragma once

#include "shadowgraph/codegen.h"
#include "shadowgraph/kernels/groups.h"

namespace SHADOWGRAPH_API shadowgraph {

// `groups` were made for this graph. Throws CodegenError as emit_cpp does, and for `autograd`, `device` and `only`, which
// kernels have not.
GeneratedCode emit_cpp_with_kernels(const Graph& graph, const KernelGroups& groups, const CodegenOptions& options = {});

}  // namespace shadowgraph
