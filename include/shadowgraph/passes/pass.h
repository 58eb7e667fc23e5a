// Options of passes: fields of a struct, declared once. What text forms read, what `shadowgraph list passes` shows and
// messages say follows from the table beside them.
//
//     struct DceOptions {
//       enum class Random : uint8_t { kKeep, kDrop };
//       Random random = Random::kKeep;
//
//       static OptionTable<DceOptions> table() {
//         return OptionTable<DceOptions>().choice("random", &DceOptions::random, {"keep", "drop"},
//                                                 "keep, or drop: later random numbers may differ");
//       }
//     };
//
// Defaults are those of the struct. Reading throws Error that names the option, what it was given, and what it takes.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

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
size_t choice_of(std::string_view name, std::string_view text, std::span<const std::string> choices);
int64_t whole_number_of(std::string_view name, std::string_view text, int64_t least, int64_t most);
[[noreturn]] void refuse_option(std::string_view name);
}  // namespace internal

template <class Options>
class OptionTable {
 public:
  // An enum whose enumerators, from 0 on, are called `names`.
  template <class Enum>
  requires std::is_enum_v<Enum> OptionTable choice(std::string name, Enum Options::*field,
                                                   std::vector<std::string> names, std::string summary) && {
    auto print = [field, names](const Options& options) { return names[static_cast<size_t>(options.*field)]; };
    auto read = [field, name, names = std::move(names)](Options& options, const std::string& text) {
      options.*field = static_cast<Enum>(internal::choice_of(name, text, names));
    };
    return add(std::move(name), std::move(summary), std::move(read), std::move(print));
  }
  OptionTable whole_number(std::string name, int64_t Options::*field, int64_t least, std::string summary,
                           int64_t most = std::numeric_limits<int64_t>::max()) && {
    auto print = [field](const Options& options) { return std::to_string(options.*field); };
    auto read = [field, name, least, most](Options& options, const std::string& text) {
      options.*field = internal::whole_number_of(name, text, least, most);
    };
    return add(std::move(name), std::move(summary), std::move(read), std::move(print));
  }
  OptionTable text(std::string name, std::string Options::*field, std::string summary) && {
    return add(
        std::move(name), std::move(summary),
        [field](Options& options, const std::string& text) { options.*field = text; },
        [field](const Options& options) { return options.*field; });
  }
  // Any other type: `parse` throws Error for what it does not take, `print` gives the text that `parse` reads back.
  template <class Field>
  OptionTable parsed(std::string name, Field Options::*field, Field (*parse)(const std::string&),
                     std::string (*print)(const Field&), std::string summary) && {
    return add(
        std::move(name), std::move(summary),
        [field, parse](Options& options, const std::string& text) { options.*field = parse(text); },
        [field, print](const Options& options) { return print(options.*field); });
  }

  // Those not given keep their defaults.
  Options read(const PassOptions& given) const {
    Options options;
    for (const auto& [name, text] : given) row(name).read(options, text);
    return options;
  }
  std::vector<PassOption> describe() const {
    std::vector<PassOption> described;
    for (const Row& row : rows_) described.push_back({row.name, row.print(Options()), row.summary});
    return described;
  }

 private:
  struct Row {
    std::string name;
    std::string summary;
    std::function<void(Options&, const std::string&)> read;
    std::function<std::string(const Options&)> print;
  };
  template <class Read, class Print>
  OptionTable add(std::string name, std::string summary, Read read, Print print) {
    rows_.push_back({std::move(name), std::move(summary), std::move(read), std::move(print)});
    return std::move(*this);
  }
  const Row& row(const std::string& name) const {
    for (const Row& row : rows_) {
      if (row.name == name) return row;
    }
    internal::refuse_option(name);
  }

  std::vector<Row> rows_;
};

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
//       static OptionTable<DropDropoutOptions> table();    // their names and help (shadowgraph/passes/pass.h)
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
          .options = Options::table().describe()};
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
