// Some nodes as one call of a function that the user registered (a fused kernel, a part of a split graph), and back.
//
//     GroupCall group{.nodes = {mul, add, relu}, .schema = "my::mul_add_relu(Tensor a, Tensor b, Tensor c) -> Tensor"};
//     NodeId call = replace_by_call(graph, group);
//     inline_call(graph, call, body);                        // `body` as extract(graph, nodes) gave it
//
// Nodes are legal if they can run at one point. No way by values, storages, random numbers or host reads may leave them
// and come back into them. What they do to others must be in the schema:
//
//   - an argument that they write is `Tensor(a!)`; a result that shares the storage of an argument has its `(a)`;
//   - nodes that draw random numbers need a `Generator?` argument;
//   - collectives need a `str group_name`, as _c10d_functional's operators have;
//   - nodes that read the host or are unknown need `...` (then everything is assumed of the call).
//
// schema_of() writes such a schema.
//
// The call has the innermost region around all its nodes, and phase, modes and source of the first. Its results live
// where the old ones did; storages that only the nodes used are gone. Tensors saved as inputs or outputs stay saved;
// backward nodes of the nodes become those of the call. (torch.fx: fuse_by_partitions; XLA: fusion computations.)
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

// What goes into some nodes and comes out.
struct Boundary {
  std::vector<ValueId> inputs;   // made by others, in order of first use, each once
  std::vector<ValueId> outputs;  // used, or saved, by others, in the order they are made
};
Boundary boundary_of(const Graph& graph, std::span<const NodeId> nodes);

// "name(Tensor x0, Tensor(a!) x1, ...) -> (Tensor, ...)" for a call with the boundary's inputs and outputs.
std::string schema_of(const Graph& graph, std::span<const NodeId> nodes, const std::string& name);
// The same with effects that are known already, for many groups.
std::string schema_of(const Graph& graph, std::span<const NodeId> nodes, const std::string& name,
                      const Effects& effects);

struct GroupCall {
  std::vector<NodeId> nodes;
  std::string schema;
  // By schema position. Empty: the boundary's inputs in order, defaults for arguments after them.
  std::vector<Argument> arguments;
  // What the call returns, by flat result. Empty: the boundary's outputs.
  std::vector<ValueId> outputs;
};

// Throws ParseError for what is no schema. Throws GraphEditError, with nothing changed, for what is not legal. Throws
// it, too, if inputs or outputs are missing from `arguments` or `outputs` or do not fit the schema.
NodeId replace_by_call(Graph& graph, const GroupCall& group);
// Many at once, none sharing a node with another; linear in all. By group, the calls.
std::vector<NodeId> replace_by_calls(Graph& graph, std::span<const GroupCall> groups);

// The nodes of `body` in the place of a call: its placeholders stand for the call's value arguments, its outputs for
// the call's results. Throws as splice() does, and if it does not output as many values.
void inline_call(Graph& graph, NodeId call, const Graph& body);

}  // namespace shadowgraph
