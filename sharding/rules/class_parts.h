// What classes of operators (operator_classes.cpp, view_classes.cpp) have in common.
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

// A dimension counted from the front.
size_t wrapped(int64_t dim, size_t rank);
// The operand of a view and its like.
TensorFactors& self_of(FactorBuilder& b);
// One factor a dimension: d0, d1, ...
void name_dims(FactorBuilder& b, TensorFactors& tensor);
// Partial values of all kinds are those of what moves elements about.
void passes_partial(FactorBuilder& b, const std::string& argument);
void view_passes_partial(FactorBuilder& b);
// Of the first result, or of the first operand.
std::vector<int64_t> strides_of(FactorBuilder& b, bool of_result);
// Dimensions from the right are those of `whole`, where they are not 1.
void broadcast_to(TensorFactors& tensor, const TensorFactors& whole);

}  // namespace shadowgraph
