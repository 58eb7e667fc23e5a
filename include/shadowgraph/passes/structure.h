// What a graph is made of: modules as calls, layers that repeat, parts, and the whole as torch.fx prints it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// One node for each call of a module or composite operator: the graph at the level of torch.fx
// (passes/structure/collapse.cpp).

struct CollapseOptions {
  enum class Level : uint8_t { kModule, kComposite };
  enum class Bodies : uint8_t { kDrop, kKeep };
  Level level = Level::kModule;
  int64_t depth = 1;              // names in the path of the modules that become calls
  Bodies bodies = Bodies::kDrop;  // kKeep: calls can be run (shadowgraph/capture/replay.h)

  static OptionTable<CollapseOptions> table() {
    return OptionTable<CollapseOptions>()
        .choice("level", &CollapseOptions::level, {"module", "composite"},
                "what to collapse: module or composite operator")
        .add("depth", &CollapseOptions::depth, "depth of the modules that become calls: layers.0 has 2", {.least = 1})
        .choice("bodies", &CollapseOptions::bodies, {"drop", "keep"},
                "drop, or keep: calls keep their body, so that they can be executed");
  }
};
struct CollapseResult {
  int64_t calls = 0;
  int64_t hidden = 0;   // nodes that they stand for
  std::string fx_text;  // the graph that it left, as torch.fx prints it
  PassResult summary() const;
};
CollapseResult collapse(Graph& graph, const CollapseOptions& options = {});

// Blocks that follow one another and do the same, such as layers: notes "repeat" = "run 0, block 3 of 32". What counts
// as the same is said in ir/analysis/structural_hash.h.

struct FindRepeatsOptions {
  int64_t min_nodes = 4;   // nodes of the smallest block
  int64_t min_blocks = 2;  // blocks of the shortest run; 2 or more

  static OptionTable<FindRepeatsOptions> table() {
    return OptionTable<FindRepeatsOptions>()
        .add("min_nodes", &FindRepeatsOptions::min_nodes, "minimum nodes per block", {.least = 1, .most = kMost})
        .add("min_blocks", &FindRepeatsOptions::min_blocks, "minimum blocks per run", {.least = 2, .most = kMost});
  }
  static constexpr int64_t kMost = 1 << 30;
};
struct FindRepeatsResult {
  struct Run {
    NodeId first;  // of its first block
    int64_t blocks = 0;
    int64_t nodes = 0;  // of each block
  };
  std::vector<Run> runs;  // in program order
  bool changed = false;   // notes
  std::string report;     // a line a run
  PassResult summary() const;
};
FindRepeatsResult find_repeats(Graph& graph, const FindRepeatsOptions& options = {});

// Chains of elementwise operators that one kernel could do: notes "fuse" = "g0" (passes/structure/fuse_groups.cpp).

struct FuseGroupsOptions {
  int64_t min_nodes = 2;  // of the smallest group; 2 or more

  static OptionTable<FuseGroupsOptions> table() {
    return OptionTable<FuseGroupsOptions>().add("min_nodes", &FuseGroupsOptions::min_nodes, "minimum nodes per group",
                                                {.least = 2});
  }
};
struct FuseGroupsResult {
  struct Group {
    std::vector<NodeId> nodes;
    int64_t bytes = 0;        // read and written by the nodes one by one
    int64_t fused_bytes = 0;  // by one kernel
  };
  std::vector<Group> groups;
  bool changed = false;  // notes
  std::string report;    // a line for each of the groups that save most
  PassResult summary() const;
};
FuseGroupsResult fuse_groups(Graph& graph, const FuseGroupsOptions& options = {});

// A graph cut into parts: which nodes may go together, and each part as a graph of its own.
//
//     const auto part_of = propose_partition(graph, [&](NodeId n) { return runs_on_my_chip(graph, n); });
//     const PartitionedGraph cut = split(graph, part_of);
//     cut.parent              // calls part::p0(Tensor x0, ...) -> Tensor, ... where the parts were
//     cut.parts[0].graph      // sg::input, the nodes, sg::output
//     Graph again = join(cut);
//
// A part must be able to run at one point (shadowgraph/graph/edit.h), so parts may not need one another in a circle;
// effects count. Random operators, host reads and unknown functions may be in a part; its call then says so by its
// schema. (torch.fx: split_module, CapabilityBasedPartitioner.)

