// Structural passes: collapse modules, find repeated layers, fusion groups, partitioning, and printing as torch.fx.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// Replaces each call of a module or composite operator by one node, as torch.fx (passes/structure/collapse.cpp).

struct CollapseOptions {
  enum class Level : uint8_t { kModule, kComposite };
  enum class Bodies : uint8_t { kDrop, kKeep };
  Level level = Level::kModule;
  int64_t depth = 1;              // number of path components of the modules that become calls
  Bodies bodies = Bodies::kDrop;  // kKeep: calls can be executed (shadowgraph/capture/replay.h)

  static OptionTable<CollapseOptions> table() {
    return OptionTable<CollapseOptions>()
        .choice("level", &CollapseOptions::level, {"module", "composite"},
                "Collapse calls of modules or of composite operators")
        .add("depth", &CollapseOptions::depth, "Depth of the collapsed modules: layers.0 has depth 2", {.min = 1})
        .choice("bodies", &CollapseOptions::bodies, {"drop", "keep"},
                "Drop the collapsed nodes, or keep them with the calls so that the graph can run");
  }
};
struct CollapseResult {
  int64_t calls = 0;
  int64_t hidden = 0;   // number of nodes replaced
  std::string fx_text;  // the resulting graph in the format of torch.fx
  PassResult summary() const;
};
CollapseResult collapse(Graph& graph, const CollapseOptions& options = {});

// Adds notes "repeat" = "run 0, block 3 of 32" to consecutive equal blocks (ir/analysis/structural_hash.h).

struct FindRepeatsOptions {
  int64_t min_nodes = 4;   // minimum nodes of a block
  int64_t min_blocks = 2;  // minimum blocks of a run; at least 2

  static OptionTable<FindRepeatsOptions> table() {
    return OptionTable<FindRepeatsOptions>()
        .add("min_nodes", &FindRepeatsOptions::min_nodes, "Minimum number of nodes per block", {.min = 1, .max = kMost})
        .add("min_blocks", &FindRepeatsOptions::min_blocks, "Minimum number of blocks per run",
             {.min = 2, .max = kMost});
  }
  static constexpr int64_t kMost = 1 << 30;
};
struct FindRepeatsResult {
  struct Run {
    NodeId first;  // first node of the first block
    int64_t blocks = 0;
    int64_t nodes = 0;  // per block
  };
  std::vector<Run> runs;  // in program order
  bool changed = false;   // whether notes changed
  std::string report;     // one line per run
  PassResult summary() const;
};
FindRepeatsResult find_repeats(Graph& graph, const FindRepeatsOptions& options = {});

// Finds chains of elementwise operators to fuse, and adds notes "fuse" = "g0" (passes/structure/fuse_groups.cpp).

struct FuseGroupsOptions {
  int64_t min_nodes = 2;  // minimum nodes of a group; at least 2

  static OptionTable<FuseGroupsOptions> table() {
    return OptionTable<FuseGroupsOptions>().add("min_nodes", &FuseGroupsOptions::min_nodes,
                                                "Minimum number of nodes per group", {.min = 2});
  }
};
struct FuseGroupsResult {
  struct Group {
    std::vector<NodeId> nodes;
    int64_t bytes = 0;        // read and written by the individual nodes
    int64_t fused_bytes = 0;  // read and written by a fused kernel
  };
  std::vector<Group> groups;
  bool changed = false;  // whether notes changed
  std::string report;    // one line for each of the groups with the largest savings
  PassResult summary() const;
};
FuseGroupsResult fuse_groups(Graph& graph, const FuseGroupsOptions& options = {});

