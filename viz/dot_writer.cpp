#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <optional>

#include "shadowgraph/draw/draw.h"
#include "support/text.h"

namespace shadowgraph {
namespace {

constexpr size_t kManyBoxes = 600;  // above this, Graphviz uses a faster, less careful layout

// Pads a title with spaces. Viewers without Graphviz's font substitute a wider one (DejaVu Sans by a sixth); without
// padding, the title would overflow its box.
std::string padded(std::string_view title) {
  std::string text(title);
  text.append(title.size() * 2 / 5, ' ');
  return text;
}

// Edges look as in the page (viz/page/src/graph_view.tsx).
std::string edge_look(ViewEdgeKind kind) {
  if (kind == ViewEdgeKind::kAlias) return ", style=dashed, color=\"#0072b2\"";
  return kind == ViewEdgeKind::kMutation ? ", style=dotted, color=\"#d55e00\"" : "";
}

struct MarkStyle {
  ViewMark mark;
  std::string_view color;
  std::string_view style;  // in addition to "filled"
  std::string_view label;
};
// Okabe and Ito's color-blind safe hues; removed is also dashed.
constexpr MarkStyle kMarkStyles[] = {
    {ViewMark::kNamed, "#0072b2", "bold", "selected"},
    {ViewMark::kAdded, "#009e73", "bold", "added"},
    {ViewMark::kRemoved, "#d55e00", "dashed", "removed"},
    {ViewMark::kChanged, "#b07800", "bold", "changed"},
};
const MarkStyle* style_of(ViewMark mark) {
  const auto* const style = std::ranges::find(kMarkStyles, mark, &MarkStyle::mark);
  return style == std::end(kMarkStyles) ? nullptr : style;
}

class Writer {
 public:
  Writer(const ViewModel& model, const DotOptions& options) : model_(model), options_(options) {
    children_.resize(model.clusters.size());
    boxes_.resize(model.clusters.size());
    for (uint32_t c = 1; c < model.clusters.size(); ++c) children_[model.clusters[c].parent].push_back(c);
    for (uint32_t b = 0; b < model.boxes.size(); ++b) boxes_[model.boxes[b].cluster].push_back(b);
  }

