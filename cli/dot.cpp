#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/estimates.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "shadowgraph/draw.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {
namespace {

std::vector<NodeId> named_by_user(const Graph& graph, const std::string& option, const std::string& name) {
  try {
    return nodes_named(graph, name);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", option, error.what()));
  }
}

// What is written to a file of that name is SVG, asked for or not.
bool is_svg(const DotRequest& request) { return request.svg || request.output.ends_with(".svg"); }

ViewOptions view_options(const DotRequest& request, const Graph& graph) {
  ViewOptions options;
  if (request.depth >= 0) options.depth = request.depth;
  options.fold_repeats = !request.unfold;
  if (request.all_phases) {
    for (uint32_t i = 0; i < graph.phase_count(); ++i) options.phases.push_back(graph.phase_name(PhaseId(i)));
  } else {
    options.phases = request.phases;
  }
  options.show_views = request.views;
  options.most_rows = request.rows;
  options.most_boxes = request.boxes ? *request.boxes : is_svg(request) ? kMostBoxesOfSvg : options.most_boxes;
  options.radius = request.radius;
  if (!request.around.empty()) options.around = named_by_user(graph, "--around", request.around);
  if (!request.path.empty()) {
    options.path =
        PathEnds{named_by_user(graph, "--path", request.path[0]), named_by_user(graph, "--path", request.path[1])};
  }
  return options;
}

}  // namespace

void draw(const DotRequest& request) {
  const Graph graph = read_graph_file(request.file);
  std::optional<Graph> before;
  if (!request.before.empty()) before = read_graph_file(request.before);
  const Progress progress("drawing " + request.file);
  ViewOptions options = view_options(request, graph);
  if (before) options.before = &*before;
  std::optional<NodeColors> colors;
  if (is_color_file(request.color)) {
    colors = node_colors_of_file(graph, request.color);
    options.colors = &*colors;
  } else if (const ColorBy by = color_by(request.color); by != ColorBy::kOperator) {
    const Estimates estimates(request.profile, graph);
    colors = NodeColors::of(profile(graph, estimates.options()), by);
    options.colors = &*colors;
  }
  const ViewModel view = ViewModel::of(graph, options);
  for (const std::string& note : view.notes) std::fputs(("shadowgraph: " + note + "\n").c_str(), stderr);
  const std::string dot = write_dot(view);
  const std::string text = is_svg(request) ? render_svg(dot) : dot;
  if (request.output.empty()) {
    print_text(text);
  } else {
    write_file(request.output, text);
  }
}

}  // namespace shadowgraph::cli
