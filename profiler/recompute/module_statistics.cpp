// Writes a training step module by module, for PyTorch's selective-checkpoint ILP.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <unordered_set>

#include "ir/analysis/module_tree.h"
#include "profiler/program_costs.h"
#include "profiler/recompute/trade_off.h"
#include "shadowgraph/profile/recompute_exports.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

// Live bytes at one node, as MemTracker sorts them: what forward made, gradients of parameters, what backward made.
struct LiveSorts {
  int64_t activations = 0, gradients = 0, temporaries = 0;
};

struct ModuleSpan {
  uint32_t first = 0, last = 0;  // places of its nodes; none: last < first
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
      if (m != 0 && modules[m].calls == 0) continue;  // a container that is not called
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
    // Modules lie around one another: the outer one comes first going in, and last coming out.
    const auto pre = names_by([&](uint32_t a, uint32_t b) {
      return std::pair(forward_[a].first, depth(a)) < std::pair(forward_[b].first, depth(b));
    });
    const auto post = names_by([&](uint32_t a, uint32_t b) {
      return forward_[a].last != forward_[b].last ? forward_[a].last < forward_[b].last : depth(a) > depth(b);
    });
    std::vector<std::string> backward_pre(post.rbegin(), post.rend());
    std::vector<std::string> backward_post(pre.rbegin(), pre.rend());
    // parse_module_info gives each an index in the order of this list.
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
    std::vector<LiveSorts> change(costs_.nodes.size() + 1);
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const Storage& storage = graph_.storage(StorageId(i));
      if (!storage.born.valid() || graph_.is_erased(storage.born) || graph_.is_placeholder(storage.born)) continue;
      const PhaseId phase = graph_.node(storage.born).phase;
      int64_t LiveSorts::*sort = costs_.kinds[StorageId(i)] == StorageKind::kGradient ? &LiveSorts::gradients
                                 : phase == Graph::kForward                           ? &LiveSorts::activations
                                                                                      : &LiveSorts::temporaries;
      change[costs_.order[storage.born]].*sort += storage.bytes;
      if (storage.freed_after.valid() && !graph_.is_erased(storage.freed_after)) {
        change[costs_.order[storage.freed_after] + 1].*sort -= storage.bytes;
      }
    }
    LiveSorts now;
    for (size_t i = 0; i < change.size(); ++i) {
      now.activations += change[i].activations;
      now.gradients += change[i].gradients;
      now.temporaries += change[i].temporaries;
      live_[i] = now;
    }
  }

  // Returns what was live while the node before ran.
  LiveSorts before(uint32_t place) const { return place == 0 ? LiveSorts() : live_[place - 1]; }

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
      const std::string parameter = placeholder_name(graph_, n);
      if (!path.empty() && !parameter.starts_with(path + ".")) continue;
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
    const LiveSorts entered = before(forward.first);
    const LiveSorts left = live_[forward.last];
    // Take the most activations and temporaries of its backward.
    LiveSorts at_peak, before_backward = backward.empty ? LiveSorts() : before(backward.first);
    if (!backward.empty) {
      for (uint32_t at = backward.first; at <= backward.last; ++at) {
        const LiveSorts& now = live_[at];
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
  std::vector<LiveSorts> live_;  // by place: at the node
  std::vector<ModuleSpan> forward_, backward_;
  std::vector<std::vector<NodeId>> own_;             // by module, with those of modules inside
  std::vector<std::unordered_set<uint32_t>> calls_;  // by module: regions with nodes of forward
};

}  // namespace

nlohmann::json sac_ilp_module_info(const Graph& graph, const StepTime& time, const std::string& root, size_t segments) {
  return ModuleStatistics(graph, time).run(root, segments);
}

}  // namespace shadowgraph
