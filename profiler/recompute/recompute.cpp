#include "shadowgraph/profile/recompute.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/step_time.h"
#include "shadowgraph/units.h"

namespace shadowgraph {

// One operator of a module: the bytes that dropping its result frees, and the time to recompute it.
struct DroppedOperator {
  double bytes = 0, milliseconds = 0;
};

struct TradeOff {
  double bytes = 0, milliseconds = 0;
  std::vector<double> slopes, intercepts, breakpoints;
  std::vector<std::pair<double, double>> curve;  // fraction of the bytes dropped, fraction of the time taken
};

// Returns a convex function of bytes dropped. Operators with the least time per byte are dropped first. While there are
// more than `segments` segments, removes the corner nearest to the line through its neighbors.
TradeOff trade_off(std::vector<DroppedOperator> operators, size_t segments) {
  TradeOff result;
  for (const DroppedOperator& one : operators) {
    result.bytes += one.bytes;
    result.milliseconds += one.milliseconds;
  }
  if (!(result.bytes > 0) || !(result.milliseconds > 0)) return result;
  std::erase_if(operators, [](const DroppedOperator& one) { return !(one.bytes > 0); });
  std::stable_sort(operators.begin(), operators.end(), [](const DroppedOperator& a, const DroppedOperator& b) {
    return a.milliseconds * b.bytes < b.milliseconds * a.bytes;
  });
  std::vector<std::pair<double, double>> points{{0, 0}};
  double bytes = 0, milliseconds = 0;
  for (const DroppedOperator& one : operators) {
    bytes += one.bytes;
    milliseconds += one.milliseconds;
    points.emplace_back(bytes / result.bytes, milliseconds / result.milliseconds);
  }
  points.back() = {1, 1};  // includes operators without bytes, which take time
  result.curve = points;
  const auto above = [&](size_t i) {
    const auto& [x0, y0] = points[i - 1];
    const auto& [x, y] = points[i];
    const auto& [x1, y1] = points[i + 1];
    return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y : 0.0;
  };
  while (points.size() > segments + 1) {
    size_t least = 1;
    for (size_t i = 1; i + 1 < points.size(); ++i) {
      if (above(i) < above(least)) least = i;
    }
    points.erase(points.begin() + static_cast<std::ptrdiff_t>(least));
  }
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    const auto& [x0, y0] = points[i];
    const auto& [x1, y1] = points[i + 1];
    if (!(x1 > x0)) continue;
    const double slope = (y1 - y0) / (x1 - x0);
    if (result.breakpoints.empty()) result.breakpoints.push_back(x0);
    result.slopes.push_back(slope);
    result.intercepts.push_back(y0 - slope * x0);
    result.breakpoints.push_back(x1);
  }
  return result;
}

CostOfNode nanoseconds(const StepTime& time) {
  return [time](const Graph&, NodeId node) {
    return static_cast<int64_t>(std::ceil(std::min(time.of(node).seconds * 1e9, 1e18)));
  };
}

RecomputeCurve RecomputeCurve::of(const Graph& graph, const CheckpointCurve& curve, const StepTime* time) {
  const Flops flops = Flops::of(graph);
  RecomputeCurve figures{.flops = flops.of_phase(Graph::kForward).matmul + flops.of_phase(Graph::kBackward).matmul,
                         .elsewhere = curve.chain().elsewhere,
                         .not_a_chain = curve.chain().not_a_chain};
  const auto point_of = [&](const CheckpointChoice& choice) {
    RecomputePoint point{.policy = choice.policy, .peak = choice.peak, .offloaded = choice.offloaded};
    if (time != nullptr) point.seconds = 0;
    for (const NodeId n : choice.repeated) {
      point.flops += flops.of(n).matmul;
      if (time != nullptr) *point.seconds += time->of(n).seconds;
    }
    point.nodes = static_cast<int64_t>(choice.repeated.size());
    if (figures.flops != 0) point.share = static_cast<double>(point.flops) / static_cast<double>(figures.flops);
    for (const CheckpointSegment& segment : choice.segments) {
      ++(segment.keep.empty() ? point.dropped : point.in_part);
      point.segments.push_back(segment.name);
    }
    return point;
  };
  for (const CheckpointChoice& choice : curve.choices()) figures.points.push_back(point_of(choice));
  for (const CheckpointChoice& choice : curve.tried()) {
    if (choice.policy != "optimal" && choice.policy != "none") figures.others.push_back(point_of(choice));
  }
  return figures;
}

