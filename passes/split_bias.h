// Bias-addition split: what adds a bias in one operator becomes the product and the addition by itself.
//
//     addmm(bias, x, w)                 mm(x, w), add(bias)
//     convolution(x, w, bias, ...)      convolution(x, w, None, ...), add(bias as [C, 1, 1])
//     addbmm(self, a, b)                bmm(a, b), sum over the batch, add(self)
//
// With beta and alpha as the operator has them: beta * self + alpha * product; with beta = 0 the addend is not read, so
// that NaN in it stays there. aten::linear with a bias is an addmm, or a product and an addition, in any capture. A
// solver that splits the product over devices reduces the partial sums first and adds the bias once: that is what this
// is for (ColossalAI's bias_addition_split). Backward nodes stay as they are: a bias' gradient is a sum of its own
// already. Values equal within rounding (an addition fused into a product rounds once); integers bitwise.
#pragma once

#include "ir/graph.h"
#include "passes/pass.h"

namespace shadowgraph {

// How many nodes were split.
int64_t split_bias(Graph& graph);

PassResult split_bias_pass(Graph& graph, const PassOptions& options);

}  // namespace shadowgraph
