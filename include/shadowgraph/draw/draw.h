// Pictures of graphs: what they show, and writers of DOT, SVG and HTML.
//
// For people who look at a graph, by the tool or a notebook. What is shown is decided in linear time; Graphviz takes
// far longer for a layout, which is why pictures have at most some hundred boxes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/operator_card.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/layout.h"

namespace SHADOWGRAPH_API shadowgraph {

struct Profile;

// Colours by what a profile says of nodes, for ViewOptions::colors.
//
//     const NodeColors colors = NodeColors::of(costs, ColorBy::kTime);
//     write_dot(ViewModel::of(costs.graph(), {.colors = &colors}));
//
// Amounts are on a logarithmic scale of ten colours that the colour-blind can tell apart, from the least amount in the
// picture to the most. (cividis: dark is little, yellow much.) A box of several operators has their sum, one without
// any is grey. Kinds have a colour each; a box of several kinds is grey and says so.

enum class ColorBy : uint8_t {
  kOperator,   // its category
  kFlops,      // of matrix products
  kBytes,      // read and written
  kAllocated,  // bytes of new storages
  kMemory,     // bytes that autograd keeps for backward from here on
  kTime,       // estimated seconds
  kDevice,     // where its first result is
  kPhase,
  kModule,  // the class of the innermost module that has one
  kGiven,   // what a file says of nodes: node_colors_of_file
};
constexpr auto enum_names(ColorBy) {
  return names_in_order<ColorBy>("operator", "flops", "bytes", "allocated", "memory", "time", "device", "phase",
                                 "module", "given");
}
// Throws Error, listing the names, if `name` is none of them. What is given has no name to ask for.
ColorBy color_by(std::string_view name);

struct LegendEntry {
  std::string label;  // "12.5 MiB", "backward"
  std::string fill;   // "#rrggbb"
  bool light_text = false;
  friend bool operator==(const LegendEntry&, const LegendEntry&) = default;
};

struct NodeColors {
  static constexpr uint32_t kNoKind = 0xFFFFFFFFU;
  enum class Unit : uint8_t { kFlops, kBytes, kSeconds, kNone };
  friend constexpr auto enum_names(Unit) { return names_in_order<Unit>("flops", "bytes", "seconds", ""); }

  ColorBy by = ColorBy::kOperator;
  std::string title;  // "estimated time on h100"
  Unit unit = Unit::kFlops;
  IdMap<NodeId, double> amounts;
  IdMap<NodeId, uint32_t> kinds{kNoKind};
  std::vector<LegendEntry> kind_entries;  // if not empty, nodes have kinds rather than amounts

  // Throws Error if the profile does not know: times without a device's figures (ProfileOptions::spec).
  static NodeColors of(const Profile& profile, ColorBy by);
};

// Colours by values from elsewhere: what was measured, which rank or kernel a node went to. A file names nodes as the
// text of the graph does, "n12", or "%7" for the node that makes a value.
//
//     {"title": "measured on gpu 3", "unit": "seconds", "nodes": {"n12": 0.25, "n13": 0.5}}
//     {"n12": "rank 0", "n13": "rank 1"}
//     node,seconds
//     n12,0.25
//
// All values are numbers, none below 0, or all are words; `unit` is "flops", "bytes", "seconds" or "". In a table (CSV,
// whose first line names its columns) `column` is the one to take, by default the second. A name that ends with _bytes,
// _flops or seconds says its unit. Nodes that are not named have none.

// Throws Error, naming the line or key, if that is not what `text` holds. `name` is of the file, for messages and
// title.
NodeColors node_colors_of_text(const Graph& graph, const std::string& text, const std::string& name,
                               const std::string& column = {});
// Reads "FILE.json", "FILE.csv" or "FILE.csv:COLUMN". Throws what reading the file throws, too.
NodeColors node_colors_of_file(const Graph& graph, const std::string& name);
// Whether `name` is that of such a file, rather than of a mode.
bool is_color_file(std::string_view name);

// What a picture of a graph shows, decided before anything is drawn.
//
//     const ViewModel model = ViewModel::of(graph, {.depth = 2});
//     write_dot(model);
//
// A box is one operator or one collapsed module. Boxes lie in nested clusters, one a module call (all calls of a
// container that no region names are one). These make a large graph readable, each with an option to switch it off:
//
// - phases    A graph of more than 300 nodes shows its forward phase only; a smaller one shows all, each phase but
//             forward in a cluster of its own.
// - plumbing  Views, detach and aliases are not drawn: their users are joined to what they are views of. Parameters,
//             buffers and constants stand in the labels of their users.
// - repeats   Numbered siblings (encoder.layer.0..11), adjacent in order, that do the same are drawn once, "x12":
//             operators, constant arguments, types and wiring agree, as in summaries (shadowgraph/profile/profile.h). What flows
//             from one copy to the next is a dashed edge; the edges of the whole run enter and leave the copy that is drawn.
// - depth     Modules below `depth` levels are boxes with the number of operators, FLOPs and bytes inside. Without a
//             wish, the deepest level that keeps the picture to 120 boxes, and to 40 below one another: what is taller
//             cannot be read. Where no modules are left to close, runs of operators are joined for that.
// - limits    A module with more than 400 boxes directly in it is collapsed; more than 3,000 boxes in all are reduced
//             by depth, and if need be by joining runs of operators. `notes` says what was left out and why.
//
// A part of a graph is what lies `around` some nodes or on the `paths` between some. It is drawn with all its phases,
// and its modules open. What was left out next to it is grey. What is asked for is drawn whatever it is, views and
// parameters included. With `before`, both graphs are one picture: what went stands where it was.
//
// A module with a single box is not a cluster: the box carries its name. Deterministic; nothing in it is an address.

// Returns all nodes that a reader may mean by `name`, in program order:
//
//   - "n12" and "%7" (the node that makes it), as in the text of the graph;
//   - a module's path: its nodes, in forward if it has any there;
//   - the name of a parameter, buffer or input;
//   - an operator, "aten::mm" or "mm".
//
// Throws Error, with names that are alike, if there is none.
std::vector<NodeId> nodes_named(const Graph& graph, std::string_view name);

// What lies on the ways of tensors from one of `from` to one of `to`.
struct PathEnds {
  std::vector<NodeId> from, to;
};

struct ViewOptions {
  std::optional<int> depth;         // levels of modules that are open, 0: none; empty: chosen
  std::vector<std::string> phases;  // names to show; empty: chosen
  bool fold_repeats = true;
  bool show_views = false;
  bool show_parameters = false;    // as boxes of their own
  size_t comfortable_boxes = 120;  // what the chosen depth aims at
  size_t most_boxes = 3000;        // more are reduced by depth, then by joining runs; 0: any number
  size_t most_children = 400;      // boxes directly in one module
  size_t most_rows = 40;           // boxes below one another, without a wish for a depth; 0: any number

