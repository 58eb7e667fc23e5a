#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "shadowgraph/draw/draw.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/units.h"
#include "support/text.h"
#include "viz/node_colors.h"

namespace shadowgraph {
namespace {

// Formats "reduce_scatter tp, all_reduce dp 12.0 MiB".
std::string redistribution_text(const Graph& graph, const GraphLayouts& plan, const LayoutChange& copy) {
  std::string text;
  for (const RedistributionStep& step : copy.path.steps) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(step.kind), plan.mesh.axes[step.axis].name);
  }
  int64_t bytes = static_cast<int64_t>(c10::elementSize(graph.value(copy.value).dtype));
  const auto sizes = local_sizes(graph.sizes(copy.value), copy.to, plan.mesh);
  for (const int64_t size : sizes.value_or(std::vector<int64_t>{0})) bytes *= size;
  return fmt::format("{} {}", text, human_bytes(bytes));
}

using enum PipelineWork;

// Colors for F, B, I, W, in even and odd micro-batches; distinguishable by the color-blind.
struct WorkColor {
  const char* name;
  const char* even;
  const char* odd;
};
constexpr std::array<WorkColor, 4> kWorkColors = {{{"F: forward", "#3b75af", "#7fb0dc"},
                                                   {"B: backward", "#2c7a4b", "#76b88f"},
                                                   {"I: input gradients", "#c8781e", "#eeb46f"},
                                                   {"W: weight gradients", "#7c5295", "#b795cb"}}};

class PipelinePicture {
 public:
  PipelinePicture(const PipelineRun& run, const PipelinePictureOptions& options) : run_(run), options_(options) {
    most_ = options.memory.value_or(0);
    for (int32_t r = 0; r < run.ranks(); ++r) {
      most_ = std::max(most_, run.rank(r).peak);
      for (const PipelineActionTime& at : run.actions(r)) {
        if (computes(at.action)) is_used_[static_cast<size_t>(at.action.work)] = true;
      }
    }
  }

  std::string svg() {
    const double height = kTop + run_.ranks() * kRow + kFoot;
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        kLeft + kWidth + kRight, height, kLeft + kWidth + kRight, height);
    title();
    for (int32_t r = 0; r < run_.ranks(); ++r) rank(r);
    axis(kTop + run_.ranks() * kRow);
    return text_ + "</svg>\n";
  }

 private:
  static constexpr double kLeft = 60, kWidth = 1200, kRight = 90, kTop = 46, kFoot = 34;
  static constexpr double kBoxes = 20, kBytes = 24, kRow = kBoxes + kBytes + 8;

  double x(double seconds) const { return kLeft + (run_.seconds() > 0 ? seconds / run_.seconds() : 0) * kWidth; }
  double bytes_y(double top, int64_t bytes) const {
    return top + kBoxes + kBytes - (most_ > 0 ? static_cast<double>(bytes) / static_cast<double>(most_) : 0) * kBytes;
  }

  void label(double at, double top, const char* anchor, const std::string& words) {
    text_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"#333333\">{}</text>\n", at, top,
                         anchor, xml_text(utf8_text(words)));
  }

  void title() {
    label(kLeft, 16, "start",
          fmt::format("{}{}: {} stages on {} ranks, {} micro-batches, {} per step, pipeline bubble {:.1f} %",
                      options_.title.empty() ? "" : options_.title + ", ", run_.schedule().name(),
                      run_.schedule().stages(), run_.schedule().ranks(), run_.schedule().microbatches(),
                      human_seconds(run_.seconds()), 100 * run_.bubble()));
    double at = kLeft;
    for (size_t i = 0; i < kWorkColors.size(); ++i) {
      const WorkColor& color = kWorkColors[i];
      if (!is_used_[i]) continue;
      text_ += fmt::format("<rect x=\"{:.0f}\" y=\"25\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", at, color.even);
      label(at + 14, 34, "start", color.name);
      at += 165;
    }
    label(at, 34, "start", "gray line: live bytes" + std::string(options_.memory ? "; red: device memory" : ""));
  }

  void rank(int32_t r) {
    const double top = kTop + r * kRow;
    label(kLeft - 8, top + 14, "end", fmt::format("rank {}", r));
    label(kLeft + kWidth + 6, top + kBoxes + 12, "start", human_bytes(run_.rank(r).peak));
    std::string path = fmt::format("M{:.1f} {:.1f}", kLeft, bytes_y(top, run_.rank(r).resident));
    for (const PipelineActionTime& at : run_.actions(r)) {
      if (!computes(at.action)) continue;
      box(top, at);
      path += fmt::format("H{:.1f}V{:.1f}", x(at.end), bytes_y(top, at.live));
    }
    const double end = run_.seconds() - run_.rank(r).waits.after;
    if (run_.rank(r).optimizer > 0) {
      text_ += fmt::format(
          "<g><title>optimizer step: {}</title><rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
          "height=\"{:.0f}\" fill=\"#9a9a9a\"/></g>\n",
          human_seconds(run_.rank(r).optimizer), x(end - run_.rank(r).optimizer), top,
          x(run_.rank(r).optimizer) - kLeft, kBoxes);
    }
    path += fmt::format("H{:.1f}", kLeft + kWidth);
    text_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"#777777\"/>\n", path);
    if (options_.memory) {
      text_ += fmt::format("<path d=\"M{:.1f} {:.1f}H{:.1f}\" stroke=\"#c0392b\" stroke-dasharray=\"4 3\"/>\n", kLeft,
                           bytes_y(top, *options_.memory), kLeft + kWidth);
    }
  }

  void box(double top, const PipelineActionTime& at) {
    const WorkColor& color = kWorkColors[static_cast<size_t>(at.action.work)];
    const double begin = x(at.begin), width = std::max(0.4, x(at.end) - begin);
    text_ += fmt::format(
        "<g><title>{}: {} from {}, {} live afterwards</title><rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
        "height=\"{:.0f}\" fill=\"{}\"/>",
        to_string(at.action), human_seconds(at.end - at.begin), human_seconds(at.begin), human_bytes(at.live), begin,
        top, width, kBoxes, at.action.microbatch % 2 == 0 ? color.even : color.odd);
    if (width > 6.0 * static_cast<double>(to_string(at.action).size())) {
      text_ += fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\" font-size=\"9\">{}</text>",
          begin + width / 2, top + 13, at.action.microbatch % 2 == 0 ? "#ffffff" : "#222222", to_string(at.action));
    }
    text_ += "</g>\n";
  }

  void axis(double top) {
    constexpr int kMarks = 8;
    for (int i = 0; i <= kMarks; ++i) {
      const double seconds = run_.seconds() * i / kMarks;
      text_ += fmt::format("<path d=\"M{:.1f} {:.1f}v5\" stroke=\"#777777\"/>\n", x(seconds), top);
      label(x(seconds), top + 17, "middle", human_seconds(seconds));
    }
  }

  const PipelineRun& run_;
  const PipelinePictureOptions& options_;
  int64_t most_ = 0;
  std::array<bool, 4> is_used_{};
  std::string text_;
};

}  // namespace

