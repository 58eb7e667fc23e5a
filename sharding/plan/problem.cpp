// Builds an assignment problem from a graph.
//
//     variable   a class of identical nodes (problem_nodes.h); a strategy for each combination of strategies per axis
//     variable   the shared copy of a tensor with several uses in a phase: its layout
//     edge       from a result to an operand: cost of the redistribution, or forbidden if the operand cannot be copied
//
//     x ---- copy of x in forward ---- q, k, v            one all_gather for three products, not three
//       \--- copy of x in backward --- dq, dk, dv
//
// A cost is the sum over all nodes of a variable. Parallel edges are merged and counted with their number.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/profile/step_time.h"
#include "sharding/plan/problem_builder.h"
#include "sharding/plan/problem_nodes.h"
#include "sharding/solver/assignment.h"

namespace shadowgraph {

RedistributionRates redistribution_rates(const ShardingOptions& options) {
  return {.interconnect = options.interconnect,
          .memory_bandwidth = options.device->bandwidth > 0 ? options.device->bandwidth : 1e10,
          .launch = options.device->fixed(KernelClass::kCopy)};
}

ShardingProblem ShardingProblem::of(const Graph& graph, const ShardingOptions& options) {
  if (options.device == nullptr) throw Error("no device spec: set ShardingOptions::device");
  if (options.interconnect == nullptr) throw Error("no interconnect: set ShardingOptions::interconnect");
  if (options.mesh.axes.empty()) throw Error("no mesh: set ShardingOptions::mesh");
  return ShardingProblemBuilder(graph, options).build();
}

MemoryUse MemoryUse::of(const Graph& graph) {
  MemoryUse use;
  for (const NodeId node : graph.nodes()) {
    use.position[node] = static_cast<int64_t>(use.nodes.size());
    if (use.first_of_backward < 0 && graph.node(node).phase == Graph::kBackward) {
      use.first_of_backward = use.position[node];
    }
    use.nodes.push_back(node);
  }
  const Effects effects = Effects::of(graph);
  for (const NodeId node : graph.nodes()) {
    for (const StorageWrite& write : effects.writes(node)) {
      if (write.storage.index < graph.storage_count() && graph.storage(write.storage).born != node) {
        use.writes[write.storage].push_back(use.position[node]);
      }
    }
  }
  // Records the last use of each tensor, including uses of its views.
  for (size_t i = use.nodes.size(); i-- > 0;) {
    const NodeId node = use.nodes[i];
    graph.for_each_input(node, [&](ValueId v) {
      int64_t& last = use.last_use[v];
      last = std::max(last, static_cast<int64_t>(i));
      graph.for_each_output(node, [&](ValueId r) {
        if (graph.value(r).storage == graph.value(v).storage && graph.value(v).storage.valid()) {
          last = std::max(last, std::as_const(use.last_use)[r]);
        }
      });
    });
  }
  return use;
}

bool MemoryUse::is_tied(const Graph& graph, NodeId node, ValueId operand) const {
  if (graph.node(node).target == target_of(Builtin::kGradient)) return graph.arguments(node)[0].ref.value == operand;
  const StorageId storage = graph.value(operand).storage;
  if (!storage.valid()) return false;
  const std::vector<int64_t>& at = writes[storage];
  const int64_t here = position[node];
  if (std::binary_search(at.begin(), at.end(), here)) return true;
  bool tied = false;
  graph.for_each_output(node, [&](ValueId result) {
    if (graph.value(result).storage != storage) return;
    const auto next = std::upper_bound(at.begin(), at.end(), here);
    tied |= next != at.end() && *next <= last_use[result];
  });
  return tied;
}

ShardingProblemBuilder::ShardingProblemBuilder(const Graph& graph, const ShardingOptions& options)
    : graph_(graph),
      options_(options),
      rules_(options.rules != nullptr ? *options.rules : ShardingRules()),
      factors_(FactorAnalysis::run(graph, rules_)),
      classes_(NodeClasses::of(graph, !options.unfold)),
      memory_(MemoryUse::of(graph)),
      time_(StepTime::of(graph, *options.device)),
      hidden_(graph, time_, options.overlap, options.mesh.size()) {
  problem_.graph_ = &graph;
  problem_.mesh_ = options.mesh;
  problem_.planner_ = std::make_unique<RedistributionPlanner>(options.mesh, redistribution_rates(options));
  problem_.assignment_.usage_limit = options.memory;
}

ShardingProblem ShardingProblemBuilder::build() {
  split_pinned_classes();
  make_variables();
  find_uses();
  make_copies();
  make_edges();
  for (const auto& [v, p] : problem_.variables_of(options_.pins)) {
    problem_.pins_.push_back({.name = fmt::format("{}={}", options_.pins[p].name, to_string(options_.pins[p].layout)),
                              .node = v,
                              .costs = problem_.assignment_.nodes[v].costs});
  }
  problem_.assignment_ = problem_.pinned(options_.pins);
  problem_.assignment_.name =
      fmt::format("{} on {}", graph_.metadata.model.value_or("graph"), options_.mesh.to_string());
  return std::move(problem_);
}

uint16_t ShardingProblemBuilder::layout_number(const Layout& layout) {
  const auto [found, is_new] = layout_numbers_.try_emplace(to_string(layout), problem_.layouts_.size());
  if (is_new) {
    if (problem_.layouts_.size() > 0xFFFF) throw Error("sharding: more than 65,536 layouts");
    problem_.layouts_.push_back(layout);
  }
  return static_cast<uint16_t>(found->second);
}

void ShardingProblemBuilder::make_variables() {
  std::vector<uint32_t> of_class(classes_.count, 0);
  for (const NodeId node : memory_.nodes) {
    const NodeTensors tensors = NodeTensors::of(graph_, node);
    if (tensors.size() == 0) continue;
    ++problem_.tensor_nodes_;
    const NodeStrategies strategies = strategies_of(node, tensors);
    if (!strategies.places.empty()) {
      make_places(node, tensors, strategies);
    } else {
      uint32_t& variable = of_class[classes_.class_of[node]];
      if (variable == 0)
        variable = make_variable(node, tensors, strategies.source, strategies.axis, time_.of(node)) + 1;
      problem_.variable_of_[node] = variable;
      problem_.variables_[variable - 1].nodes.push_back(node);
    }
    const std::vector<ShardingProblem::TensorOf> by = problem_.tensors_of(node);
    for (size_t r = 0; r < tensors.results.size(); ++r) made_by_[tensors.results[r]] = by[tensors.operands.size() + r];
  }
  const uint32_t count = static_cast<uint32_t>(problem_.variables_.size());
  for (uint32_t v = 0; v < count; ++v) finish_variable(v);
}

NodeStrategies ShardingProblemBuilder::strategies_of(NodeId node, const NodeTensors& tensors) const {
  NodeStrategies strategies;
  if (graph_.target(node).kind() == TargetKind::kBuiltin) {
    strategies.source = RuleSource::kRule;
    if (graph_.node(node).target != target_of(Builtin::kOutput)) {
      strategies.axis = builtin_strategies(graph_, node, tensors);
      return strategies;
    }
    for (uint32_t i = 0; i < tensors.operands.size(); ++i) {
      const NodeTensors own{.operands = {tensors.operands[i]}};
      strategies.places.push_back({.operands = {i}, .results = {}, .axis = builtin_strategies(graph_, node, own)});
    }
    return strategies;
  }
  strategies = rules_.strategies(graph_, node, factors_);
  if (strategies.random && !options_.shard_random) {
    strategies.axis.resize(1);
    strategies.places.clear();
  }
  return strategies;
}

uint32_t ShardingProblemBuilder::make_variable(NodeId node, const NodeTensors& tensors, RuleSource source,
                                               std::span<const AxisStrategy> axis, const NodeTime& time) {
  const std::vector<MeshStrategy> mesh = mesh_strategies(graph_, tensors, axis, options_.mesh);
  ShardingProblem::Variable variable{.operands = static_cast<uint32_t>(tensors.operands.size()),
                                     .results = static_cast<uint32_t>(tensors.results.size())};
  AssignmentNode made;
  const double fixed = time.seconds - std::max(time.compute, time.memory);
  const bool parameter = graph_.node(node).target == target_of(Builtin::kParameter);
  const double byte = parameter ? options_.seconds_per_parameter_byte : 0;
  double whole_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) whole_bytes += static_cast<double>(graph_.logical_bytes(tensors[i]));
  for (const MeshStrategy& strategy : mesh) {
    double local_bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      variable.layouts.push_back(layout_number(strategy.layouts[i]));
      local_bytes += static_cast<double>(graph_.logical_bytes(tensors[i])) /
                     static_cast<double>(parts_of(strategy.layouts[i], options_.mesh));
    }
    const double seconds = fixed +
                           std::max(time.compute / static_cast<double>(strategy.shares),
                                    whole_bytes > 0 ? time.memory * local_bytes / whole_bytes : time.memory) +
                           byte * local_bytes;
    made.costs.push_back(std::llround(seconds * 1e12));
    made.strategies.push_back(name_of(strategy, tensors));
  }
  sources_.push_back(source);
  problem_.assignment_.nodes.push_back(std::move(made));
  problem_.variables_.push_back(std::move(variable));
  return static_cast<uint32_t>(problem_.variables_.size() - 1);
}

