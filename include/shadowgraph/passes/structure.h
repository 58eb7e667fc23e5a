// Graphs cut into parts, and printed as torch.fx prints them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shadowgraph/edit.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// A graph cut into parts: which nodes may go together, and each part as a graph of its own.
//
//     const auto part_of = propose_partition(graph, [&](NodeId n) { return runs_on_my_chip(graph, n); });
//     const PartitionedGraph cut = split(graph, part_of);
//     cut.parent              // calls part::p0(Tensor x0, ...) -> Tensor, ... where the parts were
//     cut.parts[0].graph      // sg::input, the nodes, sg::output
//     Graph again = join(cut);
//
// A part must be able to run at one point (shadowgraph/edit.h), so parts may not need one another in a circle; effects count.
// Random operators, host reads and unknown functions may be in a part; its call then says so by its schema.
// (torch.fx: split_module, CapabilityBasedPartitioner.)

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

// Throws GraphEditError if parts need one another in a circle, or a part holds a placeholder, sg::output or sg::gradient.
// `graph` is not changed. Linear.
PartitionedGraph split(const Graph& graph, const PartOf& part_of, const std::string& prefix = "part");
// The parent with the parts in place of its calls. Equal to the graph that was split but for node order and storage kinds.
Graph join(const PartitionedGraph& partitioned);

enum class PartitionMerge : uint8_t {
  // Any two parts that can be one are one, whether or not they exchange data. There are then as few as there can be: as many
  // as the longest way through the graph enters supported nodes from others.
  kAll,
  // Nodes of a part are linked by values or effects. Not always as few as possible: of nodes that could go with one of
  // two parts, which go with their users is decided once.
  kLinked,
};

// Parts of supported nodes that need no circle: no way leads out of a part over another node and back in. Placeholders,
// sg::output, sg::gradient, host reads and unknown functions are never supported. Parts of fewer than `min_nodes` are given
// up. Numbered from 0 in program order. Linear in nodes and dependences (shadowgraph/analysis.h).
PartOf propose_partition(const Graph& graph, const std::function<bool(NodeId)>& supported, size_t min_nodes = 1,
                         PartitionMerge merge = PartitionMerge::kAll);

// The pass `partition`: notes "part" = number on the nodes of a proposed partition.
PassResult partition_pass(Graph& graph, const PassOptions& options);

// ---------------------------------------------------------------------------------------------------------------------
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