// By node, the number of its part; -1: it stays in the parent.
using PartOf = IdMap<NodeId, int32_t>;

struct PartitionedGraph {
  struct Part {
    int32_t number = 0;            // as given
    std::string function;          // "part::p0", what the parent calls
    std::string schema;            //
    Graph graph;                   //
    std::vector<ValueId> inputs;   // values of the graph that was split, by placeholder
    std::vector<ValueId> outputs;  // likewise, by output
  };
  Graph parent;
  std::vector<Part> parts;  // in the order in which the parent calls them
};

// Throws GraphError if parts need one another in a circle, or a part holds a placeholder, sg::output or
// sg::gradient. `graph` is not changed. Linear.
PartitionedGraph split(const Graph& graph, const PartOf& part_of, const std::string& prefix = "part");
// The parent with the parts in place of its calls. Equal to the graph that was split but for node order and storage
// kinds.
Graph join(const PartitionedGraph& partitioned);

enum class PartitionMerge : uint8_t {
  // Any two parts that can be one are one, whether or not they exchange data. There are then as few as there can be: as
  // many as the longest way through the graph enters supported nodes from others.
  kAll,
  // Nodes of a part are linked by values or effects. Not always as few as possible: of nodes that could go with one of
  // two parts, which go with their users is decided once.
  kLinked,
};

// Parts of supported nodes that need no circle: no way leads out of a part over another node and back in. Placeholders,
// sg::output, sg::gradient, host reads and unknown functions are never supported. Parts of fewer than `min_nodes` are
// given up. Numbered from 0 in program order. Linear in nodes and dependences (shadowgraph/graph/analysis.h).
PartOf propose_partition(const Graph& graph, const std::function<bool(NodeId)>& supported, size_t min_nodes = 1,
                         PartitionMerge merge = PartitionMerge::kAll);

// The pass `partition`: notes "part" = number on the nodes of a proposed partition.
struct PartitionOptions {
  std::string operators = "*";  // names joined by '+', all overloads or one; *: all
  int64_t min_nodes = 1;        // of the smallest part
  PartitionMerge merge = PartitionMerge::kAll;

  static OptionTable<PartitionOptions> table() {
    return OptionTable<PartitionOptions>()
        .add("operators", &PartitionOptions::operators, "operators joined by '+', with or without overload (*: all)")
        .add("min_nodes", &PartitionOptions::min_nodes, "minimum nodes per partition", {.least = 1})
        .choice("merge", &PartitionOptions::merge, {"all", "linked"},
                "all: as few partitions as possible; linked: only connected nodes share a partition");
  }
};
struct PartitionResult {
  PartOf parts;
  int64_t count = 0;                 // of parts
  int64_t nodes = 0;                 // in them
  std::vector<std::string> missing;  // operators that are not in the graph
  bool changed = false;              // notes
  PassResult summary() const;
};
PartitionResult partition(Graph& graph, const PartitionOptions& options = {});

// A graph as torch.fx prints one: placeholder, get_attr, call_function, call_module, and what is returned.
//
//     graph():
//         %x : [num_users=1] = placeholder[target=x]
//         %conv1 : [num_users=1] = call_module[target=conv1](args = (%x,), kwargs = {})
//         %add : [num_users=1] = call_function[target=aten.add.Tensor](args = (%conv1, 1), kwargs = {})
//         return add
//
// For people who read torch.fx; it is not read back. Calls of modules are what the pass collapse makes: their own
// parameters and buffers are not shown, as they are the module's. Parameters that operators take are get_attr nodes.

// Linear.
std::string fx_text(const Graph& graph);

}  // namespace shadowgraph
