// Visualization of graphs: selection of the nodes to show, in linear time, and output as DOT, SVG and HTML.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/operator_support.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/layout.h"

namespace SHADOWGRAPH_API shadowgraph {

class PipelineRun;      // shadowgraph/plan/pipeline.h
struct ClusterPlan;     // shadowgraph/plan/training_plan.h
struct Profile;         // shadowgraph/profile/profile.h
struct RecomputeCurve;  // shadowgraph/profile/recompute.h

// Colors of nodes by profile data, for ViewOptions::colors.
//
// Amounts use a logarithmic, colorblind-safe scale of ten colors (cividis: dark is low, yellow is high), from the
// smallest to the largest amount in the picture. A box of several operators shows their sum; a box without an amount is
// gray. Kinds have one color each; a box of several kinds is gray and labeled so.

enum class ColorBy : uint8_t {
  kOperator,   // operator category
  kFlops,      // of matrix products
  kBytes,      // read and written
  kAllocated,  // bytes of new storages
  kMemory,     // bytes saved for backward
  kTime,       // estimated seconds
  kDevice,     // device of the first result
  kPhase,
  kModule,  // class of the innermost module that has one
  kGiven,   // values from a file: node_colors_of_file
};
constexpr auto enum_names(ColorBy) {
  return names_in_order<ColorBy>("operator", "flops", "bytes", "allocated", "memory", "time", "device", "phase",
                                 "module", "given");
}
// Throws Error that lists the accepted names if `name` is none of them. kGiven has no name.
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

  // Throws Error if the profile lacks the data, such as times without device specs (ProfileOptions::spec).
  static NodeColors of(const Profile& profile, ColorBy by);
};

// Colors by external values: measurements, or the rank or kernel assigned to a node. Nodes are "n12", or "%7" by value.
//
//     {"title": "measured on gpu 3", "unit": "seconds", "nodes": {"n12": 0.25, "n13": 0.5}}
//     {"n12": "rank 0", "n13": "rank 1"}
//     node,seconds
//     n12,0.25
//
// Values are either all non-negative numbers or all strings; `unit` is "flops", "bytes", "seconds" or "". In CSV, whose
// first line has column names, `column` selects the values, by default the second. Names ending in _bytes, _flops or
// seconds determine the unit. Nodes that are not listed have no value.

// Throws Error that names the line or key if `text` is invalid. `name` is the file name for messages and the title.
NodeColors node_colors_of_text(const Graph& graph, const std::string& text, const std::string& name,
                               const std::string& column = {});
// Reads "FILE.json", "FILE.csv" or "FILE.csv:COLUMN". Also throws the errors of reading the file.
NodeColors node_colors_of_file(const Graph& graph, const std::string& name);
// Returns whether `name` is a file name rather than the name of a ColorBy mode.
bool is_color_file(std::string_view name);

// The contents of a picture, determined before drawing.
//
// A box is an operator or a collapsed module. Boxes are in nested clusters, one per module call (calls of a container
// that no region names are merged). Large graphs are kept readable as follows; each can be turned off by an option:
//
// - phases    Graphs of more than 300 nodes show the forward phase only. Smaller ones show all phases, with a cluster
//             for each except forward.
// - plumbing  Views, detach and aliases are omitted: their users are connected to the base tensor. Parameters, buffers
//             and constants appear in the labels of their users.
// - repeats   Adjacent numbered siblings (encoder.layer.0..11) with equal operators, constant arguments, types and
//             wiring are drawn once with "x12", as in summaries (shadowgraph/profile/profile.h). Edges from one copy to
//             the next are dashed; edges into and out of the whole run are attached to the copy that is drawn.
// - depth     Modules below `depth` levels are boxes with the number of operators, FLOPs and bytes inside. By default,
//             the deepest level with at most 120 boxes, and 40 in a column: taller pictures are unreadable. If no
//             modules are left to collapse, runs of operators are merged.
// - limits    A module with more than 400 boxes directly in it is collapsed; more than 3,000 boxes in total are reduced
//             by depth, then by merging runs of operators. `notes` lists omissions and their reason.
//
// A part of a graph is the neighborhood `around` some nodes, or the `path` between some. All its phases are drawn and
// its modules are expanded. Omitted neighbors are gray. Nodes requested by name are always drawn, including views and
// parameters. With `before`, the picture shows the differences of two graphs: removed nodes stay in place.
//
// A module with a single box is not a cluster; its name is in the box. Output is deterministic.

