// Graphs in and out of files: the text form, lossless and readable, one node a line, and the same as JSON.
//
// Files, tests, goldens, `shadowgraph capture` and every error that shows a node use it. Printing and parsing are
// linear in the graph; print() writes in pieces, so a graph of a million nodes needs no string of its size.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Words of the text form that people type too.

// "f32", "bf16", "i64", "c64" (two f32), "f8e4m3fn", "bool", ...; "undefined" for Undefined and anything unknown.
std::string_view dtype_word(c10::ScalarType dtype);
std::optional<c10::ScalarType> parse_dtype(std::string_view word);
// "cpu", "cuda:0"; "cuda" is a device without an index.
std::optional<c10::Device> parse_device(std::string_view text);

// ---------------------------------------------------------------------------------------------------------------------
// Canonical numbers of what is alive in a graph: the numbers that the text form, JSON and messages show.
//
// Nodes are numbered in program order, and values in the order in which their nodes produce them. Storages, constants
// and user phases are numbered in the order of first appearance. What nothing alive refers to has no number and
// vanishes from the text: erased nodes, their values, storages that only those used. Regions keep their numbers, they
// are a record of what the program entered. Two graphs that print alike are numbered alike, however they were built or
// edited.

class Numbering {
 public:
  static constexpr uint32_t kNone = NodeId::kNone;

  // Linear. Tolerates broken graphs: ids out of range are skipped, a cycle in the node list ends the walk.
  static Numbering of(const Graph& graph);

  // kNone for what has no number, ids out of range included.
  uint32_t of(NodeId id) const { return at(nodes_, id.index); }
  uint32_t of(ValueId id) const { return at(values_, id.index); }
  uint32_t of(StorageId id) const { return at(storages_, id.index); }
  uint32_t of(ConstantId id) const { return at(constants_, id.index); }

  // By number.
  const std::vector<NodeId>& nodes() const { return node_order_; }
  const std::vector<ValueId>& values() const { return value_order_; }
  const std::vector<StorageId>& storages() const { return storage_order_; }
  const std::vector<ConstantId>& constants() const { return constant_order_; }
  // The operators and functions in use, built-ins left out, in order of first appearance.
  const std::vector<TargetId>& targets() const { return target_order_; }
  // For a target (built-ins included) whose name another target before it has too: 2, 3, ...; otherwise 1.
  uint32_t name_copy(TargetId id) const { return id.index < name_copies_.size() ? name_copies_[id.index] : 1; }
  // The node that the text takes for the birth of a storage when it says nothing: the first that has it as a result.
  NodeId first_node(StorageId id) const { return id.index < first_nodes_.size() ? first_nodes_[id.index] : NodeId(); }

 private:
  static uint32_t at(const std::vector<uint32_t>& numbers, uint32_t index) {
    return index < numbers.size() ? numbers[index] : kNone;
  }
  template <class I>
  static void number(std::vector<uint32_t>& numbers, std::vector<I>& order, I id);
  // False at a list that nests too deep: in a broken graph it may hold itself, and the walk must end.
  bool number_arguments(const Graph& graph, std::span<const Argument> arguments, int depth);
  bool number_results(const Graph& graph, NodeId node, std::span<const Argument> results, int depth);

  std::vector<uint32_t> nodes_, values_, storages_, constants_, name_copies_;
  std::vector<NodeId> node_order_;
  std::vector<ValueId> value_order_;
  std::vector<StorageId> storage_order_;
  std::vector<ConstantId> constant_order_;
  std::vector<TargetId> target_order_;
  std::vector<NodeId> first_nodes_;
};

// ---------------------------------------------------------------------------------------------------------------------
// A graph as text: lossless, readable, diffable, one node a line. docs/graph.md holds the grammar.
//
//     shadowgraph 1 libtorch 2.13.0
//     operator aten::mm(Tensor self, Tensor mat2) -> Tensor
//     s0 = 24 cpu input
//     s1 = 16 cpu temporary
//     n0: %0 = sg::input(name="x") : f32[2,3] @s0
//     n1: %1 = aten::t(self=%0) : f32[3,2]{1,3} @s0
//     n2: %2 = aten::mm(self=%0, mat2=%1) : f32[2,2] @s1 | backward of n1 "net.cpp:12"
//
// What is left out has one meaning. An argument not named has its schema default, no strides {..} means contiguous, and
// no +offset means 0. No device is that of the storage, no region r0, no phase forward. Erased nodes and what only they
// used vanish, and everything else is renumbered (Numbering), so two graphs with the same content give the same bytes.
// `writes(s4@2)`, the version a node makes, is derived (shadowgraph/graph/analysis.h); the parser checks it.
//
// About 1 us and 150 bytes a node.

enum class PrintPreset {
  // For people: nodes only, tensor arguments by position, long lists cut, no "aten::", regions, storages or effects.
  kShort,
  // Everything. Reading it gives the same graph.
  kCanonical,
  // Structure alone: repeated blocks of a model give equal text. A value made k values ago is `^k`. One from outside
  // (when printing some nodes) or from a placeholder is its type. Names, regions, storages, sources and saved tensors
  // are left out.
  kFingerprint,
};
constexpr auto enum_names(PrintPreset) {
  return names_of<PrintPreset>({{PrintPreset::kCanonical, "canonical"},
                                {PrintPreset::kShort, "short"},
                                {PrintPreset::kFingerprint, "fingerprint"}});
}

