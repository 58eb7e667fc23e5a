// Where new nodes go: a place in program order that stays right while the graph around it is edited.
//
//     InsertionPoint at(graph, mm);                                   // before mm
//     NodeId t = at.insert(transpose, {Argument::of_value(weight)});  // in mm's region and phase, under its modes
//     graph.erase(mm);                                                // `at` now stands before what followed mm
//
// Nodes inserted one after another come in that order. They take over from the node named at construction: region,
// phase, grad mode and autocast flags, forward node and source line, but no notes. Operands must be made before the
// place, and a storage that died earlier lives on until the new node. sg:: placeholders come first, sg::output and
// sg::gradient last; a place among the placeholders means the one after them for every other node. Constant time.
// (torch.fx has graph.inserting_before; Cranelift calls it a cursor.)
//
// The graph must outlive the point and must not be moved while it stands in it. Not copyable: the graph knows its
// points.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

class InsertionPoint {
 public:
  // Before `node`.
  InsertionPoint(Graph& graph, NodeId node) : InsertionPoint(graph, node, node) {}
  // After `node`.
  static InsertionPoint after(Graph& graph, NodeId node) { return {graph, node, graph.node(node).next}; }
  // After all nodes but sg::output and sg::gradient. New nodes are in the root region and the forward phase.
  static InsertionPoint at_end(Graph& graph);
  ~InsertionPoint();
  InsertionPoint(const InsertionPoint&) = delete;
  InsertionPoint& operator=(const InsertionPoint&) = delete;

  // Throws GraphError if an operand is not made before here or the target has no place here.
  NodeId insert(TargetId target, std::span<const Argument> arguments);
  NodeId insert(TargetId target, std::initializer_list<Argument> arguments) {
    return insert(target, std::span<const Argument>(arguments.begin(), arguments.size()));
  }
  // The node before which the next one goes; invalid: at the end.
  NodeId position() const { return position_; }

 private:
  friend class Graph;
  InsertionPoint(Graph& graph, NodeId model, NodeId position);
  // `node` is about to leave the list.
  void leave(NodeId node) {
    if (position_ == node) position_ = graph_.node(node).next;
  }

  Graph& graph_;
  NodeId position_;
  // What new nodes take over.
  RegionId region_ = Graph::kRootRegion;
  PhaseId phase_ = Graph::kForward;
  NodeFlags flags_;
  NodeId forward_;
  StringId source_;
};

// Copies of graphs, whole or in part, and one graph put into another.
//
//     Graph before = clone(graph);                          // same ids: an IdMap of one is good for the other
//     const ValueId inputs[] = {x, weight};
//     auto outputs = splice(graph, position, block, inputs);  // the block's nodes, now before `position`
//     graph.replace_all_uses_with(old, outputs[0]);
//
// Tensor constants are shared, not copied: nobody writes them. torch.fx: Graph.graph_copy, Graph.node_copy; nativert:
// Graph::insertGraph.

// Everything, erased nodes' holes included, so that all ids mean the same in both. Costs a copy of the memory.
Graph clone(const Graph& graph);

// Copies the nodes of `piece` before `position` of `into` (invalid: at the end, before sg::output and sg::gradient).
// Its sg::input, sg::parameter and sg::buffer placeholders stand for `inputs`, in program order. Returns what the piece
// outputs, in order; an invalid id where it outputs None or nothing tensor-like.
//
// Regions of the piece come under that of the node at `position`; sg::constant nodes go to the other placeholders. What
// aliases a placeholder aliases the value given for it. Storages given live on as long as the new nodes need them.
//
// Throws GraphError, before any change, if
//
//   - the number of inputs differs, or the dtype, sizes or device of one (strides and offset, too, where the piece
//     makes views of it);
//   - placeholders that share a storage are given values that do not;
//   - an input is not made before `position`;
//   - the piece has sg::gradient nodes.
std::vector<ValueId> splice(Graph& into, NodeId position, const Graph& piece, std::span<const ValueId> inputs);

