// `shadowgraph capture`: captures or reads a graph, and prints, writes or verifies it.
#include "shadowgraph/capture/capture.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/graph/verify.h"

namespace shadowgraph::cli {
namespace {

struct GraphRequest {
  CaptureRequest capture;
  std::string output;  // graph file; empty: stdout
  PrintPreset preset = PrintPreset::kCanonical;
  bool json = false, verify = false;
};

void write(const GraphRequest& request, const LoadedGraph& loaded) {
  if (request.json) {
    write_file(request.output, json_text(to_json(loaded.graph)));
  } else {
    write_graph_file(request.output, loaded.graph);
  }
  const std::string how =
      loaded.capture_seconds ? fmt::format("captured in {:.3f} s", *loaded.capture_seconds) : "read from a file";
  print_log("{}: {} nodes, {}\n", request.output, loaded.graph.node_count(), how);
}

void print(const GraphRequest& request, const Graph& graph) {
  print_text(request.json ? json_text(to_json(graph)) : to_text(graph, request.preset));
}

int capture(const CLI::App& command, const GraphRequest& request) {
  if (!request.output.empty()) takes_none_of(command, "-o", {"--preset"});
  if (request.json) takes_none_of(command, "--json", {"--preset"});
  const LoadedGraph loaded = load(request.capture);
  // An invalid saved graph can still be printed; an invalid capture is a bug.
  if (request.verify || loaded.capture_seconds) verify(loaded.graph);
  if (!request.output.empty()) write(request, loaded);
  if (request.verify) {
    print_out("{}: {} nodes, every invariant holds\n", request.capture.source, loaded.graph.node_count());
  } else if (request.output.empty()) {
    print(request, loaded.graph);
  }
  return 0;
}

void add_options(CLI::App& command, GraphRequest& request) {
  add_source(command, request.capture);
  add_capture_options(command, request.capture);
  begin_group(command, kOutput);
  command.add_option("-o,--output", request.output, "Write the graph to this file (default: print it)");
  command.add_flag("--json", request.json, "JSON instead of text");
  command.add_flag("--verify", request.verify, "Verify all invariants of the graph and report the result");
  add_choice(command, "--preset", request.preset,
             "Text format: canonical (can be parsed), short (readable), fingerprint (structure only)");
  command.footer(
      "Examples:\n"
      "  shadowgraph capture gpt2 --mode train -o gpt2.sg\n"
      "  shadowgraph capture gpt2.sg --preset short | less");
}

}  // namespace

Work declare_capture(CLI::App& command) { return work_of<GraphRequest>(command, add_options, capture); }

}  // namespace shadowgraph::cli