// Partitioning: splits a graph into parts that are graphs themselves.
//
//     const auto part_of = propose_partition(graph, [&](NodeId n) { return runs_on_my_chip(graph, n); });
//     const PartitionedGraph cut = split(graph, part_of);
//     cut.parent              // calls part::p0(Tensor x0, ...) -> Tensor, ... in place of the parts
//     cut.parts[0].graph      // sg::input, the nodes, sg::output
//     Graph joined = join(cut);
//
// A part must be able to run at one position (shadowgraph/graph/edit.h), without cyclic dependences, including those by
// effects. Parts may contain random operators, host reads and unknown functions; the schema of the call declares that.

// Number of the part of each node; -1: remains in the parent.
using PartOf = IdMap<NodeId, int32_t>;

struct PartitionedGraph {
  struct Part {
    int32_t number = 0;            // as given
    std::string function;          // "part::p0", called by the parent
    std::string schema;            //
    Graph graph;                   //
    std::vector<ValueId> inputs;   // values of the original graph, by placeholder
    std::vector<ValueId> outputs;  // values of the original graph, by output
  };
  Graph parent;
  std::vector<Part> parts;  // in the order of their calls in the parent
};

// Throws GraphError for cyclic dependences between parts, and for parts with a placeholder or end node. Linear.
PartitionedGraph split(const Graph& graph, const PartOf& part_of, const std::string& prefix = "part");
// Returns the parent with its calls replaced by the parts: the original graph except for node order and storage kinds.
Graph join(const PartitionedGraph& partitioned);

enum class PartitionMerge : uint8_t {
  // Merge parts whenever possible, even if they exchange no data. Minimizes the number of parts: it equals the maximum
  // number of transitions from unsupported to supported nodes on any path.
  kAll,
  // Nodes of a part are connected by values or effects. Their number is not always minimal (greedy).
  kLinked,
};

// Proposes parts of supported nodes without cyclic dependences: no path leads out of a part and back into it.
// Placeholders, sg::output, sg::gradient, host reads and unknown functions are never supported. Parts with fewer than
// `min_nodes` are dropped. Numbered from 0 in program order. Linear in nodes and dependences
// (shadowgraph/graph/analysis.h).
PartOf propose_partition(const Graph& graph, const std::function<bool(NodeId)>& supported, size_t min_nodes = 1,
                         PartitionMerge merge = PartitionMerge::kAll);

// The pass `partition`: adds notes "part" = number to the nodes of a proposed partition.
struct PartitionOptions {
  std::string operators = "*";  // names joined by '+', with or without overload; *: all
  int64_t min_nodes = 1;        // minimum nodes of a part
  PartitionMerge merge = PartitionMerge::kAll;

  static OptionTable<PartitionOptions> table() {
    return OptionTable<PartitionOptions>()
        .add("operators", &PartitionOptions::operators,
             "Supported operators, separated by '+', with or without overload; *: all")
        .add("min_nodes", &PartitionOptions::min_nodes, "Minimum number of nodes per part", {.min = 1})
        .choice("merge", &PartitionOptions::merge, {"all", "linked"},
                "Merge as many nodes as possible into a part (all), or only connected nodes (linked)");
  }
};
struct PartitionResult {
  PartOf parts;
  int64_t count = 0;                 // number of parts
  int64_t nodes = 0;                 // number of nodes in parts
  std::vector<std::string> missing;  // operators that do not occur in the graph
  bool changed = false;              // whether notes changed
  PassResult summary() const;
};
PartitionResult partition(Graph& graph, const PartitionOptions& options = {});

// Prints a graph in the format of torch.fx: placeholder, get_attr, call_function, call_module, return.
//
//     graph():
//         %x : [num_users=1] = placeholder[target=x]
//         %conv1 : [num_users=1] = call_module[target=conv1](args = (%x,), kwargs = {})
//         %add : [num_users=1] = call_function[target=aten.add.Tensor](args = (%conv1, 1), kwargs = {})
//         return add
//
// Cannot be parsed. Calls of modules are created by the pass collapse; their parameters and buffers belong to the
// module and are not shown. Parameters used by operators are get_attr nodes. Linear.
std::string fx_text(const Graph& graph);

}  // namespace shadowgraph
