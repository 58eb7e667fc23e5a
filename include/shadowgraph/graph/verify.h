// Graph verification, and comparison of two graphs. Each function is linear in its graphs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

// Verifier rules of a well-formed graph:
//
//   1  links        The node list is consistent: first, last, previous and next agree, every live node is in it once,
//                   Graph::is_before follows it.
//   2  references   Every id and every run in a node, value, storage or region is in range.
//   3  order        Every operand has a live producer earlier in program order.
//   4  uses         Use lists and arguments agree in both directions.
//   5  results      Every result names the node as its producer, and no value is a result twice.
//   6  arguments    As many as in the schema, each of a kind that its type allows. None is allowed for optionals and
//                   for tensors (undefined tensors, as autograd passes them), numbers for tensors (as the C++ API wraps
//                   them). Lists are checked by element and nest at most kMaxListDepth deep.
//   7  returns      As many, and of the same kinds, as in the schema (or none recorded at all).
//   8  storage      A tensor value's storage exists and is on the value's device; bytes are not negative.
//   9  extent       A strided value fits into its storage: (offset + sum((size - 1) * stride) + 1) * itemsize <= bytes.
//                   Sizes, strides and offset are not negative. A value without elements always fits.
//  10  alias        A result that aliases an argument by the schema has a storage of that argument (unless ir/operators
//                   permits a new tensor). In particular, in-place results share the storage of self.
//  11  lifetime     A storage is not used before the node that allocates it or after the one that frees it.
//  12  regions      Regions form a tree: parents have smaller indices, and only r0 has no parent. Composite regions
//                   have no arguments or as many as their operator.
//  13  placeholders sg::parameter, sg::buffer, sg::input and sg::constant precede all other nodes.
//  14  output       There is at most one sg::output; only it and sg::gradient come last.
//  15  forward      A backward link refers to an earlier node. (A link to an erased node counts as none.)
//  16  saved        A tensor saved as an argument or result is, or shares the storage of, that argument or result.
//  17  frees        A storage is in the free list of its `freed_after` node exactly once, and in no other.
//
// Rules 6, 7 and 10 use the recorded schema, so they also cover operators that are not registered in this process.
// Linear, about 0.5 us a node. Never crashes, even on a corrupt graph.
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
  NodeId node;          // invalid if not specific to a node
  std::string message;  // description of the violation, and the node as text
};

// Returns all violations; those of nodes are in program order.
std::vector<Violation> violations(const Graph& graph);

// Throws GraphError that lists all violations.
void verify(const Graph& graph);

// Structural equality of two graphs: compares everything in the text form, regardless of ids and interning.
//
// Entities are matched by canonical number (Numbering): nodes in order with all attributes and notes, values, storages
// with lifetimes, regions, metadata, guards. Tensor constants are compared bitwise, including NaNs (so -0.0 differs
// from 0.0). Erased nodes are ignored. Constants whose contents cannot be read (meta, sparse) compare equal.
//
// Returns std::nullopt if equal, otherwise a description of the first difference with both versions. Linear.
std::optional<std::string> first_difference(const Graph& a, const Graph& b);

// Difference of two graphs, node by node: removed, added and changed nodes.
//
//     @@ n12, n12 @@
//     - n12: %12 = aten::add.Tensor(self=%10, other=%11) : f32[4,8] @s9
//     + n12: %12 = aten::add.Tensor(self=%10, other=%11, alpha=2) : f32[4,8] @s9
//     @@ n40, n39 @@
//     - n40: %41 = aten::t(self=%3) : f32[8,4]{1,8} @s2
//
// Nodes are first aligned by operator, constants, types of operands and results, and phase. Aligned nodes are then
// compared in all printed attributes, operands by producer. So renumbering is no difference, and an insertion is one.
//
// Uses Myers' O(N D) algorithm (1986). Where more than kMaxEdits differences are adjacent, the alignment continues from
// the best point found: the cost is then at most kMaxEdits steps a node, and the result may not be minimal.
class GraphDiff {
 public:
  static constexpr int kMaxEdits = 256;

  struct Change {
    NodeId before;     // invalid: added
    NodeId after;      // invalid: removed
    std::string what;  // changed part of two aligned nodes: "operand 1", "its region"; empty: both are printed
  };
  static GraphDiff of(const Graph& before, const Graph& after);

  bool empty() const { return changes.empty() && !elsewhere; }

  std::vector<Change> changes;  // in program order
  size_t same = 0;              // number of unchanged nodes
  size_t removed = 0, added = 0, changed = 0;
  // A difference outside of nodes: storages, regions, metadata, constants, list order. From first_difference().
  std::optional<std::string> elsewhere;
};

// Returns at most `limit` changes (0: all) and their total number.
std::string to_text(const GraphDiff& diff, const Graph& before, const Graph& after, size_t limit = 200);

}  // namespace shadowgraph
