// The reverse of functionalize: writes to memory that nobody needs any more, instead of new memory.
//
//     %1 = aten::mul.Tensor(self=%0, other=%9)         %1 = aten::mul.Tensor(self=%0, other=%9)
//     %2 = aten::relu(self=%1)                         %2 = aten::relu_(self=%1)
//     %3 = aten::slice_scatter(self=%2, src=%7, ...)   %3 = aten::slice.Tensor(self=%2, ...)
//                                                      %4 = aten::copy_(self=%3, src=%7)
//
// An operator is run in place if its in-place form exists (passes/functional_form.h), its result is laid out like the operand
// that it would overwrite, and nothing reads that operand's storage afterwards, by whatever view. Scatters become a write
// through the view, or, if what they scatter is computed from that very place, the computation itself in place. A parameter
// that an epilogue overwrites as a whole (aten::copy_) is such memory, too: an optimizer step is in place again.
//
// Bitwise the same results, the same aliasing of what the program returns, the same final contents; fewer bytes. What the
// caller gave is not written unless the graph writes it back anyway. Tensors that autograd keeps are not overwritten before
// the backward that reads them. Linear.
#pragma once

#include "passes/pass.h"

namespace shadowgraph {

struct ReinplaceResult {
  bool changed = false;
  int64_t operators = 0;    // nodes that run in place now
  int64_t scatters = 0;     // scatters that became writes through a view, or vanished
  int64_t write_backs = 0;  // copies of the epilogue that are not needed any more
};

ReinplaceResult reinplace(Graph& graph);

// The registry's row.
PassResult reinplace_pass(Graph& graph, const PassOptions& options);

}  // namespace shadowgraph
