// The table of decompositions: operators as functions of more basic ones. Internal to `decompose` and `split-bias`.
//
// A row is a C++ function with the operator's signature and its line in one of the add_* functions; see
// passes/decompose/expansion.h. Equal to the operator within rounding unless a comment says bitwise. In half precision
// they compute in float, as the kernels do.
#pragma once

#include <ATen/core/Tensor.h>

#include "passes/decompose/expansion.h"

namespace shadowgraph::decompositions {

// x times alpha, or x itself if alpha is one.
at::Tensor scaled(const at::Tensor& x, const at::Scalar& alpha);
// float for half precision, otherwise itself.
at::Tensor computed_in(const at::Tensor& x);

void add_matrix_products(ExpansionTable& table);  // addmm, addmv, addbmm, baddbmm, addr: product, scale, add
void add_convolution_bias(ExpansionTable& table);
void add_pointwise(ExpansionTable& table);
void add_softmax(ExpansionTable& table);
void add_views(ExpansionTable& table);
void add_normalization(ExpansionTable& table);
void add_embedding_and_loss(ExpansionTable& table);
void add_attention(ExpansionTable& table);
void add_foreach_and_fused(ExpansionTable& table);

// All of them but add_convolution_bias.
const ExpansionTable& all();

}  // namespace shadowgraph::decompositions
