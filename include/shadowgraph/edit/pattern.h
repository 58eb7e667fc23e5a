// Patterns: small texts in the graph's own language, found wherever a graph does the same.
//
//     const Pattern pattern = Pattern::parse(
//         "%wt = aten::t(self=%w)\n"
//         "%y = aten::addmm(self=%b, mat1=%x, mat2=%wt, beta=_, alpha=$alpha)\n"
//         "return %y\n");
//     for (const Match& match : find_matches(graph, pattern)) ... match.value("%x"), match.argument("$alpha")
//
// One call a line, as shadowgraph/text.h writes them without types and attributes; blank lines and `# comments` are
// skipped.
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
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/analysis/dependences.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

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
