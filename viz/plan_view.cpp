#include <fmt/format.h>

#include <map>
#include <tuple>
#include <utility>

#include "shadowgraph/draw_plan.h"
#include "shadowgraph/units.h"
#include "viz/node_colors.h"

namespace shadowgraph {
namespace {

// Writes "reduce_scatter tp, all_reduce dp 12.0 MiB".
std::string redistribution_text(const Graph& graph, const ShardingPlan& plan, const PlannedCopy& copy) {
  std::string text;
  for (const RedistributionStep& step : copy.way.steps) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(step.kind), plan.mesh.axes[step.axis].name);
  }
  int64_t bytes = static_cast<int64_t>(c10::elementSize(graph.value(copy.value).dtype));
  const auto sizes = local_sizes(graph.sizes(copy.value), copy.to, plan.mesh);
  for (const int64_t size : sizes.value_or(std::vector<int64_t>{0})) bytes *= size;
  return fmt::format("{} {}", text, human_bytes(bytes));
}

}  // namespace

ViewModel view_of_plan(const Graph& graph, const ShardingPlan& plan, const RedistributionPlanner& planner,
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
  for (const PlannedCopy& copy : copies_of(graph, plan, planner)) {
    text_of[{copy.value, copy.phase, to_string(copy.to)}] = redistribution_text(graph, plan, copy);
  }
  const NodeColors colors = colors_by_kind(fmt::format("layout on {}", plan.mesh.to_string()), lies);
  ViewOptions drawn = options;
  drawn.colors = &colors;
  // A redistribution in front of a view is noted at the node that takes the view, for views are not drawn.
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
        const auto found = text_of.find({v, phase_of_copies(graph, user), to_string(wanted)});
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

}  // namespace shadowgraph