  std::string write() {
    line(0, "digraph \"{}\" {{", escape_dot(model_.title, " "));
    line(1,
         "graph [charset=\"UTF-8\", fontname=\"Helvetica\", fontsize=11, rankdir=TB, nodesep=0.25, ranksep=0.22, "
         "newrank=true, tooltip=\"{}\"{}];",
         escape_dot(model_.title, " "),
         model_.boxes.size() > kManyBoxes ? ", splines=polyline, nslimit=2, nslimit1=2, mclimit=0.2, maxiter=2" : "");
    line(1,
         "node [shape=box, style=\"filled,rounded\", color=\"#5b6470\", penwidth=0.8, fontname=\"Helvetica\", "
         "fontsize=10, margin=\"0.24,0.05\", height=0.2];");
    line(1, "edge [color=\"#5b6470\", arrowsize=0.6, fontname=\"Helvetica\", fontsize=8, fontcolor=\"#3c434c\"];");
    if (options_.legend) legend();
    if (!model_.clusters.empty()) contents(0, 1);
    for (const ViewEdge& edge : model_.edges) write_edge(edge);
    hold_loose_boxes();
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(int indent, fmt::format_string<Args...> format, Args&&... args) {
    out_.append(static_cast<size_t>(indent) * 2, ' ');
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  // Clusters are nested like modules, at most 64 deep.
  void contents(uint32_t c, int indent) {
    for (uint32_t b : boxes_[c]) box(model_.boxes[b], indent);
    for (uint32_t child : children_[c]) {
      const ViewCluster& cluster = model_.clusters[child];
      line(indent, "subgraph cluster_{} {{", cluster.id);
      const char* style =
          cluster.phase ? "style=\"rounded,dashed\", color=\"#5b6470\"" : "style=\"rounded,filled\", color=\"#9aa5b1\"";
      line(indent + 1, "graph [label=\"{}\\l{}\\l\", labeljust=l, tooltip=\"{}\", {}];",
           escape_dot(padded(cluster.title), " "), escape_dot(padded(cluster.subtitle), " "),
           escape_dot(cluster.title, " "),
           cluster.phase ? style : fmt::format("{}, fillcolor=\"{}\"", style, indent % 2 == 1 ? "#f7f9fb" : "#eef2f6"));
      contents(child, indent + 1);
      line(indent, "}}");
    }
  }

  void box(const ViewBox& box, int indent) {
    std::string label;
    for (size_t i = 0; i < box.lines.size(); ++i) label += (i > 0 ? "\\n" : "") + escape_dot(box.lines[i], " ");
    if (box.omitted) {
      line(indent,
           "{} [label=\"{}\", tooltip=\"{}\", fillcolor=\"#fafafa\", color=\"#a0a8b0\", fontcolor=\"#6b7280\", "
           "style=\"filled,rounded,dashed\"];",
           box.id, label, escape_dot(box.tooltip));
      return;
    }
    const bool module = box.category == OperatorCategory::kModule;
    std::string look = fmt::format(", fillcolor=\"{}\"", box.fill.empty() ? style_of(box.category).fill : box.fill);
    if (module) look += ", shape=box3d";
    const MarkStyle* mark = style_of(box.mark);
    if (mark != nullptr) {
      look += fmt::format(", color=\"{}\", penwidth=2.5, style=\"filled,{}{}\"", mark->color, module ? "" : "rounded,",
                          mark->style);
    } else if (module) {
      look += ", style=filled";
    }
    if (box.light_text) look += ", fontcolor=\"#ffffff\"";
    line(indent, "{} [label=\"{}\", tooltip=\"{}\"{}];", box.id, label, escape_dot(box.tooltip), look);
  }

  void write_edge(const ViewEdge& edge) {
    // One pixel wide up to a megabyte, then growing with the logarithm of the bytes.
    const int width =
        std::max(0, static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(edge.bytes, 1)))) - 20);
    if (model_.boxes[edge.from].omitted || model_.boxes[edge.to].omitted) {
      line(1, "{} -> {} [style=dashed, color=\"#a0a8b0\"];", model_.boxes[edge.from].id, model_.boxes[edge.to].id);
      return;
    }
    std::string look = edge.removed ? std::string(", style=dashed, color=\"#d55e00\"") : edge_look(edge.kind);
    if (edge.to_next_copy && !edge.removed) look = ", style=dashed, constraint=false";
    if (!edge.note.empty() && !edge.removed) look = ", color=\"#c0392b\", fontcolor=\"#c0392b\"";
    const std::string& label = edge.note.empty() ? edge.label : edge.note;
    // Spaces keep the label off the line if the viewer's font is wider than Graphviz's.
    line(1, "{} -> {} [label=\"  {}  \", tooltip=\"{}\", labeltooltip=\"{}\", penwidth={:.1f}{}];",
         model_.boxes[edge.from].id, model_.boxes[edge.to].id, escape_dot(label, " "), escape_dot(edge.tooltip),
         escape_dot(edge.tooltip), 1.0 + 0.2 * width, look);
  }

  // Keeps boxes without edges near their module. Dot puts such a box in the first row, and the clusters around it extend
  // to there: a batch norm's counter (`add_` to a buffer) would stretch every module over the whole picture. An
  // invisible edge ties it to the next box of its module in program order, or else to the previous one.
  void hold_loose_boxes() {
    std::vector<bool> held(model_.boxes.size());
    for (const ViewEdge& edge : model_.edges) {
      if (!edge.to_next_copy) held[edge.from] = held[edge.to] = true;
    }
    for (const std::vector<uint32_t>& boxes : boxes_) {
      std::optional<uint32_t> next;
      for (size_t i = boxes.size(); i-- > 0;) {
        if (held[boxes[i]]) {
          next = boxes[i];
        } else if (next) {
          line(1, "{} -> {} [style=invis];", model_.boxes[boxes[i]].id, model_.boxes[*next].id);
        } else if (i > 0) {
          line(1, "{} -> {} [style=invis];", model_.boxes[boxes[i - 1]].id, model_.boxes[boxes[i]].id);
        }
      }
    }
  }

