// Plans for tests: chooses a strategy per node in program order, such that the plan can be applied.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/text.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/layout.h"
#include "shadowgraph/shard/rules.h"
#include "tests/sharding/whole_strategies.h"

namespace shadowgraph {

class PlanMaker {
 public:
  // Evaluates the rules once for all plans of the graph, which must outlive this object.
  explicit PlanMaker(const Graph& graph, const ShardingRules& rules = {})
      : graph_(graph), effects_(Effects::of(graph)) {
    for (const NodeId node : graph.nodes()) strategies_[node] = whole_strategies(rules.strategies(graph, node));
  }

  // Returns the order in which to try a node's strategies on an axis; `now` has the current operand placements.
  using Choose = std::function<std::vector<size_t>(NodeId node, size_t axis, const NodeStrategies& strategies,
                                                   const std::vector<Placement>& now)>;

  // Takes the first strategy that fits each node. A node without a fitting strategy is replicated, and so is written
  // memory whose layout cannot be changed.
  GraphLayouts make(const DeviceMesh& mesh, const Choose& choose) {
    std::set<uint32_t> whole;  // storages that must be replicated
    while (true) {
      try {
        return attempt(mesh, choose, whole);
      } catch (const StorageId& storage) {
        if (!whole.insert(storage.index).second) throw Error("no plan for storage " + std::to_string(storage.index));
      }
    }
  }

  // Shards with the given probability, using random strategies.
  GraphLayouts random(const DeviceMesh& mesh, uint32_t seed, double cut) {
    std::mt19937 random(seed);
    return make(mesh, [&](NodeId, size_t, const NodeStrategies& strategies, const std::vector<Placement>&) {
      std::vector<size_t> order;
      for (size_t i = 1; i < strategies.axis.size(); ++i) order.push_back(i);
      std::shuffle(order.begin(), order.end(), random);
      if (order.size() > 6) order.resize(6);
      if (std::uniform_real_distribution<>()(random) < cut && !strategies.random) {
        order.push_back(0);
      } else {
        order.insert(order.begin(), 0);
      }
      return order;
    });
  }

  // Plans by hand: placeholders get the layout of `place`, and each node takes its operands as they are. Activations
  // take precedence over parameters, which minimizes redistribution.
  using Place =
      std::function<Placement(const std::string& name, Builtin kind, size_t axis, std::span<const int64_t> sizes)>;
  GraphLayouts by_hand(const DeviceMesh& mesh, const Place& place) {
    return make(mesh, [&](NodeId node, size_t axis, const NodeStrategies& strategies,
                          const std::vector<Placement>& now) {
      std::vector<std::pair<int64_t, size_t>> costs;
      const TargetId target = graph_.node(node).target;
      if (target.index <= target_of(Builtin::kInput).index) {
        const Placement wanted = place(graph_.text(graph_.arguments(node)[0].string),
                                       static_cast<Builtin>(target.index), axis, graph_.sizes(tensors(node, true)[0]));
        for (size_t i = 0; i < strategies.axis.size(); ++i) {
          costs.emplace_back(strategies.axis[i].results[0] == wanted ? 0 : i == 0 ? 1 : 2, i);
        }
      } else {
        const std::vector<ValueId> operands = tensors(node, false);
        for (size_t i = 0; i < strategies.axis.size(); ++i) {
          if (strategies.random && i > 0) break;
          int64_t cost = 0;
          for (size_t k = 0; k < operands.size(); ++k) {
            const Placement& wanted = strategies.axis[i].operands[k];
            if (wanted == now[k]) continue;
            const StorageKind kind = graph_.storage(graph_.value(operands[k]).storage).kind;
            const bool weight = kind == StorageKind::kParameter;
            cost += (weight ? 10 : 1000) + (wanted.is_replicate() ? 5 : 0);
          }
          for (const Placement& result : strategies.axis[i].results)
            cost += result.is_replicate() ? 2 : result.is_partial();
          costs.emplace_back(cost, i);
        }
      }
      std::stable_sort(costs.begin(), costs.end());
      std::vector<size_t> order;
      for (const auto& [cost, index] : costs) order.push_back(index);
      return order;
    });
  }

  // Returns how many nodes of a plan have a sharded or partial tensor.
  int64_t cut_nodes(const GraphLayouts& plan) const {
    int64_t cut = 0;
    for (const NodeId node : graph_.nodes()) {
      const NodeLayouts& layouts = plan.nodes[node];
      const auto is_cut = [](const Layout& layout) { return !layout.is_replicated(); };
      cut += std::any_of(layouts.operands.begin(), layouts.operands.end(), is_cut) ||
             std::any_of(layouts.results.begin(), layouts.results.end(), is_cut);
    }
    return cut;
  }

 private:
  std::vector<ValueId> tensors(NodeId node, bool results) const {
    std::vector<ValueId> found;
    const auto add = [&](ValueId v) {
      if (graph_.value(v).kind == ValueKind::kTensor) found.push_back(v);
    };
    if (results) {
      graph_.for_each_output(node, add);
    } else {
      graph_.for_each_input(node, add);
    }
    return found;
  }

  bool has_writes(StorageId storage) const { return effects_.final_version(storage) > 0; }

