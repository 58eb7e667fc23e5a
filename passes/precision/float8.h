// Runs the matrix products of linear layers in float8, as torchao and TransformerEngine do in training.
//
//     const Float8Result done = float8_products(graph);     // done.products, done.left
//
// Each operand is scaled by its largest element, cast, and multiplied by aten::_scaled_mm, in the original dtype:
//
//     %3 = aten::mm(self=%x, mat2=%w)
//
//     %x8 = x / scale as float8, scale = max|x| / 448      likewise %w8
//     %3 = aten::_scaled_mm(self=%x8, mat2=%w8, scale_a=.., scale_b=.., out_dtype=bf16, use_fast_accum=True)
//
// Parameters and activations use e4m3, gradients e5m2. Kernels need the left operand row-major and the right one
// column-major; others are transposed after the cast. A tensor used by several products is cast once. Backward reuses
// forward's cast of an activation, which is saved instead of the activation; weights are cast again.
//
// Casts carry the note "kernel"="compiled": time models treat them as fused kernels, such as a compiler's or
// TransformerEngine's. Eager PyTorch's division followed by a cast takes four times as long on an H100 (docs/time.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace shadowgraph {

struct Float8Options {
  std::string except = "lm_head,*.lm_head,output";  // modules, by path patterns

  static OptionTable<Float8Options> table() {
    return OptionTable<Float8Options>().add("except", &Float8Options::except,
                                            "Modules to exclude, such as 'lm_head,layers.0.*'");
  }
};

struct Float8Result {
  int64_t products = 0;                 // in float8
  int64_t casts = 0;                    // of operands, transposed copies included
  std::map<std::string, int64_t> left;  // products of parameters that are kept, by reason
  PassResult summary() const;
};

// Converts products with a parameter and the products of their gradients. Linear.
Float8Result float8_products(Graph& graph, const Float8Options& options = {});

}  // namespace shadowgraph
