// Text and JSON forms of graphs: printing, parsing, file I/O.
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

// Returns "f32", "bf16", "i64", "c64" (two f32), "f8e4m3fn", "bool", ...; "undefined" for Undefined and unknown dtypes.
std::string_view dtype_word(c10::ScalarType dtype);
std::optional<c10::ScalarType> parse_dtype(std::string_view word);
// Parses "cpu", "cuda:0"; "cuda" is a device without an index.
std::optional<c10::Device> parse_device(std::string_view text);

// Canonical numbers of nodes, values, storages and constants, as shown by the text form, JSON and messages.
//
// Nodes are numbered in program order, values in order of their producers, storages, constants and user phases in order
// of first appearance. Unreferenced entities have no number and are not printed. Regions keep their indices. Graphs
// that print identically are numbered identically, regardless of how they were built or edited.
class Numbering {
 public:
  static constexpr uint32_t kNone = NodeId::kNone;

  // Linear. Accepts broken graphs: skips ids out of range and stops at a cycle in the node list.
  static Numbering of(const Graph& graph);

  // Return the number, or kNone if there is none or the id is out of range.
  uint32_t of(NodeId id) const { return at(nodes_, id.index); }
  uint32_t of(ValueId id) const { return at(values_, id.index); }
  uint32_t of(StorageId id) const { return at(storages_, id.index); }
  uint32_t of(ConstantId id) const { return at(constants_, id.index); }

  const std::vector<NodeId>& nodes() const { return node_order_; }
  const std::vector<ValueId>& values() const { return value_order_; }
  const std::vector<StorageId>& storages() const { return storage_order_; }
  const std::vector<ConstantId>& constants() const { return constant_order_; }
  // Operators and functions in use, without built-ins, in order of first appearance.
  const std::vector<TargetId>& targets() const { return target_order_; }
  // Returns 2, 3, ... for a target that has the name of an earlier one (including built-ins), otherwise 1.
  uint32_t name_copy(TargetId id) const { return id.index < name_copies_.size() ? name_copies_[id.index] : 1; }
  // Default of `born` for a storage in the text form: the first node that has it as a result.
  NodeId first_node(StorageId id) const { return id.index < first_nodes_.size() ? first_nodes_[id.index] : NodeId(); }

 private:
  static uint32_t at(const std::vector<uint32_t>& numbers, uint32_t index) {
    return index < numbers.size() ? numbers[index] : kNone;
  }
  template <class I>
  static void number(std::vector<uint32_t>& numbers, std::vector<I>& order, I id);
  // Returns false for a list that nests too deep: in a broken graph, a list may contain itself.
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

// The text form: lossless, readable, diffable, one node per line. See docs/graph.md for the grammar.
//
//     shadowgraph 1 libtorch 2.13.0
//     operator aten::mm(Tensor self, Tensor mat2) -> Tensor
//     s0 = 24 cpu input
//     s1 = 16 cpu temporary
//     n0: %0 = sg::input(name="x") : f32[2,3] @s0
//     n1: %1 = aten::t(self=%0) : f32[3,2]{1,3} @s0
//     n2: %2 = aten::mm(self=%0, mat2=%1) : f32[2,2] @s1 | backward of n1 "net.cpp:12"
//
// Omitted parts have defaults: arguments the schema default, strides {..} contiguous, +offset 0, the device that of the
// storage, region r0, phase forward. `writes(s4@2)`, the storage version that a node creates, is derived
// (shadowgraph/graph/analysis.h); the parser checks it. Linear, about 1 us and 150 bytes a node.

enum class PrintPreset {
  // For messages: nodes only, positional tensors, long lists abbreviated, without "aten::", regions, storages, effects.
  kShort,
  // Complete. Parsing it returns an equal graph.
  kCanonical,
  // Structure only: repeated blocks print identically. A value created k values ago is `^k`; a value from a
  // placeholder or another node is its type. Names, regions, storages, sources and saved tensors are omitted.
  kFingerprint,
};
constexpr auto enum_names(PrintPreset) {
  return names_of<PrintPreset>({{PrintPreset::kCanonical, "canonical"},
                                {PrintPreset::kShort, "short"},
                                {PrintPreset::kFingerprint, "fingerprint"}});
}

void print(std::ostream& out, const Graph& graph, PrintPreset preset = PrintPreset::kCanonical);
std::string to_text(const Graph& graph, PrintPreset preset = PrintPreset::kCanonical);

// Prints one node, without newline and `writes`, for messages. Accepts ids out of range (printed as "%?"). The first
// overload numbers the whole graph (linear); use the second for many nodes.
std::string to_text(const Graph& graph, NodeId node);
std::string to_text(const Graph& graph, NodeId node, const Numbering& numbering);

// Prints `nodes` in the given order. With kFingerprint, values produced by other nodes are printed as their type.
std::string to_text(const Graph& graph, std::span<const NodeId> nodes, PrintPreset preset);

// Returns the type of a value: "f32[2,3]", "int".
std::string type_text(const Graph& graph, ValueId value);

// Writes atomically, using a temporary file. Throws FileError, and GraphError for an invalid graph.
void write_graph_file(const std::string& path, const Graph& graph);

// Parsing of the text form. Safe for untrusted text: the result is a graph or a ParseError. Memory and time are linear
// in the length of the text (about 2 us a node); no number in it determines the size of an allocation. Lists nest at
// most kMaxListDepth deep, and all references are resolved. verify() checks other invariants.
//
// Also accepts blank lines, `# comments`, arguments in any order or equal to their default, no `n3:` and `writes(...)`.

// Version of the text format: the one that is written, and the newest that can be read.
constexpr int kTextFormatVersion = 1;

// Throws ParseError; its message has "name:line:column:", the expected input, the line, and a caret under the position.
Graph parse(std::string_view text, std::string_view name = "<text>");

// Parses a file. Throws FileError if it cannot be read.
Graph read_graph_file(const std::string& path);

// The JSON form: the same content as the text form, lossless in both directions.
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
// Nodes, values, storages and constants are numbered as in the text (a node's number is its index). Unlike the text,
// JSON includes defaults, strides and devices. Arguments are
//
//     ints, bools, strings and null as such; floats always with a point or exponent (0.5, 1.0)
//     {"float": "nan"} for floats without a JSON number; {"complex": [re, im]}; {"value": 3}; {"constant": 0}
//     {"dtype": "f32"}, {"layout": ..}, {"memory_format": ..}, {"device": "cuda:0"}, {"generator": "cpu"}
//     {"opaque": "type"}; arrays for lists
//
// {"ints": [..]} and {"list": [..]} are used where the schema expects the other kind of list. A string that is not
// valid UTF-8 is {"escaped": ".."} with the escapes of the text form.

nlohmann::json to_json(const Graph& graph);

// Throws ParseError with the JSON pointer of the error ("/nodes/12"); line() and column() refer to the equivalent text.
Graph from_json(const nlohmann::json& json);

// Writes atomically, using a temporary file in the same directory; on failure `path` is unchanged. Follows links, and
// writes directly to files that are not regular (/dev/stdout, a pipe). Throws FileError.
void write_file(const std::string& path, std::string_view content);
// Streams content that should not be held in memory twice.
void write_file(const std::string& path, const std::function<void(std::ostream&)>& write);
// Throws FileError.
std::string read_file(const std::string& path);
// Makes SIGINT end this process at once, for programs that need no cleanup: removes the temporary files of writes in
// progress, prints one line to stderr, and ends by the signal, so that a calling shell sees it.
void exit_on_interrupt() noexcept;

}  // namespace shadowgraph
