// Parses pipeline text and runs its passes in order, with defaults for options, checks, timing and dumps.
//
//     dce{random=drop},cse      two steps; options in braces, separated by ';', with quotes where a value needs them
//
// The graph is verified before the first step and after each one, so that an invalid graph is attributed to the right
// pass. Each check is linear in the graph; it can be disabled, and so can the comparison with a copy.
#include "shadowgraph/passes/pipeline.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <ostream>

#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"
#include "support/files.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

// Returns "; did you mean dce or cse?", or all known names if none is similar.
std::string suggestion(std::string_view word, std::vector<std::string> known, std::string_view what) {
  if (known.empty()) return "; it takes no options";
  std::vector<std::string> near;
  for (const std::string& name : known) {
    // "canon" has a large edit distance to "canonicalize", but surely means it.
    const bool part = word.size() > 2 && name.find(word) != name.npos;
    if (part || edit_distance(word, name) <= std::max<size_t>(1, word.size() / 3)) near.push_back(name);
  }
  if (!near.empty()) return fmt::format("; did you mean {}?", fmt::join(near, " or "));
  return fmt::format("; {}: {}", what, fmt::join(known, ", "));
}

const Pass& pass_named(std::string_view name) {
  if (const Pass* pass = find_pass(name)) return *pass;
  std::vector<std::string> names;
  for (const Pass* pass : all_passes()) names.push_back(pass->name);
  throw PassError("", fmt::format("unknown pass '{}'{}", name, suggestion(name, names, "available passes")),
                  Error::Fault::kUsage);
}

