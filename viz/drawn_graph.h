// The nodes of a graph that a picture shows, the module clusters around them, and sums over clusters and boxes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

// Two graphs merged into one, for a picture of their differences: the later graph, with the nodes that only the earlier
// one has inserted at their positions.
struct MergedGraph {
  // A tensor that a node read only in the earlier graph.
  struct LostUse {
    NodeId user;
    ValueId value;
  };
  Graph graph;  // ids of `after` are valid in it
  IdMap<NodeId, ViewMark> marks{ViewMark::kNone};
  IdMap<NodeId, uint32_t> number;  // position of each node in the program order of its original graph
  std::vector<LostUse> lost_uses;
  size_t added = 0, removed = 0, changed = 0;

  static MergedGraph of(const Graph& before, const Graph& after);
};

// A module call (or a phase, or a container without a region) and its contents.
struct ModuleCluster {
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  uint32_t parent = kNone;
  uint32_t depth = 0;  // levels of modules around its contents: 0 for the root and for phases
  bool phase = false;
  std::string name;        // relative to the parent: "0", "attention"
  std::string class_name;  // empty for containers
  uint32_t call = 0;
  std::vector<uint32_t> children;  // in order of first node
  std::vector<uint32_t> nodes;     // direct contents: indices of drawn nodes, in program order

  uint32_t stands_for = kNone;  // the identical sibling drawn in its place; kNone if this one is drawn
  uint32_t run = kNone;         // the first of a run of identical siblings; kNone if alone
  uint32_t repeats = 1;         // of the drawn sibling: length of the run
  std::string span;             // of the drawn sibling: "{0..11}"
};

struct DrawnGraph {
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  std::vector<NodeId> nodes;         // in program order
  std::vector<uint32_t> position;    // of each drawn node: position among all nodes of the graph
  std::vector<uint32_t> cluster_of;  // of each drawn node: its cluster
  std::vector<uint32_t> stand_in;    // of each drawn node: itself, or in a folded copy, the node drawn instead
  IdMap<NodeId, uint32_t> index{kNone};
  // Maps a value to the one that it is a view of, through nodes that are not drawn.
  IdMap<ValueId, ValueId> origin;
  std::vector<ModuleCluster> clusters;  // parents before children; [0] is the root
  // Neighbors of a part's nodes that were left out.
  struct Omitted {
    uint32_t node;  // index into `nodes`
    bool makers;    // producers of its inputs, rather than users of its results
    uint32_t count;
    NodeId first;
  };
  std::vector<Omitted> omitted;
  int64_t left_out = 0;  // nodes outside the part
  std::vector<std::string> hidden_phases;
  int64_t hidden_nodes = 0;  // in hidden phases
  int64_t plumbing = 0;      // views and similar nodes that are not drawn

  // Draws `merged.graph` if there is one, otherwise `graph`.
  static DrawnGraph of(const Graph& graph, const ViewOptions& options, const MergedGraph* merged = nullptr);
  ValueId origin_of(ValueId value) const {
    const ValueId source = origin[value];
    return source.valid() ? source : value;
  }
};

// Formats a tensor's type as "f32[8,512,768]".
std::string type_label(const Graph& graph, ValueId value);

// Returns the nodes named by options.around and options.path.
IdMap<NodeId, uint8_t> named_nodes(const ViewOptions& options);

// Restricts `drawn`, which has no clusters yet, to the part that the options select, and records its omitted neighbors.
// `extra` are additional edges, from a value to a node that reads it. Throws Error if a named node is not drawn, or the
// ends of the path are not connected.
void keep_part(const Graph& graph, const ViewOptions& options, const std::vector<std::pair<ValueId, NodeId>>& extra,
               DrawnGraph& drawn);

// Sums over the operators of a cluster and of all clusters below it.
struct ClusterContents {
  int64_t operators = 0, flops = 0;
  int64_t bytes = 0;                   // allocated
  uint32_t visible = 0;                // drawn nodes that are not folded away
  uint32_t first = DrawnGraph::kNone;  // the first of them
};
std::vector<ClusterContents> contents_of(const Graph& graph, const DrawnGraph& drawn, const Flops& flops);

// Marks clusters inside a folded copy, which is not drawn.
std::vector<uint8_t> hidden_clusters(const DrawnGraph& drawn);

// Returns, by depth, the number of boxes with `depth` levels of modules open.
std::vector<size_t> boxes_by_depth(const DrawnGraph& drawn, const std::vector<ClusterContents>& contents,
                                   const std::vector<uint8_t>& hidden);

// Returns the number of boxes on the longest path.
size_t rows_of(const ViewModel& view);

// The nodes of every box, by copy. A box for repeated layers has a list for each of them, the drawn one first. Includes
// nodes of folds inside the box.
using BoxNodes = std::vector<std::vector<std::vector<NodeId>>>;
// `levels` is the depth of the cluster that is the box, or that contains its operators.
BoxNodes nodes_of_boxes(const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                        const std::vector<uint32_t>& levels);

}  // namespace shadowgraph
