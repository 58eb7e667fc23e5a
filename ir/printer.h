// A graph as text: lossless, readable, diffable, one node a line. docs/ir.md holds the grammar.
//
//     shadowgraph 1 libtorch 2.13.0
//     operator aten::mm(Tensor self, Tensor mat2) -> Tensor
//     s0 = 24 cpu input
//     s1 = 16 cpu temporary
//     n0: %0 = sg::input(name="x") : f32[2,3] @s0
//     n1: %1 = aten::t(self=%0) : f32[3,2]{1,3} @s0
//     n2: %2 = aten::mm(self=%0, mat2=%1) : f32[2,2] @s1 | backward of n1 "net.cpp:12"
//
// What is left out has one meaning: an argument not named has its schema default, no strides {..} means contiguous, no
// +offset means 0, no device that of the storage, no region r0, no phase forward. Erased nodes and what only they used
// vanish, everything else is renumbered (ir/numbering.h), so two graphs with the same content give the same bytes.
// `writes(s4@2)`, the version a node makes, is derived (ir/effects.h); the parser checks it.
//
// About 1 us and 150 bytes a node.
#pragma once

#include <iosfwd>
#include <span>
#include <string>

#include "ir/graph.h"
#include "ir/numbering.h"

namespace shadowgraph {

enum class PrintPreset {
  // For people: nodes only, tensor arguments by position, long lists cut, no "aten::", regions, storages or effects.
  kShort,
  // Everything; what ir/parser.h reads back.
  kCanonical,
  // Structure alone: repeated blocks of a model give equal text. A value made k values ago is `^k`, one from outside
  // (when printing some nodes) or from a placeholder is its type; names, regions, storages, sources and saved tensors
  // are left out.
  kFingerprint,
};

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

// Writes to a temporary file beside `path` and renames it, so that a reader never sees half a graph. Throws FileError.
void write_graph_file(const std::string& path, const Graph& graph);

}  // namespace shadowgraph
