// `shadowgraph opt`: runs passes on a saved graph.
#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/passes/pipeline.h"

namespace shadowgraph::cli {
namespace {

struct OptimizeRequest {
  std::string file;
  std::string passes;  // "canonicalize,cse,dce{random=drop}"
  std::string output;  // empty: the graph to stdout, the report to stderr
  bool json = false;   // the report as JSON
  bool unchecked = false;
};

int optimize(const OptimizeRequest& request) {
  if (request.json && request.output.empty()) {
    throw CLI::ValidationError("--json", "requires -o: the graph and the report cannot both go to stdout");
  }
  const Pipeline pipeline = Pipeline::parse(request.passes);
  if (kind_of_source(request.file) != SourceKind::kGraph) {
    throw Error(
        fmt::format("opt reads a saved graph; write one with: shadowgraph capture {} -o graph.sg", request.file));
  }
  Graph graph = read_saved_graph(request.file);
  PipelineOptions options = request.unchecked ? PipelineOptions() : PipelineOptions::checked();
  options.restore_on_error = false;  // the graph is discarded if a pass fails
  const PipelineReport report =
      with_progress("running " + pipeline.text(), [&] { return pipeline.run(graph, options); });
  if (request.output.empty()) {
    print_text(to_text(graph));
    print_to(stderr, to_text(report));
    return 0;
  }
  write_graph_file(request.output, graph);
  if (!request.json) {
    print_text(to_text(report));
    return 0;
  }
  nlohmann::json json = to_json(report);
  json["nodes"] = graph.node_count();
  json["output"] = request.output;
  print_text(json_text(json));
  return 0;
}

void add_options(CLI::App& command, OptimizeRequest& request) {
  command.add_option("GRAPH", request.file, "Saved graph")->required();
  begin_group(command, "Passes");
  command
      .add_option("--pass", request.passes, "Passes in order, with options: dce{random=drop},cse; see 'list passes'")
      ->required();
  command.add_flag("--no-check", request.unchecked, "Do not verify the graph after each pass");
  begin_group(command, kOutput);
  command.add_option("-o,--output", request.output, "Write the graph to this file (default: stdout)");
  command.add_flag("--json", request.json, "Print the report as JSON (requires -o)");
  command.footer(
      "Examples:\n"
      "  shadowgraph opt gpt2.sg --pass canonicalize,cse,dce -o small.sg\n"
      "  SHADOWGRAPH_DUMP=folder shadowgraph opt gpt2.sg --pass dce    # also dumps the graph around every pass");
}

}  // namespace

Work declare_opt(CLI::App& command) { return work_of<OptimizeRequest>(command, add_options, optimize); }

}  // namespace shadowgraph::cli
