// Passes one after the other: from text or from calls, verified in between, timed, dumped on request.
//
//     PipelineReport report = Pipeline::parse("functionalize,dce{random=drop},cse").run(graph);
//     std::cout << to_text(report);                          // time, nodes before and after, what each pass did
//     run_pass(graph, "dce", {{"random", "drop"}});          // one pass alone
//
// The text is names separated by commas; a name may be followed by its options, `{name=value;name=value}`; a value with
// ';' or '}' in it stands in quotes. Spaces do not matter. Passes are those of the table (shadowgraph/passes/pass.h),
// users' own included, or given as they are.
//
// With SHADOWGRAPH_DUMP=folder in the environment, every pass writes the graph that it was given and the one it left.
// They go to folder/03-dce.before.sg and folder/03-dce.after.sg, numbered as passes run in this process; `diff` shows
// what a pass did. A graph that a pass broke is folder/03-dce.failed.sg. (Binaryen and XLA have this; it finds most
// bugs of passes.)
//
// A pass that fails leaves its caller's graph as it was before the first pass.
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
  // Compare the graph of a pass that says "unchanged" with a copy made before. About 0.5 us a node each time.
  bool check_unchanged = kCheckByDefault;
  // Copy the graph first, so that it can be given back when a pass fails. Without, it is left as the pass left it.
  bool restore_on_error = true;
  // Where to dump; empty: where SHADOWGRAPH_DUMP says, if it does.
  std::string dump_folder;

  static PipelineOptions checked() { return {.verify = true, .check_unchanged = true}; }
};

// What one pass did.
struct PassRun {
  std::string pass;    // with its options as they were given: "dce{random=drop}"
  double seconds = 0;  // the pass alone, without checks and dumps
  uint32_t nodes_before = 0;
  uint32_t nodes_after = 0;
  PassResult result;
};

struct PipelineReport {
  std::vector<PassRun> runs;
  double check_seconds = 0;  // verifying and comparing
  bool changed() const;
};
// A table with one line a pass, then what analyses had to say.
std::string to_text(const PipelineReport& report);
nlohmann::json to_json(const PipelineReport& report);

class Pipeline {
 public:
  // Throws PassError; knows nothing of the values of options, which passes check when they run.
  static Pipeline parse(std::string_view text);

  // Throw PassError for a name that is not in the table and for options that the pass does not have.
  Pipeline& add(std::string_view pass, PassOptions options = {});
  Pipeline& add(Pass pass, PassOptions options = {});

  // Throws PassError; GraphError if the graph was broken from the start; FileError if it cannot dump.
  PipelineReport run(Graph& graph, const PipelineOptions& options = {}) const;

  // What parse reads back, for pipelines of registered passes.
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

// One pass of the table, without checks, copies or dumps. Throws what the pass throws, and PassError.
PassResult run_pass(Graph& graph, std::string_view pass, const PassOptions& options = {});

}  // namespace shadowgraph