std::string to_text(const RecomputeCurve& curve) {
  const bool times = !curve.points.empty() && curve.points[0].seconds.has_value();
  std::string text = fmt::format("{:>12}  {:>14} {:>8}{}  {:>6}  {}\n", "PEAK", "RECOMPUTE", "OF STEP",
                                 times ? fmt::format("  {:>9}", "TIME") : "", "NODES", "PLAN");
  for (const RecomputePoint& point : curve.points) {
    std::string plan = point.policy;
    if (point.dropped != 0) plan += fmt::format(", {} dropped", point.dropped);
    if (point.in_part != 0) plan += fmt::format(", {} partly kept", point.in_part);
    if (point.offloaded != 0) plan += fmt::format(", {} offloaded to CPU", human_bytes(point.offloaded));
    text += fmt::format("{:>12}  {:>14} {:>7.2f}%{}  {:>6}  {}\n", human_bytes(point.peak), human_count(point.flops),
                        100 * point.share, times ? fmt::format("  {:>9}", human_seconds(*point.seconds)) : "",
                        point.nodes, plan);
  }
  text += fmt::format(
      "\nRECOMPUTE: matmul FLOPs; a step without recompute takes {}. {} of the peak are parameters, inputs and other "
      "tensors that no plan frees\n",
      human_count(curve.flops), human_bytes(curve.elsewhere));
  for (const std::string& why : curve.not_a_chain) text += "not a chain: " + why + "\n";
  return text;
}

nlohmann::json to_json(const RecomputeCurve& curve) {
  const auto points_of = [](const std::vector<RecomputePoint>& points) {
    nlohmann::json list = nlohmann::json::array();
    for (const RecomputePoint& point : points) {
      nlohmann::json entry{{"policy", point.policy},          {"peak_bytes", point.peak},
                           {"recomputed_flops", point.flops}, {"share_of_step", point.share},
                           {"nodes_again", point.nodes},      {"dropped", point.dropped},
                           {"kept_in_part", point.in_part},   {"segments", point.segments}};
      if (point.offloaded != 0) entry["offloaded_bytes"] = point.offloaded;
      if (point.seconds) entry["seconds_again"] = *point.seconds;
      list.push_back(std::move(entry));
    }
    return list;
  };
  return {{"points", points_of(curve.points)},
          {"other_policies", points_of(curve.others)},
          {"step_flops", curve.flops},
          {"elsewhere_bytes", curve.elsewhere},
          {"why_not_a_chain", curve.not_a_chain}};
}