  void legend() {
    std::array<bool, 64> used{};
    for (const ViewBox& box : model_.boxes) {
      if (!box.omitted) used[static_cast<size_t>(box.category)] = true;
    }
    line(1, "legend [shape=plaintext, style=\"\", tooltip=\"legend\", label=<");
    line(2, "<TABLE BORDER=\"0\" CELLBORDER=\"0\" CELLSPACING=\"2\" CELLPADDING=\"2\">");
    line(2, "<TR><TD ALIGN=\"LEFT\"><B>{}</B></TD></TR>", xml_text(model_.title.empty() ? "graph" : model_.title));
    if (!model_.legend_title.empty()) {
      line(2, "<TR><TD ALIGN=\"LEFT\">color: {}</TD></TR>", xml_text(model_.legend_title));
      for (const LegendEntry& entry : model_.legend) legend_row(entry);
    } else {
      for (const CategoryStyle& style : category_styles()) {
        if (used[static_cast<size_t>(style.category)]) legend_row({std::string(style.name), std::string(style.fill)});
      }
    }
    for (const MarkStyle& style : kMarkStyles) {
      if (std::ranges::find(model_.boxes, style.mark, &ViewBox::mark) != model_.boxes.end()) {
        line(2, "<TR><TD ALIGN=\"LEFT\" BORDER=\"2\" COLOR=\"{}\">{}</TD></TR>", style.color, xml_text(style.label));
      }
    }
    if (std::ranges::any_of(model_.boxes, &ViewBox::omitted)) {
      line(2, "<TR><TD ALIGN=\"LEFT\">gray, dashed: omitted</TD></TR>");
    }
    if (std::ranges::any_of(model_.edges, &ViewEdge::to_next_copy)) {
      line(2, "<TR><TD ALIGN=\"LEFT\">dashed: to the next copy</TD></TR>");
    }
    const auto any = [&](ViewEdgeKind kind) {
      return std::ranges::any_of(model_.edges,
                                 [&](const ViewEdge& e) { return e.kind == kind && !e.removed && !e.to_next_copy; });
    };
    if (any(ViewEdgeKind::kAlias)) {
      line(2, "<TR><TD ALIGN=\"LEFT\"><FONT COLOR=\"#0072b2\">blue, dashed: alias (same storage)</FONT></TD></TR>");
    }
    if (any(ViewEdgeKind::kMutation)) {
      line(2, "<TR><TD ALIGN=\"LEFT\"><FONT COLOR=\"#d55e00\">orange, dotted: written in place</FONT></TD></TR>");
    }
    for (const std::string& note : model_.notes) line(2, "<TR><TD ALIGN=\"LEFT\">{}</TD></TR>", xml_text(note));
    line(2, "</TABLE>>];");
  }

  void legend_row(const LegendEntry& entry) {
    const std::string label = xml_text(entry.label);
    line(2, "<TR><TD ALIGN=\"LEFT\" BGCOLOR=\"{}\">{}</TD></TR>", entry.fill,
         entry.light_text ? "<FONT COLOR=\"#ffffff\">" + label + "</FONT>" : label);
  }

  const ViewModel& model_;
  const DotOptions& options_;
  std::vector<std::vector<uint32_t>> children_, boxes_;
  std::string out_;
};

}  // namespace

std::string escape_dot(std::string_view text, std::string_view line_end) {
  std::string out;
  while (!text.empty()) {
    const Character c = pop_character(text);
    if (c.point == '\n') {
      out += line_end;
    } else if (!c.printable()) {
      out += c.valid ? ' ' : '?';
    } else if (c.point == '"' || c.point == '\\') {
      out += '\\';
      out += c.bytes;
    } else if (c.point == '&') {
      out += "&amp;";  // Graphviz reads character entities in plain labels too
    } else {
      out += c.bytes;
    }
  }
  return out;
}

std::string write_dot(const ViewModel& model, const DotOptions& options) { return Writer(model, options).write(); }

}  // namespace shadowgraph
