// Whether a graph is well formed, and whether or how two of them differ.
//
// Pipelines verify between passes, readers of files after parsing, and tests after each edit. Each function takes one
// walk over its graphs; GraphDiff stays linear even where two graphs have nothing in common.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// What a well-formed graph is. The rules:
//
//   1  links        The node list is consistent: first, last, previous and next agree, every live node is in it once,
//                   Graph::is_before follows it.
//   2  references   Every id and every run in a node, value, storage or region is in range.
//   3  order        Every value used has a live producer earlier in program order.
//   4  uses         The lists of uses hold exactly the uses that arguments make, in both directions.
//   5  results      Every result's value names the node as its producer, and no value is a result twice.
//   6  arguments    As many as the schema has, each of a kind that its type allows: None for optionals and for tensors
//                   (an undefined tensor, as autograd passes them), numbers for tensors (as
//                   the C++ API wraps them), lists element by element, nested at most
//                   kMaxListDepth deep.
//   7  returns      Results are as many, and of the kinds, that the schema returns (none recorded at all is allowed).
//   8  storage      A tensor value's storage exists; its device is that of the value; bytes are not negative.
//   9  extent       A strided value fits into its storage: (offset + sum((size - 1) * stride) + 1) * itemsize <= bytes.
//                   Sizes, strides and offset are not negative. A value without elements fits anywhere.
//  10  alias        A result that the schema says aliases an argument has a storage of that argument (unless
//                   ir/operators says it may be fresh). So in-place results share their self's storage.
//  11  lifetime     A storage is used neither before the node where it was born nor after the one it was freed after.
//  12  regions      Regions form a tree: parents have smaller indices, r0 alone has none; composite regions' arguments
//                   are none or as many as their operator has.
//  13  placeholders sg::parameter, sg::buffer, sg::input and sg::constant come before everything else.
//  14  output       At most one sg::output; only it and sg::gradient come last.
//  15  forward      A backward link points to an earlier node. (A link to an erased node counts as none.)
//  16  saved        A tensor saved as an argument or result is, or shares the storage of, that argument or result.
//  17  frees        A storage is listed as freed by the node that it says it was freed after, once, and vice versa.
//
// Rules 6, 7 and 10 read the schema, so they hold for operators that this process does not have.
// About 0.5 us a node; linear. Never crashes, however broken the graph is.

enum class Rule : uint8_t {
  kLinks = 1,
  kReferences,
  kOrder,
  kUses,
  kResults,
  kArguments,
  kReturns,
  kStorage,
  kExtent,
  kAlias,
  kLifetime,
  kRegions,
  kPlaceholders,
  kOutput,
  kForward,
  kSaved,
  kFrees,
};
constexpr auto enum_names(Rule) {
  return names_in_order<Rule, Rule::kLinks>("links", "references", "order", "uses", "results", "arguments", "returns",
                                            "storage", "extent", "alias", "lifetime", "regions", "placeholders",
                                            "output", "forward", "saved", "frees");
}

struct Violation {
  Rule rule;
  NodeId node;          // invalid if it is about none
  std::string message;  // what is wrong, and the node as text
};

// All of them, in program order as far as they belong to nodes.
std::vector<Violation> violations(const Graph& graph);

// Throws GraphError that lists them all.
void verify(const Graph& graph);

// ---------------------------------------------------------------------------------------------------------------------
// Whether two graphs say the same: all that the text form holds, whatever their ids, pools and interning orders are.
//
//     if (auto difference = first_difference(before, after)) FAIL() << *difference;
//
// The comparison goes by canonical numbers (Numbering): nodes in order with all their attributes and notes, values,
// storages with birth and death, regions, metadata, guards. Tensor constants are compared bit by bit. NaNs are
// compared by bits, -0.0 is not 0.0, an unset string is "". Not compared are the order in lists of uses, erased nodes
// and what only they used, which are no part of the content. Constants without readable contents (meta, sparse) count
// as equal.

// Empty if equal, otherwise a sentence that names the place, with both versions of it. Linear.
std::optional<std::string> first_difference(const Graph& a, const Graph& b);

// ---------------------------------------------------------------------------------------------------------------------
// What differs between two graphs, node by node: which nodes went, came or changed.
//
//     const GraphDiff diff = GraphDiff::of(before, after);
//     std::cout << to_text(diff, before, after);
//
//     @@ n12, n12 @@
//     - n12: %12 = aten::add.Tensor(self=%10, other=%11) : f32[4,8] @s9
//     + n12: %12 = aten::add.Tensor(self=%10, other=%11, alpha=2) : f32[4,8] @s9
//     @@ n40, n39 @@
//     - n40: %41 = aten::t(self=%3) : f32[8,4]{1,8} @s2
//
// Nodes are aligned by what they are by themselves: operator, constants, types of operands and results, phase. Then
// those that agree are compared in all that is printed of them, operands by the node that makes them. So renumbering is
// no difference, and one inserted node is one difference.
//
// Myers' O(N D) algorithm (An O(ND) Difference Algorithm and Its Variations, 1986) is linear when little differs. Where
// more than kMaxEdits differences lie together, the alignment goes on from the best point found. It then costs at most
// kMaxEdits steps a node, and may report more than the least.

class GraphDiff {
 public:
  static constexpr int kMaxEdits = 256;

  struct Change {
    NodeId before;     // invalid: was added
    NodeId after;      // invalid: was removed
    std::string what;  // of two that are otherwise the same: "operand 1", "its region"; empty: printed side by side
  };
  static GraphDiff of(const Graph& before, const Graph& after);

  bool empty() const { return changes.empty() && !elsewhere; }

  std::vector<Change> changes;  // in program order
  size_t same = 0;              // nodes that did not change
  size_t removed = 0, added = 0, changed = 0;
  // A difference that no node shows: storages, regions, metadata, constants, order in lists. From first_difference().
  std::optional<std::string> elsewhere;
};

// At most `limit` changes (0: all), and how many there are.
std::string to_text(const GraphDiff& diff, const Graph& before, const Graph& after, size_t limit = 200);

}  // namespace shadowgraph
