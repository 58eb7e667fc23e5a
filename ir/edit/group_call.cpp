// Replaces a group of nodes by a call, and rejects groups that the function's schema does not cover. Internal to
// ir/edit.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/operators/operator_facts.h"
#include "ir/records.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/text.h"

namespace shadowgraph {

namespace {

// Side effects of a group of nodes.
struct GroupEffects {
  std::vector<StorageId> written;  // visible outside the group, sorted
  bool random = false;
  bool collective = false;
  bool anything = false;  // host reads, unknown
};

// A call and its operands, computed before the graph is changed.
struct PlannedCall {
  std::vector<NodeId> nodes;  // in program order
  TargetId target;
  std::vector<Argument> arguments;
  std::vector<ValueId> outputs;
};

[[noreturn]] void refuse_group(const std::string& schema, const std::string& what) {
  throw GraphError("cannot replace nodes by a call of " + schema + ": " + what);
}

// Collects the side effects of a node group. Writes to storage local to the group are ignored:
//
//     %3 = empty(..) @s3, %4 = add_(%3, 1) @s3, %5 = mul(%0, %4)        no effect: s3 is allocated and freed inside
GroupEffects effects_of(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes,
                        const Boundary& boundary) {
  GroupEffects group_effects;
  std::unordered_set<StorageId> known;
  for (ValueId v : boundary.inputs) known.insert(graph.value(v).storage);
  for (NodeId n : nodes) {
    group_effects.random = group_effects.random || effects.random(n);
    group_effects.collective = group_effects.collective || effects.collective(n);
    group_effects.anything = group_effects.anything || effects.host_read(n) || effects.unknown(n);
    for (const StorageWrite& write : effects.writes(n)) {
      if (!effects.is_generator(write.storage) && known.contains(write.storage))
        group_effects.written.push_back(write.storage);
    }
  }
  std::sort(group_effects.written.begin(), group_effects.written.end());
  group_effects.written.erase(std::unique(group_effects.written.begin(), group_effects.written.end()),
                              group_effects.written.end());
  return group_effects;
}

std::vector<NodeId> in_program_order(const Graph& graph, std::span<const NodeId> nodes) {
  std::vector<NodeId> sorted(nodes.begin(), nodes.end());
  std::sort(sorted.begin(), sorted.end(), [&](NodeId a, NodeId b) { return graph.is_before(a, b); });
  return sorted;
}

// Returns the nodes of a group in program order; throws unless all are calls.
std::vector<NodeId> calls_of(const Graph& graph, const GroupCall& group) {
  if (group.nodes.empty()) refuse_group(group.schema, "the group is empty");
  for (NodeId n : group.nodes) {
    if (n.index >= graph.node_capacity() || graph.is_erased(n))
      refuse_group(group.schema, "a node of the group does not exist");
    if (graph.target(n).kind() == TargetKind::kBuiltin && graph.target(n).name() != "sg::alias") {
      refuse_group(group.schema, "this node is not a call:\n  " + to_text(graph, n));
    }
  }
  std::vector<NodeId> nodes = in_program_order(graph, group.nodes);
  if (std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end())
    refuse_group(group.schema, "a node is listed twice");
  return nodes;
}

// Plans the call, and rejects groups whose behavior the schema does not allow.
class CallPlanner {
 public:
  CallPlanner(Graph& graph, const Effects& effects, const GroupCall& group)
      : graph_(graph),
        effects_(effects),
        group_(group),
        planned_{.nodes = calls_of(graph, group)},
        inside_(planned_.nodes.begin(), planned_.nodes.end()),
        boundary_(boundary_of(graph, planned_.nodes)),
        target_(TargetKind::kFunction, group.schema) {}

