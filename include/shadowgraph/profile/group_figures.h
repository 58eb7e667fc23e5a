// What a group of nodes costs: the figures behind the module tree and the summary table.
//
// A group is any set of nodes: a module, a composite call, an operator. Bytes are those of whole storages, each counted
// once in a group, so that views are free and shared tensors are not counted twice.
//   incremental      storages saved for backward (activations: not what existed before), charged to the group of the
//   first
//                    forward node that saves them; the sum over all groups is saved_activation_bytes
//   output           storages allocated by the group's forward nodes that autograd saves somewhere
//   temporary        storages allocated by the group's forward nodes that nobody saves
//   parameters       parameters that the group's forward nodes read; shared ones count once in each group
//   backward         storages allocated by the group's backward nodes
//   forward_flops,   NodeFlops of the group's nodes of that phase
//   backward_flops
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/flops.h"

namespace SHADOWGRAPH_API shadowgraph {

struct GroupFigures {
  int64_t forward_nodes = 0;
  int64_t backward_nodes = 0;
  int64_t incremental = 0;  // bytes, as all below
  int64_t output = 0;
  int64_t temporary = 0;
  int64_t parameters = 0;
  int64_t backward = 0;
  NodeFlops forward_flops;
  NodeFlops backward_flops;

  // Adds everything but `parameters`, which a sum would count twice where groups share them.
  void add_disjoint(const GroupFigures& other);
  friend bool operator==(const GroupFigures&, const GroupFigures&) = default;
};

constexpr uint32_t kNoGroup = 0xFFFFFFFFU;

// `group_of` gives each node's group, or kNoGroup. Counts only nodes of phases forward and backward that are no
// placeholders, outputs or gradient markers. `parents`, if given, is a tree over the groups (parents before children,
// kNoGroup for a root). `parameters` then counts each group's subtree, each storage once; all else is the group's own.
std::vector<GroupFigures> group_figures(const Graph& graph, const IdMap<StorageId, StorageKind>& kinds,
                                        const Flops& flops, const IdMap<NodeId, uint32_t>& group_of,
                                        uint32_t group_count, std::span<const uint32_t> parents = {});

}  // namespace shadowgraph
