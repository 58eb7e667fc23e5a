// Summary of the library's support for an operator: one row per table that may have an entry, with its source location.
//
//     for (const OperatorSupport& card : operator_support("aten::gelu")) std::cout << to_text(card);
//
//     aten::gelu(Tensor self, *, str approximate="none") -> Tensor
//       shape rule        built in                                      core/fake/rules/elementwise.cpp:340
//       decomposition   - none: the pass `decompose` leaves it
//       ...
//
// Read from the tables themselves, without separate data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct OperatorSupport {
  struct Row {
    std::string table;  // "shape rule"
    std::string entry;  // the table's entry for the operator; if missing, the consequence
    // Source file, with line if known: "core/fake/rules/elementwise.cpp:340". "" for libtorch and the program.
    std::string place;
    bool missing = false;  // the table has no entry
  };
  std::string name;    // with overload: "aten::add.Tensor"
  std::string schema;  // "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
  std::vector<Row> rows;

  // Returns the names of all tables, in the order of the rows. Every card has a row for each.
  static std::span<const std::string_view> tables();
  const Row& row(std::string_view table) const;  // throws Error if there is no such table
};

// Returns the cards of all matching overloads, sorted: all for "aten::add", one for "aten::add.Tensor". Throws Error
// with a similar name if this process has no such operator. Thread-safe.
std::vector<OperatorSupport> operator_support(std::string_view name);

std::string to_text(const OperatorSupport& card);
// {"name": .., "schema": .., "rows": [{"table": .., "entry": .., "place": .., "missing": false}, ..]} for each.
std::string to_json(std::span<const OperatorSupport> cards);

// Categories of operators, used to color pictures.
//
// The first rule that applies: nodes with sg:: targets are placeholders; nodes of phase optimizer are optimizer; others
// are classified by name and by the cost tables (profiler/cost/flop_table.h, profiler/cost/elementwise_table.h).

enum class OperatorCategory : uint8_t {
  kMatmul,  // matrix products, convolutions, recurrent layers
  kAttention,
  kNorm,
  kActivation,  // including softmax
  kPooling,     // and resampling
  kElementwise,
  kReduction,  // including losses
  kRandom,     // including dropout
  kView,
  kCopy,  // copies, casts, fills, gathers, scatters
  kOptimizer,
  kPlaceholder,  // inputs, parameters, outputs
  kModule,       // a collapsed module
  kOther,        // none of the above
};

struct CategoryStyle {
  OperatorCategory category;
  std::string_view name;  // in the legend
  std::string_view fill;  // "#rrggbb", suitable for dark text
};
std::span<const CategoryStyle> category_styles();
const CategoryStyle& style_of(OperatorCategory category);

OperatorCategory category_of(const Graph& graph, NodeId node);
OperatorCategory category_of(const Target& target);

}  // namespace shadowgraph
