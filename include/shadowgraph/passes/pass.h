// What a pass is, and the table of those there are. Options of passes are tables of fields (shadowgraph/options.h).
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

// Options as text, by name.
using PassOptions = std::map<std::string, std::string, std::less<>>;

// What the text form knows of an option.
struct PassOption {
  std::string name;
  std::string default_value;
  std::string summary;
};

namespace internal {
template <class Options>
std::vector<PassOption> options_of_pass() {
  std::vector<PassOption> described;
  const auto& table = Options::table();  // which may be a temporary
  for (const auto& row : table.rows()) {
    described.push_back({row.name, Option::joined(row.print(Options())), row.summary});
  }
  return described;
}
}  // namespace internal

// Defines what a pass is, and the table of those there are.
//
// A pass rewrites a graph, or finds something out and notes it on the nodes (Graph::set_note). Each is one function
// with types, declared in the header of its purpose:
//
//     DceResult done = dce(graph, {.random = DceOptions::Random::kDrop});     // shadowgraph/passes/simplify.h
//
// and one row of a table, by which text reaches all of it: `shadowgraph opt g.sg --pass 'dce{random=drop},cse'`.
//
// The convention, for shadowgraph's own passes and for yours:
//
//     struct DropDropoutOptions {                          // a field an option; a pass without options takes none
//       int64_t most = 100;
//       static OptionTable<DropDropoutOptions> table();    // their names and help (shadowgraph/options.h)
//     };
//     struct DropDropoutResult {                           // what C++ is told: counts, ids
//       int64_t dropped = 0;
//       PassResult summary() const;                        // what people are told
//     };
//     DropDropoutResult drop_dropout(Graph& graph, const DropDropoutOptions& options);
//     register_pass(pass_row("drop-dropout", "Erases dropout of inference graphs", drop_dropout));
//
// Whoever calls a pass may rely on this:
//
//   - the graph verifies after it if it did before;
//   - `changed == false` means that not one byte of the graph's text differs;
//   - the graph is left as it was if the pass throws before its first edit, and verifies in any case;
//   - running it twice gives what running it once gives, unless its summary says otherwise.
//
// Passes change the graph that they are given. What makes another graph (split, join, clone) is no pass.

// What a pass tells people, whatever the type of its result.
struct PassResult {
  bool changed = false;
  std::vector<std::pair<std::string, int64_t>> counters;  // what was done: {"erased", 12}
  std::string report;                                     // what an analysis has to say to people; lines
  std::vector<std::string> warnings;                      // what was asked for and came to nothing

  // For a pass that changes something wherever it counts something; counts of 0 are not mentioned.
  static PassResult of_changes(std::vector<std::pair<std::string, int64_t>> counts) {
    std::erase_if(counts, [](const auto& count) { return count.second == 0; });
    return {.changed = !counts.empty(), .counters = std::move(counts), .report = {}};
  }
};
// With the options as text, by name.
using PassFunction = std::function<PassResult(Graph& graph, const PassOptions& options)>;

// A row of the table: a pass behind its text form.
struct Pass {
  std::string name;     // "functionalize": lower case, words joined by '-'
  std::string summary;  // one line
  // All of `options` are there when it runs, with their defaults where the caller gave none.
  PassFunction run;
  std::vector<PassOption> options;  // what it takes; others are refused before it runs
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

// The row of a typed pass: reads the options by their table, runs it, and sums its result up (a PassResult is a sum
// already).
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

// Throws Error if the name is taken or not a name.
void register_pass(Pass pass);
// nullptr if there is none of that name.
const Pass* find_pass(std::string_view name);
// All of them by name.
std::vector<const Pass*> all_passes();

}  // namespace shadowgraph
