// What tensors are that a captured program makes itself: for captures around a whole program.
//
//     CaptureSession session;
//     auto net = std::make_shared<Net>();          // its parameters are born in the graph
//     session.name_module(*net);                   // and are parameters there; what made them is phase "init"
//     net->forward(x).backward();
//     mark_gradient(net->weight.grad());           // the program drops it before the capture ends
#pragma once

#include <ATen/core/Tensor.h>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

// Says that the tensor is a parameter's gradient, in the capture of this thread. What is a gradient at its end, it knows.
void mark_gradient(const at::Tensor& gradient);
// The same of what an optimizer keeps between steps.
void mark_optimizer_state(const at::Tensor& state);

}  // namespace shadowgraph