void print(std::ostream& out, const Graph& graph, PrintPreset preset = PrintPreset::kCanonical);
std::string to_text(const Graph& graph, PrintPreset preset = PrintPreset::kCanonical);

// One node, without line end and without `writes`, for messages. Tolerates ids out of range (printed as "%?"). The
// first form numbers the whole graph, linear; print many nodes with the second.
std::string to_text(const Graph& graph, NodeId node);
std::string to_text(const Graph& graph, NodeId node, const Numbering& numbering);

// The lines of some nodes, in the order given. With kFingerprint, values that none of them makes are "from outside".
std::string to_text(const Graph& graph, std::span<const NodeId> nodes, PrintPreset preset);

// "f32[2,3]", "int": the type of a value alone.
std::string type_text(const Graph& graph, ValueId value);

// Writes it whole or not at all, by a temporary file. Throws FileError, and GraphError for a graph that is broken.
void write_graph_file(const std::string& path, const Graph& graph);

// ---------------------------------------------------------------------------------------------------------------------
// Reads the text form that to_text writes; docs/graph.md holds the grammar.
//
//     Graph g = parse(to_text(graph));      // deeply equal to `graph`, ids renumbered
//     Graph g = read_graph_file("resnet50.sg");
//
// The text may come from anywhere: whatever is in it, the answer is a graph or a ParseError. Memory and time are linear
// in the length of the text: no number in it sizes an allocation. Lists nest at most kMaxListDepth deep, and every
// reference is resolved. Apart from that, whether the graph makes sense is the verifier's business
// (shadowgraph/graph/verify.h).
//
// People who write graphs by hand may write more than the printer does: blank lines, `# comment` lines, arguments in
// any order. `n3:` and `writes(...)` may be left out, and arguments that equal their default may be stated.
//
// About 2 us a node.

// The newest format version that this library reads, and the one it writes.
constexpr int kTextFormatVersion = 1;

// Throws ParseError: "name:line:column: what, expected what", the line, and a caret under the place.
Graph parse(std::string_view text, std::string_view name = "<text>");

// The same of a file. Throws FileError if it cannot be read.
Graph read_graph_file(const std::string& path);

// ---------------------------------------------------------------------------------------------------------------------
// A graph as JSON, for programs that would rather not parse text. The same content, lossless in both directions.
//
//     {"shadowgraph": 1, "libtorch": "2.13.0", "metadata": {...},
//      "operators": [{"kind": "operator", "schema": "aten::mm(Tensor self, Tensor mat2) -> Tensor"}],
//      "storages":  [{"bytes": 24, "device": "cpu", "kind": "input", "born": 0}],
//      "regions":   [{"kind": "root", "name": "", "class": "", "call": 0, "parent": null, "inferred": false}],
//      "constants": [{"dtype": "f32", "sizes": [2], "strides": [1], "base64": "AACAPwAAAEA="}],
//      "dependencies": [{"kind": "size", "value": 0, "dimension": 0, "observed": "2"}],
//      "nodes": [{"target": "aten::mm", "arguments": {"self": {"value": 0}, "mat2": {"value": 1}},
//                 "results": [{"value": 2, "dtype": "f32", "sizes": [2, 2], "strides": [2, 1], "offset": 0,
//                              "storage": 1, "device": "cpu", "layout": "strided", "requires_grad": false}],
//                 "region": 0, "phase": "forward", "forward": 7, "modes": ["grad_mode"],
//                 "saved": [{"argument": "self", "value": 0}], "writes": [{"storage": 0, "version": 1}], "free": [0],
//                 "notes": [["part", "0"]], "source": "net.cpp:12"}]}
//
// Numbers of nodes, values, storages and constants are those of the text (a node's is its index). Unlike the text, JSON
// says everything: defaults, strides, devices. Arguments are
//
//     ints, bools, strings and null as they are; floats always with a point or exponent (0.5, 1.0)
//     {"float": "nan"} for what JSON has no number for; {"complex": [re, im]}; {"value": 3}; {"constant": 0}
//     {"dtype": "f32"}, {"layout": ..}, {"memory_format": ..}, {"device": "cuda:0"}, {"generator": "cpu"}
//     {"opaque": "type"}; arrays for lists
//
// {"ints": [..]} and {"list": [..]} occur where the schema expects the other kind of list. A string that is not UTF-8
// is {"escaped": ".."} with the text form's escapes.

nlohmann::json to_json(const Graph& graph);

// Throws ParseError if anything is wrong, with the JSON pointer of the place ("/nodes/12"); line() and column() are
// then those of the equivalent text. (JSON text itself is read with nlohmann::json::parse.)
Graph from_json(const nlohmann::json& json);

// ---------------------------------------------------------------------------------------------------------------------
// Whole files: nothing is ever left half-written.

// Writes to a temporary file beside `path`, then renames it; on failure `path` is as it was. A link is followed, and
// what is no regular file (/dev/stdout, a pipe) is written to directly. Throws FileError.
void write_file(const std::string& path, std::string_view content);
// The same in pieces, for what is too large to hold twice.
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);
// Throws FileError.
std::string read_file(const std::string& path);

}  // namespace shadowgraph
