// Graph edits: insertion points, copying, extracting and inlining subgraphs, pattern matching.
//
// An InsertionPoint is a position in program order that remains valid while the graph is edited.
//
//     InsertionPoint at(graph, mm);                                   // before mm
//     NodeId t = at.insert(transpose, {Argument::of_value(weight)});  // in mm's region and phase, under its modes
//     graph.erase(mm);                                                // `at` is now before the node that followed mm
//
// Nodes are inserted in the order of the calls. They inherit region, phase, modes, forward node and source line, but
// not notes, from the constructor's node. Operands must be produced before the position; the lifetime of a storage that
// was freed earlier is extended to the new node. sg:: placeholders stay first, sg::output and sg::gradient last: at a
// position among the placeholders, other nodes are inserted after the last placeholder. Constant time.
//
// The graph must outlive the insertion point, and must not be moved while one exists.
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
  InsertionPoint(Graph& graph, NodeId node) : InsertionPoint(graph, node, node) {}
  static InsertionPoint after(Graph& graph, NodeId node) { return {graph, node, graph.node(node).next}; }
  // Before sg::output and sg::gradient, after all other nodes. New nodes are in the root region and the forward phase.
  static InsertionPoint at_end(Graph& graph);
  ~InsertionPoint();
  InsertionPoint(const InsertionPoint&) = delete;
  InsertionPoint& operator=(const InsertionPoint&) = delete;

  // Throws GraphError if an operand is not produced before this position, or the target is not allowed here.
  NodeId insert(TargetId target, std::span<const Argument> arguments);
  NodeId insert(TargetId target, std::initializer_list<Argument> arguments) {
    return insert(target, std::span<const Argument>(arguments.begin(), arguments.size()));
  }
  // The node before which the next one is inserted; invalid: at the end.
  NodeId position() const { return position_; }

 private:
  friend class Graph;
  InsertionPoint(Graph& graph, NodeId model, NodeId position);
  // Called before `node` is removed from the list.
  void leave(NodeId node) {
    if (position_ == node) position_ = graph_.node(node).next;
  }

  Graph& graph_;
  NodeId position_;
  // Inherited by new nodes.
  RegionId region_ = Graph::kRootRegion;
  PhaseId phase_ = Graph::kForward;
  NodeFlags flags_;
  NodeId forward_;
  StringId source_;
};

// Copies of graphs or parts of them. Tensor constants are immutable and therefore shared.
//
//     const ValueId inputs[] = {x, weight};
//     auto outputs = splice(graph, position, block, inputs);  // inserts the block's nodes before `position`
//     graph.replace_all_uses_with(old, outputs[0]);

// Returns a copy with the same ids, including those of erased nodes. Costs a copy of the memory.
Graph clone(const Graph& graph);

// Copies the nodes of `piece` before `position` of `into` (invalid: at the end, before sg::output and sg::gradient).
// `inputs` replace its sg::input, sg::parameter and sg::buffer placeholders, in program order. Returns the outputs of
// the piece, in order; an invalid id for None and for outputs that are not tensors.
//
// Regions of the piece become children of the region of the node at `position`; sg::constant nodes are placed with the
// other placeholders. Aliases of a placeholder become aliases of its replacement, whose lifetime is extended.
//
// Throws GraphError, before any change, if the number of inputs differs, or the dtype, sizes or device of an input
// (also strides and offset, if the piece creates views of it); if placeholders that share a storage are replaced by
// values that do not; if an input is not produced before `position`; or if the piece has sg::gradient nodes.
std::vector<ValueId> splice(Graph& into, NodeId position, const Graph& piece, std::span<const ValueId> inputs);

// An extracted subgraph, with its inputs and outputs in the original graph.
struct Subgraph {
  Graph graph;                   // inputs as sg::input, then the nodes, then sg::output
  std::vector<ValueId> inputs;   // values of the original graph, in order of first use, without duplicates
  std::vector<ValueId> outputs;  // values that other nodes of the original graph use, in order of creation
};

// Copies `nodes` (in program order, without sg:: nodes) to a separate graph; `graph` is unchanged. Tensors that share a
// storage also share one in the subgraph. Linear in the nodes.
Subgraph extract(const Graph& graph, std::span<const NodeId> nodes);

// Copies individual nodes from one graph to another, or within a graph.
//
//     NodeCopier copier(from, into);
//     copier.bind(from_value, into_value);       // maps operands that are not copied
//     const NodeId copy = copier.copy(node, position);
class NodeCopier {
 public:
  // `region` replaces the root region: other regions become its children.
  NodeCopier(const Graph& from, Graph& into, RegionId region = Graph::kRootRegion);