// Creates a variable for each independent place of a node. Identical places, in this node and in nodes of its class,
// share one. The node's time is divided among its places by bytes.
void ShardingProblemBuilder::make_places(NodeId node, const NodeTensors& tensors, const NodeStrategies& strategies) {
  const bool output = graph_.node(node).target == target_of(Builtin::kOutput);
  double bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) bytes += static_cast<double>(graph_.logical_bytes(tensors[i]));
  const NodeTime& time = time_.of(node);
  const double fixed = time.seconds - std::max(time.compute, time.memory);
  std::vector<ShardingProblem::Place>& places = problem_.places_[node];
  results_of_[node] = tensors.results;
  for (const PlaceStrategies& at : strategies.places) {
    NodeTensors own;
    double own_bytes = 0;
    std::vector<uint64_t> key{options_.unfold || output ? node.index : classes_.class_of[node],
                              options_.unfold ? places.size() : 0, at.operands.size(), at.results.size()};
    for (const uint32_t i : at.operands) own.operands.push_back(tensors.operands[i]);
    for (const uint32_t i : at.results) own.results.push_back(tensors.results[i]);
    for (size_t i = 0; i < own.size(); ++i) {
      own_bytes += static_cast<double>(graph_.logical_bytes(own[i]));
      if (i >= own.operands.size()) continue;
      const ShardingProblem::TensorOf of = std::as_const(made_by_)[own.operands[i]];
      key.push_back(uint64_t{of.variable} << 32 | of.tensor);
    }
    const auto [known, is_new] = alike_.try_emplace(std::move(key), 0);
    if (is_new) {
      const auto count = static_cast<double>(strategies.places.size());
      const double share = bytes > 0 ? own_bytes / bytes : 1.0 / count;
      NodeTime part = time;
      part.compute *= share;
      part.memory *= share;
      part.seconds = std::max(part.compute, part.memory) + fixed / count;
      known->second = make_variable(node, own, strategies.source, at.axis, output ? NodeTime{} : part);
    }
    ShardingProblem::Variable& variable = problem_.variables_[known->second];
    variable.nodes.push_back(node);
    variable.places.push_back(static_cast<uint32_t>(places.size()));
    places.push_back({.variable = known->second, .operands = at.operands, .results = at.results});
  }
  problem_.variable_of_[node] = places.front().variable + 1;
}

