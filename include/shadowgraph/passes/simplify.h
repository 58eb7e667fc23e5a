// The same results by fewer nodes: the classic passes. Each is described at the head of its file in passes/simplify/.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// One way of writing for what can be written in many: no-op views and copies, view chains, arguments. Changes no bit of
// any result.

struct CanonicalizeResult {
  int64_t same_views = 0;    // views that an earlier view stands for now
  int64_t view_chains = 0;   // views of views that became one
  int64_t exact_copies = 0;  // copies, and x * 1, x - 0, that what they copy stands for now
  int64_t arguments = 0;     // nodes whose arguments are written another way
  int64_t dead_views = 0;    // views that nobody used
  PassResult summary() const;
};
CanonicalizeResult canonicalize(Graph& graph);

// Keeps one of all nodes that compute the same thing.

struct CseOptions {
  // kMerge: backward may keep what forward computed.
  enum class Phases : uint8_t { kWithin, kMerge };
  Phases phases = Phases::kWithin;

  static OptionTable<CseOptions> table() {
    return OptionTable<CseOptions>().choice(
        "phases", &CseOptions::phases, {"within", "merge"},
        "within: only within a phase; merge: backward may reuse results of forward");
  }
};
struct CseResult {
  int64_t merged = 0;
  PassResult summary() const;
};
CseResult cse(Graph& graph, const CseOptions& options = {});

// Computes now, on the CPU, what only depends on constants.

struct ConstFoldOptions {
  int64_t max_bytes = 4096;

  static OptionTable<ConstFoldOptions> table() {
    return OptionTable<ConstFoldOptions>().add("max_bytes", &ConstFoldOptions::max_bytes,
                                               "largest constant to create, in bytes",
                                               {.kind = OptionKind::kBytes, .least = 0});
  }
};
struct ConstFoldResult {
  int64_t folded = 0;     // nodes
  int64_t constants = 0;  // made in their place
  int64_t refused = 0;    // operators that threw, or gave another geometry than was recorded
  PassResult summary() const;
};
ConstFoldResult const_fold(Graph& graph, const ConstFoldOptions& options = {});

// Erases nodes that nobody can notice; never an effect.

struct DceOptions {
  // kDrop: random nodes without use go too, so that later ones may draw other numbers.
  enum class Random : uint8_t { kKeep, kDrop };
  Random random = Random::kKeep;

  static OptionTable<DceOptions> table() {
    return OptionTable<DceOptions>().choice("random", &DceOptions::random, {"keep", "drop"},
                                            "random operators: keep, or drop (later random numbers may differ)");
  }
};
struct DceResult {
  int64_t erased = 0;
  PassResult summary() const;
};
DceResult dce(Graph& graph, const DceOptions& options = {});

// Drops writes that nobody sees; allocations that are filled at once become the filling.

struct DeadStorageResult {
  int64_t overwritten = 0;  // writes that another covers before anybody reads
  int64_t self_copies = 0;  // copies of a tensor to itself
  int64_t unfilled = 0;     // zeros, ones and the like that are overwritten at once: empty now
  int64_t filled = 0;       // empty, then filled: zeros or full now
  int64_t cloned = 0;       // empty, then copied to: clone now
  PassResult summary() const;
};
DeadStorageResult dead_storage(Graph& graph);

// Keeps one of all constants with the same contents.

struct MergeConstantsResult {
  int64_t merged = 0;
  int64_t bytes = 0;  // of those that went
  PassResult summary() const;
};
MergeConstantsResult merge_constants(Graph& graph);

// Rewriting by rules: wherever a graph does what a pattern says (shadowgraph/graph/edit.h), let it do something else.
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
        .add("file", &RewriteOptions::file, "file of rules (rule NAME, pattern, =>, replacement)")
        .add("rules", &RewriteOptions::rules, "rules as text, with ';' for line breaks");
  }
};
// Throws Error if both or none are given, FileError, ParseError.
RewriteResult rewrite(Graph& graph, const RewriteOptions& options);

}  // namespace shadowgraph
