#include "ir/edit/group_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "ir/operators/operator_facts.h"
#include "shadowgraph/text.h"

namespace shadowgraph {
namespace {

std::vector<NodeId> in_program_order(const Graph& graph, std::span<const NodeId> nodes) {
  std::vector<NodeId> sorted(nodes.begin(), nodes.end());
  std::sort(sorted.begin(), sorted.end(), [&](NodeId a, NodeId b) { return graph.is_before(a, b); });
  return sorted;
}

// Returns the nodes of a group in program order, each a call.
std::vector<NodeId> calls_of(const Graph& graph, const GroupCall& group) {
  if (group.nodes.empty()) refuse_group(group.schema, "there are none");
  for (NodeId n : group.nodes) {
    if (n.index >= graph.node_capacity() || graph.is_erased(n))
      refuse_group(group.schema, "one of them does not exist");
    if (graph.target(n).kind() == TargetKind::kBuiltin && graph.target(n).name() != "sg::alias") {
      refuse_group(group.schema, "this one is no call:\n  " + to_text(graph, n));
    }
  }
  std::vector<NodeId> nodes = in_program_order(graph, group.nodes);
  if (std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end()) refuse_group(group.schema, "one is named twice");
  return nodes;
}

// Works a plan out, and refuses on the way what the schema does not allow.
class GroupPlanner {
 public:
  GroupPlanner(Graph& graph, const Effects& effects, const GroupCall& group)
      : graph_(graph),
        effects_(effects),
        group_(group),
        planned_{.nodes = calls_of(graph, group)},
        inside_(planned_.nodes.begin(), planned_.nodes.end()),
        boundary_(boundary_of(graph, planned_.nodes)),
        target_(TargetKind::kFunction, group.schema) {}

