// Reads the text form that ir/printer.h writes; docs/ir.md holds the grammar.
//
//     Graph g = parse(to_text(graph));      // deeply equal to `graph`, ids renumbered
//     Graph g = read_graph_file("resnet50.sg");
//
// The text may come from anywhere: whatever is in it, the answer is a graph or a ParseError. Memory and time are linear
// in the length of the text (no number in it sizes an allocation), lists nest at most kMaxListDepth deep, and every
// reference is resolved. Apart from that, whether the graph makes sense is the verifier's business (ir/verifier.h).
//
// For people who write graphs by hand, more is accepted than the printer writes: blank lines, `# comment` lines, `n3:`
// left out, arguments in any order, arguments stated that equal their default, `writes(...)` left out.
//
// About 2 us a node.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace shadowgraph {

// The newest format version that this library reads, and the one it writes.
constexpr int kTextFormatVersion = 1;

// Throws ParseError: "name:line:column: what, expected what", the line, and a caret under the place.
Graph parse(std::string_view text, std::string_view name = "<text>");

// The same of a file. Throws FileError if it cannot be read.
Graph read_graph_file(const std::string& path);

}  // namespace shadowgraph
