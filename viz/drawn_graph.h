// Says which nodes of a graph a picture shows, which module clusters are around them, and which clusters repeat one
// another. These are the steps before view_model.h, of no use by themselves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/draw.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

struct MergedGraph;

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

// Finds runs of equal numbered siblings and fills stands_for, run, repeats, span and stand_in. Nodes of different
// labels are not equal.
void fold_repeats(const Graph& graph, const IdMap<NodeId, uint32_t>& labels, DrawnGraph& drawn);

// Writes a tensor's type as "f32[8,512,768]".
std::string type_label(const Graph& graph, ValueId value);

}  // namespace shadowgraph