// Returns all nodes called `name`, in program order:
//
//   - "n12", or "%7" (the producer of a value), as in the text form;
//   - a module path: its nodes, only those in forward if there are any;
//   - the name of a parameter, buffer or input;
//   - an operator, "aten::mm" or "mm".
//
// Throws Error with similar names if there is none.
std::vector<NodeId> nodes_named(const Graph& graph, std::string_view name);

// Selects all paths of tensors from a node in `from` to a node in `to`.
struct PathEnds {
  std::vector<NodeId> from, to;
};

struct ViewOptions {
  std::optional<int> depth;         // levels of expanded modules, 0: none; std::nullopt: automatic
  std::vector<std::string> phases;  // names of phases to show; empty: automatic
  bool fold_repeats = true;
  bool show_views = false;
  bool show_parameters = false;    // as separate boxes
  size_t comfortable_boxes = 120;  // target for the automatic depth
  size_t max_boxes = 3000;         // limit enforced by depth, then by merging runs; 0: unlimited
  size_t max_children = 400;       // limit for boxes directly in a module
  size_t max_rows = 40;            // limit for boxes in a column, with automatic depth; 0: unlimited

  // Part of the graph to show, the union of both. Both empty: the whole graph.
  std::vector<NodeId> around;  // with all nodes at most `radius` tensor edges away
  int radius = 2;
  std::optional<PathEnds> path;

  const NodeColors* colors = nullptr;  // nullptr: by operator category
  const Graph* before = nullptr;       // graph to compare with
  // Returns a label for a tensor on its way to a user ("all_gather 12.0 MiB"), or "".
  std::function<std::string(NodeId user, ValueId value)> edge_note;
};

// Marks of a box, shown by its border.
enum class ViewMark : uint8_t {
  kNone,
  kNamed,    // requested by name
  kAdded,    // only in the graph
  kRemoved,  // only in the graph before
  kChanged,  // in both, but different; or a module that contains any of these
};

struct ViewBox {
  uint32_t cluster = 0;  // the innermost cluster
  std::string id;        // "n12": position of the node; "m12": a module, by its first node
  OperatorCategory category = OperatorCategory::kOther;
  std::vector<std::string> lines;  // of the label
  std::string tooltip;
  std::string fill;         // "#rrggbb"; empty: color of the category
  bool light_text = false;  // use white text on `fill`
  ViewMark mark = ViewMark::kNone;
  bool omitted = false;  // represents an omitted neighbor
};

enum class ViewEdgeKind : uint8_t {
  kData,      // reads it
  kAlias,     // returns an alias, as views do
  kMutation,  // writes it
};

struct ViewEdge {
  uint32_t from = 0;  // boxes
  uint32_t to = 0;
  std::string label;    // "f32[8,512,768]"; "+2" if there are more tensors between the same boxes
  std::string tooltip;  // all tensors
  int64_t bytes = 0;    // of the largest tensor
  ViewEdgeKind kind = ViewEdgeKind::kData;
  bool to_next_copy = false;  // from one copy of a folded module to the next
  bool removed = false;       // only in the graph before
  std::string note;           // ViewOptions::edge_note of the first tensor that has one
};

struct ViewCluster {
  static constexpr uint32_t kNone = 0xFFFFFFFFU;
  uint32_t parent = kNone;  // clusters[0] is the whole picture
  std::string id;           // "c12": by its first node
  std::string title;        // "layer.{0..11} x12"
  std::string subtitle;     // "BertLayer: 12 operators, 7.25 G FLOPs"
  bool phase = false;       // a phase rather than a module
};