// Adds the defaults of options that are not given. Throws for unknown names.
PassOptions with_defaults(const Pass& pass, const PassOptions& given) {
  PassOptions complete;
  for (const PassOption& option : pass.options) complete.emplace(option.name, option.default_value);
  for (const auto& [name, value] : given) {
    const auto found = complete.find(name);
    if (found == complete.end()) {
      std::vector<std::string> names;
      for (const PassOption& option : pass.options) names.push_back(option.name);
      throw PassError(
          "",
          fmt::format("pass '{}' has no option '{}'{}", pass.name, name, suggestion(name, names, "available options")),
          Error::Fault::kUsage);
    }
    found->second = value;
  }
  return complete;
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Consumes text up to, not including, one of the characters in `ends`, and returns it trimmed.
std::string_view take_until(std::string_view& rest, std::string_view ends) {
  const size_t end = std::min(rest.find_first_of(ends), rest.size());
  const std::string_view taken = trimmed(rest.substr(0, end));
  rest.remove_prefix(end);
  return taken;
}

[[noreturn]] void fail_at(std::string_view text, std::string_view rest, std::string_view message) {
  const size_t column = text.size() - rest.size();
  throw PassError("",
                  fmt::format("{}\n  {}\n  {}^\nexample of a pipeline: dce{{random=drop}},cse", message, text,
                              std::string(column, ' ')),
                  Error::Fault::kUsage);
}

// Reads an option's value: quoted text, or everything up to ';' or '}'.
std::string_view take_value(std::string_view text, std::string_view& rest) {
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  if (!rest.starts_with('"') && !rest.starts_with('\'')) return take_until(rest, ";}");
  const std::string_view start = rest;
  const size_t end = rest.find(rest.front(), 1);
  if (end == rest.npos) fail_at(text, start, "unterminated quote");
  const std::string_view value = rest.substr(1, end - 1);
  rest.remove_prefix(end + 1);
  const std::string_view after = rest;
  if (!take_until(rest, ";}").empty()) fail_at(text, after, "expected ';' or '}' here");
  return value;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Writes the graph before and after a pass to the dump folder, if there is one.
class Dump {
 public:
  Dump(const PipelineOptions& options, const std::string& pass) {
    static std::atomic<int> count{0};  // numbers files across the pipelines of a process
    std::string folder = options.dump_folder;
    if (const char* variable = std::getenv("SHADOWGRAPH_DUMP"); folder.empty() && variable != nullptr) {
      folder = variable;
    }
    if (folder.empty()) return;
    make_folder(folder);
    prefix_ = fmt::format("{}/{:02}-{}", folder, ++count, pass);
  }
  void write(const Graph& graph, std::string_view when) const {
    // Not write_graph_file, which rejects the invalid graph of a faulty pass that is to be inspected.
    if (!prefix_.empty()) {
      write_file(fmt::format("{}.{}.sg", prefix_, when), [&](std::ostream& file) { print(file, graph); });
    }
  }

 private:
  std::string prefix_;
};

std::string counters_text(const PassResult& result) {
  std::vector<std::string> words;
  for (const auto& [name, count] : result.counters) words.push_back(fmt::format("{} {}", count, name));
  return words.empty() && !result.changed ? "nothing to do" : fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

Pipeline& Pipeline::add(std::string_view pass, PassOptions options) {
  return add(pass_named(pass), std::move(options));
}

Pipeline& Pipeline::add(Pass pass, PassOptions options) {
  PassOptions complete = with_defaults(pass, options);
  steps_.push_back({std::move(pass), std::move(options), std::move(complete)});
  return *this;
}

// Throws PassError with a caret below the error. Looks up passes and options while parsing.
Pipeline Pipeline::parse(std::string_view text) {
  Pipeline pipeline;
  std::string_view rest = text;
  while (true) {
    const std::string_view start = rest;
    const std::string_view name = take_until(rest, ",{}=;");
    if (name.empty()) fail_at(text, start, "expected the name of a pass here");
    PassOptions options;
    if (rest.starts_with('{')) {
      rest.remove_prefix(1);
      while (!rest.starts_with('}')) {
        const std::string_view option_start = rest;
        const std::string_view option = take_until(rest, ",{}=;");
        if (option.empty() || !rest.starts_with('=')) {
          fail_at(text, option_start, "expected an option, name=value, here");
        }
        rest.remove_prefix(1);
        const std::string_view value = take_value(text, rest);
        if (rest.empty())
          fail_at(text, rest, fmt::format("the options of '{}' are not terminated: '}}' is missing", name));
        if (!options.emplace(option, value).second) {
          fail_at(text, option_start, fmt::format("option '{}' is given more than once", option));
        }
        if (rest.starts_with(';')) rest.remove_prefix(1);
      }
      rest.remove_prefix(1);
      const std::string_view after = rest;
      if (!take_until(rest, ",").empty()) fail_at(text, after, "expected a comma or the end here");
    }
    try {
      pipeline.add(name, std::move(options));
    } catch (const PassError& error) {
      fail_at(text, start, error.what());
    }
    if (rest.empty()) return pipeline;
    if (!rest.starts_with(',')) fail_at(text, rest, "expected a comma, options in braces, or the end here");
    rest.remove_prefix(1);
  }
}

// Returns the text of a step as given, without defaults. parse() reads it back.
std::string Pipeline::text_of(const Step& step) {
  if (step.given.empty()) return step.pass.name;
  std::vector<std::string> options;
  for (const auto& [name, value] : step.given) {
    // Quote only values that would otherwise end early, so that text() returns what the user typed.
    const bool plain = value.find_first_of(";}\"'") == value.npos;
    const char quote = value.find('"') == value.npos ? '"' : '\'';
    options.push_back(plain ? fmt::format("{}={}", name, value) : fmt::format("{0}={1}{2}{1}", name, quote, value));
  }
  return fmt::format("{}{{{}}}", step.pass.name, fmt::join(options, ";"));
}

std::string Pipeline::text() const {
  std::vector<std::string> words;
  for (const Step& step : steps_) words.push_back(text_of(step));
  return fmt::format("{}", fmt::join(words, ","));
}

// Exceptions thrown by a pass are attributed to its input; an invalid graph or a wrong result is a bug of the pass.
PassRun Pipeline::run_step(size_t index, Graph& graph, const PipelineOptions& options, double& check_seconds) const {
  const Step& step = steps_[index];
  PassRun run;
  run.pass = text_of(step);
  run.nodes_before = graph.node_count();
  const Dump dump(options, step.pass.name);
  dump.write(graph, "before");
  // Checks are timed separately, since they would make a cheap pass look slow.
  auto check_start = std::chrono::steady_clock::now();
  std::optional<Graph> before;
  if (options.check_unchanged) before.emplace(clone(graph));
  check_seconds += seconds_since(check_start);

  const auto message = [&](const std::string& reason) {
    return fmt::format("pass '{}' (step {} of {}): {}", run.pass, index + 1, steps_.size(), reason);
  };
  const auto fail = [&](const std::string& reason) { throw PassError(step.pass.name, message(reason)); };
  const auto fail_as_bug = [&](const std::string& reason) {
    // Dump the invalid graph for debugging.
    dump.write(graph, "failed");
    throw PassError(step.pass.name, message(reason), Error::Fault::kOurs);
  };
  const auto start = std::chrono::steady_clock::now();
  try {
    run.result = step.pass.run(graph, step.complete);
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    // Not attributed to the pass; formatting a message would allocate again.
    throw;
  } catch (const std::exception& error) {
    fail(error.what());
  }
  run.seconds = seconds_since(start);
  run.nodes_after = graph.node_count();

  check_start = std::chrono::steady_clock::now();
  if (options.verify) {
    try {
      verify(graph);
    } catch (const GraphError& error) {
      fail_as_bug(std::string("it produced an invalid graph, which is a bug in the pass: ") + error.what());
    }
  }
  // Callers skip work if nothing changed, so a wrong "unchanged" would leave them with stale results.
  if (before && !run.result.changed) {
    if (const auto difference = first_difference(*before, graph)) {
      fail_as_bug("it reported no changes but changed the graph, which is a bug in the pass: " + *difference);
    }
  }
  check_seconds += seconds_since(check_start);
  dump.write(graph, "after");
  return run;
}

PipelineReport Pipeline::run(Graph& graph, const PipelineOptions& options) const {
  PipelineReport report;
  if (options.verify) {
    const auto start = std::chrono::steady_clock::now();
    verify(graph);
    report.check_seconds += seconds_since(start);
  }
  // A pass may fail halfway. The copy costs as much as the graph, so it is optional.
  std::optional<Graph> original;
  if (options.restore_on_error) original.emplace(clone(graph));
  try {
    for (size_t i = 0; i < steps_.size(); ++i) report.runs.push_back(run_step(i, graph, options, report.check_seconds));
  } catch (...) {
    if (original) graph = std::move(*original);
    throw;
  }
  return report;
}

PassResult run_pass(Graph& graph, std::string_view pass, const PassOptions& options) {
  const Pass& found = pass_named(pass);
  return found.run(graph, with_defaults(found, options));
}

bool PipelineReport::changed() const {
  return std::any_of(runs.begin(), runs.end(), [](const PassRun& run) { return run.result.changed; });
}

// A table of times and node counts, followed by the reports of the passes.
std::string to_text(const PipelineReport& report) {
  size_t width = 4;
  double seconds = 0;
  for (const PassRun& run : report.runs) width = std::max(width, run.pass.size());
  std::string text = fmt::format("{:<{}}  {:>9}  {:>9}  {:>9}  changes\n", "pass", width, "ms", "nodes", "after");
  for (const PassRun& run : report.runs) {
    text += fmt::format("{:<{}}  {:>9.3f}  {:>9}  {:>9}  {}\n", run.pass, width, run.seconds * 1e3, run.nodes_before,
                        run.nodes_after, counters_text(run.result));
    seconds += run.seconds;
  }
  text += fmt::format("{:<{}}  {:>9.3f}\n", "all", width, seconds * 1e3);
  if (report.check_seconds > 0) text += fmt::format("{:<{}}  {:>9.3f}\n", "checks", width, report.check_seconds * 1e3);
  for (const PassRun& run : report.runs) {
    for (const std::string& warning : run.result.warnings)
      text += fmt::format("\n{}: warning: {}\n", run.pass, warning);
    if (run.result.report.empty()) continue;
    text += fmt::format("\n{}:\n{}", run.pass, run.result.report);
    if (!run.result.report.ends_with('\n')) text += '\n';
  }
  return text;
}

nlohmann::json to_json(const PipelineReport& report) {
  auto passes = nlohmann::json::array();
  for (const PassRun& run : report.runs) {
    auto counters = nlohmann::json::object();
    for (const auto& [name, count] : run.result.counters) counters[name] = count;
    passes.push_back({{"pass", run.pass},
                      {"seconds", run.seconds},
                      {"nodes_before", run.nodes_before},
                      {"nodes_after", run.nodes_after},
                      {"changed", run.result.changed},
                      {"counters", std::move(counters)},
                      {"report", run.result.report},
                      {"warnings", run.result.warnings}});
  }
  return {{"passes", std::move(passes)}, {"check_seconds", report.check_seconds}, {"changed", report.changed()}};
}

}  // namespace shadowgraph
