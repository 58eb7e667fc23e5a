// Which nodes of a graph a picture shows, the module clusters around them, and what clusters and boxes come to: the
// steps before ViewModel.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/operator_costs.h"

namespace shadowgraph {

// One graph of two, for a picture of what differs. It is the later graph, with the nodes that only the earlier one has
// put in where they were.
struct MergedGraph {
  // A tensor that a node read before and reads no more.
  struct LostUse {
    NodeId user;
    ValueId value;
  };
  Graph graph;  // ids of `after` mean the same in it
  IdMap<NodeId, ViewMark> marks{ViewMark::kNone};
  IdMap<NodeId, uint32_t> number;  // of each node: its place in program order of the graph that it is from
  std::vector<LostUse> lost_uses;
  size_t added = 0, removed = 0, changed = 0;

  static MergedGraph of(const Graph& before, const Graph& after);
};

// A module call (or a phase, or a container that no region names) and what lies in it.
struct ModuleCluster {
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  uint32_t parent = kNone;
  uint32_t depth = 0;  // levels of modules around its contents: 0 for the whole and for phases
  bool phase = false;
  std::string name;        // relative to the parent: "0", "attention"
  std::string class_name;  // "" for containers
  uint32_t call = 0;
  std::vector<uint32_t> children;  // in order of first node
  std::vector<uint32_t> nodes;     // directly in it: indices of drawn nodes, in program order

  uint32_t stands_for = kNone;  // the equal sibling that is drawn in its place; kNone if this one is drawn
  uint32_t run = kNone;         // the run of equal siblings it belongs to: the first one's index; kNone if alone
  uint32_t repeats = 1;         // of the sibling that is drawn: how many it stands for
  std::string span;             // of the sibling that is drawn: "{0..11}"
};

struct DrawnGraph {
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  std::vector<NodeId> nodes;         // in program order
  std::vector<uint32_t> position;    // of each: place among all nodes of the graph
  std::vector<uint32_t> cluster_of;  // of each
  std::vector<uint32_t> stand_in;    // of each: the node drawn in its place, itself if it is not in a hidden copy
  IdMap<NodeId, uint32_t> index{kNone};
  // Gives for a value the one that it is a view of, through nodes that are not drawn.
  IdMap<ValueId, ValueId> origin;
  std::vector<ModuleCluster> clusters;  // parents before children; [0] is the whole
  // What is next to the nodes of a part of a graph and was left out.
  struct Omitted {
    uint32_t node;  // index into `nodes`
    bool makers;    // of what it reads, rather than users of what it makes
    uint32_t count;
    NodeId first;
  };
  std::vector<Omitted> omitted;
  int64_t left_out = 0;  // nodes outside the part
  std::vector<std::string> hidden_phases;
  int64_t hidden_nodes = 0;  // of hidden phases
  int64_t plumbing = 0;      // views and the like that are drawn through

  // Draws `merged.graph` if there is one, otherwise `graph`.
  static DrawnGraph of(const Graph& graph, const ViewOptions& options, const MergedGraph* merged = nullptr);
  ValueId origin_of(ValueId value) const {
    const ValueId source = origin[value];
    return source.valid() ? source : value;
  }
};

// Writes a tensor's type as "f32[8,512,768]".
std::string type_label(const Graph& graph, ValueId value);

// Returns the nodes that options.around and options.path name.
IdMap<NodeId, uint8_t> named_nodes(const ViewOptions& options);

// Leaves in `drawn`, which has no clusters yet, what the options ask for, and notes what was next to it. `extra` are
// more edges, from a value to a node that reads it. Throws Error if a node that is named is not drawn, or no way leads
// from one end of the path to the other.
void keep_part(const Graph& graph, const ViewOptions& options, const std::vector<std::pair<ValueId, NodeId>>& extra,
               DrawnGraph& drawn);

// What the operators of a cluster and of all clusters below it come to.
struct ClusterContents {
  int64_t operators = 0;
  int64_t flops = 0;
  int64_t bytes = 0;                   // allocated
  uint32_t visible = 0;                // drawn nodes that no fold hides
  uint32_t first = DrawnGraph::kNone;  // the first of those
};
std::vector<ClusterContents> contents_of(const Graph& graph, const DrawnGraph& drawn, const Flops& flops);

// Says whether each cluster lies in a copy that is not drawn.
std::vector<uint8_t> hidden_clusters(const DrawnGraph& drawn);

// Returns by depth how many boxes there are with `depth` levels of modules open.
std::vector<size_t> boxes_by_depth(const DrawnGraph& drawn, const std::vector<ClusterContents>& contents,
                                   const std::vector<uint8_t>& hidden);

// Returns the number of boxes on the longest way down.
size_t rows_of(const ViewModel& view);

// The nodes of every box, by copy. A box that stands for equal layers has a list for each of them, the drawn one first.
// All nodes count, those of folds inside a box, too.
using BoxNodes = std::vector<std::vector<std::vector<NodeId>>>;
// `levels` is the depth of the cluster that is the box, or that its operators lie in.
BoxNodes nodes_of_boxes(const DrawnGraph& drawn, const std::vector<uint32_t>& box_of_node,
                        const std::vector<uint32_t>& levels);

}  // namespace shadowgraph
