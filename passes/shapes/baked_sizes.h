// Finds recorded sizes that stand as numbers in a graph's arguments, although the size they were taken from is another
// now. Internal to shape propagation.
//
// It looks at arguments that mean a size by their name (size, end, split_size, ...). It also looks at numbers that
// equal a changed size of a placeholder. So it does at products of neighbouring sizes with one in them, as flattening
// makes them:
//
//     x: [8, 64] -> [16, 64]     view(size=[8, 4, 16])    8 is size 0 of x
//                                view(size=[512])         512 is sizes 0 to 1 of x
#pragma once

#include <unordered_map>

#include "shadowgraph/passes/shape_propagation.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

class BakedSizes {
 public:
  explicit BakedSizes(const Graph& graph) : graph_(graph) {}

  // A placeholder's sizes, recorded and now.
  void add_input(const std::string& name, std::span<const int64_t> recorded, std::span<const int64_t> now);
  bool empty() const { return changed_.empty(); }

  // Appends what stands in one node.
  void find(NodeId node, std::vector<BakedSize>& found) const;
  // In `node`, otherwise in the nearest nodes that its operands come from.
  std::vector<BakedSize> find_at_or_above(NodeId node) const;

 private:
  struct Changed {
    std::string dimension;
    int64_t now = 0;
  };
  void look_at(NodeId node, const std::string& argument, int64_t number, std::vector<BakedSize>& found) const;

  const Graph& graph_;
  std::unordered_map<int64_t, Changed> changed_;  // by the recorded number
};

// One line: node, argument, number, and what it was.
std::string to_text(const Graph& graph, const BakedSize& baked, const Numbering& numbering);

}  // namespace shadowgraph
