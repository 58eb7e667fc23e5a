// Products of linear layers in float8, as torchao and TransformerEngine train with them.
//
//     const Float8Result done = float8_products(graph);     // done.products, done.left
//
// Each operand is divided by its largest element, cast, and multiplied by aten::_scaled_mm, whose result has the dtype
// that it had:
//
//     %3 = aten::mm(self=%x, mat2=%w)
//
//     %x8 = x / scale as float8, scale = max|x| / 448      likewise %w8
//     %3 = aten::_scaled_mm(self=%x8, mat2=%w8, scale_a=.., scale_b=.., out_dtype=bf16, use_fast_accum=True)
//
// Parameters and activations become e4m3, gradients e5m2. Kernels read rows of the left operand and columns of the
// right one, so what lies otherwise is cast and turned. A tensor of several products is cast once. Backward reads what
// forward cast of an activation, which is then kept in place of the activation; weights are cast again.
//
// Casts carry the note "kernel"="compiled": time models price them as kernels that a compiler or TransformerEngine
// makes. Eager PyTorch's own division into another dtype takes four times as long on an H100 (docs/time.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace shadowgraph {

struct Float8Options {
  std::string except = "lm_head,*.lm_head,output";  // modules, by patterns of their paths

  static OptionTable<Float8Options> table() {
    return OptionTable<Float8Options>().add("except", &Float8Options::except,
                                            "modules to leave unchanged: 'lm_head,layers.0.*'");
  }
};

struct Float8Result {
  int64_t products = 0;                 // in float8
  int64_t casts = 0;                    // of operands; turned ones count again
  std::map<std::string, int64_t> left;  // products of parameters that stay, by reason
  PassResult summary() const;
};

// Products with a parameter, and those of their gradients. Linear.
Float8Result float8_products(Graph& graph, const Float8Options& options = {});

}  // namespace shadowgraph