// Formats a strategy as "S(0),R R,R -> S(0),R".
std::string ShardingProblemBuilder::name_of(const MeshStrategy& strategy, const NodeTensors& tensors) {
  std::string name;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i == tensors.operands.size()) name += name.empty() ? "-> " : " -> ";
    if (i != 0 && i != tensors.operands.size()) name += " ";
    name += to_string(strategy.layouts[i]);
  }
  return name;
}

void ShardingProblemBuilder::finish_variable(uint32_t number) {
  const ShardingProblem::Variable& variable = problem_.variables_[number];
  AssignmentNode& node = problem_.assignment_.nodes[number];
  const NodeId first = variable.nodes.front();
  node.times = static_cast<int64_t>(variable.nodes.size());
  node.name = node_name(first);
  // A node split into places counts once.
  const int64_t nodes = variable.places.empty() ? node.times : std::ranges::count(variable.places, 0U);
  if (!variable.places.empty()) node.name += fmt::format(" [{}]", variable.places.front());
  if (sources_[number] == RuleSource::kReplicated && nodes > 0) {
    problem_.coverage_.without_a_rule[graph_.target(first).name()] += nodes;
    problem_.coverage_.seconds_without_a_rule += seconds_of(node.costs.front() * nodes);
  }
  problem_.coverage_.nodes += nodes;
  if (sources_[number] == RuleSource::kRule) problem_.coverage_.by_rule += nodes;
  if (sources_[number] == RuleSource::kClass) problem_.coverage_.by_class += nodes;
  in_layer_.push_back(is_in_layer(first));
  node.times = counted(node.times, in_layer_[number]);
  add_memory(number);
}