// A piece cut out: a graph of its own, and what of the graph around it goes in and comes out.
struct Subgraph {
  Graph graph;                   // inputs as sg::input, then the nodes, then sg::output
  std::vector<ValueId> inputs;   // values of the graph around, in order of first use, each once
  std::vector<ValueId> outputs;  // values of the nodes that others use, in the order they are made
};

// The `nodes` (in program order, none of them sg::) as a graph of their own; `graph` is not changed. Tensors that share
// a storage share one in the piece. Linear in the nodes.
Subgraph extract(const Graph& graph, std::span<const NodeId> nodes);

// Copies nodes one by one from one graph into another, or within one.
//
//     NodeCopier copier(from, into);
//     copier.bind(from_value, into_value);       // operands that are not copied
//     const NodeId copy = copier.copy(node, position);
class NodeCopier {
 public:
  // Regions other than the root come under `region`, which also stands for the root.
  NodeCopier(const Graph& from, Graph& into, RegionId region = Graph::kRootRegion);

  // Before many are copied.
  void reserve(size_t nodes) {
    nodes_.reserve(nodes);
    values_.reserve(nodes);
    storages_.reserve(nodes);
  }
  // What reads `from` will read `to`, what lives in the storage of the one will live in that of the other. Throws
  // GraphError if that storage stands for another one already.
  void bind(ValueId from, ValueId to);
  // What lies in the region `from` will lie in `to`.
  void bind(RegionId from, RegionId to) { regions_[from] = to; }
  // Copies all of a node except what refers to nodes and values that are not copied. Such are the forward link, and
  // tensors saved from elsewhere that finish() does not find. Deaths of bound storages are not copied. Throws
  // GraphError if an operand is neither bound nor made by a node copied before. Nothing else is checked.
  NodeId copy(NodeId node, NodeId position);
  // Call at the end: saved tensors that were made later.
  void finish();

  // Invalid for what was neither bound nor copied.
  ValueId value(ValueId from) const {
    const auto found = values_.find(from);
    return found == values_.end() ? ValueId() : found->second;
  }
  NodeId node(NodeId from) const {
    const auto found = nodes_.find(from);
    return found == nodes_.end() ? NodeId() : found->second;
  }

 private:
  struct HomeOfStorage {
    StorageId storage;
    int64_t shift = 0;  // of offsets
    bool bound = false;
  };
  RegionId region(RegionId from);
  Argument copy_argument(const Argument& from, bool tolerant);
  Argument copy_result(const Argument& from, NodeId producer);
  void copy_saved(NodeId from, NodeId to);

  const Graph& from_;
  Graph& into_;
  // Sized by what is copied, not by the graph: many small pieces may come out of a large one.
  std::unordered_map<TargetId, TargetId> targets_;
  std::unordered_map<RegionId, RegionId> regions_;
  std::unordered_map<ConstantId, ConstantId> constants_;
  std::unordered_map<NodeId, NodeId> nodes_;
  std::unordered_map<ValueId, ValueId> values_;
  std::unordered_map<StorageId, HomeOfStorage> storages_;
  std::vector<NodeId> unfinished_;  // whose saved tensors were not all there
};

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

// Throws ParseError for what is no schema. Throws GraphError, with nothing changed, for what is not legal. Throws
// it, too, if inputs or outputs are missing from `arguments` or `outputs` or do not fit the schema.
NodeId replace_by_call(Graph& graph, const GroupCall& group);
// Many at once, none sharing a node with another; linear in all. By group, the calls.
std::vector<NodeId> replace_by_calls(Graph& graph, std::span<const GroupCall> groups);

// The nodes of `body` in the place of a call: its placeholders stand for the call's value arguments, its outputs for
// the call's results. Throws as splice() does, and if it does not output as many values.
void inline_call(Graph& graph, NodeId call, const Graph& body);

