#include "viz/page_modules.h"

#include "profiler/program_costs.h"
#include "shadowgraph/draw.h"
#include "viz/drawn_graph.h"

namespace shadowgraph {

void add_clusters(const Profile& profile, Columns& columns, Texts& texts) {
  const Graph& graph = profile.graph();
  const ProgramCosts& costs = ProgramCosts::of(profile);
  ViewOptions options;
  for (uint32_t i = 0; i < graph.phase_count(); ++i) options.phases.push_back(graph.phase_name(PhaseId(i)));
  options.show_views = true;
  options.show_parameters = true;
  const DrawnGraph drawn = DrawnGraph::of(graph, options);
  Column &of = columns.delta("node.cluster"), &stand_in = columns.plain("node.stand_in");
  for (uint32_t i = 0; i < costs.nodes.size(); ++i) {
    const uint32_t at = drawn.index[costs.nodes[i]];
    of.add(at == DrawnGraph::kNone ? 0 : drawn.cluster_of[at]);
    const uint32_t other = at == DrawnGraph::kNone ? i : drawn.position[drawn.stand_in[at]];
    stand_in.add(other < i ? i - other : 0);
  }
  Column &parent = columns.delta("cluster.parent"), &name = columns.plain("cluster.name"),
         &class_name = columns.plain("cluster.class"), &call = columns.plain("cluster.call"),
         &phase = columns.plain("cluster.phase"), &stands_for = columns.plain("cluster.stands_for"),
         &repeats = columns.plain("cluster.repeats"), &span = columns.plain("cluster.span");
  for (uint32_t c = 0; c < drawn.clusters.size(); ++c) {
    const ModuleCluster& cluster = drawn.clusters[c];
    parent.add(c == 0 ? 0 : cluster.parent);
    name.add(texts.number(cluster.name));
    class_name.add(texts.number(cluster.class_name));
    call.add(cluster.call);
    phase.add(cluster.phase ? 1 : 0);
    stands_for.add(cluster.stands_for == ModuleCluster::kNone ? 0 : int64_t{cluster.stands_for} + 1);
    repeats.add(cluster.repeats);
    span.add(texts.number(cluster.span));
  }
}

void add_regions(const Graph& graph, Columns& columns, Texts& texts) {
  Column &kind = columns.plain("region.kind"), &parent = columns.delta("region.parent"),
         &name = columns.plain("region.name"), &call = columns.plain("region.call");
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    const Region& region = graph.region(RegionId(i));
    kind.add(static_cast<int64_t>(region.kind));
    parent.add(region.parent.valid() ? int64_t{region.parent.index} + 1 : 0);
    std::string_view text = graph.text_or_empty(region.name);
    if (text.empty() && region.target.valid()) text = graph.target(region.target).name();
    // Modules have their names in module.*; calls of composite operators need theirs here.
    name.add(region.kind == RegionKind::kModule ? 0 : texts.number(text));
    call.add(region.call);
  }
}

void add_modules(const Profile& profile, Columns& columns, Texts& texts) {
  Column &parent = columns.delta("module.parent"), &path = columns.plain("module.path"),
         &class_name = columns.plain("module.class"), &calls = columns.plain("module.calls"),
         &peak = columns.plain("module.peak"), &saved = columns.plain("module.saved"),
         &output = columns.plain("module.output"), &temporary = columns.plain("module.temporary"),
         &parameters = columns.plain("module.parameters"), &backward = columns.plain("module.backward"),
         &forward_nodes = columns.plain("module.forward_nodes"),
         &backward_nodes = columns.plain("module.backward_nodes"),
         &forward_flops = columns.plain("module.forward_flops"),
         &backward_flops = columns.plain("module.backward_flops"),
         &forward_elementwise = columns.plain("module.forward_elementwise"),
         &backward_elementwise = columns.plain("module.backward_elementwise");
  std::vector<uint32_t> parents(profile.modules.size(), 0);
  for (uint32_t m = 0; m < profile.modules.size(); ++m) {
    for (const uint32_t child : profile.modules[m].children) parents[child] = m;
  }
  for (uint32_t m = 0; m < profile.modules.size(); ++m) {
    const ModuleProfile& module = profile.modules[m];
    const GroupFigures& figures = module.figures;
    parent.add(parents[m]);
    // Write only the part below the parent: a long path would otherwise be there once a level.
    const std::string& above = profile.modules[parents[m]].path;
    const bool below = m != 0 && !above.empty() && module.path.size() > above.size() &&
                       module.path.starts_with(above) && module.path[above.size()] == '.';
    path.add(texts.number(below ? module.path.substr(above.size()) : module.path));
    class_name.add(texts.number(module.class_name));
    calls.add(module.calls);
    peak.add(module.peak);
    saved.add(figures.incremental);
    output.add(figures.output);
    temporary.add(figures.temporary);
    parameters.add(figures.parameters);
    backward.add(figures.backward);
    forward_nodes.add(figures.forward_nodes);
    backward_nodes.add(figures.backward_nodes);
    forward_flops.add(figures.forward_flops.matmul);
    backward_flops.add(figures.backward_flops.matmul);
    forward_elementwise.add(figures.forward_flops.elementwise);
    backward_elementwise.add(figures.backward_flops.elementwise);
  }
}

}  // namespace shadowgraph