ViewModel view_of_plan(const Graph& graph, const GraphLayouts& plan, const RedistributionPlanner& planner,
                       const ViewOptions& options) {
  std::vector<std::pair<NodeId, std::string>> lies;
  IdMap<ValueId, const Layout*> layout_of;
  for (const NodeId node : graph.nodes()) {
    const NodeLayouts& layouts = plan.nodes[node];
    size_t result = 0;
    graph.for_each_output(node, [&](ValueId value) {
      if (graph.value(value).kind != ValueKind::kTensor || result >= layouts.results.size()) return;
      layout_of[value] = &layouts.results[result++];
    });
    if (!layouts.results.empty()) lies.emplace_back(node, to_string(layouts.results[0]));
  }
  std::map<std::tuple<ValueId, PhaseId, std::string>, std::string> text_of;
  for (const LayoutChange& copy : layout_changes(graph, plan, planner)) {
    text_of[{copy.value, copy.phase, to_string(copy.to)}] = redistribution_text(graph, plan, copy);
  }
  const NodeColors colors = colors_by_kind(fmt::format("layout on {}", plan.mesh.to_string()), lies);
  ViewOptions drawn = options;
  drawn.colors = &colors;
  // A redistribution before a view is shown at the node that reads the view, since views are not drawn.
  drawn.edge_note = [&](NodeId user, ValueId value) {
    std::string note;
    for (size_t steps = 0; steps < graph.node_count(); ++steps) {
      size_t operand = 0;
      const NodeLayouts& layouts = plan.nodes[user];
      graph.for_each_input(user, [&](ValueId v) {
        if (graph.value(v).kind != ValueKind::kTensor || operand >= layouts.operands.size()) return;
        const Layout& wanted = layouts.operands[operand++];
        const Layout* const from = std::as_const(layout_of)[v];
        if (v != value || from == nullptr || *from == wanted) return;
        const auto found = text_of.find({v, phase_of_layout_changes(graph, user), to_string(wanted)});
        if (found != text_of.end()) note = found->second + (note.empty() ? "" : ", ") + note;
      });
      user = graph.value(value).producer;
      if (!user.valid() || !graph.facts(user).is_view || graph.node(user).target.index >= graph.target_count()) break;
      std::optional<ValueId> source;
      graph.for_each_input(user, [&](ValueId v) {
        if (!source && graph.value(v).kind == ValueKind::kTensor) source = v;
      });
      if (!source) break;
      value = *source;
    }
    return note;
  };
  return ViewModel::of(graph, drawn);
}

std::string pipeline_svg(const PipelineRun& run, const PipelinePictureOptions& options) {
  return PipelinePicture(run, options).svg();
}

std::string pipeline_html(const PipelineRun& run, const PipelinePictureOptions& options) {
  const std::string title = xml_text(utf8_text(options.title.empty() ? "pipeline" : options.title));
  std::string lines;
  std::istringstream text(to_text(run));
  for (std::string line; std::getline(text, line);) lines += xml_text(utf8_text(line)) + "\n";
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
      "<title>{0} - shadowgraph</title>\n<style>body {{ font-family: sans-serif; margin: 1em; }} "
      "pre {{ font-size: 13px; }} .ranks {{ overflow-x: auto; }}</style>\n</head>\n<body>\n<h1>{0}</h1>\n"
      "<div class=\"ranks\">\n{1}</div>\n<pre>{2}</pre>\n</body>\n</html>\n",
      title, pipeline_svg(run, options), lines);
}

}  // namespace shadowgraph