  GroupPlan run() {
    planned_.target = graph_.intern_target(target_);
    take_arguments();
    take_outputs();
    // What the nodes do must be in the schema. Passes believe schemas, so a write that is not in it would be moved over.
    if (!target_.facts().unknown) {
      check_deeds();
      check_aliases();
    }
    return std::move(planned_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse_group(group_.schema, what); }

  // Without arguments by the caller, the schema's come in the order in which the nodes first use them, then defaults.
  void take_arguments() {
    const Signature& formals = target_.signature();
    planned_.arguments = group_.arguments;
    if (planned_.arguments.empty()) {
      if (boundary_.inputs.size() > formals.arguments.size()) {
        refuse(fmt::format("they read {} values", boundary_.inputs.size()));
      }
      for (ValueId v : boundary_.inputs) planned_.arguments.push_back(Argument::of_value(v));
      for (size_t i = planned_.arguments.size(); i < formals.arguments.size(); ++i) {
        const auto& default_value = formals.arguments[i].default_value;
        if (!default_value) refuse("argument '" + formals.arguments[i].name + "' has no value");
        planned_.arguments.push_back(default_value->make(graph_));
      }
    }
    if (formals.variadic_arguments ? planned_.arguments.size() < formals.arguments.size()
                                   : planned_.arguments.size() != formals.arguments.size()) {
      refuse(fmt::format("{} arguments are given", planned_.arguments.size()));
    }
    std::unordered_set<ValueId> given;
    graph_.for_each_value(planned_.arguments, [&](ValueId v) {
      given.insert(v);
      if (graph_.value(v).storage.valid()) given_storages_.insert(graph_.value(v).storage);
    });
    // The call must see everything that the nodes see.
    for (ValueId v : boundary_.inputs) {
      if (!given.contains(v)) refuse("they read a value that is no argument: " + type_text(graph_, v));
    }
    for (ValueId v : given) {
      if (inside_.contains(graph_.value(v).producer)) refuse("one of them makes an argument");
    }
  }

  // A value that somebody outside uses must come out of the call, else it is lost.
  void take_outputs() {
    planned_.outputs = group_.outputs.empty() ? boundary_.outputs : group_.outputs;
    const std::unordered_set<ValueId> returned(planned_.outputs.begin(), planned_.outputs.end());
    if (planned_.outputs.size() != target_.signature().returns.size()) {
      refuse(fmt::format("they give {} values", planned_.outputs.size()));
    }
    for (ValueId v : boundary_.outputs) {
      if (!returned.contains(v)) refuse("a value that others use is not returned: " + type_text(graph_, v));
    }
    for (ValueId v : planned_.outputs) {
      if (!inside_.contains(graph_.value(v).producer)) refuse("it returns a value that none of them makes");
    }
  }

  void check_deeds() const {
    const OperatorFacts& facts = target_.facts();
    const GroupDeeds deeds = deeds_of(graph_, effects_, planned_.nodes, boundary_);
    if (deeds.anything) refuse("one of them reads the host or is unknown; the schema needs '...'");
    if (deeds.random && !facts.random) refuse("one of them draws random numbers; the schema needs a 'Generator?'");
    if (deeds.collective && !facts.collective)
      refuse("one of them is a collective; the schema needs a 'str group_name'");
    std::unordered_set<StorageId> may_write;
    for (const uint16_t i : facts.written) {
      for (StorageId s : storages_of(i)) may_write.insert(s);
    }
    for (StorageId s : deeds.written) {
      if (!may_write.contains(s)) refuse("they write an argument that the schema does not mark with (a!)");
    }
  }

  // An alias that the schema does not mention is as bad as a write that it does not mention.
  void check_aliases() const {
    std::vector<char> marked(planned_.outputs.size());
    for (const OperatorFacts::Alias& alias : target_.facts().aliases) {
      const StorageId s = graph_.value(planned_.outputs[alias.result]).storage;
      const auto storages = storages_of(alias.argument);
      const bool shares = s.valid() && std::find(storages.begin(), storages.end(), s) != storages.end();
      if (shares) marked[alias.result] = 1;
      if (alias.always && !shares && !storages.empty()) {
        refuse(fmt::format("result {} does not share the storage of its argument", alias.result));
      }
    }
    for (size_t r = 0; r < planned_.outputs.size(); ++r) {
      if (marked[r] == 0 && given_storages_.contains(graph_.value(planned_.outputs[r]).storage)) {
        refuse(fmt::format("result {} shares a storage with an argument, unmarked", r));
      }
    }
  }

  std::vector<StorageId> storages_of(uint16_t position) const {
    std::vector<StorageId> storages;
    graph_.for_each_value(std::span(planned_.arguments).subspan(position, 1),
                          [&](ValueId v) { storages.push_back(graph_.value(v).storage); });
    return storages;
  }

  Graph& graph_;
  const Effects& effects_;
  const GroupCall& group_;
  GroupPlan planned_;
  const std::unordered_set<NodeId> inside_;
  const Boundary boundary_;
  const Target target_;
  std::unordered_set<StorageId> given_storages_;  // of the arguments
};

}  // namespace

void refuse_group(const std::string& schema, const std::string& what) {
  throw GraphEditError("cannot replace nodes by a call of " + schema + ": " + what);
}

GroupDeeds deeds_of(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes,
                    const Boundary& boundary) {
  GroupDeeds deeds;
  std::unordered_set<StorageId> known;
  for (ValueId v : boundary.inputs) known.insert(graph.value(v).storage);
  for (NodeId n : nodes) {
    deeds.random = deeds.random || effects.random(n);
    deeds.collective = deeds.collective || effects.collective(n);
    deeds.anything = deeds.anything || effects.host_read(n) || effects.unknown(n);
    for (const StorageWrite& write : effects.writes(n)) {
      if (!effects.is_generator(write.storage) && known.contains(write.storage)) deeds.written.push_back(write.storage);
    }
  }
  std::sort(deeds.written.begin(), deeds.written.end());
  deeds.written.erase(std::unique(deeds.written.begin(), deeds.written.end()), deeds.written.end());
  return deeds;
}

GroupPlan plan_of(Graph& graph, const Effects& effects, const GroupCall& group) {
  return GroupPlanner(graph, effects, group).run();
}

// A value is an output if somebody outside uses it, or saves it for backward.
Boundary boundary_of(const Graph& graph, std::span<const NodeId> nodes) {
  Boundary boundary;
  const std::vector<NodeId> sorted = in_program_order(graph, nodes);
  const std::unordered_set<NodeId> inside(nodes.begin(), nodes.end());
  std::unordered_set<ValueId> seen;
  for (NodeId n : sorted) {
    graph.for_each_input(n, [&](ValueId v) {
      if (!inside.contains(graph.value(v).producer) && seen.insert(v).second) boundary.inputs.push_back(v);
    });
    graph.for_each_output(n, [&](ValueId v) {
      bool needed = graph.is_saved_elsewhere(v);
      graph.for_each_use(v, [&](NodeId user) { needed = needed || !inside.contains(user); });
      if (needed) boundary.outputs.push_back(v);
    });
  }
  return boundary;
}

}  // namespace shadowgraph