bool ShardingProblemBuilder::is_in_layer(NodeId node) const {
  const std::string placeholder = placeholder_name(graph_, node);
  const std::string path = placeholder.empty() ? module_path(graph_, node) : placeholder;
  return without_numbers(path) != path;
}

int64_t ShardingProblemBuilder::counted(int64_t times, bool in_layer) const {
  return in_layer ? std::llround(static_cast<double>(times) * options_.layer_repeats) : times;
}

bool ShardingProblemBuilder::is_kept(const LiveInterval& live) const {
  return live.begin < memory_.first_of_backward && live.end > memory_.first_of_backward && live.begin > 0;
}

int64_t ShardingProblemBuilder::cost_of_keeping(int64_t bytes) const {
  return std::llround(options_.seconds_per_kept_byte * static_cast<double>(bytes) * 1e12);
}

// Adds the memory of results of a variable's nodes, over their lifetimes. Results that are freed together are one
// entry; others get a separate variable tied to the first.
void ShardingProblemBuilder::add_memory(uint32_t number) {
  struct Made {
    std::vector<int64_t> usages;
    std::vector<LiveInterval> live;
  };
  const std::vector<NodeId> nodes = problem_.variables_[number].nodes;
  const std::vector<uint32_t> places = problem_.variables_[number].places;
  const uint32_t strategies = static_cast<uint32_t>(problem_.assignment_.nodes[number].costs.size());
  std::vector<std::vector<ValueId>> results_of_node(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (places.empty()) {
      results_of_node[i] = NodeTensors::of(graph_, nodes[i]).results;
    } else {
      const std::vector<ValueId>& results = results_of_.at(nodes[i]);
      for (const uint32_t r : problem_.places_.at(nodes[i])[places[i]].results) {
        results_of_node[i].push_back(results[r]);
      }
    }
  }
  const std::vector<ValueId>& first = results_of_node.front();
  std::vector<Made> memory;
  for (uint32_t r = 0; r < first.size(); ++r) {
    Made made;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const NodeId node = nodes[i];
      const std::vector<ValueId>& results = results_of_node[i];
      const StorageId storage = graph_.value(results[r]).storage;
      const auto shares = [&](ValueId v) { return graph_.value(v).storage == storage; };
      if (!storage.valid() || graph_.storage(storage).born != node ||
          std::any_of(results.begin(), results.begin() + r, shares)) {
        continue;
      }
      const NodeId freed = graph_.storage(storage).freed_after;
      const int64_t begin = graph_.is_placeholder(node) ? 0 : memory_.position[node];
      const int64_t end = freed.valid() ? memory_.position[freed] + 1 : static_cast<int64_t>(memory_.nodes.size());
      if (end > begin) made.live.push_back({begin, end, 1});
    }
    if (made.live.empty()) continue;
    const bool kept = std::ranges::any_of(made.live, [&](const LiveInterval& live) { return is_kept(live); });
    made.live = stacked(std::move(made.live));
    const int64_t bytes = graph_.storage(graph_.value(first[r]).storage).bytes;
    for (uint32_t s = 0; s < strategies; ++s) {
      const ShardingProblem::Variable& variable = problem_.variables_[number];
      made.usages.push_back(bytes /
                            parts_of(problem_.layouts_[variable.layout(s, variable.operands + r)], options_.mesh));
      if (kept) problem_.assignment_.nodes[number].costs[s] += cost_of_keeping(made.usages.back());
    }
    const auto alike =
        std::ranges::find_if(memory, [&](const Made& other) { return std::ranges::equal(other.live, made.live); });
    if (alike == memory.end()) {
      memory.push_back(std::move(made));
    } else {
      for (uint32_t s = 0; s < strategies; ++s) alike->usages[s] += made.usages[s];
    }
  }
  for (size_t m = 0; m < memory.size(); ++m) {
    uint32_t holder = number;
    if (m > 0) {
      holder = static_cast<uint32_t>(problem_.variables_.size());
      problem_.variables_.emplace_back();
      sources_.push_back(RuleSource::kRule);
      AssignmentNode node{.name = problem_.assignment_.nodes[number].name + ", other results",
                          .strategies = problem_.assignment_.nodes[number].strategies,
                          .costs = std::vector<int64_t>(strategies, 0)};
      problem_.assignment_.nodes.push_back(std::move(node));
      ties_.emplace_back(number, holder);
    }
    problem_.assignment_.nodes[holder].usages = std::move(memory[m].usages);
    problem_.assignment_.nodes[holder].live = std::move(memory[m].live);
  }
}

