#include "cli/shard.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <ostream>

#include "shadowgraph/draw_plan.h"
#include "shadowgraph/error.h"
#include "shadowgraph/sharding/assignment_files.h"
#include "shadowgraph/sharding/recompute.h"
#include "shadowgraph/sharding/shard.h"
#include "shadowgraph/text.h"

namespace shadowgraph::cli {

namespace {

ShardingPin pin_of(const std::string& text) {
  const size_t equals = text.rfind('=');
  return {.name = text.substr(0, equals), .layout = Layout::parse(text.substr(equals + 1))};
}

}  // namespace

void shard(const ShardRequest& request) {
  ShardingOptions sharding{.mesh = DeviceMesh::parse(request.mesh)};
  ShardingRules rules;
  if (!request.rules.empty()) rules.add(read_file(request.rules));
  sharding.rules = &rules;
  for (const std::string& pin : request.pins) sharding.pins.push_back(pin_of(pin));
  if (request.memory) sharding.memory = *request.memory;
  sharding.unfold = request.unfold;
  sharding.cut_random = request.cut_random;

  LoadedGraph loaded = load(request.capture);
  // A mean over a batch that is cut is no mean of means where some targets do not count.
  split_mean_losses(loaded.graph);
  if (request.cut_vocabulary) split_log_softmaxes(loaded.graph);
  const c10::Device device = loaded.graph.metadata.device.value_or(c10::Device(c10::kCUDA, 0));
  const std::optional<DeviceSpec> spec = DeviceSpec::find(request.spec, device.type());
  if (!spec) throw Error(fmt::format("no figures are known of {} devices; name some with --spec", device.str()));
  std::optional<Interconnect> links = Interconnect::around(spec->name);
  if (!request.interconnect.empty()) links = Interconnect::find(request.interconnect);
  if (!links) links = Interconnect::named("pcie4");
  sharding.device = &*spec;
  sharding.interconnect = &*links;

  ShardOptions options{.compare = request.compare, .explain = request.explain};
  options.solve.time_limit = request.time_limit;
  options.solve.solver = assignment_solver(request.solver);
  options.solve.highs = request.highs;
  options.rank = request.rank;
  const std::filesystem::path folder = request.directory;
  const auto write_rank = [&](const ShardedGraph& sharded) {
    write_graph_file((folder / fmt::format("rank{}.sg", sharded.rank)).string(), sharded.graph);
  };
  if (!request.directory.empty()) std::filesystem::create_directories(folder);
  if (request.all_ranks && !request.directory.empty()) options.each_rank = write_rank;
  if (request.memory) options.solve.gap = 1e-3;
  if (!request.problem.empty()) {
    options.problem = [&](const ShardingProblem& problem) {
      write_file(request.problem,
                 [&](std::ostream& out) { write_assignment(problem.assignment(), request.format, out); });
    };
  }
  if (request.recompute && !request.memory) throw Error("--recompute makes a step fit: give --memory");
  std::optional<RecomputedSharding> both;
  std::optional<ShardingAnswer> alone;
  if (request.recompute) {
    both = shard_and_recompute(loaded.graph, sharding, {.shard = options});
  } else {
    alone = shadowgraph::shard(loaded.graph, sharding, options);
  }
  const ShardingAnswer& answer = both ? both->answer : *alone;
  const Graph& planned = both ? both->graph : loaded.graph;
  const nlohmann::json json = both ? to_json(*both) : to_json(answer);
  if (!request.directory.empty()) {
    write_graph_file((folder / "graph.sg").string(), planned);
    write_file((folder / "plan.json").string(), to_json(answer.plan, planned).dump(1) + "\n");
    write_file((folder / "answer.json").string(), json.dump(2) + "\n");
    if (!request.all_ranks) write_rank(*answer.rank);
  }
  if (!request.dot.empty() || !request.svg.empty()) {
    const RedistributionPlanner planner(sharding.mesh, redistribution_rates(sharding));
    const std::string dot = write_dot(view_of_plan(planned, answer.plan, planner));
    if (!request.dot.empty()) write_file(request.dot, dot);
    if (!request.svg.empty()) write_file(request.svg, render_svg(dot));
  }
  const std::string text = request.json ? json.dump(2) + "\n"
                           : both       ? to_text(*both, request.rows)
                                        : to_text(answer, request.rows);
  std::fputs(text.c_str(), stdout);
}

}  // namespace shadowgraph::cli