  // A part of the graph: what these say, together. Both empty: all of it.
  std::vector<NodeId> around;  // and what is at most `radius` steps along tensors from them
  int radius = 2;
  std::optional<PathEnds> path;

  const NodeColors* colors = nullptr;  // none: by the kind of operator
  const Graph* before = nullptr;       // what to mark the differences from
  // What happens to a tensor on its way to a node that takes it ("all_gather 12.0 MiB"); empty: nothing, or no text.
  std::function<std::string(NodeId user, ValueId value)> edge_note;
};

// What is said of a box by its border.
enum class ViewMark : uint8_t {
  kNone,
  kNamed,    // asked for by name
  kAdded,    // only in the graph
  kRemoved,  // only in the one before
  kChanged,  // in both, not the same; or a module with any of these in it
};

struct ViewBox {
  uint32_t cluster = 0;  // the innermost one around it
  std::string id;        // "n12": from the node's position; "m12": a module, from its first node
  OperatorCategory category = OperatorCategory::kOther;
  std::vector<std::string> lines;  // of the label
  std::string tooltip;
  std::string fill;         // "#rrggbb"; empty: that of the category
  bool light_text = false;  // white is readable on `fill`, black is not
  ViewMark mark = ViewMark::kNone;
  bool omitted = false;  // not a box of the picture, but what was left out next to one
};

// What an operator does with a tensor that it is given.
enum class ViewEdgeKind : uint8_t {
  kData,      // reads it
  kAlias,     // shows the same storage, as views do
  kMutation,  // writes to it
};

struct ViewEdge {
  uint32_t from = 0;  // boxes
  uint32_t to = 0;
  std::string label;    // "f32[8,512,768]"; "+2" if more tensors take the same way
  std::string tooltip;  // all of them, in full
  int64_t bytes = 0;    // of the largest
  ViewEdgeKind kind = ViewEdgeKind::kData;
  bool to_next_copy = false;  // from one copy of a folded module to the next
  bool removed = false;       // only in the graph before
  std::string note;           // ViewOptions::edge_note, of the first tensor that has one
};

struct ViewCluster {
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  uint32_t parent = kNone;  // clusters[0] is the whole picture
  std::string id;           // "c12": from its first node
  std::string title;        // "layer.{0..11} x12"
  std::string subtitle;     // "BertLayer: 12 operators, 7.25 G FLOPs"
  bool phase = false;       // a phase rather than a module
};

struct ViewModel {
  std::string title;
  std::vector<ViewCluster> clusters;  // parents before children
  std::vector<ViewBox> boxes;         // in program order
  std::vector<ViewEdge> edges;
  std::vector<std::string> notes;   // what is not shown, and why
  int depth = 0;                    // levels of modules that are open
  std::string legend_title;         // of `legend`, with its unit
  std::vector<LegendEntry> legend;  // what fills mean; empty: the categories

