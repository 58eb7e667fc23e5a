// shadowgraph passes and shadowgraph opt.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "shadowgraph/passes/pipeline.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {

void list_passes(bool json) {
  if (json) {
    auto list = nlohmann::json::array();
    for (const Pass* pass : all_passes()) {
      auto options = nlohmann::json::array();
      for (const PassOption& option : pass->options) {
        options.push_back({{"name", option.name}, {"default", option.default_value}, {"summary", option.summary}});
      }
      list.push_back({{"name", pass->name}, {"summary", pass->summary}, {"options", std::move(options)}});
    }
    print_text(json_text(list));
    return;
  }
  for (const Pass* pass : all_passes()) {
    fmt::print("{:<14} {}\n", pass->name, pass->summary);
    for (const PassOption& option : pass->options) {
      const std::string value = option.default_value.empty() ? "" : fmt::format("={}", option.default_value);
      fmt::print("{:<14}   {}{}: {}\n", "", option.name, value, option.summary);
    }
  }
}

void optimize(const OptimizeRequest& request) {
  const Pipeline pipeline = Pipeline::parse(request.passes);
  Graph graph = read_graph_file(request.file);
  PipelineReport report;
  {
    const Progress progress("running " + pipeline.text());
    PipelineOptions options = request.check ? PipelineOptions::checked() : PipelineOptions();
    options.restore_on_error = false;  // nothing is written when a pass fails
    report = pipeline.run(graph, options);
  }
  if (request.output.empty()) {
    std::fputs(to_text(graph).c_str(), stdout);
    std::fputs(to_text(report).c_str(), stderr);
    return;
  }
  write_graph_file(request.output, graph);
  if (request.json) {
    nlohmann::json json = to_json(report);
    json["nodes"] = graph.node_count();
    json["output"] = request.output;
    print_text(json_text(json));
  } else {
    std::fputs(to_text(report).c_str(), stdout);
  }
}

}  // namespace shadowgraph::cli