// Formats a node as "n329 aten::mm model.layers.0.mlp".
std::string ShardingProblemBuilder::node_name(NodeId node) {
  const std::string placeholder = placeholder_name(graph_, node);
  if (!placeholder.empty()) return placeholder;
  const std::string path = module_path(graph_, node);
  return fmt::format("n{} {}{}{}", memory_.position[node], graph_.target(node).name(), path.empty() ? "" : " ", path);
}

// Converts overlapping intervals to disjoint ones with counts.
std::vector<LiveInterval> ShardingProblemBuilder::stacked(std::vector<LiveInterval> intervals) {
  std::vector<std::pair<int64_t, int64_t>> events;
  for (const LiveInterval& interval : intervals) {
    events.emplace_back(interval.begin, interval.count);
    events.emplace_back(interval.end, -interval.count);
  }
  std::sort(events.begin(), events.end());
  std::vector<LiveInterval> stacked;
  int64_t count = 0, since = 0;
  for (size_t i = 0; i < events.size();) {
    const int64_t at = events[i].first;
    int64_t change = 0;
    for (; i < events.size() && events[i].first == at; ++i) change += events[i].second;
    if (change == 0) continue;
    if (count > 0) stacked.push_back({since, at, count});
    count += change;
    since = at;
  }
  return stacked;
}

// Edges of the sharding problem: from the producer of a tensor to its users, directly or through a copy shared by the
// uses in a phase (see the picture at the top). A copy of a gradient is made in the optimizer phase.
PhaseId phase_of_layout_changes(const Graph& graph, NodeId node) {
  if (graph.node(node).target != target_of(Builtin::kGradient)) return graph.node(node).phase;
  return Graph::kOptimizer;
}

void ShardingProblemBuilder::find_uses() {
  for (const NodeId node : memory_.nodes) {
    if (std::as_const(problem_.variable_of_)[node] == 0) continue;
    const std::vector<ShardingProblem::TensorOf> tensors = problem_.tensors_of(node);
    size_t slot = 0;
    graph_.for_each_input(node, [&](ValueId v) {
      if (graph_.value(v).kind != ValueKind::kTensor) return;
      uses_of_[v].push_back({.node = node,
                             .variable = tensors[slot].variable,
                             .slot = tensors[slot].tensor,
                             .phase = phase_of_layout_changes(graph_, node),
                             .tied = memory_.is_tied(graph_, node, v)});
      ++slot;
    });
  }
}

