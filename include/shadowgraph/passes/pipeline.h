// Pipelines of passes, with verification between passes, timing and dumps.
//
//     PipelineReport report = Pipeline::parse("functionalize,dce{random=drop},cse").run(graph);
//     std::cout << to_text(report);                          // time, nodes before and after, changes of each pass
//     run_pass(graph, "dce", {{"random", "drop"}});          // a single pass
//
// The text is a list of names separated by commas. A name may be followed by options, `{name=value;name=value}`; values
// with ';' or '}' must be quoted. Blanks are ignored. Passes are taken from the registry.
//
// If the environment variable SHADOWGRAPH_DUMP is set to a folder, the graph is written before and after every pass, to
// folder/03-dce.before.sg and folder/03-dce.after.sg, numbered in the order of execution in this process; use `diff` to
// compare them. A graph that fails verification is written to folder/03-dce.failed.sg.
//
// If a pass fails, the caller's graph is restored to its state before the first pass.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/export.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

struct PipelineOptions {
#ifdef NDEBUG
  static constexpr bool kCheckByDefault = false;
#else
  static constexpr bool kCheckByDefault = true;
#endif
  // Verify the graph before the first pass and after each. About 0.2 us a node each time.
  bool verify = kCheckByDefault;
  // Compare the graph after a pass that reports no change with a copy. About 0.5 us a node each time.
  bool check_unchanged = kCheckByDefault;
  // Copy the graph first and restore it if a pass fails. Otherwise it is left in the state of the failed pass.
  bool restore_on_error = true;
  // Folder for dumps; "": that of SHADOWGRAPH_DUMP, if set.
  std::string dump_folder;

  static PipelineOptions checked() { return {.verify = true, .check_unchanged = true}; }
};

struct PassRun {
  std::string pass;    // with its options as given: "dce{random=drop}"
  double seconds = 0;  // of the pass itself, without checks and dumps
  uint32_t nodes_before = 0;
  uint32_t nodes_after = 0;
  PassResult result;
};

struct PipelineReport {
  std::vector<PassRun> runs;
  double check_seconds = 0;  // verification and comparison
  bool changed() const;
};
// Formats a table with one line per pass, followed by the output of analyses.
std::string to_text(const PipelineReport& report);
nlohmann::json to_json(const PipelineReport& report);

class Pipeline {
 public:
  // Throws PassError. Does not check option values; passes check them when they run.
  static Pipeline parse(std::string_view text);

  // Throw PassError for an unknown name, and for options that the pass does not have.
  Pipeline& add(std::string_view pass, PassOptions options = {});
  Pipeline& add(Pass pass, PassOptions options = {});

  // Throws PassError; GraphError if the graph is invalid to begin with; FileError if a dump cannot be written.
  PipelineReport run(Graph& graph, const PipelineOptions& options = {}) const;

  // Returns the text form, for pipelines of registered passes.
  std::string text() const;
  size_t size() const { return steps_.size(); }

 private:
  struct Step {
    Pass pass;
    PassOptions given;
    PassOptions complete;
  };
  static std::string text_of(const Step& step);
  PassRun run_step(size_t index, Graph& graph, const PipelineOptions& options, double& check_seconds) const;

  std::vector<Step> steps_;
};

// Runs a single registered pass without checks, copies or dumps. Throws PassError, and the errors of the pass.
PassResult run_pass(Graph& graph, std::string_view pass, const PassOptions& options = {});

}  // namespace shadowgraph