  // Marks operands whose layout cannot change: written ones, and those whose results alias memory that is written
  // later.
  std::vector<bool> rigid_operands(NodeId node, const std::vector<ValueId>& operands,
                                   const std::vector<ValueId>& results) const {
    std::vector<bool> rigid(operands.size());
    for (size_t i = 0; i < operands.size(); ++i) {
      const StorageId storage = graph_.value(operands[i]).storage;
      for (const StorageWrite& write : effects_.writes(node)) rigid[i] = rigid[i] || write.storage == storage;
      for (const ValueId result : results) {
        rigid[i] = rigid[i] || (graph_.value(result).storage == storage && has_writes(storage));
      }
      rigid[i] = rigid[i] || (graph_.node(node).target == target_of(Builtin::kGradient) && i == 0);
    }
    return rigid;
  }

  GraphLayouts attempt(const DeviceMesh& mesh, const Choose& choose, const std::set<uint32_t>& whole) {
    if (!planner_ || planner_mesh_ != mesh.to_string()) {
      planner_.emplace(mesh, RedistributionRates{.interconnect = &links_});
      planner_mesh_ = mesh.to_string();
    }
    const size_t axes = mesh.axes.size();
    GraphLayouts plan;
    plan.mesh = mesh;
    IdMap<ValueId, Layout> lies;
    for (const NodeId node : graph_.nodes()) {
      const std::vector<ValueId> operands = tensors(node, false);
      const std::vector<ValueId> results = tensors(node, true);
      if (operands.empty() && results.empty()) continue;
      NodeLayouts& layouts = plan.nodes[node];
      if (is_end(graph_.node(node).target)) {
        for (const ValueId operand : operands) {
          Layout layout = lies[operand];
          for (size_t axis = 0; axis < axes; ++axis) {
            if (layout[axis].is_partial()) layout[axis] = Placement::replicate();
          }
          layouts.operands.push_back(layout);
        }
        continue;
      }
      const NodeStrategies& strategies = strategies_[node];
      const std::vector<bool> rigid = rigid_operands(node, operands, results);
      layouts.operands.assign(operands.size(), Layout(axes));
      layouts.results.assign(results.size(), Layout(axes));
      for (size_t axis = 0; axis < axes; ++axis) {
        bool found = false;
        std::vector<Placement> now;
        for (const ValueId operand : operands) now.push_back(lies[operand][axis]);
        std::vector<size_t> order = choose(node, axis, strategies, now);
        for (size_t i = 0; i < strategies.axis.size(); ++i) {  // then any strategy that fits the rigid operands
          if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
        }
        for (const size_t index : order) {
          const AxisStrategy& strategy = strategies.axis[index];
          if (strategy.operands.size() != operands.size() || strategy.results.size() != results.size()) {
            throw Error("a strategy of another number of tensors: " + to_text(graph_, node));
          }
          if (!allowed(strategy, axis, operands, results, rigid, lies, whole)) continue;
          const NodeLayouts before = layouts;
          for (size_t i = 0; i < operands.size(); ++i) layouts.operands[i][axis] = strategy.operands[i];
          for (size_t i = 0; i < results.size(); ++i) layouts.results[i][axis] = strategy.results[i];
          if (fits(mesh, operands, layouts.operands) && fits(mesh, results, layouts.results)) {
            found = true;
            break;
          }
          layouts = before;
        }
        if (!found) give_up(node, operands, rigid, lies);
      }
      for (size_t i = 0; i < operands.size(); ++i) {
        if (layouts.operands[i] == lies[operands[i]]) continue;
        const auto bytes = static_cast<int64_t>(c10::elementSize(graph_.value(operands[i]).dtype));
        if (rigid[i] ||
            !planner_->path(graph_.sizes(operands[i]), bytes, lies[operands[i]], layouts.operands[i]).possible) {
          give_up(node, operands, rigid, lies);
        }
      }
      for (size_t i = 0; i < results.size(); ++i) lies[results[i]] = layouts.results[i];
    }
    return plan;
  }

  bool allowed(const AxisStrategy& strategy, size_t axis, const std::vector<ValueId>& operands,
               const std::vector<ValueId>& results, const std::vector<bool>& rigid, const IdMap<ValueId, Layout>& lies,
               const std::set<uint32_t>& whole) const {
    for (size_t i = 0; i < operands.size(); ++i) {
      const Placement& now = lies[operands[i]][axis];
      const Placement& wanted = strategy.operands[i];
      if (wanted != now && (rigid[i] || wanted.is_partial())) return false;
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (whole.contains(graph_.value(results[i]).storage.index) && !strategy.results[i].is_replicate()) return false;
    }
    return true;
  }

  bool fits(const DeviceMesh& mesh, const std::vector<ValueId>& values, const std::vector<Layout>& layouts) const {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!local_sizes(graph_.sizes(values[i]), layouts[i], mesh)) return false;
    }
    return true;
  }

  [[noreturn]] void give_up(NodeId node, const std::vector<ValueId>& operands, const std::vector<bool>& rigid,
                            const IdMap<ValueId, Layout>& lies) const {
    for (size_t i = 0; i < operands.size(); ++i) {
      if (rigid[i] && !lies[operands[i]].is_replicated()) throw graph_.value(operands[i]).storage;
    }
    throw Error("no strategy fits: " + to_text(graph_, node));
  }

  const Graph& graph_;
  Effects effects_;
  IdMap<NodeId, NodeStrategies> strategies_;
  Interconnect links_ = Interconnect::named("h100");
  std::optional<RedistributionPlanner> planner_;
  std::string planner_mesh_;
};

}  // namespace shadowgraph
