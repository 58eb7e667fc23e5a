// What is known of one operator: a row for each table that may say something about it, with where that stands.
//
//     for (const OperatorCard& card : operator_cards("aten::gelu")) std::cout << to_text(card);
//
//     aten::gelu(Tensor self, *, str approximate="none") -> Tensor
//       shape rule        its own                                       core/fake/rules/elementwise.cpp:340
//       decomposition   - none: the pass `decompose` leaves it
//       ...
//
// The tables stay where they are; nothing is said here that they do not answer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct OperatorCard {
  struct Row {
    std::string table;  // "shape rule"
    std::string says;   // what it says, or what happens without it
    // A file of the source tree, with a line where one is known: "core/fake/rules/elementwise.cpp:340". "" for what
    // stands in libtorch (schemas, Meta kernels) or was registered by the program.
    std::string place;
    bool missing = false;  // the table has nothing
  };
  std::string name;    // with overload: "aten::add.Tensor"
  std::string schema;  // "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
  std::vector<Row> rows;

  // The tables, in the order of the rows. Every card has a row for each.
  static std::span<const std::string_view> tables();
  const Row& row(std::string_view table) const;  // throws Error for a table that is none
};

// Returns the cards of the overloads that a name stands for, by overload: all of "aten::add", the one of
// "aten::add.Tensor". Throws Error for a name that no operator of this process has, with one that is near. Thread-safe.
std::vector<OperatorCard> operator_cards(std::string_view name);

std::string to_text(const OperatorCard& card);
// {"name": .., "schema": .., "rows": [{"table": .., "says": .., "place": .., "missing": false}, ..]} for each.
std::string to_json(std::span<const OperatorCard> cards);

// ---------------------------------------------------------------------------------------------------------------------
// What kind of work an operator is: what a picture colours by.
//
// The first that applies counts. The graph's own nodes are placeholders; nodes of phase optimizer are optimizer. Others
// go by name and by the cost tables (profiler/cost/flop_table.h, profiler/cost/elementwise_table.h), so that an
// operator with a cost has a colour.

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
