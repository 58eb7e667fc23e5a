// What differs between two graphs, node by node: which nodes went, came or changed.
//
//     const GraphDiff diff = GraphDiff::run(before, after);
//     std::cout << to_text(diff, before, after);
//
//     @@ n12, n12 @@
//     - n12: %12 = aten::add.Tensor(self=%10, other=%11) : f32[4,8] @s9
//     + n12: %12 = aten::add.Tensor(self=%10, other=%11, alpha=2) : f32[4,8] @s9
//     @@ n40, n39 @@
//     - n40: %41 = aten::t(self=%3) : f32[8,4]{1,8} @s2
//
// Nodes are aligned by what they are by themselves: operator, constants, types of operands and results, phase. Then
// those that agree are compared in all that is printed of them, operands by the node that makes them. So renumbering is no
// difference, and one inserted node is one difference.
//
// Myers' O(N D) algorithm (An O(ND) Difference Algorithm and Its Variations, 1986): linear when little differs. Where more
// than kMaxEdits differences lie together, the alignment goes on from the best point found, so that it costs at most
// kMaxEdits steps a node, and may then report more than the least.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace shadowgraph {

class GraphDiff {
 public:
  static constexpr int kMaxEdits = 256;

  struct Change {
    NodeId before;     // invalid: was added
    NodeId after;      // invalid: was removed
    std::string what;  // of two that are otherwise the same: "operand 1", "its region"; empty: printed side by side
  };
  static GraphDiff run(const Graph& before, const Graph& after);

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
