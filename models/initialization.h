// The starting weights that the language models share.
#pragma once

#include <torch/nn/module.h>

namespace shadowgraph::models {

// In every Linear and Embedding below `root`: weights normal with mean 0 and `deviation`, biases zero, an embedding's
// padding row zero. Writes only, reads no data. May be called in the constructor of `root`.
void normal_linear_and_embedding_(torch::nn::Module& root, double deviation);

}  // namespace shadowgraph::models