  PlannedCall run() {
    planned_.target = graph_.intern_target(target_);
    take_arguments();
    take_outputs();
    // Side effects must be in the schema. Passes trust schemas, so an undeclared write would be reordered.
    if (!target_.facts().unknown) {
      check_effects();
      check_aliases();
    }
    return std::move(planned_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse_group(group_.schema, what); }

  // Without explicit arguments, the schema's are the values in order of first use by the nodes, then defaults.
  void take_arguments() {
    const Signature& formals = target_.signature();
    planned_.arguments = group_.arguments;
    if (planned_.arguments.empty()) {
      if (boundary_.inputs.size() > formals.arguments.size()) {
        refuse(fmt::format("the nodes read {} values", boundary_.inputs.size()));
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
    // The call must receive every value that the nodes read.
    for (ValueId v : boundary_.inputs) {
      if (!given.contains(v)) refuse("the nodes read a value that is not among the arguments: " + type_text(graph_, v));
    }
    for (ValueId v : given) {
      if (inside_.contains(graph_.value(v).producer)) refuse("an argument is produced by a node of the group");
    }
  }

  // Every value used outside the group must be returned by the call.
  void take_outputs() {
    planned_.outputs = group_.outputs.empty() ? boundary_.outputs : group_.outputs;
    const std::unordered_set<ValueId> returned(planned_.outputs.begin(), planned_.outputs.end());
    if (planned_.outputs.size() != target_.signature().returns.size()) {
      refuse(fmt::format("the nodes produce {} values", planned_.outputs.size()));
    }
    for (ValueId v : boundary_.outputs) {
      if (!returned.contains(v)) refuse("a value that others use is not returned: " + type_text(graph_, v));
    }
    for (ValueId v : planned_.outputs) {
      if (!inside_.contains(graph_.value(v).producer)) refuse("it returns a value that no node of the group produces");
    }
  }

  void check_effects() const {
    const OperatorFacts& facts = target_.facts();
    const GroupEffects group_effects = effects_of(graph_, effects_, planned_.nodes, boundary_);
    if (group_effects.anything) refuse("a node copies data to the host or is unknown; add '...' to the schema");
    if (group_effects.random && !facts.random)
      refuse("a node draws random numbers; add a 'Generator?' argument to the schema");
    if (group_effects.collective && !facts.collective)
      refuse("a node is a collective; add a 'str group_name' argument to the schema");
    std::unordered_set<StorageId> may_write;
    for (const uint16_t i : facts.written) {
      for (StorageId s : storages_of(i)) may_write.insert(s);
    }
    for (StorageId s : group_effects.written) {
      if (!may_write.contains(s)) refuse("the nodes write an argument that the schema does not mark with (a!)");
    }
  }

  // Undeclared aliases are rejected for the same reason as undeclared writes.
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
        refuse(fmt::format("result {} shares a storage with an argument, which the schema does not declare", r));
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
  PlannedCall planned_;
  const std::unordered_set<NodeId> inside_;
  const Boundary boundary_;
  const Target target_;
  std::unordered_set<StorageId> given_storages_;  // of the arguments
};

}  // namespace

// A value is an output if a node outside the group uses it or saves it for backward.
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

namespace {

// Returns the innermost region that contains both. Parents have smaller indices, so the larger index is always replaced
// by its parent.
RegionId common_region(const Graph& graph, RegionId a, RegionId b) {
  while (a != b) (a.index > b.index ? a : b) = graph.region(a.index > b.index ? a : b).parent;
  return a;
}

// Inserts the call in place of the first node. Its results keep the storages of the old ones, so that aliases,
// lifetimes and views remain valid.
NodeId make_call(Graph& graph, const PlannedCall& planned) {
  NodeId call;
  RegionId region = graph.node(planned.nodes.front()).region;
  for (NodeId n : planned.nodes) region = common_region(graph, region, graph.node(n).region);
  // The insertion point must be destroyed before nodes are erased.
  {
    InsertionPoint at(graph, planned.nodes.front());
    call = at.insert(planned.target, planned.arguments);
  }
  mutable_node(graph, call).region = region;
  std::vector<Argument> results;
  for (ValueId v : planned.outputs) {
    results.push_back(Argument::of_value(graph.new_value(call, graph.value(v).kind, graph.meta(v))));
  }
  graph.set_results(call, results);

  // The call saves the tensors that the nodes saved for backward, if these are arguments or results of the call. Other
  // saved tensors are removed with the nodes.
  std::unordered_map<ValueId, SavedTensor> known;
  for (size_t r = 0; r < planned.outputs.size(); ++r) {
    known[planned.outputs[r]] = {
        .value = results[r].ref.value, .role = SavedRole::kResult, .index = static_cast<uint16_t>(r)};
  }
  for (size_t i = 0; i < planned.arguments.size(); ++i) {
    graph.for_each_value(std::span(planned.arguments).subspan(i, 1), [&](ValueId v) {
      known.try_emplace(v, SavedTensor{.value = v, .role = SavedRole::kArgument, .index = static_cast<uint16_t>(i)});
    });
  }
  std::vector<SavedTensor> saved;
  for (NodeId n : planned.nodes) {
    for (const SavedTensor& tensor : graph.saved(n)) {
      const auto found = known.find(tensor.value);
      if (found == known.end()) continue;
      saved.push_back(found->second);
      known.erase(found);  // once
    }
  }
  if (!saved.empty()) graph.set_saved(call, saved);
  for (size_t r = 0; r < planned.outputs.size(); ++r)
    graph.replace_all_uses_with(planned.outputs[r], results[r].ref.value);
  graph.erase(planned.nodes);
  return call;
}

// Links backward nodes to the call. A backward node that now precedes the call (it was moved up) loses its forward
// link.
void relink(Graph& graph, const std::unordered_map<NodeId, NodeId>& replaced) {
  for (NodeId n : graph.nodes()) {
    const auto found = replaced.find(graph.node(n).forward);
    if (found != replaced.end())
      mutable_node(graph, n).forward = graph.is_before(found->second, n) ? found->second : NodeId();
  }
}

}  // namespace

std::string schema_of(const Graph& graph, std::span<const NodeId> nodes, const std::string& name) {
  return schema_of(graph, nodes, name, Effects::of(graph));
}

std::string schema_of(const Graph& graph, std::span<const NodeId> nodes, const std::string& name,
                      const Effects& effects) {
  const Boundary boundary = boundary_of(graph, nodes);
  const GroupEffects group_effects = effects_of(graph, effects, nodes, boundary);
  std::unordered_set<StorageId> outgoing;
  for (ValueId v : boundary.outputs) outgoing.insert(graph.value(v).storage);
  std::map<StorageId, std::string> sets;  // alias sets of storages that are written or returned
  const auto is_written = [&](StorageId s) { return std::ranges::binary_search(group_effects.written, s); };
  std::string text = name + "(";
  for (size_t i = 0; i < boundary.inputs.size(); ++i) {
    const Value& value = graph.value(boundary.inputs[i]);
    if (i != 0) text += ", ";
    if (value.kind != ValueKind::kTensor) {
      text += to_string(value.kind);
    } else {
      const bool written = is_written(value.storage);
      text += "Tensor";
      if (value.storage.valid() && (written || outgoing.contains(value.storage))) {
        const auto [set, added] = sets.try_emplace(value.storage, fmt::format("a{}", sets.size()));
        text += "(" + set->second + (written ? "!)" : ")");
      }
    }
    text += fmt::format(" x{}", i);
  }
  std::string options;
  if (group_effects.random) options += ", Generator? generator=None";
  if (group_effects.collective) options += ", str group_name=\"\"";
  if (!options.empty()) text += (boundary.inputs.empty() ? "*" : ", *") + options;
  if (group_effects.anything) text += boundary.inputs.empty() && options.empty() ? "..." : ", ...";
  text += ") -> ";
  std::string returns;
  for (ValueId v : boundary.outputs) {
    const Value& value = graph.value(v);
    returns += returns.empty() ? "" : ", ";
    returns += value.kind == ValueKind::kTensor ? "Tensor" : to_string(value.kind);
    if (const auto set = sets.find(value.storage); value.storage.valid() && set != sets.end()) {
      returns += "(" + set->second + (is_written(value.storage) ? "!)" : ")");
    }
  }
  return text + (boundary.outputs.size() == 1 ? returns : "(" + returns + ")");
}

NodeId replace_by_call(Graph& graph, const GroupCall& group) {
  return replace_by_calls(graph, std::span(&group, 1))[0];
}

// Replaces several groups at once, with one effects analysis and one new order in which each group is contiguous.
// Replacing them one by one would move nodes that later plans refer to.
std::vector<NodeId> replace_by_calls(Graph& graph, std::span<const GroupCall> groups) {
  const Effects effects = Effects::of(graph);
  std::vector<PlannedCall> all;
  IdMap<NodeId, int32_t> group_of(-1);
  for (const GroupCall& group : groups) {
    all.push_back(CallPlanner(graph, effects, group).run());
    for (NodeId n : all.back().nodes) {
      if (group_of[n] >= 0) refuse_group(group.schema, "this node is also in another group:\n  " + to_text(graph, n));
      group_of[n] = static_cast<int32_t>(all.size() - 1);
    }
  }
  const std::vector<NodeId> order = topological_order(graph, Dependences::of(graph, effects), group_of);
  if (!std::equal(order.begin(), order.end(), graph.nodes().begin())) graph.reorder(order);
  // Calls are created from the end of the program, so that values of an earlier group still have the names used in the
  // plan: they are replaced later.
  std::vector<size_t> from_last(all.size());
  std::iota(from_last.begin(), from_last.end(), size_t{0});
  std::sort(from_last.begin(), from_last.end(),
            [&](size_t a, size_t b) { return graph.is_before(all[b].nodes.front(), all[a].nodes.front()); });
  std::vector<NodeId> calls(all.size());
  std::unordered_map<NodeId, NodeId> replaced;
  for (const size_t i : from_last) {
    calls[i] = make_call(graph, all[i]);
    for (NodeId n : all[i].nodes) replaced[n] = calls[i];
  }
  relink(graph, replaced);
  return calls;
}

// Inserts the body in place of a call. The call's results become the body's outputs, in the same storages where they
// alias the call's arguments.
void inline_call(Graph& graph, NodeId call, const Graph& body) {
  std::vector<ValueId> inputs;
  graph.for_each_input(call, [&](ValueId v) { inputs.push_back(v); });
  std::vector<ValueId> results;
  graph.for_each_output(call, [&](ValueId v) { results.push_back(v); });
  size_t outputs = 0;
  for (NodeId n : body.nodes()) {
    if (body.node(n).target != target_of(Builtin::kOutput)) continue;
    for (const Argument& list : body.arguments(n))
      outputs += list.kind == ArgumentKind::kList ? body.list(list).size() : 0;
  }
  if (outputs != results.size()) {
    throw GraphError(fmt::format("cannot inline: the body returns {} values, but the call has {} results:\n  {}",
                                 outputs, results.size(), to_text(graph, call)));
  }
  // Backward nodes can only be linked if the body created a node.
  const NodeId before = graph.node(call).previous;
  const std::vector<ValueId> made = splice(graph, call, body, inputs);
  NodeId last;
  if (graph.node(call).previous != before) last = graph.node(call).previous;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!made[i].valid()) {
      if (graph.can_erase(call)) continue;
      throw GraphError("cannot inline: the body returns None where the call has a result:\n  " + to_text(graph, call));
    }
    // Fresh storages of the body are not freed in it, since sg::output keeps them alive.
    const StorageId from = graph.value(results[i]).storage;
    const StorageId to = graph.value(made[i]).storage;
    graph.replace_all_uses_with(results[i], made[i]);
    if (!from.valid() || !to.valid() || from == to || !last.valid()) continue;
    // A storage allocated in the body is freed where the call's would have been.
    const NodeId born = graph.storage(to).born;
    const NodeId free_point = graph.storage(from).freed_after;
    const bool inside = born.valid() && !graph.is_erased(born) && (!before.valid() || graph.is_before(before, born)) &&
                        graph.is_before(born, call);
    if (!inside || graph.storage(to).freed_after.valid() || !free_point.valid() || graph.is_erased(free_point))
      continue;
    graph.set_storage_kind(to, graph.storage(from).kind);
    // The call used it, so it is freed after the body.
    std::vector<StorageId> frees(graph.frees(free_point).begin(), graph.frees(free_point).end());
    frees.push_back(to);
    graph.set_frees(free_point, frees);
  }
  graph.erase(call);
  if (last.valid()) relink(graph, {{call, last}});
}

}  // namespace shadowgraph
