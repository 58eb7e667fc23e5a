// Turns a graph into an assignment problem.
//
//     variable   nodes that are alike (node_classes.h), a strategy for each combination of what the mesh axes may do
//     variable   the copies of a tensor that several nodes of a phase use: the layout in which they find it
//     edge       from a result to an operand: what redistributing it costs, or none at all where no copy can stand for it
//
//     x ---- copies of x in forward ---- q, k, v            one all_gather for three products, not three
//       \--- copies of x in backward --- dq, dk, dv
//
// A cost is that of all nodes that a variable stands for. Edges between the same two variables are one edge, counted as
// often as it occurs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/profile/step_time.h"
#include "sharding/plan/named_nodes.h"
#include "sharding/plan/picoseconds.h"
#include "sharding/plan/problem_builder.h"

namespace shadowgraph {

RedistributionRates redistribution_rates(const ShardingOptions& options) {
  return {.interconnect = options.interconnect,
          .memory_bandwidth = options.device->bandwidth > 0 ? options.device->bandwidth : 1e10,
          .launch = options.device->fixed(KernelClass::kCopy)};
}

ShardingProblem ShardingProblem::of(const Graph& graph, const ShardingOptions& options) {
  if (options.device == nullptr) throw Error("sharding needs the figures of a device: ShardingOptions::device");
  if (options.interconnect == nullptr)
    throw Error("sharding needs links between devices: ShardingOptions::interconnect");
  if (options.mesh.axes.empty()) throw Error("sharding needs a mesh: ShardingOptions::mesh");
  return ShardingProblemBuilder(graph, options).build();
}

// ---------------------------------------------------------------------------------------------------------------------
// Which memory is whose

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
  // Notes the last use of each tensor, views of it that come later included.
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
  if (graph.node(node).target == target_of(Builtin::kGradient)) {
    return graph.arguments(node)[0].ref.value == operand;
  }
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

// ---------------------------------------------------------------------------------------------------------------------
// Variables

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
    const bool output = graph_.node(node).target == target_of(Builtin::kOutput);
    if (output || strategies_of(node, tensors).independent) {
      make_places(node, tensors);
    } else {
      uint32_t& variable = of_class[classes_.class_of[node]];
      if (variable == 0) variable = make_variable(node, tensors);
      problem_.variable_of_[node] = variable;
      problem_.variables_[variable - 1].nodes.push_back(node);
    }
    const std::vector<ShardingProblem::TensorOf> by = problem_.tensors_of(node);
    for (size_t r = 0; r < tensors.results.size(); ++r) {
      made_by_[tensors.results[r]] = by[tensors.operands.size() + r];
    }
  }
  const uint32_t count = static_cast<uint32_t>(problem_.variables_.size());
  for (uint32_t v = 0; v < count; ++v) finish_variable(v);
}

NodeStrategies ShardingProblemBuilder::strategies_of(NodeId node, const NodeTensors& tensors) const {
  NodeStrategies strategies;
  if (graph_.target(node).kind() == TargetKind::kBuiltin) {
    strategies.source = RuleSource::kRule;
    strategies.axis = builtin_strategies(graph_, node, tensors);
  } else {
    strategies = rules_.strategies(graph_, node, factors_);
  }
  if (strategies.random && !options_.cut_random) strategies.axis.resize(1);
  return strategies;
}

// Makes the variable of all nodes like `node` and returns 1 + its number.
uint32_t ShardingProblemBuilder::make_variable(NodeId node, const NodeTensors& tensors) {
  return make_variable(node, tensors, strategies_of(node, tensors), time_.of(node));
}