  // Throws Error if an option names a phase that the graph does not have, a node that is not shown, or ends without a
  // path.
  static ViewModel of(const Graph& graph, const ViewOptions& options = {});
};

// A view model as text in Graphviz' DOT language: nested clusters, coloured boxes, types on edges, a legend.
//
// Ids come from node positions, so the text is the same for every capture of a program. Labels and tooltips may hold
// any bytes: quotes, backslashes, braces, ampersands and line ends are escaped, what is not UTF-8 becomes '?'.

struct DotOptions {
  bool legend = true;  // colours in use, and the model's notes
};

std::string write_dot(const ViewModel& model, const DotOptions& options = {});

// `text` as it stands between the quotes of a DOT string: rendered, it is `text` again. Lines are separated by
// `line_end`.
std::string escape_dot(std::string_view text, std::string_view line_end = "\\n");

// DOT to SVG by Graphviz' own library, in this process.
//
// Only the layout and the plain renderer are loaded, from the folder beside libgvc. So neither the `dot` program nor
// its configuration file is needed. Text is measured from built-in metrics: the same picture on every machine, whatever
// fonts it has. Graphviz is not thread-safe; calls take turns. It writes nothing to stderr.

// What Graphviz lays out in seconds: its time grows with the square of the boxes and more. For ViewOptions::most_boxes.
constexpr size_t kMostBoxesOfSvg = 250;

// Throws Error if `dot` is not DOT, or if Graphviz or its plugins cannot be used.
std::string render_svg(const std::string& dot);

// A profile as one HTML file: the graph to open and search, the memory over the step, the tables (docs/pictures.md).
//
//     write_file("report.html", to_html(costs));
//     write_file("change.html", to_html(after, {.before = &before}));     // and what differs
//
// The file needs nothing but a browser: no network, no other file. Names may hold any bytes. A training step of 26,661
// nodes is about 1.5 MB.

struct HtmlOptions {
  std::string title;                // default: the model's name
  const Profile* before = nullptr;  // to compare with
  std::string before_json;          // or what to_json(profile) was: figures by module and operator, without a graph
  std::string before_title;
  const NodeColors* values = nullptr;  // of nodes, to colour by beside what the profile knows: node_colors_of_file
};

// Throws Error if `before_json` is no profile of one program.
std::string to_html(const Profile& profile, const HtmlOptions& options = {});

// Plans as pictures: of a sharding plan, of a pipeline's run, of a cluster.

struct RecomputeCurve;  // shadowgraph/profile/recompute.h

// Boxes are coloured by how a node's first result lies, inputs among them; parameters are named in them. Edges on which
// a tensor is redistributed are red, with the steps and the bytes that a device has after the last of them. A copy that
// several nodes share is on the edge to each.
//
//     write_file("plan.svg", render_svg(write_dot(view_of_plan(graph, answer.plan, planner))));
//
// `options.colors` and `.edge_note` are the picture's own. Throws as ViewModel::of does, and Error
// where the plan asks for what is not possible.
ViewModel view_of_plan(const Graph& graph, const ShardingPlan& plan, const RedistributionPlanner& planner,
                       const ViewOptions& options = {});

// A pipeline's run as a picture: what each rank does when, and the bytes that it holds meanwhile.
//
//     write_file("pipeline.svg", pipeline_svg(run, {.memory = 80'000'000'000}));
//     write_file("pipeline.html", pipeline_html(run, {.title = "llama3_70b"}));     // with tables, one file, no script
//
// Each rank has a row of boxes, coloured by F, B, I and W and shaded by micro-batch in turn. Below it are the
// live bytes, all on one scale. Boxes have their action, seconds and bytes as tooltips.

class PipelineRun;  // shadowgraph/plan/pipeline.h

struct PipelinePictureOptions {
  std::string title;
  std::optional<int64_t> memory;  // bytes of a device: a line across each rank's bytes
};
std::string pipeline_svg(const PipelineRun& run, const PipelinePictureOptions& options = {});
std::string pipeline_html(const PipelineRun& run, const PipelinePictureOptions& options = {});

// A plan of a cluster as a page: plans by seconds and bytes, what other values of a knob cost, what ranks do and hold.
//
//     write_file("report.html", plan_html(plan_training(source, request)));

struct PlanAnswer;  // shadowgraph/plan/training_plan.h

// One file that loads nothing from outside.
std::string plan_html(const PlanAnswer& answer);

// Peak, downwards, against recomputed FLOPs: a staircase, since between two points the cheaper one is taken, and the
// other policies as marks. The same text on every machine; no fonts are measured.
std::string to_svg(const RecomputeCurve& curve, const std::string& title);

}  // namespace shadowgraph
