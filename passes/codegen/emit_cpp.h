// A graph, or the slice of it that some values need, as C++ that needs libtorch and nothing else.
//
//     GeneratedCode code = emit_cpp(graph, {.name = "gpt2_step"});
//     write_code(code, "out");      // gpt2_step.cpp, gpt2_step.h, CMakeLists.txt, perhaps gpt2_step_constants.pt
//
// gpt2_step.cpp stands alone; gpt2_step.h declares the same for callers:
//
//     namespace gpt2_step {
//     struct Inputs { at::Tensor transformer_wte_weight; ... };
//     struct Outputs { at::Tensor output0; at::Tensor gradient_of_transformer_wte_weight; ... };
//     Outputs run(Inputs in, std::optional<at::Generator> generator = std::nullopt);
//     std::map<std::string, at::Tensor> run_by_name(const std::map<std::string, at::Tensor>& tensors, ...);
//     }
//
// The code calls the operators of the graph in its order, so it gives bit for bit what the program gave; what is written
// in place (parameters in an optimizer step) is written in the tensors that are given. docs/codegen.md tells the rest.
//
// Throws CodegenError for what has no C++ form (functions that nothing describes, objects that a graph does not hold, constants
// whose contents are gone), naming the node; and for `autograd` on a graph with a backward. Linear in the graph.
#pragma once

#include "passes/codegen/codegen.h"

namespace shadowgraph {

GeneratedCode emit_cpp(const Graph& graph, const CodegenOptions& options = {});

}  // namespace shadowgraph
