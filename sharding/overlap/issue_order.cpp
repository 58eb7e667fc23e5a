#include "sharding/overlap/issue_order.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shadowgraph/analysis/dependences.h"

namespace shadowgraph {
namespace {

class IssueOrder {
 public:
  IssueOrder(Graph& graph, std::span<const HeldBack> held) : graph_(graph), needs_(Dependences::of(graph)) {
    for (const HeldBack& one : held) behind_[one.node] = one.behind;
    NodeId before;
    for (const NodeId node : graph.nodes()) {
      if (!graph.facts(node).collective || waits(node)) continue;
      collective_before_[node] = std::exchange(before, node);
    }
  }

  void run() {
    for (const NodeId node : graph_.nodes()) {
      if (state_[node] == kIssued) continue;
      if (ends(node)) {
        issue_rest();
        issue(node);
        continue;
      }
      if (graph_.facts(node).collective && !waits(node)) issue_waits_like(node);
      NodeId behind = std::as_const(behind_)[node];
      bool needs_lazy = false;
      for_each_need(node, [&](NodeId need) {
        if (state_[need] == kHeld) behind = std::as_const(behind_)[need];
        needs_lazy |= state_[need] == kLazy;
      });
      const bool is_view = graph_.facts(node).is_view && !graph_.is_placeholder(node);
      if (behind.valid() && behind != node && state_[behind] != kIssued) {
        behind_[node] = behind;
        state_[node] = kHeld;
        of_[behind].push_back(node);
        leave_deaths(node);
      } else if (waits(node) || (is_view && needs_lazy)) {
        state_[node] = kLazy;
        lazy_.push_back(node);
        if (waits(node)) lazy_waits_[graph_.node(waited_by(node)).target].push_back(node);
        leave_deaths(node);
      } else {
        issue(node);
        if (!graph_.is_placeholder(node)) stays_ = node;
      }
    }
    issue_rest();
    for (const auto& [node, storages] : deaths_) {
      std::vector<StorageId> all(graph_.frees(node).begin(), graph_.frees(node).end());
      all.insert(all.end(), storages.begin(), storages.end());
      graph_.set_frees(node, all);
    }
    graph_.reorder(order_);
  }

 private:
  enum State : uint8_t { kAhead, kHeld, kLazy, kIssued };

  bool waits(NodeId node) const { return graph_.target(node).name() == "_c10d_functional::wait_tensor"; }

  NodeId waited_by(NodeId wait) const { return graph_.value(graph_.arguments(wait)[0].ref.value).producer; }

  bool ends(NodeId node) const {
    return graph_.node(node).target == target_of(Builtin::kOutput) ||
           graph_.node(node).target == target_of(Builtin::kGradient);
  }
  // Nobody in its phase reads what it gives, but for views.
  bool leaves_phase(NodeId node) const {
    bool leaves = true;
    graph_.for_each_output(node, [&](ValueId made) {
      graph_.for_each_use(made, [&](NodeId user) {
        const bool here = graph_.node(user).phase == graph_.node(node).phase && !ends(user);
        leaves &= !here || (state_[user] == kLazy && leaves_phase(user));
      });
    });
    return leaves;
  }

  // What a phase gives is waited for before its next collective of the kind: a sum of gradients holds what is sent.
  void issue_waits_like(NodeId collective) {
    std::vector<NodeId>& lazy = lazy_waits_[graph_.node(collective).target];
    std::vector<NodeId> stay;
    for (const NodeId node : lazy) {
      if (state_[node] != kLazy) continue;
      if (leaves_phase(node)) {
        issue(node);
      } else {
        stay.push_back(node);
      }
    }
    lazy = std::move(stay);
  }

  // Collectives keep their order. A wait is in no order but with what is waited for, and with who reads that.
  template <class F>
  void for_each_need(NodeId node, F&& f) const {
    const bool in_order = graph_.facts(node).collective;
    for (const NodeId need : needs_.before(node)) {
      if (in_order && graph_.facts(need).collective && (waits(node) || waits(need)) && !reads(node, need)) continue;
      f(need);
    }
    if (const NodeId before = collective_before_[node]; before.valid()) f(before);
  }
  bool reads(NodeId node, NodeId need) const {
    bool found = false;
    graph_.for_each_output(need, [&](ValueId made) {
      const StorageId storage = graph_.value(made).storage;
      graph_.for_each_input(node, [&](ValueId v) { found |= graph_.value(v).storage == storage; });
    });
    return found;
  }

  // What the program let go of at a node that goes elsewhere dies at the one before, or after its last use.
  void leave_deaths(NodeId node) {
    if (!stays_.valid() || graph_.frees(node).empty()) return;
    std::vector<StorageId>& left = deaths_[stays_];
    left.insert(left.end(), graph_.frees(node).begin(), graph_.frees(node).end());
    graph_.set_frees(node, {});
  }

  // What it needs comes first, in program order where nothing else is asked for.
  void issue(NodeId node) {
    std::vector<NodeId> open{node};
    while (!open.empty()) {
      const NodeId next = open.back();
      if (state_[next] == kIssued) {
        open.pop_back();
        continue;
      }
      const size_t before = open.size();
      for_each_need(next, [&](NodeId need) {
        if (state_[need] != kIssued) open.push_back(need);
      });
      if (open.size() != before) {
        std::sort(open.begin() + static_cast<ptrdiff_t>(before), open.end(),
                  [&](NodeId a, NodeId b) { return graph_.is_before(b, a); });
        continue;
      }
      open.pop_back();
      state_[next] = kIssued;
      order_.push_back(next);
      const auto waiting = of_.find(next);
      if (waiting == of_.end()) continue;
      std::vector<NodeId> now = std::move(waiting->second);
      of_.erase(waiting);
      open.insert(open.end(), now.rbegin(), now.rend());
    }
  }

  void issue_rest() {
    for (const NodeId node : lazy_) issue(node);
    lazy_.clear();
    while (!of_.empty()) issue(of_.begin()->first);
  }

  Graph& graph_;
  const Dependences needs_;
  IdMap<NodeId, uint8_t> state_{kAhead};
  IdMap<NodeId, NodeId> behind_, collective_before_;
  std::unordered_map<NodeId, std::vector<NodeId>> of_;
  std::vector<NodeId> lazy_;
  std::map<TargetId, std::vector<NodeId>> lazy_waits_;  // by what is called that they wait for
  std::vector<NodeId> order_;
  NodeId stays_;  // the last one that was issued where it stands
  std::unordered_map<NodeId, std::vector<StorageId>> deaths_;
};

}  // namespace

void put_in_issue_order(Graph& graph, std::span<const HeldBack> held) { IssueOrder(graph, held).run(); }

}  // namespace shadowgraph