// Creates a variable for the shared copy of a value in one phase, if at least two of its uses may read a copy.
void ShardingProblemBuilder::make_copies() {
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> of_key;  // producer, result, phase
  for (const NodeId node : memory_.nodes) {
    graph_.for_each_output(node, [&](ValueId v) {
      if (graph_.value(v).kind != ValueKind::kTensor) return;
      const auto [producer, result] = made_by_[v];
      std::map<uint32_t, std::vector<const Use*>> by_phase;
      for (const Use& use : std::as_const(uses_of_)[v]) {
        if (!use.tied) by_phase[use.phase.index].push_back(&use);
      }
      for (const auto& [phase, uses] : by_phase) {
        const bool several = std::ranges::any_of(uses, [&](const Use* use) {
          return use->variable != uses[0]->variable || use->slot != uses[0]->slot || use->node != uses[0]->node;
        });
        if (!several) continue;
        const auto [found, is_new] = of_key.try_emplace({producer, result, phase}, 0);
        if (is_new) found->second = make_copy(producer, result, phase, v);
        uint32_t copy = found->second;
        for (const Use* use : uses) add_layouts(copy, use->variable, use->slot);
        copy_of_[{v, phase}] = copy;
      }
    });
  }
}

uint32_t ShardingProblemBuilder::make_copy(uint32_t producer, uint32_t result, uint32_t phase, ValueId value) {
  const uint32_t number = static_cast<uint32_t>(problem_.variables_.size());
  ShardingProblem::Variable variable{.operands = 1};
  AssignmentNode node;
  node.name = fmt::format("copies of {} in {}", problem_.assignment_.nodes[producer].name,
                          phase < graph_.phase_count() ? graph_.phase_name(PhaseId(phase)) : "optimizer");
  problem_.variables_.push_back(std::move(variable));
  problem_.assignment_.nodes.push_back(std::move(node));
  sources_.push_back(RuleSource::kRule);
  in_layer_.resize(number);
  in_layer_.push_back(in_layer_[producer]);
  add_layouts(number, producer, result);
  return number;
}

void ShardingProblemBuilder::add_layouts(uint32_t copy, uint32_t variable, uint32_t tensor) {
  const ShardingProblem::Variable& from = problem_.variables_[variable];
  ShardingProblem::Variable& to = problem_.variables_[copy];
  AssignmentNode& node = problem_.assignment_.nodes[copy];
  const uint32_t strategies = static_cast<uint32_t>(problem_.assignment_.nodes[variable].costs.size());
  for (uint32_t s = 0; s < strategies; ++s) {
    const uint16_t layout = from.layout(s, tensor);
    if (std::find(to.layouts.begin(), to.layouts.end(), layout) != to.layouts.end()) continue;
    to.layouts.push_back(layout);
    node.costs.push_back(0);
    node.strategies.push_back(to_string(problem_.layouts_[layout]));
  }
}

void ShardingProblemBuilder::make_edges() {
  for (const NodeId node : memory_.nodes) {
    graph_.for_each_output(node, [&](ValueId v) {
      const StorageId storage = graph_.value(v).storage;
      if (!storage.valid() || graph_.storage(storage).born == node) return;
      int64_t& last = last_use_of_view_[{node, storage}];
      last = std::max(last, memory_.last_use[v]);
    });
  }
  for (const NodeId node : memory_.nodes) {
    graph_.for_each_output(node, [&](ValueId v) {
      if (graph_.value(v).kind != ValueKind::kTensor) return;
      const auto [producer, result] = made_by_[v];
      std::map<uint32_t, std::pair<int64_t, int64_t>> copies;  // by variable: first and last use
      for (const Use& use : std::as_const(uses_of_)[v]) {
        const int64_t begin = memory_.position[use.node];
        const int64_t end = end_of_use(use.node, v);
        const auto copy = copy_of_.find({v, use.phase.index});
        if (use.tied || copy == copy_of_.end()) {
          add_edge({producer, result, use.variable, use.slot, use.tied}, v, {begin, end, 1});
          continue;
        }
        add_edge({copy->second, 0, use.variable, use.slot, false}, v, {begin, end, 1});
        auto& span = copies.try_emplace(copy->second, begin, end).first->second;
        span.first = std::min(span.first, begin);
        span.second = std::max(span.second, end);
      }
      for (const auto& [copy, span] : copies) {
        add_edge({producer, result, copy, 0, false}, v, {span.first, span.second, 1});
      }
    });
  }
  finish_edges();
}

