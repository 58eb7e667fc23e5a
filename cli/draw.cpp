// `shadowgraph draw`: draws a graph as DOT or SVG, or writes an HTML page.
#include "shadowgraph/draw/draw.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/estimates.h"
#include "cli/option_checks.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/source_options.h"
#include "cli/verbs.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph::cli {
namespace {

constexpr const char* kPicture = "Picture (.svg, .dot)";

struct DrawRequest {
  CaptureRequest capture;
  EstimateRequest estimate;
  std::string output;              // .dot, .svg, .html; empty: DOT to stdout
  std::string color = "operator";  // or a file of node values
  std::string title;               // of an HTML page; empty: the model's name
  int depth = -1;                  // module levels to expand; -1: as many as stay readable
  bool unfold = false;             // draw repeated layers individually
  bool all_phases = false;
  std::vector<std::string> phases;  // phases to draw; empty: only forward if the graph is large
  bool views = false;               // draw views too
  std::string around;               // as accepted by nodes_named(); empty: the whole graph
  int radius = 2;
  std::vector<std::string> path;  // two nodes, as accepted by nodes_named(); empty: none
  std::string before;             // saved graph to highlight differences from; empty: none
  size_t rows = ViewOptions().max_rows;
  std::optional<size_t> boxes;  // maximum; empty: the default of DOT or SVG

  bool svg() const { return output.ends_with(".svg"); }
  bool page() const { return output.ends_with(".html"); }
};

std::vector<NodeId> named_by_user(const Graph& graph, const std::string& option, const std::string& name) {
  try {
    return nodes_named(graph, name);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", option, error.what()));
  }
}

ViewOptions view_options(const DrawRequest& request, const Graph& graph) {
  ViewOptions options;
  if (request.depth >= 0) options.depth = request.depth;
  options.fold_repeats = !request.unfold;
  if (request.all_phases) {
    for (uint32_t i = 0; i < graph.phase_count(); ++i) options.phases.push_back(graph.phase_name(PhaseId(i)));
  } else {
    options.phases = request.phases;
  }
  options.show_views = request.views;
  options.max_rows = request.rows;
  options.max_boxes = request.boxes ? *request.boxes : request.svg() ? kMaxSvgBoxes : options.max_boxes;
  options.radius = request.radius;
  if (!request.around.empty()) options.around = named_by_user(graph, "--around", request.around);
  if (!request.path.empty()) {
    options.path =
        PathEnds{named_by_user(graph, "--path", request.path[0]), named_by_user(graph, "--path", request.path[1])};
  }
  return options;
}

std::optional<NodeColors> colors_of(const DrawRequest& request, const Graph& graph) {
  if (is_color_file(request.color)) return node_colors_of_file(graph, request.color);
  const ColorBy by = color_by(request.color);
  if (by == ColorBy::kOperator) return std::nullopt;
  const Estimates estimates(request.estimate, graph);
  return NodeColors::of(profile(graph, estimates.options()), by);
}

int draw_picture(const DrawRequest& request) {
  const Graph graph = load(request.capture).graph;
  std::optional<Graph> before;
  if (!request.before.empty()) before = read_saved_graph(request.before);
  const Progress progress("drawing " + request.capture.source);
  ViewOptions options = view_options(request, graph);
  if (before) options.before = &*before;
  const std::optional<NodeColors> colors = colors_of(request, graph);
  if (colors) options.colors = &*colors;
  const ViewModel view = ViewModel::of(graph, options);
  for (const std::string& note : view.notes) print_log("shadowgraph: {}\n", note);
  const std::string dot = write_dot(view);
  if (request.output.empty()) {
    print_text(dot);
  } else {
    write_file(request.output, request.svg() ? render_svg(dot) : dot);
  }
  return 0;
}

int draw_page(const DrawRequest& request) {
  const auto profiled = load_and_profile(request.capture, request.estimate);
  HtmlOptions options{.title = request.title.empty() ? profiled->title : request.title};
  std::optional<NodeColors> values;
  if (is_color_file(request.color)) {
    values = node_colors_of_file(profiled->loaded.graph, request.color);
    options.values = &*values;
  }
  write_page(request.output, *profiled, options);
  return 0;
}

int draw(const CLI::App& command, const DrawRequest& request) {
  if (!request.page()) {
    takes_none_of(command, request.output.empty() ? "DOT on stdout" : request.output, {"--title"});
    return draw_picture(request);
  }
  takes_none_of(command, "-o NAME.html", {kPicture});
  if (command.count("--color") > 0 && !is_color_file(request.color)) {
    throw CLI::ValidationError("--color",
                               "an HTML page already offers these colors; give a FILE of node values, or remove it");
  }
  return draw_page(request);
}

void add_picture_options(CLI::App& command, DrawRequest& request) {
  begin_group(command, kPicture);
  add_number(command, "--depth", request.depth, 0, "Module levels to expand (default: as many as stay readable)");
  command.add_flag("--unfold", request.unfold, "Draw repeated layers individually");
  command.add_flag("--all-phases", request.all_phases, "Also draw backward and optimizer");
  command.add_option("--phase", request.phases, "Draw only this phase: forward, backward, optimizer; repeatable");
  command.add_flag("--views", request.views, "Also draw views and other nodes without computation");
  command
      .add_option("--around", request.around,
                  "Draw the neighborhood of a node (n12), value (%7), module, parameter or operator")
      ->type_name("NODE");
  add_number(command, "--radius", request.radius, 0, "With --around: maximum distance in edges, in both directions");
  command.add_option("--path", request.path, "Draw the dataflow paths from one to the other")
      ->type_name("FROM TO")
      ->expected(2);
  command.add_option("--diff", request.before, "Highlight differences from this saved graph: added, removed, changed")
      ->type_name("BEFORE");
  add_number(command, "--boxes", request.boxes, 0,
             "Maximum boxes before modules are collapsed (default: 250 in SVG, 3000 in DOT; 0: no limit)");
  add_number(command, "--rows", request.rows, 0, "Maximum boxes in a column before more is folded (0: no limit)");
}

void add_options(CLI::App& command, DrawRequest& request) {
  add_source(command, request.capture);
  add_capture_options(command, request.capture);
  add_estimate_options(command, request.estimate);
  begin_group(command, kOutput);
  command
      .add_option("-o,--output", request.output,
                  "NAME.svg, NAME.dot (Graphviz) or NAME.html (interactive page) (default: DOT to stdout)")
      ->check([](const std::string& text) {
        const bool known = text.ends_with(".svg") || text.ends_with(".dot") || text.ends_with(".html");
        return known ? std::string() : "'" + text + "' has no known format; end it with .svg, .dot or .html";
      });
  command
      .add_option("--color", request.color,
                  "operator, flops, bytes, allocated, memory, time, device, phase, module; or FILE[:COLUMN]")
      ->capture_default_str();
  command.add_option("--title", request.title, "Title of the HTML page (default: the model or file)");
  add_picture_options(command, request);
  command.footer(
      "Examples:\n"
      "  shadowgraph draw gpt2 --mode train -o gpt2.html\n"
      "  shadowgraph draw gpt2.sg --around transformer.h.3 --color time -o block.svg");
}

}  // namespace

Work declare_draw(CLI::App& command) { return work_of<DrawRequest>(command, add_options, draw); }

}  // namespace shadowgraph::cli