uint32_t ShardingProblemBuilder::make_variable(NodeId node, const NodeTensors& tensors,
                                               const NodeStrategies& strategies, const NodeTime& time) {
  const std::vector<MeshStrategy> mesh = mesh_strategies(graph_, tensors, strategies.axis, options_.mesh);
  ShardingProblem::Variable variable{.operands = static_cast<uint32_t>(tensors.operands.size()),
                                     .results = static_cast<uint32_t>(tensors.results.size())};
  AssignmentNode made;
  const double fixed = time.seconds - std::max(time.compute, time.memory);
  const bool parameter = graph_.node(node).target == target_of(Builtin::kParameter);
  const double byte = parameter ? options_.parameter_byte : 0;
  double whole_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) whole_bytes += static_cast<double>(graph_.logical_bytes(tensors[i]));
  for (const MeshStrategy& strategy : mesh) {
    double local_bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      variable.layouts.push_back(layout_number(strategy.layouts[i]));
      local_bytes +=
          static_cast<double>(graph_.logical_bytes(tensors[i])) / static_cast<double>(parts_of(strategy.layouts[i]));
    }
    const double seconds = fixed +
                           std::max(time.compute / static_cast<double>(strategy.shares),
                                    whole_bytes > 0 ? time.memory * local_bytes / whole_bytes : time.memory) +
                           byte * local_bytes;
    made.costs.push_back(std::llround(seconds * 1e12));
    made.strategies.push_back(name_of(strategy, tensors));
  }
  sources_.push_back(strategies.source);
  problem_.assignment_.nodes.push_back(std::move(made));
  problem_.variables_.push_back(std::move(variable));
  return static_cast<uint32_t>(problem_.variables_.size());
}

// Makes a variable for each place of a node whose tensors have little to do with one another. Places that are alike, in
// this node and in nodes like it, share one. Each place's part of the node's time goes by its bytes.
void ShardingProblemBuilder::make_places(NodeId node, const NodeTensors& tensors) {
  const bool output = graph_.node(node).target == target_of(Builtin::kOutput);
  NodeStrategies all;
  if (!output) all = strategies_of(node, tensors);
  const std::vector<NodePlace> found = output ? places_of_output(tensors) : places_of(tensors, all.axis);
  double bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) bytes += static_cast<double>(graph_.logical_bytes(tensors[i]));
  const NodeTime& time = time_.of(node);
  const double fixed = time.seconds - std::max(time.compute, time.memory);
  std::vector<ShardingProblem::Place>& places = problem_.places_[node];
  for (const NodePlace& at : found) {
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
      NodeStrategies strategies{.source = output ? RuleSource::kRule : all.source};
      strategies.axis = output ? builtin_strategies(graph_, node, own) : strategies_at(all.axis, at);
      const double share = bytes > 0 ? own_bytes / bytes : 1.0 / static_cast<double>(found.size());
      NodeTime part = time;
      part.compute *= share;
      part.memory *= share;
      part.seconds = std::max(part.compute, part.memory) + fixed / static_cast<double>(found.size());
      known->second = make_variable(node, own, strategies, output ? NodeTime{} : part) - 1;
    }
    ShardingProblem::Variable& variable = problem_.variables_[known->second];
    variable.nodes.push_back(node);
    variable.places.push_back(static_cast<uint32_t>(places.size()));
    places.push_back({.variable = known->second, .operands = at.operands, .results = at.results});
  }
  problem_.variable_of_[node] = places.front().variable + 1;
}

// Writes a strategy as "S(0),R R,R -> S(0),R".
std::string ShardingProblemBuilder::name_of(const MeshStrategy& strategy, const NodeTensors& tensors) {
  std::string name;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i == tensors.operands.size()) name += name.empty() ? "-> " : " -> ";
    if (i != 0 && i != tensors.operands.size()) name += " ";
    name += to_string(strategy.layouts[i]);
  }
  return name;
}

int64_t ShardingProblemBuilder::parts_of(const Layout& layout) const {
  int64_t parts = 1;
  for (size_t a = 0; a < layout.size(); ++a) {
    if (layout[a].is_shard()) parts *= options_.mesh.axes[a].size;
  }
  return parts;
}

