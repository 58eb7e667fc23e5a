// A graph, or the slice of it that some values need, as Python over torch.ops.
//
//     GeneratedCode code = emit_python(graph, {.name = "gpt2_step"});      // gpt2_step.py, perhaps gpt2_step_constants.pt
//
//     import gpt2_step
//     outputs = gpt2_step.forward(tensors)        # {"transformer.wte.weight": tensor, ..., "input_ids": tensor}
//     outputs["output0"], outputs["gradient.transformer.wte.weight"]
//
// The same operators in the same order as emit_cpp, with the same functions and names, so the same bits. Throws
// CodegenError as emit_cpp does.
#pragma once

#include "passes/codegen/codegen.h"

namespace shadowgraph {

GeneratedCode emit_python(const Graph& graph, const CodegenOptions& options = {});

}  // namespace shadowgraph