struct ViewModel {
  std::string title;
  std::vector<ViewCluster> clusters;  // parents before children
  std::vector<ViewBox> boxes;         // in program order
  std::vector<ViewEdge> edges;
  std::vector<std::string> notes;   // omissions and their reason
  int depth = 0;                    // levels of expanded modules
  std::string legend_title;         // title of `legend`, with its unit
  std::vector<LegendEntry> legend;  // meaning of fill colors; empty: the categories

  // Throws Error for a phase that does not exist, a node that is not shown, and ends without a path between them.
  static ViewModel of(const Graph& graph, const ViewOptions& options = {});
};

// Writes a view model in Graphviz' DOT language: nested clusters, colored boxes, types on edges, a legend.
// Reproducible. Labels and tooltips may contain any bytes: they are escaped, and invalid UTF-8 becomes '?'.
struct DotOptions {
  bool legend = true;  // colors in use, and the model's notes
};

std::string write_dot(const ViewModel& model, const DotOptions& options = {});

// Escapes `text` for a quoted DOT string. Lines are separated by `line_end`.
std::string escape_dot(std::string_view text, std::string_view line_end = "\\n");

// Renders DOT as SVG with the Graphviz library, in this process. Only the layout engine and the core renderer are
// loaded, from the directory of libgvc. Text is measured with built-in metrics, so output does not depend on installed
// fonts. Graphviz is not thread-safe; calls are serialized. Nothing is written to stderr.

// Number of boxes that Graphviz lays out in seconds: its time grows at least quadratically.
constexpr size_t kMaxSvgBoxes = 250;

// Throws Error if `dot` is not valid DOT, or if Graphviz or its plugins are unavailable.
std::string render_svg(const std::string& dot);

// Writes a profile as one self-contained HTML file: an interactive graph, memory over the step, tables
// (docs/pictures.md). Names may contain any bytes. About 1.5 MB for a training step of 26,661 nodes.
struct HtmlOptions {
  std::string title;                // default: the model's name
  const Profile* before = nullptr;  // profile to compare with
  std::string before_json;          // or its to_json(profile): numbers by module and operator, without a graph
  std::string before_title;
  const NodeColors* values = nullptr;  // additional values to color nodes by: node_colors_of_file
};

// Throws Error if `before_json` is not the profile of a single program.
std::string to_html(const Profile& profile, const HtmlOptions& options = {});

// Boxes are colored by the layout of a node's first result, including inputs; parameters are named in them. Edges on
// which a tensor is redistributed are red, with the steps and the bytes per device after the last step.
//
//     write_file("plan.svg", render_svg(write_dot(view_of_plan(graph, answer.plan, planner))));
//
// `options.colors` and `.edge_note` are replaced. Throws as ViewModel::of, and Error for an impossible redistribution.
ViewModel view_of_plan(const Graph& graph, const GraphLayouts& plan, const RedistributionPlanner& planner,
                       const ViewOptions& options = {});

// Timeline of a pipeline: the actions of each rank over time, and its memory.
//
// Each rank has a row of boxes, colored by action (F, B, I, W) with shades alternating by micro-batch, above a plot of
// its live bytes. All plots have the same scale. Tooltips show action, seconds and bytes.
struct PipelinePictureOptions {
  std::string title;
  std::optional<int64_t> memory;  // device memory in bytes, drawn as a line in each plot
};
std::string pipeline_svg(const PipelineRun& run, const PipelinePictureOptions& options = {});
std::string pipeline_html(const PipelineRun& run, const PipelinePictureOptions& options = {});

// Returns a self-contained HTML report: plans by time and memory, costs of other options, timeline and memory of ranks.
std::string plan_html(const ClusterPlan& answer);

// Plots peak memory (decreasing) against recomputed FLOPs as a staircase, since between two points the cheaper one is
// used, with the other policies as marks. Reproducible; no fonts are measured.
std::string to_svg(const RecomputeCurve& curve, const std::string& title);

}  // namespace shadowgraph