// Returns one past the last node that uses the copy made for `node`, including uses through views.
int64_t ShardingProblemBuilder::end_of_use(NodeId node, ValueId operand) const {
  const auto view = last_use_of_view_.find({node, graph_.value(operand).storage});
  return 1 + std::max(memory_.position[node], view == last_use_of_view_.end() ? 0 : view->second);
}

void ShardingProblemBuilder::add_edge(const EdgeKey& key, ValueId value, const LiveInterval& live) {
  Edge& edge = edges_[key];
  edge.value = value;
  ++edge.times;
  edge.live.push_back(live);
}

ShardingProblemBuilder::MatrixKey ShardingProblemBuilder::matrix_key(const EdgeKey& key, const Edge& edge) const {
  const auto layouts_of = [&](uint32_t variable, uint32_t tensor) {
    std::vector<uint16_t> layouts;
    const size_t strategies = problem_.assignment_.nodes[variable].costs.size();
    for (uint32_t s = 0; s < strategies; ++s) layouts.push_back(problem_.variables_[variable].layout(s, tensor));
    return layouts;
  };
  const auto picoseconds = [](double seconds) { return static_cast<int64_t>(std::llround(seconds * 1e12)); };
  const HiddenCollectives::Products& beside = hidden_.beside(edge.value);
  return {.from = layouts_of(key.producer, key.result),
          .to = layouts_of(key.user, key.slot),
          .sizes = {graph_.sizes(edge.value).begin(), graph_.sizes(edge.value).end()},
          .element_bytes = static_cast<int64_t>(c10::elementSize(graph_.value(edge.value).dtype)),
          .tied = key.tied,
          .kept = options_.seconds_per_kept_byte > 0 &&
                  std::ranges::any_of(edge.live, [&](const auto& l) { return is_kept(l); }),
          .reduce = picoseconds(beside.reduce),
          .scatter = picoseconds(beside.scatter),
          .gather = picoseconds(beside.gather),
          .gather_again = picoseconds(beside.gather_again),
          .weight_gradient = picoseconds(beside.weight_gradient)};
}

void ShardingProblemBuilder::finish_edges() {
  std::vector<std::pair<const EdgeKey*, uint32_t>> made;
  for (const auto& [key, edge] : edges_) {
    const auto [found, is_new] = matrices_.try_emplace(matrix_key(key, edge), static_cast<uint32_t>(matrices_.size()));
    made.emplace_back(&key, found->second);
  }
  // All layouts of a tensor shape are added first, so that paths between them are searched once.
  for (const auto& [key, number] : matrices_) {
    if (key.tied) continue;
    Distances& distances = distances_[{key.sizes, key.element_bytes}];
    for (const std::vector<uint16_t>* layouts : {&key.from, &key.to}) {
      for (const uint16_t layout : *layouts) {
        if (!distances.number.try_emplace(layout, distances.layouts.size()).second) continue;
        distances.layouts.push_back(problem_.layouts_[layout]);
      }
    }
  }
  for (auto& [of, distances] : distances_) {
    distances.costs = problem_.planner_->costs(of.first, of.second, distances.layouts, distances.layouts);
  }
  problem_.assignment_.matrices.resize(matrices_.size());
  tie_memory();
  for (const auto& [key, number] : matrices_) problem_.assignment_.matrices[number] = cost_matrix(key);
  for (const auto& [key, matrix] : made) {
    Edge& edge = edges_.at(*key);
    const bool in_layer = in_layer_[key->producer] && in_layer_[key->user];
    AssignmentEdge assigned{
        .a = key->producer, .b = key->user, .matrix = matrix, .times = counted(edge.times, in_layer)};
    if (!key->tied) assigned.live = stacked(std::move(edge.live));
    problem_.assignment_.edges.push_back(std::move(assigned));
  }
}

