// Arguments that mean the same, written the same. Internal to passes/simplify.
//
//     dim=-1 -> dim=1; view size [-1, 8] -> [4, 8]; slice bounds clipped to the size; alpha=1.0 -> 1
#pragma once

#include <string_view>

#include "shadowgraph/graph.h"

namespace shadowgraph {

struct DimensionRow;

// Which of an operator's arguments can be written in several ways.
struct ArgumentForm {
  const DimensionRow* dimensions = nullptr;
  bool sized = false;
  bool slice = false;
  bool alpha = false;
};
ArgumentForm argument_form_of(std::string_view target);

// Returns whether it changed an argument.
bool canonicalize_arguments(Graph& graph, NodeId node, const ArgumentForm& form);

}  // namespace shadowgraph
