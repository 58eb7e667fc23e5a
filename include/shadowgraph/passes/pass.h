// Graph passes and their registry. Options are structs with a table (shadowgraph/options.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/options.h"

namespace SHADOWGRAPH_API shadowgraph {

using PassOptions = std::map<std::string, std::string, std::less<>>;

struct PassOption {
  std::string name;
  std::string default_value;
  std::string summary;
};

namespace internal {
template <class Options>
std::vector<PassOption> options_of_pass() {
  std::vector<PassOption> described;
  const auto& table = Options::table();  // may be a temporary
  for (const auto& row : table.rows()) {
    described.push_back({row.name, Option::joined(row.print(Options())), row.summary});
  }
  return described;
}
}  // namespace internal

// A pass transforms a graph, or analyzes it and annotates its nodes (Graph::set_note). It is a typed function and a row
// in the registry, for text form ('dce{random=drop}'). docs/writing-a-pass.md has an example.
//
//   - If the graph verifies before the pass, it does afterwards.
//   - `changed == false` means that the text form of the graph is identical.
//   - The graph is unchanged if the pass throws before its first edit, and verifies in any case.
//   - The pass is idempotent, unless its summary says otherwise.
//
// Passes modify the given graph. Functions that create another graph (split, join, clone) are not passes.

// Summary of a pass for reports, independent of the type of its result.
struct PassResult {
  bool changed = false;
  std::vector<std::pair<std::string, int64_t>> counters;  // numbers of changes: {"erased", 12}
  std::string report;                                     // output of an analysis, in lines
  std::vector<std::string> warnings;                      // requests that had no effect

  // For a pass whose changes are all counted. Omits counts of 0.
  static PassResult of_changes(std::vector<std::pair<std::string, int64_t>> counts) {
    std::erase_if(counts, [](const auto& count) { return count.second == 0; });
    return {.changed = !counts.empty(), .counters = std::move(counts), .report = {}};
  }
};
using PassFunction = std::function<PassResult(Graph& graph, const PassOptions& options)>;

struct Pass {
  std::string name;     // lower case, words separated by '-': "functionalize"
  std::string summary;  // one line of help
  // Called with all of `options`, using defaults for those not given.
  PassFunction run;
  std::vector<PassOption> options;  // accepted options; others are rejected before it runs
};

namespace internal {
template <class Result>
PassResult summary_of(const Result& result) {
  if constexpr (std::is_same_v<Result, PassResult>) {
    return result;
  } else {
    return result.summary();
  }
}
}  // namespace internal

// Creates the row of a typed pass, which parses the options, runs the pass, and returns its summary (or PassResult).
template <class Result, class Options>
Pass pass_row(std::string_view name, std::string_view summary, Result (*pass)(Graph&, const Options&)) {
  return {.name = std::string(name),
          .summary = std::string(summary),
          .run = [pass, table = Options::table()](Graph& graph, const PassOptions& options) -> PassResult {
            return internal::summary_of(pass(graph, table.read(options)));
          },
          .options = internal::options_of_pass<Options>()};
}
template <class Result>
Pass pass_row(std::string_view name, std::string_view summary, Result (*pass)(Graph&)) {
  return {.name = std::string(name),
          .summary = std::string(summary),
          .run = [pass](Graph& graph, const PassOptions&) -> PassResult { return internal::summary_of(pass(graph)); },
          .options = {}};
}

// Throws Error if the name is invalid or already registered.
void register_pass(Pass pass);
// Returns the pass called `name`, or nullptr.
const Pass* find_pass(std::string_view name);
// Returns all passes, sorted by name.
std::vector<const Pass*> all_passes();

}  // namespace shadowgraph
