// What a pass is, and the table of those there are.
//
// A pass rewrites a graph, or finds something out and notes it on the nodes (Graph::set_note). It is a function of the
// graph and of options given as text, so that `shadowgraph opt g.sg --pass 'dce{random=drop},cse'` reaches all of it.
//
//     register_pass({.name = "drop-dropout", .summary = "Erases dropout of inference graphs",
//                    .run = [](Graph& graph, const PassOptions&) { ...; return PassResult{.changed = erased > 0}; }});
//
// Whoever calls a pass may rely on this: the graph verifies after it if it did before; `changed == false` means that
// not one byte of the graph's text differs; the graph is left as it was if the pass throws before its first edit, and
// verifies in any case; running it twice gives what running it once gives, unless its summary says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct PassResult {
  bool changed = false;
  std::vector<std::pair<std::string, int64_t>> counters;  // what was done: {"erased", 12}
  std::string report;                                     // what an analysis has to say to people; lines
};

// By name; all of a pass' options are there when it runs, with their defaults where the caller gave none.
using PassOptions = std::map<std::string, std::string, std::less<>>;
using PassFunction = std::function<PassResult(Graph& graph, const PassOptions& options)>;

struct Pass {
  struct Option {
    std::string name;
    std::string default_value;
    std::string summary;
  };
  std::string name;     // "functionalize": lower case, words joined by '-'
  std::string summary;  // one line
  PassFunction run;
  std::vector<Option> options;  // what it takes; others are refused before it runs
};

// Throws Error if the name is taken or not a name.
void register_pass(Pass pass);
// nullptr if there is none of that name.
const Pass* find_pass(std::string_view name);
// All of them by name.
std::vector<const Pass*> all_passes();

}  // namespace shadowgraph