// Patterns: small texts in the graph's own language, found wherever a graph does the same.
//
//     const Pattern pattern = Pattern::parse(
//         "%wt = aten::t(self=%w)\n"
//         "%y = aten::addmm(self=%b, mat1=%x, mat2=%wt, beta=_, alpha=$alpha)\n"
//         "return %y\n");
//     for (const Match& match : find_matches(graph, pattern)) ... match.value("%x"), match.argument("$alpha")
//
// One call a line, as shadowgraph/graph/text.h writes them without types and attributes; blank lines and `# comments`
// are skipped.
//     %name    a value. One that no line makes is a wildcard: any value, the same everywhere in a match
//     $name    any argument, the same everywhere in a match; `_` any argument at all
//     name=..  a constant, matched exactly (1 is not 1.0); what is left out has its default; `...` at the end: anything
//     [%a, %b] a list of as many values; `None` an argument that is not there; `_` a result that nobody reads
//     return   the values that the rest of the graph may use; those of other lines may be used within a match only
//
// An operator is named with its overload ("aten::add.Tensor"); a function by the name it has in the graph.
//
// A match can be replaced as a whole by something at one point, by default the place of its last node. Nothing that it
// read may be written since. If it writes or is random itself, nothing in between may depend on it. Where a value that
// it returns is used before its last node, that point is earlier, or others have to wait (Dependences::meeting_point).
// Where there is no such point it is no match, and is told of as refused.
//
// Matches do not overlap; the first in program order wins. Nothing is matched whose inner values are saved for backward
// by other nodes.
//
// nativert and torch.fx (subgraph_rewriter) match likewise. Linear in the graph for patterns whose calls are linked by
// operands. Where a line shares only operands with those after it, all users of those operands are tried.

// One argument of a call in a pattern or a replacement.
struct PatternArgument {
  enum class Kind : uint8_t { kAnything, kDefault, kLiteral, kValue, kArgument, kList };
  Kind kind = Kind::kDefault;
  uint32_t index = 0;  // kValue, kArgument: which
  Argument literal;    // kLiteral: in Pattern::literals
  std::vector<PatternArgument> elements;
};

struct PatternCall {
  std::string target;                      // "aten::add.Tensor"
  std::vector<PatternArgument> arguments;  // by schema position
  bool more = false;                       // `...`: those left out may be anything
  std::vector<int32_t> results;            // value by flat result; -1: not named
  int line = 0;
};

class Pattern {
 public:
  // `targets`: functions of this graph may be called too, and its operators need not be registered in this process.
  // Throws ParseError with line and column.
  static Pattern parse(std::string_view text, const Graph* targets = nullptr, std::string_view name = "<pattern>");

  std::vector<PatternCall> calls;
  std::vector<uint32_t> returns;            // values
  std::vector<std::string> value_names;     // "%x", by value
  std::vector<std::string> argument_names;  // "$alpha"
  std::vector<int32_t> maker;               // by value: the call that makes it, or -1 for a wildcard
  std::shared_ptr<Graph> literals = std::make_shared<Graph>();  // holds constants, and the targets that the calls name
};

struct Match {
  std::vector<NodeId> nodes;        // by call of the pattern
  NodeId last;                      // of them, in program order
  Dependences::MeetingPoint place;  // in the graph that was searched
  std::vector<ValueId> values;
  std::vector<Argument> arguments;
  const Pattern* pattern = nullptr;

  // By name, "%x" or "$alpha". Throws Error if the pattern has no such name.
  ValueId value(std::string_view name) const;
  const Argument& argument(std::string_view name) const;
};

// In program order of the nodes that the pattern's calls are searched from. The graph is not changed, and `pattern`
// must outlive the matches. `refused`, if given, gets a line for each set of nodes that fits but cannot be run at one
// point.
std::vector<Match> find_matches(const Graph& graph, const Pattern& pattern,
                                std::vector<std::string>* refused = nullptr);
// The same with dependences that are known already.
std::vector<Match> find_matches(const Graph& graph, const Pattern& pattern, const Dependences& dependences,
                                std::vector<std::string>* refused = nullptr);

// Whether two arguments without values are the same, in one graph or two.
bool same_constant_argument(const Graph& a, const Argument& x, const Graph& b, const Argument& y);

}  // namespace shadowgraph
