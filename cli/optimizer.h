// PyTorch's optimizers with their defaults on CUDA, foreach=True.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "cli/source.h"

namespace shadowgraph::cli {

// Returns the optimizer of a request for its parameters; frozen and repeated ones are left out. With `request.foreach`
// and on CUDA it steps all parameters at once, as torch.optim does by default there: its temporaries are those of all
// parameters. Otherwise it is libtorch's, which steps one after another, as torch.optim with foreach=False.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const CaptureRequest& request, Tensors parameters);

}  // namespace shadowgraph::cli
