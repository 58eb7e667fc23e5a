// Declares what the classes of operators in operator_classes.cpp and view_classes.cpp have in common.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/rules/node_factors.h"

namespace shadowgraph {

struct ClassRow {
  std::string_view word;  // in a rule
  ClassBuilder build;
};
std::span<const ClassRow> view_classes();

// Returns a dimension as counted from the front.
size_t wrapped(int64_t dim, size_t rank);
// Returns the operand of a view and its like.
TensorFactors& self_of(FactorBuilder& b);
// Gives each dimension a factor of its own: d0, d1, ...
void name_dims(FactorBuilder& b, TensorFactors& tensor);
// Lets partial values of every kind pass from argument to result: the operator only moves elements about.
void passes_partial(FactorBuilder& b, const std::string& argument);
void view_passes_partial(FactorBuilder& b);
// Returns the strides of the first result, or of the first operand.
std::vector<int64_t> strides_of(FactorBuilder& b, bool of_result);
// Gives the tensor's dimensions, counted from the right, the factors of `whole`, except where they have size 1.
void broadcast_to(TensorFactors& tensor, const TensorFactors& whole);

}  // namespace shadowgraph