nlohmann::json chain_json(const Graph& graph, const CheckpointChain& chain, const StepTime* time) {
  const Flops flops = Flops::of(graph);
  IdMap<NodeId, uint32_t> order;
  IdMap<NodeId, int32_t> stage_of(-1);
  int32_t stage = -1;
  uint32_t place = 0;
  size_t next = 0;
  for (const NodeId n : graph.nodes()) {
    order[n] = place++;
    if (next < chain.parts.size() && chain.parts[next].first == n) stage = static_cast<int32_t>(next++);
    if (stage >= 0 && graph.node(n).phase == Graph::kForward && !graph.is_placeholder(n)) stage_of[n] = stage;
  }
  struct Sums {
    int64_t forward_flops = 0, backward_flops = 0;
    double forward_seconds = 0, backward_seconds = 0;
  };
  std::vector<Sums> sums(chain.stages.size());
  for (const NodeId n : graph.nodes()) {
    const bool backward = graph.node(n).phase == Graph::kBackward;
    const NodeId of = backward ? graph.node(n).forward : n;
    const int32_t at = of.valid() && !graph.is_erased(of) ? std::as_const(stage_of)[of] : -1;
    if (at < 0) continue;
    Sums& sum = sums[static_cast<size_t>(at)];
    (backward ? sum.backward_flops : sum.forward_flops) += flops.of(n).matmul;
    if (time != nullptr) (backward ? sum.backward_seconds : sum.forward_seconds) += time->of(n).seconds;
  }
  nlohmann::json stages = nlohmann::json::array();
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    const ChainStage& s = chain.stages[i];
    const int64_t saved = s.options[0].saved;
    nlohmann::json entry{{"name", s.name},
                         {"first_node", std::as_const(order)[chain.parts[i].first]},
                         {"last_node", std::as_const(order)[chain.parts[i].last]},
                         {"forward_flops", sums[i].forward_flops},
                         {"backward_flops", sums[i].backward_flops},
                         {"output_bytes", s.output},
                         {"saved_bytes", saved},
                         {"forward_scratch_bytes", std::max<int64_t>(0, s.keeping_peak - saved)},
                         {"backward_scratch_bytes", std::max<int64_t>(0, s.backward_peak - saved)},
                         {"resident_bytes", s.resident},
                         {"droppable", s.droppable},
                         {"forward_cost", s.forward},
                         {"recompute_cost", s.recompute},
                         {"options", nlohmann::json::array()}};
    if (time != nullptr) {
      entry["forward_seconds"] = sums[i].forward_seconds;
      entry["backward_seconds"] = sums[i].backward_seconds;
    }
    for (const ChainOption& option : s.options) {
      entry["options"].push_back({{"saved_bytes", option.saved}, {"cost", option.cost}});
      if (option.offloaded != 0) entry["options"].back()["offloaded_bytes"] = option.offloaded;
    }
    stages.push_back(std::move(entry));
  }
  return {{"schema", "shadowgraph-chain/1"},
          {"linear", chain.not_a_chain.empty() && !chain.stages.empty()},
          {"why_not_a_chain", chain.stages.empty() ? std::vector<std::string>{"the graph has no forward or no backward"}
                                                   : chain.not_a_chain},
          {"elsewhere_bytes", chain.elsewhere},
          {"input_bytes", chain.input},
          {"stages", std::move(stages)}};
}

namespace {

// Live bytes at one node in MemTracker's categories: activations, parameter gradients, backward temporaries.
struct LiveCategories {
  int64_t activations = 0, gradients = 0, temporaries = 0;
};

struct ModuleSpan {
  uint32_t first = 0, last = 0;  // positions of its nodes; empty if last < first
  bool empty = true;
  void add(uint32_t place) {
    first = empty ? place : std::min(first, place);
    last = empty ? place : std::max(last, place);
    empty = false;
  }
};

class ModuleStatistics {
 public:
  ModuleStatistics(const Graph& graph, const StepTime& time) : graph_(graph), time_(time), costs_(graph) {
    sort_live();
    find_spans();
  }

  nlohmann::json run(const std::string& root, size_t segments) const {
    nlohmann::json stats = nlohmann::json::array();
    nlohmann::json left_out = nlohmann::json::array();
    std::vector<uint32_t> in;
    const auto& modules = costs_.modules().tree.modules;
    for (uint32_t m = 0; m < modules.size(); ++m) {
      if (m != 0 && modules[m].calls == 0) continue;  // a container that is never called
      if (forward_[m].empty || calls_[m].size() > 1) {
        left_out.push_back(
            {{"fqn", name(root, m)}, {"why", forward_[m].empty ? "it has no nodes" : "it is called more than once"}});
        continue;
      }
      in.push_back(m);
    }
    for (const uint32_t m : in) stats.push_back(statistics(root, m, segments));
    const auto names_by = [&](const auto& before) {
      std::vector<uint32_t> order = in;
      std::stable_sort(order.begin(), order.end(), before);
      std::vector<std::string> names;
      for (const uint32_t m : order) names.push_back(name(root, m));
      return names;
    };
    const auto depth = [&](uint32_t m) { return modules[m].depth; };
    // Nested modules: the outer one comes first on entry, and last on exit.
    const auto pre = names_by([&](uint32_t a, uint32_t b) {
      return std::pair(forward_[a].first, depth(a)) < std::pair(forward_[b].first, depth(b));
    });
    const auto post = names_by([&](uint32_t a, uint32_t b) {
      return forward_[a].last != forward_[b].last ? forward_[a].last < forward_[b].last : depth(a) > depth(b);
    });
    std::vector<std::string> backward_pre(post.rbegin(), post.rend());
    std::vector<std::string> backward_post(pre.rbegin(), pre.rend());
    // parse_module_info numbers modules in the order of this list.
    std::stable_sort(stats.begin(), stats.end(), [&](const nlohmann::json& a, const nlohmann::json& b) {
      const auto place = [&](const nlohmann::json& module) {
        return std::find(pre.begin(), pre.end(), module["fqn"].get_ref<const std::string&>());
      };
      return place(a) < place(b);
    });
    return {{"schema", "shadowgraph-sac-ilp/1"},
            {"mod_order",
             {{"fw_pre_order", pre},
              {"fw_post_order", post},
              {"bw_pre_order", backward_pre},
              {"bw_post_order", backward_post}}},
            {"mod_stats", std::move(stats)},
            {"left_out", std::move(left_out)}};
  }

