#include "sharding/plan/verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/units.h"

namespace shadowgraph {
namespace {

constexpr double kWell = 0.9;      // efficiency from which nothing is to be tried for speed
constexpr double kNotable = 0.05;  // share of the step's seconds

// What a plan does along each axis.
struct AxisUse {
  std::vector<bool> anything;    // some tensor is cut or partial
  std::vector<bool> vocabulary;  // log_softmax is
  std::vector<bool> batch;       // dimension 0 of some input is cut
  bool has_log_softmax = false;
  bool random_whole = false;  // a random operator is whole on all devices
  std::optional<int64_t> batch_size;
};

bool is_batch(const Graph& graph, const Effects& effects, NodeId node) {
  if (graph.node(node).target != target_of(Builtin::kInput)) return false;
  const ValueId value = graph.results(node)[0].ref.value;
  // What the step writes to is state.
  return !graph.sizes(value).empty() && effects.final_version(graph.value(value).storage) == 0;
}

AxisUse use_of(const Graph& graph, const ShardingPlan& plan) {
  const size_t axes = plan.mesh.axes.size();
  AxisUse use{
      .anything = std::vector<bool>(axes), .vocabulary = std::vector<bool>(axes), .batch = std::vector<bool>(axes)};
  const Effects effects = Effects::of(graph);
  bool one_batch = true;
  for (const NodeId node : graph.nodes()) {
    const NodeLayouts& layouts = plan.nodes[node];
    const bool log_softmax = graph.target(node).name() == "aten::_log_softmax";
    use.has_log_softmax |= log_softmax;
    bool whole = true;
    for (const std::vector<Layout>* list : {&layouts.operands, &layouts.results}) {
      for (const Layout& layout : *list) {
        for (size_t a = 0; a < axes; ++a) {
          if (layout[a].is_replicate()) continue;
          whole = false;
          use.anything[a] = true;
          if (log_softmax) use.vocabulary[a] = true;
        }
      }
    }
    if (!layouts.results.empty() && whole && graph.target(node).facts().random) {
      use.random_whole |= graph.numel(graph.results(node)[0].ref.value) > 1;
    }
    if (!graph.is_placeholder(node) || layouts.results.empty() || !is_batch(graph, effects, node)) continue;
    const int64_t size = graph.sizes(graph.results(node)[0].ref.value)[0];
    one_batch &= !use.batch_size || *use.batch_size == size;
    use.batch_size = size;
    for (size_t a = 0; a < axes; ++a) {
      if (layouts.results[0][a] == Placement::shard(0)) use.batch[a] = true;
    }
  }
  if (!one_batch) use.batch_size.reset();
  return use;
}

std::string axis_text(const MeshAxis& axis) { return fmt::format("{}={}", axis.name, axis.size); }

void add_tries(const AxisUse& use, const ShardingOptions& sharding, const ShardingAnswer& answer,
               ShardingVerdict& verdict) {
  std::vector<std::string>& tries = verdict.tries;
  int64_t devices_in_use = 1;
  std::string mesh;
  for (size_t a = 0; a < answer.plan.mesh.axes.size(); ++a) {
    const MeshAxis& axis = answer.plan.mesh.axes[a];
    if (use.anything[a]) {
      devices_in_use *= axis.size;
      mesh += fmt::format("{}{}", mesh.empty() ? "" : ",", axis_text(axis));
    }
    if (std::ranges::find(verdict.undivided_axes, axis.name) != verdict.undivided_axes.end()) {
      tries.push_back(fmt::format("a batch of {}: {} does not divide the batch of {}",
                                  (*verdict.batch / axis.size + 1) * axis.size, axis_text(axis), *verdict.batch));
    }
  }
  if (!verdict.unused_axes.empty()) {
    tries.push_back(fmt::format("--mesh {}: as fast on {} of the {} devices", mesh.empty() ? "1" : mesh, devices_in_use,
                                answer.plan.mesh.size()));
  }
  const RuleCoverage& coverage = answer.coverage;
  if (coverage.seconds_without_a_rule > kNotable * answer.seconds()) {
    const auto most = std::ranges::max_element(coverage.without_a_rule, {}, [](const auto& row) { return row.second; });
    tries.push_back(fmt::format("--rules with a line for {}: what has no rule takes {} on each device", most->first,
                                human_seconds(coverage.seconds_without_a_rule)));
  }
  if (!verdict.fits) {
    tries.push_back(fmt::format("--memory {0}: a device holds {1} and has {0}",
                                human_bytes(answer.memory == kNoLimit ? sharding.device->memory : answer.memory),
                                human_bytes(answer.peak)));
  }
  if (verdict.efficiency >= kWell) return;
  const double gap = answer.seconds() > 0 && answer.bound > 0 ? 1 - answer.bound / answer.seconds() : 0;
  if (!answer.solution.optimal && gap > kNotable) {
    tries.push_back(fmt::format("a longer --time-limit: this plan may be {:.0f} % above the best", gap * 100));
  }
  if (answer.communication > answer.compute) {
    tries.push_back(fmt::format("a larger batch: communicating takes {:.1f} times as long as computing",
                                answer.communication / answer.compute));
  }
  if (use.random_whole && !sharding.cut_random)
    tries.push_back("--cut-random: random operators are whole on all devices");
  const bool vocabulary_whole = std::ranges::any_of(answer.plan.mesh.axes, [&](const MeshAxis& axis) {
    const auto a = static_cast<size_t>(&axis - answer.plan.mesh.axes.data());
    return axis.size > 1 && use.anything[a] && !use.vocabulary[a];
  });
  if (use.has_log_softmax && vocabulary_whole) tries.push_back("--cut-vocabulary: log_softmax is whole over some axis");
}

}  // namespace

ShardingVerdict verdict_of(const Graph& graph, const ShardingOptions& sharding, const ShardingAnswer& answer) {
  const AxisUse use = use_of(graph, answer.plan);
  ShardingVerdict verdict{.batch = use.batch_size};
  const auto devices = static_cast<double>(answer.plan.mesh.size());
  if (answer.seconds() > 0) verdict.efficiency = answer.alone / answer.seconds() / devices;
  for (size_t a = 0; a < answer.plan.mesh.axes.size(); ++a) {
    const MeshAxis& axis = answer.plan.mesh.axes[a];
    if (axis.size > 1 && !use.anything[a]) verdict.unused_axes.push_back(axis.name);
    if (use.batch_size && !use.batch[a] && *use.batch_size % axis.size != 0)
      verdict.undivided_axes.push_back(axis.name);
  }
  verdict.overlap_pays = answer.communication <= 0 || answer.overlapped <= answer.seconds();
  const int64_t room = answer.memory != kNoLimit ? answer.memory : sharding.device->memory;
  verdict.fits = room <= 0 || answer.peak <= room;
  add_tries(use, sharding, answer, verdict);
  return verdict;
}

std::string text_of_verdict(const ShardingAnswer& answer) {
  const ShardingVerdict& verdict = answer.verdict;
  std::string text = fmt::format("verdict: {} device{} at {:.0f} % of what {} could do", answer.plan.mesh.size(),
                                 answer.plan.mesh.size() == 1 ? "" : "s", verdict.efficiency * 100,
                                 answer.plan.mesh.size() == 1 ? "it" : "they");
  if (!verdict.unused_axes.empty()) {
    text += fmt::format("; nothing is cut over {}, whose devices do the same", fmt::join(verdict.unused_axes, ", "));
  }
  if (!verdict.undivided_axes.empty()) {
    text +=
        fmt::format("; the batch of {} is not divided by {}", *verdict.batch, fmt::join(verdict.undivided_axes, ", "));
  }
  if (!verdict.overlap_pays) text += "; communicating on a second stream gains nothing";
  if (!verdict.fits) text += "; it does not fit into the memory";
  text += "\n";
  for (const std::string& attempt : verdict.tries) text += "  try " + attempt + "\n";
  return text;
}

nlohmann::json json_of_verdict(const ShardingVerdict& verdict) {
  nlohmann::json json{{"efficiency", verdict.efficiency},
                      {"unused_axes", verdict.unused_axes},
                      {"undivided_axes", verdict.undivided_axes},
                      {"overlap_pays", verdict.overlap_pays},
                      {"fits", verdict.fits},
                      {"try", verdict.tries}};
  if (verdict.batch) json["batch"] = *verdict.batch;
  return json;
}

}  // namespace shadowgraph