  void reserve(size_t nodes) {
    nodes_.reserve(nodes);
    values_.reserve(nodes);
    storages_.reserve(nodes);
  }
  // Maps `from` to `to`: copied users read `to`, and values that share the storage of `from` are moved to that of `to`.
  // Throws GraphError if the storage of `from` is already mapped to a different one.
  void bind(ValueId from, ValueId to);
  // Maps a region: copies of nodes in `from` are in `to`.
  void bind(RegionId from, RegionId to) { regions_[from] = to; }
  // Copies a node, except references to nodes and values that are not copied: the forward link, and saved tensors that
  // finish() cannot resolve. Free points of bound storages are not copied. Throws GraphError if an operand is neither
  // bound nor produced by a node copied before; performs no other checks.
  NodeId copy(NodeId node, NodeId position);
  // Resolves saved tensors that are produced later. Call after the last copy.
  void finish();

  // Return the copy, or an invalid id if neither bound nor copied.
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
    int64_t shift = 0;  // added to offsets
    bool bound = false;
  };
  RegionId region(RegionId from);
  Argument copy_argument(const Argument& from, bool tolerant);
  Argument copy_result(const Argument& from, NodeId producer);
  void copy_saved(NodeId from, NodeId to);

  const Graph& from_;
  Graph& into_;
  // Maps proportional to the copied nodes: many small pieces may be extracted from a large graph.
  std::unordered_map<TargetId, TargetId> targets_;
  std::unordered_map<RegionId, RegionId> regions_;
  std::unordered_map<ConstantId, ConstantId> constants_;
  std::unordered_map<NodeId, NodeId> nodes_;
  std::unordered_map<ValueId, ValueId> values_;
  std::unordered_map<StorageId, HomeOfStorage> storages_;
  std::vector<NodeId> unfinished_;  // nodes with unresolved saved tensors
};

// Replaces nodes by a call of a user-registered function (a fused kernel, a part of a split graph), and back.
//
//     GroupCall group{.nodes = {mul, add, relu}, .schema = "my::mul_add_relu(Tensor a, Tensor b, Tensor c) -> Tensor"};
//     NodeId call = replace_by_call(graph, group);
//     inline_call(graph, call, body);                        // `body` as returned by extract(graph, nodes)
//
// The nodes must be able to run at one position: no dependence may lead out of the group and back into it. The schema
// must declare the effects of the group on the rest of the graph (schema_of() returns such a schema):
//
//   - an argument that is written is `Tensor(a!)`; a result that shares an argument's storage has its annotation `(a)`;
//   - random nodes require a `Generator?` argument, collectives a `str group_name` (_c10d_functional);
//   - nodes that read the host or are unknown require `...` (the call is then assumed to have any effect).
//
// The call is placed in the innermost region that contains all nodes, with phase, modes and source of the first. Its
// results keep the storages of the old ones; storages internal to the group are removed. Saved inputs and outputs
// remain saved, and backward nodes of the group are linked to the call.

struct Boundary {
  std::vector<ValueId> inputs;   // produced outside, in order of first use, without duplicates
  std::vector<ValueId> outputs;  // used or saved outside, in order of creation
};
Boundary boundary_of(const Graph& graph, std::span<const NodeId> nodes);

// Returns "name(Tensor x0, Tensor(a!) x1, ...) -> (Tensor, ...)" for a call with the boundary's inputs and outputs.
std::string schema_of(const Graph& graph, std::span<const NodeId> nodes, const std::string& name);
// Uses precomputed effects, for many groups.
std::string schema_of(const Graph& graph, std::span<const NodeId> nodes, const std::string& name,
                      const Effects& effects);

struct GroupCall {
  std::vector<NodeId> nodes;
  std::string schema;
  // By schema position. Empty: the boundary's inputs in order, then defaults.
  std::vector<Argument> arguments;
  // Values returned by the call, flattened. Empty: the boundary's outputs.
  std::vector<ValueId> outputs;
};

// Throws ParseError if `schema` is invalid. Throws GraphError, leaving the graph unchanged, if the group is not legal,
// or if inputs or outputs are missing in `arguments` or `outputs` or do not match the schema.
NodeId replace_by_call(Graph& graph, const GroupCall& group);
// Replaces several disjoint groups in linear time. Returns the call of each group.
std::vector<NodeId> replace_by_calls(Graph& graph, std::span<const GroupCall> groups);