 private:
  std::string name(const std::string& root, uint32_t module) const {
    const std::string& path = costs_.modules().tree.modules[module].path;
    return path.empty() ? root : root + "." + path;
  }

  void sort_live() {
    live_.resize(costs_.nodes.size() + 1);
    std::vector<LiveCategories> change(costs_.nodes.size() + 1);
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const Storage& storage = graph_.storage(StorageId(i));
      if (!storage.born.valid() || graph_.is_erased(storage.born) || graph_.is_placeholder(storage.born)) continue;
      const PhaseId phase = graph_.node(storage.born).phase;
      int64_t LiveCategories::*sort = costs_.kinds[StorageId(i)] == StorageKind::kGradient ? &LiveCategories::gradients
                                      : phase == Graph::kForward ? &LiveCategories::activations
                                                                 : &LiveCategories::temporaries;
      change[costs_.order[storage.born]].*sort += storage.bytes;
      if (storage.freed_after.valid() && !graph_.is_erased(storage.freed_after)) {
        change[costs_.order[storage.freed_after] + 1].*sort -= storage.bytes;
      }
    }
    LiveCategories now;
    for (size_t i = 0; i < change.size(); ++i) {
      now.activations += change[i].activations;
      now.gradients += change[i].gradients;
      now.temporaries += change[i].temporaries;
      live_[i] = now;
    }
  }

  // Returns the live bytes at the previous node.
  LiveCategories before(uint32_t place) const { return place == 0 ? LiveCategories() : live_[place - 1]; }

  void find_spans() {
    const auto& modules = costs_.modules().tree.modules;
    forward_.resize(modules.size());
    backward_.resize(modules.size());
    own_.resize(modules.size());
    calls_.resize(modules.size());
    for (uint32_t at = 0; at < costs_.nodes.size(); ++at) {
      const NodeId n = costs_.nodes[at];
      const PhaseId phase = graph_.node(n).phase;
      if (graph_.is_placeholder(n) || (phase != Graph::kForward && phase != Graph::kBackward)) continue;
      if (is_end(n)) continue;
      for (RegionId r = graph_.node(n).region; phase == Graph::kForward && r.valid(); r = graph_.region(r).parent) {
        if (graph_.region(r).kind == RegionKind::kModule) calls_[costs_.modules().tree.of_region[r]].insert(r.index);
      }
      for (uint32_t m = costs_.modules().of_node[n]; m != Module::kNone; m = modules[m].parent) {
        (phase == Graph::kForward ? forward_ : backward_)[m].add(at);
        own_[m].push_back(n);
      }
    }
  }

  bool is_end(NodeId n) const {
    return graph_.node(n).target == target_of(Builtin::kOutput) ||
           graph_.node(n).target == target_of(Builtin::kGradient);
  }

