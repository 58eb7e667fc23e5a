#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/estimates.h"
#include "cli/progress.h"
#include "shadowgraph/draw.h"
#include "shadowgraph/text.h"
#include "shadowgraph/verify.h"

namespace shadowgraph::cli {
namespace {

// A graph, its profile, and what the profile was told: kept where they are, since the profile reads the others.
struct Profiled {
  LoadedGraph loaded;
  std::unique_ptr<Estimates> estimates;
  Profile costs;
};

std::unique_ptr<Profiled> profiled(const ProfileRequest& request) {
  auto result = std::make_unique<Profiled>(Profiled{load(request.capture), nullptr, {}});
  const Progress progress("profiling " + result->loaded.name);
  verify(result->loaded.graph);
  result->estimates = std::make_unique<Estimates>(request, result->loaded.graph);
  result->costs = shadowgraph::profile(result->loaded.graph, result->estimates->options());
  result->costs.capture_seconds = result->loaded.capture_seconds;
  return result;
}

// What a reader knows the graph by: the model, or the file that it was read from.
std::string title_of(const Profiled& side, const std::string& source) {
  return side.loaded.capture_seconds ? side.loaded.name : source;
}

// The text of a file of a profile; "" of anything else, which is a graph file or a model.
std::string saved_profile(const std::string& path) {
  if (!path.ends_with(".json")) return {};
  return read_file(path);
}

}  // namespace

void report(const ReportRequest& request) {
  const auto own = profiled(request.profile);
  HtmlOptions options{.title = request.title.empty() ? title_of(*own, request.profile.capture.source) : request.title};
  std::unique_ptr<Profiled> before;
  if (const std::string saved = saved_profile(request.compare); !saved.empty()) {
    options.before_json = saved;
    options.before_title = request.compare;
  } else if (!request.compare.empty()) {
    ProfileRequest other = request.profile;
    other.capture.source = request.compare;
    before = profiled(other);
    options.before = &before->costs;
    options.before_title = title_of(*before, request.compare);
  }
  std::optional<NodeColors> values;
  if (!request.color.empty()) {
    values = node_colors_of_file(own->loaded.graph, request.color);
    options.values = &*values;
  }
  std::string html;
  {
    const Progress progress("writing " + request.output);
    html = to_html(own->costs, options);
    write_file(request.output, html);
  }
  fmt::print(stderr, "{}: {} nodes, {}\n", request.output, own->loaded.graph.node_count(),
             human_bytes(static_cast<int64_t>(html.size())));
}

}  // namespace shadowgraph::cli
