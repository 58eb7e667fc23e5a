// Finds groups in one walk over the program.
//
// Units stand in a line that is an order to run in at any time. A unit is a group that grows, or a node that stays
// alone. A node that a kernel does joins units that it depends on, in one of two ways:
//
//   %2 = mul(%0, %1)      nobody has needed %2 yet, so its unit may wait: it moves to the end of the line, and the add,
//   %5 = add(%2, %4)      which has come there, joins it
//
//   %2 = mul(%0, %1)      mm needs %2, so the unit stays where it is; the relu needs nothing that comes after it, and
//   %3 = mm(%2, %w)       moves up
//   %4 = relu(%2)
//
// In the first way, several units may wait for the node and become one. Both ways keep the line an order, so groups
// never need one another in a circle. plan_kernel decides what can be one group: it is asked for each union that is
// tried.
#include "kernels/replay/grouping.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "kernels/replay/launch.h"
#include "shadowgraph/analysis/dependences.h"

namespace shadowgraph {
namespace {

class Grouper {
 public:
  Grouper(const Graph& graph, const GroupKernelsOptions& options)
      : graph_(graph), options_(options), dependences_(Dependences::of(graph)) {}

  Grouping run() {
    find_turned_storages();
    for (const NodeId node : graph_.nodes()) place(node);
    return result();
  }

 private:
  struct Unit {
    std::vector<NodeId> nodes;  // in program order
    uint32_t position = 0;      // in the line
    bool kernel = false;        // a kernel does it
    bool needed = false;        // by a unit behind it
  };

  uint32_t unit_of(NodeId node) {
    uint32_t unit = unit_of_[node];
    while (joined_[unit] != unit) unit = joined_[unit] = joined_[joined_[unit]];
    return unit;
  }

  // Finds views with a negative or conjugate bit, which a value of the graph does not tell from others of its storage.
  void find_turned_storages() {
    turned_.assign(graph_.storage_count(), false);
    for (const NodeId node : graph_.nodes()) {
      if (!graph_.facts(node).negates && !graph_.facts(node).conjugates) continue;
      graph_.for_each_output(node, [&](ValueId v) {
        if (graph_.value(v).storage.valid()) turned_[graph_.value(v).storage.index] = true;
      });
    }
  }

  bool touches_turned(NodeId node) const {
    bool found = false;
    const auto look = [&](ValueId v) {
      const StorageId storage = graph_.value(v).storage;
      found |= storage.valid() && turned_[storage.index];
    };
    graph_.for_each_input(node, look);
    graph_.for_each_output(node, look);
    return found;
  }

  bool is_kernel(std::span<const NodeId> nodes) const {
    const auto plan = plan_kernel(
        graph_, nodes, options_.kernels, [](ValueId) { return true; }, nullptr);
    return plan && (nodes.size() == 1 || keeps_threads_busy(*plan));
  }

  // Says whether a plan has work for all threads. A reduction to a few numbers would leave everything that joins it to
  // as many.
  static bool keeps_threads_busy(const KernelPlan& plan) {
    const int64_t shares = plan.range * plan.row_work / kElementsOfAThread;
    return plan.range >= std::min<int64_t>(shares, at::get_num_threads());
  }

  // Says whether asking plan_kernel is worth while.
  bool may_join(const Unit& unit, NodeId node) const {
    return unit.kernel && graph_.node(unit.nodes[0]).phase == graph_.node(node).phase &&
           unit.nodes.size() < static_cast<size_t>(options_.max_nodes);
  }

  std::vector<NodeId> merged(std::span<const NodeId> a, std::span<const NodeId> b) const {
    std::vector<NodeId> nodes(a.size() + b.size());
    std::ranges::merge(a, b, nodes.begin(), [&](NodeId x, NodeId y) { return graph_.is_before(x, y); });
    return nodes;
  }

  void place(NodeId node) {
    before_.clear();
    for (const NodeId other : dependences_.before(node)) before_.push_back(unit_of(other));
    std::ranges::sort(before_, [&](uint32_t a, uint32_t b) { return units_[a].position > units_[b].position; });
    before_.erase(std::ranges::unique(before_).begin(), before_.end());

    const auto own = static_cast<uint32_t>(units_.size());
    const bool kernel = !touches_turned(node) && is_kernel({&node, 1});
    units_.push_back({.nodes = {node}, .position = ++end_, .kernel = kernel});
    joined_.push_back(own);
    unit_of_[node] = own;
    if (kernel && !before_.empty()) join(own, node);
    const uint32_t unit = unit_of(node);
    for (const uint32_t other : before_) {
      if (joined_[other] == other && other != unit) units_[other].needed = true;
    }
  }

  void join(uint32_t own, NodeId node) {
    const Unit& last = units_[before_[0]];
    // The node may move up to a unit that must stay where it is: all else that it needs comes no later.
    const bool up = last.needed && may_join(last, node);
    std::vector<NodeId> nodes = {node};
    std::vector<uint32_t> taken;
    for (const uint32_t other : before_) {
      const bool waits = !units_[other].needed;
      const bool stays = up && other == before_[0];
      if ((!waits && !stays) || !may_join(units_[other], node)) continue;
      std::vector<NodeId> all = merged(units_[other].nodes, nodes);
      if (all.size() > static_cast<size_t>(options_.max_nodes) || !is_kernel(all)) continue;
      nodes = std::move(all);
      taken.push_back(other);
    }
    if (taken.empty()) return;
    Unit& unit = units_[own];
    if (up && taken[0] == before_[0]) {
      unit.position = last.position;
      unit.needed = true;
    }
    for (const uint32_t other : taken) {
      joined_[other] = own;
      units_[other].nodes.clear();
    }
    unit.nodes = std::move(nodes);
  }

  Grouping result() {
    std::vector<uint32_t> line;
    for (uint32_t unit = 0; unit < units_.size(); ++unit) {
      if (joined_[unit] == unit) line.push_back(unit);
    }
    std::ranges::sort(line, {}, [&](uint32_t unit) { return units_[unit].position; });
    Grouping grouping;
    for (const uint32_t number : line) {
      Unit& unit = units_[number];
      grouping.order.insert(grouping.order.end(), unit.nodes.begin(), unit.nodes.end());
      if (unit.kernel && unit.nodes.size() >= static_cast<size_t>(options_.min_nodes)) {
        grouping.groups.push_back(std::move(unit.nodes));
      }
    }
    return grouping;
  }

  const Graph& graph_;
  const GroupKernelsOptions& options_;
  const Dependences dependences_;
  std::vector<bool> turned_;  // by storage
  std::vector<Unit> units_;
  std::vector<uint32_t> joined_;  // by unit: itself, or one that it has become part of
  IdMap<NodeId, uint32_t> unit_of_;
  uint32_t end_ = 0;
  std::vector<uint32_t> before_;  // units that the node at hand needs, the latest first
};

}  // namespace

Grouping find_kernel_groups(const Graph& graph, const GroupKernelsOptions& options) {
  return Grouper(graph, options).run();
}

}  // namespace shadowgraph
