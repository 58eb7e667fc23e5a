// Decides when two parts of a program do the same. find-repeats, the layers that a picture folds and the rows that a
// summary folds all go by this.
//
// A block is some nodes in program order. Two are the same if, node by node,
//
//     they call the same target in the same phase, with the same constants,
//     they take values of the same types from the same places: result r of the block's i-th node, or the k-th value from
//     outside of it, counted in the order in which those first appear (add(x, x) is not add(x, y)),
//     and they give results of the same types.
//
// Types are dtype, sizes, strides, device and layout. Names, storages, lifetimes, and which outside value it is do not
// count: layers have parameters of their own. Blocks are compared by a 64-bit hash.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "shadowgraph/graph.h"

namespace shadowgraph {

class BlockHashes {
 public:
  // One walk over the graph, which must outlive this, unchanged.
  explicit BlockHashes(const Graph& graph);

  // Returns a node's hash without the places of its operands: equal nodes of equal blocks have equal ones.
  uint64_t of_node(NodeId node) const { return of_node_[node.index]; }

  // Linear in the block. `label` is one more thing that must agree node by node (where in a module a node lies).
  // `origin` says which value an operand counts as (a picture looks through views that it does not draw).
  uint64_t of(
      std::span<const NodeId> block, c10::function_ref<uint64_t(NodeId)> label = [](NodeId) { return uint64_t{0}; },
      c10::function_ref<ValueId(ValueId)> origin = [](ValueId v) { return v; });

 private:
  const Graph& graph_;
  std::vector<uint64_t> of_node_;
  // By node and value: for which block it was last seen, and as which of its nodes or outside values.
  struct Seen {
    uint32_t block = 0;
    uint32_t number = 0;
  };
  std::vector<Seen> nodes_;
  std::vector<Seen> values_;
  uint32_t block_ = 0;
};

// A module among its siblings.
struct Sibling {
  std::string_view name;        // its own: "0", "attention"
  std::string_view class_name;  // "" if unknown
  uint32_t call = 0;            // which call of that name
};

// Returns one past the last of the siblings from `first` on that repeat the first. They are of one class, one apart by
// number ("3", "4") or by call, all in the same direction (backward meets layers last to first). They have the same
// content, by its hash.
size_t end_of_run(std::span<const Sibling> siblings, size_t first, c10::function_ref<uint64_t(size_t)> content);

}  // namespace shadowgraph
