// Rewriting by rules: wherever a graph does what a pattern says (shadowgraph/edit/pattern.h), let it do something else.
//
//     const auto rules = parse_rules(
//         "rule linear\n"
//         "%wt = aten::t(self=%w)\n"
//         "%y = aten::addmm(self=%b, mat1=%x, mat2=%wt)\n"
//         "return %y\n"
//         "=>\n"
//         "%y = aten::linear(input=%x, weight=%w, bias=%b)\n"
//         "return %y\n");
//     const RewriteResult result = rewrite(graph, rules);      // result.replaced, result.refused
//
// The replacement returns as many values as the pattern. Its calls stand where the last matched node stood. A value
// that is used before that is made at its first use, if all operands are made by then; otherwise the users wait. The
// calls are in the last matched node's region, phase and modes. Their results get shapes from the operators' rules on
// fake tensors.
//
// A match is left alone, and counted as refused with the reason, in three cases:
//
//   - no such place keeps every effect and use in order;
//   - a value that comes out has another dtype, shape or strides than the one it stands for;
//   - the operator refuses its arguments.
//
// What aliased a replaced value aliases the new one. Storages keep kind and death, and backward nodes find the last new
// node as their forward node.
//
// torch.fx: subgraph_rewriter.replace_pattern. Linear in the graph for each rule.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shadowgraph/edit/pattern.h"
#include "shadowgraph/export.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

struct RewriteRule {
  std::string name;
  Pattern pattern;
  Pattern replacement;
  // Matches that it returns false for are left alone; empty: none.
  std::function<bool(const Graph& graph, const Match& match)> filter;
};

// `rule NAME` lines, each followed by a pattern, a line `=>`, and a replacement, whose wildcards are names of the
// pattern. Throws ParseError. `targets` as for Pattern::parse.
std::vector<RewriteRule> parse_rules(std::string_view text, const Graph* targets = nullptr,
                                     std::string_view name = "<rules>");

struct RewriteResult {
  int64_t replaced = 0;
  int64_t refused = 0;
  int64_t moved = 0;                 // nodes that waited for a replacement
  std::vector<std::string> reasons;  // of refusals, each once

  PassResult summary() const;
};

// Each rule once over the graph, in their order. The graph verifies after it.
RewriteResult rewrite(Graph& graph, std::span<const RewriteRule> rules);

// The pass `rewrite`: rules as text, one of the two.
struct RewriteOptions {
  std::string file;
  std::string rules;  // with ';' for line ends

  static OptionTable<RewriteOptions> table() {
    return OptionTable<RewriteOptions>()
        .text("file", &RewriteOptions::file, "file of rules: rule NAME, pattern, =>, replacement")
        .text("rules", &RewriteOptions::rules, "the rules themselves, with ';' for line ends");
  }
};
// Throws Error if both or none are given, FileError, ParseError.
RewriteResult rewrite(Graph& graph, const RewriteOptions& options);

}  // namespace shadowgraph
