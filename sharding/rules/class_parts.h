// Steps that classes of operators take to write their factors. A class is code in place of a pattern. A rule that says
// `reshape`, `cat` or `matmul` names no dimensions, since these follow from the call's sizes and lists.
//
// operator_classes.cpp has the table of classes, and view_classes.cpp those that only move elements. A builder fills
// the FactorBuilder of one call, and throws Misfit where the call is none that its class can be. The call then counts
// as one without a rule.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/rules/node_factors.h"

namespace shadowgraph {

struct ClassRow {
  std::string_view word;  // as a rule names it: "reshape"
  ClassBuilder build;
};
std::span<const ClassRow> view_classes();

// Returns a dimension that may be counted from the back (-1: the last) as counted from the front. Throws Misfit beyond
// the rank; a tensor without dimensions has dimension 0, as in PyTorch.
size_t wrapped(int64_t dim, size_t rank);
// Returns the first tensor among the operands, of which a view is taken. Throws Misfit without one.
TensorFactors& self_of(FactorBuilder& b);
// Gives each dimension that has no factor yet one of its own: d0, d1, ...
void name_dims(FactorBuilder& b, TensorFactors& tensor);
// Lets partial values of every kind pass from an argument to the results. That is right for operators that only move
// elements: wherever one goes, it stays a part of the same sum or maximum.
void passes_partial(FactorBuilder& b, const std::string& argument);
// Does the same for the operand of a view.
void view_passes_partial(FactorBuilder& b);
// Returns the strides of the first result, or else of the first operand.
std::vector<int64_t> strides_of(FactorBuilder& b, bool of_result);
// Gives the tensor's dimensions, counted from the right, the factors of `whole`. Those of size 1 get none: every device
// needs them, wherever `whole` is cut.
void broadcast_to(TensorFactors& tensor, const TensorFactors& whole);

}  // namespace shadowgraph