// Replaces `call` by the nodes of `body`, whose placeholders and outputs correspond to the call's value arguments and
// results. Throws as splice() does, and if the number of outputs differs.
void inline_call(Graph& graph, NodeId call, const Graph& body);

// Patterns: graph fragments in text form that are searched for in a graph.
//
//     const Pattern pattern = Pattern::parse(
//         "%wt = aten::t(self=%w)\n"
//         "%y = aten::addmm(self=%b, mat1=%x, mat2=%wt, beta=_, alpha=$alpha)\n"
//         "return %y\n");
//     for (const Match& match : find_matches(graph, pattern)) ... match.value("%x"), match.argument("$alpha")
//
// One call per line in the format of shadowgraph/graph/text.h, without types and attributes; blank lines and
// `# comments` are ignored.
//     %name    a value. If no line produces it, it is a wildcard, bound to the same value throughout a match
//     $name    any argument, bound to the same argument throughout a match; `_` matches any argument
//     name=..  a constant, matched exactly (1 is not 1.0)
//     ...      at the end of the arguments: omitted ones match anything, otherwise their default
//     [%a, %b] a list of that length; `None` an omitted argument; `_` an unused result
//     return   values that may be used outside of the match; others may be used only within it
//
// Operators are named with their overload ("aten::add.Tensor"), functions by their name in the graph.
//
// A match must be replaceable as a whole at one position, by default that of its last node: the values it reads are not
// written in between, nor does a node in between depend on its effects. If a returned value is used before the last
// node, the position is earlier, or other nodes are moved (Dependences::meeting_point). Others are refused.
//
// Matches do not overlap; the first in program order takes precedence. Nodes with inner values that are saved for
// backward by other nodes do not match. Linear in the graph for patterns connected by operands.

// One argument of a call in a pattern or a replacement.
struct PatternArgument {
  enum class Kind : uint8_t { kAnything, kDefault, kLiteral, kValue, kArgument, kList };
  Kind kind = Kind::kDefault;
  uint32_t index = 0;  // index of the value (kValue) or argument (kArgument)
  Argument literal;    // kLiteral: stored in Pattern::literals
  std::vector<PatternArgument> elements;
};

struct PatternCall {
  std::string target;                      // "aten::add.Tensor"
  std::vector<PatternArgument> arguments;  // by schema position
  bool more = false;                       // `...`: omitted arguments match anything
  std::vector<int32_t> results;            // value of each flattened result; -1: unnamed
  int line = 0;
};

class Pattern {
 public:
  // `targets`: graph whose functions and operators may also be called. Throws ParseError with line and column.
  static Pattern parse(std::string_view text, const Graph* targets = nullptr, std::string_view name = "<pattern>");

  std::vector<PatternCall> calls;
  std::vector<uint32_t> returns;            // values
  std::vector<std::string> value_names;     // "%x", by value
  std::vector<std::string> argument_names;  // "$alpha"
  std::vector<int32_t> maker;               // by value: the call that produces it, or -1 for a wildcard
  std::shared_ptr<Graph> literals = std::make_shared<Graph>();  // holds constants and targets of the calls
};

struct Match {
  std::vector<NodeId> nodes;        // by call of the pattern
  NodeId last;                      // last of `nodes` in program order
  Dependences::MeetingPoint place;  // position for a replacement
  std::vector<ValueId> values;
  std::vector<Argument> arguments;
  const Pattern* pattern = nullptr;

  // By name, "%x" or "$alpha". Throws Error if the pattern has no such name.
  ValueId value(std::string_view name) const;
  const Argument& argument(std::string_view name) const;
};

// Returns matches in program order of their first-searched nodes. The graph is not changed; `pattern` must outlive the
// matches. `refused`, if given, receives a line for each set of nodes that matches but cannot run at one position.
std::vector<Match> find_matches(const Graph& graph, const Pattern& pattern,
                                std::vector<std::string>* refused = nullptr);
// Uses precomputed dependences.
std::vector<Match> find_matches(const Graph& graph, const Pattern& pattern, const Dependences& dependences,
                                std::vector<std::string>* refused = nullptr);

// Returns whether two arguments without values are equal; they may belong to different graphs.
bool same_constant_argument(const Graph& a, const Argument& x, const Graph& b, const Argument& y);

}  // namespace shadowgraph
