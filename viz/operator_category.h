// What kind of work an operator is: what a picture colours by.
//
// The first that applies: the graph's own nodes are placeholders; nodes of phase optimizer are optimizer; then by name
// and by the cost tables (profiler/flop_table.h, profiler/elementwise_table.h), so that an operator with a cost has a
// colour.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "ir/graph.h"

namespace shadowgraph {

enum class OperatorCategory : uint8_t {
  kMatmul,  // matrix products, convolutions, recurrent layers
  kAttention,
  kNorm,
  kActivation,  // softmax included
  kPooling,     // and resampling
  kElementwise,
  kReduction,  // losses included
  kRandom,     // dropout included
  kView,
  kCopy,  // copies, casts, fills, gathers, scatters
  kOptimizer,
  kPlaceholder,  // inputs, parameters, outputs
  kModule,       // a collapsed module
  kOther,        // no rule knows it
};

struct CategoryStyle {
  OperatorCategory category;
  std::string_view name;  // in the legend
  std::string_view fill;  // "#rrggbb", dark text is readable on it
};
std::span<const CategoryStyle> category_styles();
const CategoryStyle& style_of(OperatorCategory category);

OperatorCategory category_of(const Graph& graph, NodeId node);
OperatorCategory category_of(const Target& target);

}  // namespace shadowgraph