void ShardingProblemBuilder::finish_variable(uint32_t number) {
  const ShardingProblem::Variable& variable = problem_.variables_[number];
  AssignmentNode& node = problem_.assignment_.nodes[number];
  const NodeId first = variable.nodes.front();
  node.times = static_cast<int64_t>(variable.nodes.size());
  node.name = node_name(first);
  // A node in places counts once.
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
  return in_layer ? std::llround(static_cast<double>(times) * options_.layer_times) : times;
}

bool ShardingProblemBuilder::is_kept(const LiveInterval& live) const {
  return live.begin < memory_.first_of_backward && live.end > memory_.first_of_backward && live.begin > 0;
}

int64_t ShardingProblemBuilder::cost_of_keeping(int64_t bytes) const {
  return std::llround(options_.kept_byte * static_cast<double>(bytes) * 1e12);
}

// Adds the memory of results of a variable's nodes, from where they are made to where they die. Results that die
// together are one entry; others get a variable of their own that is tied to the first.
void ShardingProblemBuilder::add_memory(uint32_t number) {
  struct Made {
    std::vector<int64_t> usages;
    std::vector<LiveInterval> live;
  };
  const std::vector<NodeId> nodes = problem_.variables_[number].nodes;
  const std::vector<uint32_t> places = problem_.variables_[number].places;
  const uint32_t strategies = static_cast<uint32_t>(problem_.assignment_.nodes[number].costs.size());
  std::vector<NodeTensors> tensors_of_node;
  for (size_t i = 0; i < nodes.size(); ++i) {
    NodeTensors tensors = NodeTensors::of(graph_, nodes[i]);
    if (!places.empty()) {
      std::vector<ValueId> results;
      for (const uint32_t r : problem_.places_.at(nodes[i])[places[i]].results) results.push_back(tensors.results[r]);
      tensors.results = std::move(results);
    }
    tensors_of_node.push_back(std::move(tensors));
  }
  const NodeTensors& first = tensors_of_node.front();
  std::vector<Made> memory;
  for (uint32_t r = 0; r < first.results.size(); ++r) {
    Made made;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const NodeId node = nodes[i];
      const NodeTensors& tensors = tensors_of_node[i];
      const StorageId storage = graph_.value(tensors.results[r]).storage;
      const auto shares = [&](ValueId v) { return graph_.value(v).storage == storage; };
      if (!storage.valid() || graph_.storage(storage).born != node ||
          std::any_of(tensors.results.begin(), tensors.results.begin() + r, shares)) {
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
    const int64_t bytes = graph_.storage(graph_.value(first.results[r]).storage).bytes;
    for (uint32_t s = 0; s < strategies; ++s) {
      const ShardingProblem::Variable& variable = problem_.variables_[number];
      made.usages.push_back(bytes / parts_of(problem_.layouts_[variable.layout(s, variable.operands + r)]));
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

// Names a node as "n329 aten::mm model.layers.0.mlp".
std::string ShardingProblemBuilder::node_name(NodeId node) {
  const std::string placeholder = placeholder_name(graph_, node);
  if (!placeholder.empty()) return placeholder;
  const std::string path = module_path(graph_, node);
  return fmt::format("n{} {}{}{}", memory_.position[node], graph_.target(node).name(), path.empty() ? "" : " ", path);
}

// Rewrites intervals that may overlap as intervals with counts that do not.
std::vector<LiveInterval> ShardingProblemBuilder::stacked(std::vector<LiveInterval> intervals) {
  std::vector<std::pair<int64_t, int64_t>> events;
  for (const LiveInterval& interval : intervals) {
    events.emplace_back(interval.begin, interval.count);
    events.emplace_back(interval.end, -interval.count);
  }
  std::sort(events.begin(), events.end());
  std::vector<LiveInterval> stacked;
  int64_t count = 0;
  int64_t since = 0;
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

}  // namespace shadowgraph
