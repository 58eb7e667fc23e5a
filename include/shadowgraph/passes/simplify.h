// Simplification passes. Each is described at the top of its file in passes/simplify/.
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

// Canonicalization of no-op views and copies, view chains, and arguments. Results are bitwise unchanged.

struct CanonicalizeResult {
  int64_t same_views = 0;    // views replaced by an equal earlier view
  int64_t view_chains = 0;   // views of views merged into one
  int64_t exact_copies = 0;  // copies, x * 1 and x - 0, replaced by their operand
  int64_t arguments = 0;     // nodes with changed arguments
  int64_t dead_views = 0;    // unused views removed
  PassResult summary() const;
};
CanonicalizeResult canonicalize(Graph& graph);

// Common subexpression elimination.

struct CseOptions {
  // kMerge: backward may reuse results of forward, which are then saved.
  enum class Phases : uint8_t { kWithin, kMerge };
  Phases phases = Phases::kWithin;

  static OptionTable<CseOptions> table() {
    return OptionTable<CseOptions>().choice(
        "phases", &CseOptions::phases, {"within", "merge"},
        "Merge nodes within a phase, or also across phases (backward then reuses forward results)");
  }
};
struct CseResult {
  int64_t merged = 0;
  PassResult summary() const;
};
CseResult cse(Graph& graph, const CseOptions& options = {});

// Constant folding: evaluates nodes that depend on constants only, on the CPU.

struct ConstFoldOptions {
  int64_t max_bytes = 4096;

  static OptionTable<ConstFoldOptions> table() {
    return OptionTable<ConstFoldOptions>().add("max_bytes", &ConstFoldOptions::max_bytes,
                                               "Maximum size of a folded constant",
                                               {.kind = OptionKind::kBytes, .min = 0});
  }
};
struct ConstFoldResult {
  int64_t folded = 0;     // number of nodes
  int64_t constants = 0;  // number of new constants
  int64_t refused = 0;    // operators that threw, or returned another geometry than recorded
  PassResult summary() const;
};
ConstFoldResult const_fold(Graph& graph, const ConstFoldOptions& options = {});

// Dead code elimination: removes side-effect-free nodes with unused results.

struct DceOptions {
  // kDrop: also remove unused random nodes, which changes the random numbers drawn by later ones.
  enum class Random : uint8_t { kKeep, kDrop };
  Random random = Random::kKeep;

  static OptionTable<DceOptions> table() {
    return OptionTable<DceOptions>().choice("random", &DceOptions::random, {"keep", "drop"},
                                            "Keep or drop unused random operators (drop changes later random numbers)");
  }
};
struct DceResult {
  int64_t erased = 0;
  PassResult summary() const;
};
DceResult dce(Graph& graph, const DceOptions& options = {});

// Dead store elimination; folds empty() followed by a fill into the fill.

struct DeadStorageResult {
  int64_t overwritten = 0;  // writes that are overwritten without being read
  int64_t self_copies = 0;  // copies of a tensor to itself
  int64_t unfilled = 0;     // zeros, ones, ... that are overwritten: replaced by empty
  int64_t filled = 0;       // empty followed by a fill: replaced by zeros or full
  int64_t cloned = 0;       // empty followed by a copy: replaced by clone
  PassResult summary() const;
};
DeadStorageResult dead_storage(Graph& graph);

// Merges constants with the same contents.

struct MergeConstantsResult {
  int64_t merged = 0;
  int64_t bytes = 0;  // bytes of the removed constants
  PassResult summary() const;
};
MergeConstantsResult merge_constants(Graph& graph);

// Pattern rewriting: replaces matches of patterns (shadowgraph/graph/edit.h).
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
// The replacement returns as many values as the pattern. Its calls are inserted at the position of the last matched
// node. If a returned value is used before that, its call is inserted at the first use if its operands are available
// there; otherwise the users are moved. The calls are in the region, phase and modes of the last matched node. Shapes
// of their results are computed by the operators' rules on fake tensors.
//
// A match is refused, and counted with the reason, if no position preserves the order of effects and uses, if a
// returned value has another dtype, shape or strides than the one it replaces, or if an operator raises an error.
//
// Aliases of a replaced value become aliases of the new one. Storages keep their kind and free point, and backward
// nodes are linked to the last new node. Linear in the graph for each rule.

struct RewriteRule {
  std::string name;
  Pattern pattern;
  Pattern replacement;
  // Returns whether to replace a match; empty: replace all.
  std::function<bool(const Graph& graph, const Match& match)> filter;
};

// Parses rules: a line `rule NAME`, a pattern, a line `=>`, and a replacement whose wildcards are names of the pattern.
// Throws ParseError. `targets`: see Pattern::parse.
std::vector<RewriteRule> parse_rules(std::string_view text, const Graph* targets = nullptr,
                                     std::string_view name = "<rules>");

struct RewriteResult {
  int64_t replaced = 0;
  int64_t refused = 0;
  int64_t moved = 0;                 // nodes moved after a replacement
  std::vector<std::string> reasons;  // of refusals, without duplicates

  PassResult summary() const;
};

// Applies each rule once, in order. The graph verifies afterwards.
RewriteResult rewrite(Graph& graph, std::span<const RewriteRule> rules);

// The pass `rewrite`: takes rules as text or as a file.
struct RewriteOptions {
  std::string file;
  std::string rules;  // with ';' as line separator

  static OptionTable<RewriteOptions> table() {
    return OptionTable<RewriteOptions>()
        .add("file", &RewriteOptions::file, "File with rules: rule NAME, pattern, =>, replacement")
        .add("rules", &RewriteOptions::rules, "Rules, with ';' for line breaks");
  }
};
// Throws Error if both or none are given, FileError, ParseError.
RewriteResult rewrite(Graph& graph, const RewriteOptions& options);

}  // namespace shadowgraph