  int64_t parameter_bytes(const std::string& path) const {
    int64_t bytes = 0;
    std::unordered_set<uint32_t> counted;
    for (const NodeId n : costs_.nodes) {
      if (graph_.node(n).target != target_of(Builtin::kParameter)) continue;
      if (!path.empty() && !placeholder_name(graph_, n).starts_with(path + ".")) continue;
      graph_.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (s.valid() && counted.insert(s.index).second) bytes += graph_.storage(s).bytes;
      });
    }
    return bytes;
  }

  nlohmann::json statistics(const std::string& root, uint32_t module, size_t segments) const {
    const Module& of = costs_.modules().tree.modules[module];
    const ModuleSpan& forward = forward_[module];
    const ModuleSpan& backward = backward_[module];
    double forward_ms = 0, backward_ms = 0;
    std::vector<DroppedOperator> operators;
    std::unordered_set<uint32_t> read, made, counted_in, counted_out;
    int64_t input = 0, output = 0;
    for (const NodeId n : own_[module]) {
      const double ms = time_.of(n).seconds * 1e3;
      if (graph_.node(n).phase == Graph::kBackward) {
        backward_ms += ms;
        continue;
      }
      forward_ms += ms;
      DroppedOperator dropped{.bytes = 0, .milliseconds = ms};
      graph_.for_each_input(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid() || made.contains(s.index) || !counted_in.insert(s.index).second) return;
        const NodeId born = graph_.storage(s).born;
        const bool given = born.valid() && !graph_.is_erased(born) &&
                           (!graph_.is_placeholder(born) || graph_.node(born).target == target_of(Builtin::kInput));
        if (given) input += graph_.storage(s).bytes;
      });
      graph_.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph_.value(v).storage;
        if (!s.valid() || graph_.storage(s).born != n || !made.insert(s.index).second) return;
        dropped.bytes += static_cast<double>(graph_.storage(s).bytes);
        bool leaves = false;
        graph_.for_each_value_in(s, [&](ValueId alias) {
          graph_.for_each_use(alias, [&](NodeId user) {
            leaves = leaves || (graph_.node(user).phase == Graph::kForward && costs_.order[user] > forward.last);
          });
        });
        if (leaves && counted_out.insert(s.index).second) output += graph_.storage(s).bytes;
      });
      operators.push_back(dropped);
    }
    const LiveCategories entered = before(forward.first);
    const LiveCategories left = live_[forward.last];
    // Use the maximum activations and temporaries of its backward.
    LiveCategories at_peak, before_backward = backward.empty ? LiveCategories() : before(backward.first);
    if (!backward.empty) {
      for (uint32_t at = backward.first; at <= backward.last; ++at) {
        const LiveCategories& now = live_[at];
        if (now.activations + now.temporaries > at_peak.activations + at_peak.temporaries) at_peak = now;
      }
    }
    const int64_t parameters = parameter_bytes(of.path);
    const bool leaf = of.children.empty();
    const TradeOff curve = leaf ? TradeOff() : trade_off(std::move(operators), segments);
    nlohmann::json tradeoff = nlohmann::json::array();
    for (const auto& [dropped, again] : curve.curve) tradeoff.push_back({dropped, again});
    const int64_t kept = std::max<int64_t>(0, left.activations - entered.activations - output);
    return {{"fqn", name(root, module)},
            {"param_per_module", parameters},
            {"grad_per_module", parameters},
            {"grad_total", before_backward.gradients},
            {"act_fw_per_module", kept},
            {"act_bw_per_module", at_peak.activations},
            {"act_grad_per_module", std::max<int64_t>(0, at_peak.temporaries - before_backward.temporaries)},
            {"act_total", left.activations},
            {"input_per_module", input},
            {"output_per_module", output},
            {"fw_runtime_per_module", forward_ms},
            {"bw_runtime_per_module", backward_ms},
            {"is_leaf", leaf},
            {"sac_runtime", curve.milliseconds},
            {"sac_memory", static_cast<int64_t>(curve.bytes)},
            {"n_segments", curve.slopes.size()},
            {"slopes", curve.slopes},
            {"intercepts", curve.intercepts},
            {"breakpoints", curve.breakpoints},
            {"tradeoff_curve", std::move(tradeoff)}};
  }

  const Graph& graph_;
  const StepTime& time_;
  const ProgramCosts costs_;
  std::vector<LiveCategories> live_;  // by position of the node
  std::vector<ModuleSpan> forward_, backward_;
  std::vector<std::vector<NodeId>> own_;             // by module, including those of child modules
  std::vector<std::unordered_set<uint32_t>> calls_;  // by module: regions with forward nodes
};

}  // namespace

nlohmann::json sac_ilp_module_info(const Graph& graph, const StepTime& time, const std::string& root, size_t segments) {
  return ModuleStatistics(graph, time).run(root, segments);
}

}  // namespace shadowgraph