void ShardingProblemBuilder::tie_memory() {
  std::map<size_t, uint32_t> of_size;
  for (const auto& [number, holder] : ties_) {
    const size_t strategies = problem_.assignment_.nodes[number].costs.size();
    const auto [found, is_new] =
        of_size.try_emplace(strategies, static_cast<uint32_t>(problem_.assignment_.matrices.size()));
    if (is_new) {
      CostMatrix same{.rows = static_cast<uint32_t>(strategies), .columns = static_cast<uint32_t>(strategies)};
      same.costs.assign(strategies * strategies, kForbidden);
      for (size_t s = 0; s < strategies; ++s) same.costs[s * strategies + s] = 0;
      problem_.assignment_.matrices.push_back(std::move(same));
    }
    problem_.assignment_.edges.push_back({.a = number, .b = holder, .matrix = found->second});
  }
}

// Returns the part of a redistribution's cost that products do not hide.
int64_t ShardingProblemBuilder::exposed(const MatrixKey& key, uint16_t from, uint16_t to, int64_t cost) const {
  // Rows are contiguous if the dimensions before them have size 1.
  const auto cuts_rows = [&](const Placement& placement) {
    if (!placement.is_shard() || placement.outer != 1) return false;
    return std::all_of(key.sizes.begin(), key.sizes.begin() + placement.dim, [](int64_t size) { return size == 1; });
  };
  const auto behind = [&](int64_t products) {
    const int64_t hidden = std::min(cost, products);
    return cost - hidden + std::llround(options_.interconnect->device_share * static_cast<double>(hidden));
  };
  const Layout& before = problem_.layouts_[from];
  const Layout& after = problem_.layouts_[to];
  for (size_t axis = 0; axis < before.size(); ++axis) {
    const bool sums = before[axis].is_partial() && !after[axis].is_partial();
    if (sums && key.weight_gradient > 0) return behind(key.weight_gradient);
    if (sums && after[axis].is_replicate()) return behind(key.reduce);
    if (sums && cuts_rows(after[axis])) return behind(key.scatter);
    if (cuts_rows(before[axis]) && after[axis].is_replicate()) {
      return behind(key.gather) + (key.gather_again > 0 ? behind(key.gather_again) : 0);
    }
  }
  return cost;
}

CostMatrix ShardingProblemBuilder::cost_matrix(const MatrixKey& key) {
  CostMatrix matrix{.rows = static_cast<uint32_t>(key.from.size()), .columns = static_cast<uint32_t>(key.to.size())};
  matrix.costs.reserve(key.from.size() * key.to.size());
  const bool usages = !key.tied;
  const Distances* distances = key.tied ? nullptr : &distances_.at({key.sizes, key.element_bytes});
  std::vector<int64_t> bytes;  // by column: local bytes
  std::vector<size_t> column;  // index into the distances
  for (const uint16_t to : key.to) {
    const auto sizes = local_sizes(key.sizes, problem_.layouts_[to], options_.mesh);
    int64_t local = key.element_bytes;
    for (const int64_t size : sizes.value_or(key.sizes)) local *= size;
    bytes.push_back(local);
    if (distances != nullptr) column.push_back(distances->number.at(to));
  }
  for (const uint16_t from : key.from) {
    const int64_t* row = nullptr;
    if (distances != nullptr) row = &distances->costs[distances->number.at(from) * distances->layouts.size()];
    for (size_t j = 0; j < key.to.size(); ++j) {
      const bool same = from == key.to[j];
      int64_t cost = same ? 0 : key.tied ? kForbidden : row[column[j]];
      if (cost != 0 && cost != kForbidden) cost = exposed(key, from, key.to[j], cost);
      if (!same && cost != kForbidden && key.kept) cost += cost_of_keeping(bytes[j]);
      matrix.costs.push_back(cost);
      if (usages) matrix.usages.push_back(same || cost == kForbidden ? 0 : bytes[j]);
    }
  }
  return matrix;
}

}  // namespace shadowgraph
