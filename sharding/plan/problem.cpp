// A graph as an assignment problem.
//
//     variable   nodes that are alike (node_classes.h), a strategy for each combination of what the mesh axes may do
//     variable   the copies of a tensor that several nodes of a phase use: the layout in which they find it
//     edge       from a result to an operand: what redistributing it costs, or none at all where no copy can stand for it
//
//     x ---- copies of x in forward ---- q, k, v            one all_gather for three products, not three
//       \--- copies of x in backward --- dq, dk, dv
//
// Costs are those of all nodes a variable stands for; edges between the same two are one, as often as it occurs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "profiler/module_tree.h"
#include "sharding/plan/named_nodes.h"
#include "sharding/plan/problem_builder.h"

namespace shadowgraph {

PhaseId phase_of_copies(const Graph& graph, NodeId node) {
  if (graph.node(node).target != target_of(Builtin::kGradient)) return graph.node(node).phase;
  return Graph::kOptimizer;
}

ShardingProblem::ShardingProblem() = default;
ShardingProblem::~ShardingProblem() = default;
ShardingProblem::ShardingProblem(ShardingProblem&&) noexcept = default;
ShardingProblem& ShardingProblem::operator=(ShardingProblem&&) noexcept = default;

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
  // Of a tensor and of all views of it that come later.
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
      time_(StepTime::of(graph, *options.device)) {
  problem_.graph_ = &graph;
  problem_.mesh_ = options.mesh;
  problem_.planner_ = std::make_unique<RedistributionPlanner>(
      options.mesh,
      RedistributionRates{.interconnect = options.interconnect,
                          .memory_bandwidth = options.device->bandwidth > 0 ? options.device->bandwidth : 1e10,
                          .launch = options.device->rates(KernelClass::kCopy).fixed});
  problem_.assignment_.usage_limit = options.memory;
}

ShardingProblem ShardingProblemBuilder::build() {
  split_pinned_classes();
  make_variables();
  find_uses();
  make_copies();
  make_edges();
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

// Of nodes like `node`; 1 + its number.
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
  double whole_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) whole_bytes += static_cast<double>(graph_.logical_bytes(tensors[i]));
  for (const MeshStrategy& strategy : mesh) {
    double local_bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      variable.layouts.push_back(layout_number(strategy.layouts[i]));
      local_bytes +=
          static_cast<double>(graph_.logical_bytes(tensors[i])) / static_cast<double>(parts_of(strategy.layouts[i]));
    }
    const double seconds = fixed + std::max(time.compute / static_cast<double>(strategy.shares),
                                            whole_bytes > 0 ? time.memory * local_bytes / whole_bytes : time.memory);
    made.costs.push_back(std::llround(seconds * 1e12));
    made.strategies.push_back(name_of(strategy, tensors));
  }
  sources_.push_back(strategies.source);
  problem_.assignment_.nodes.push_back(std::move(made));
  problem_.variables_.push_back(std::move(variable));
  return static_cast<uint32_t>(problem_.variables_.size());
}

// A variable for each place of a node whose tensors have little to do with one another; places that are alike, in this
// node and in those like it, share one. What a place takes of the node's time goes by its bytes.
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

// "S(0),R R,R -> S(0),R"
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
  }
  problem_.coverage_.nodes += nodes;
  if (sources_[number] == RuleSource::kRule) problem_.coverage_.by_rule += nodes;
  if (sources_[number] == RuleSource::kClass) problem_.coverage_.by_class += nodes;
  add_memory(number);
}

// What the results of a variable's nodes take, from where they are made to where they die. Results that die together are
// one; others get a variable of their own that is tied to the first.
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
    made.live = stacked(std::move(made.live));
    const int64_t bytes = graph_.storage(graph_.value(first.results[r]).storage).bytes;
    for (uint32_t s = 0; s < strategies; ++s) {
      const ShardingProblem::Variable& variable = problem_.variables_[number];
      made.usages.push_back(bytes / parts_of(problem_.layouts_[variable.layout(s, variable.operands + r)]));
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

// "n329 aten::mm model.layers.0.mlp"
std::string ShardingProblemBuilder::node_name(NodeId node) {
  const std::string placeholder = placeholder_name(graph_, node);
  if (!placeholder.empty()) return placeholder;
  const std::string path = module_path(graph_, node);
  return fmt::format("n{} {}{}{}", memory_.position[node], graph_.target(node).name(), path.empty() ? "" : " ", path);
}

// Intervals that may overlap as ones that do not, with counts.
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

// ---------------------------------------------------------------------------------------------------------------------
// Uses, copies and edges

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
                             .phase = phase_of_copies(graph_, node),
                             .tied = memory_.is_tied(graph_, node, v)});
      ++slot;
    });
  }
}

// The uses of a value that copies may serve, by phase: where there are two or more, a variable for the layout in which
// they find it.
void ShardingProblemBuilder::make_copies() {
  struct Group {
    std::vector<uint16_t> layouts;
    std::string name;
  };
  std::map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> of_key;  // producer, result, phase
  for (const NodeId node : memory_.nodes) {
    if (std::as_const(problem_.variable_of_)[node] == 0) continue;
    const std::vector<ShardingProblem::TensorOf> tensors = problem_.tensors_of(node);
    size_t next = NodeTensors::of(graph_, node).operands.size();
    graph_.for_each_output(node, [&](ValueId v) {
      if (graph_.value(v).kind != ValueKind::kTensor) return;
      const auto [producer, result] = tensors[next++];
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
    if (std::as_const(problem_.variable_of_)[node] == 0) continue;
    const std::vector<ShardingProblem::TensorOf> tensors = problem_.tensors_of(node);
    size_t next = NodeTensors::of(graph_, node).operands.size();
    graph_.for_each_output(node, [&](ValueId v) {
      if (graph_.value(v).kind != ValueKind::kTensor) return;
      const auto [producer, result] = tensors[next++];
      std::map<uint32_t, std::pair<int64_t, int64_t>> copies;  // by variable: from the first use to the last
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

// One past the last node that a copy made for `node` is for: its views live on it.
int64_t ShardingProblemBuilder::end_of_use(NodeId node, ValueId operand) const {
  int64_t last = memory_.position[node];
  graph_.for_each_output(node, [&](ValueId result) {
    if (graph_.value(result).storage.valid() && graph_.value(result).storage == graph_.value(operand).storage) {
      last = std::max(last, memory_.last_use[result]);
    }
  });
  return last + 1;
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
  return {.from = layouts_of(key.producer, key.result),
          .to = layouts_of(key.user, key.slot),
          .sizes = {graph_.sizes(edge.value).begin(), graph_.sizes(edge.value).end()},
          .element_bytes = static_cast<int64_t>(c10::elementSize(graph_.value(edge.value).dtype)),
          .tied = key.tied};
}

void ShardingProblemBuilder::finish_edges() {
  std::vector<std::pair<const EdgeKey*, uint32_t>> made;
  for (const auto& [key, edge] : edges_) {
    const auto [found, is_new] = matrices_.try_emplace(matrix_key(key, edge), static_cast<uint32_t>(matrices_.size()));
    made.emplace_back(&key, found->second);
  }
  // Of each tensor shape all layouts first, so that the ways between them are searched once.
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
    AssignmentEdge assigned{.a = key->producer, .b = key->user, .matrix = matrix, .times = edge.times};
    if (!key->tied) assigned.live = stacked(std::move(edge.live));
    problem_.assignment_.edges.push_back(std::move(assigned));
  }
}

// The variables of add_memory to those whose results they are.
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

CostMatrix ShardingProblemBuilder::cost_matrix(const MatrixKey& key) {
  CostMatrix matrix{.rows = static_cast<uint32_t>(key.from.size()), .columns = static_cast<uint32_t>(key.to.size())};
  matrix.costs.reserve(key.from.size() * key.to.size());
  const bool usages = !key.tied;
  const Distances* distances = key.tied ? nullptr : &distances_.at({key.sizes, key.element_bytes});
  std::vector<int64_t> bytes;  // by column: of a device's part
  std::vector<size_t> column;  // in the distances
  for (const uint16_t to : key.to) {
    const auto sizes = local_sizes(key.sizes, problem_.layouts_[to], options_.mesh);
    int64_t local = key.element_bytes;
    for (const int64_t size : sizes.value_or(key.sizes)) local *= size;
    bytes.push_back(local);
    if (distances != nullptr) column.push_back(distances->number.at(to));
  }
  for (const uint16_t from : key.from) {
    const int64_t* row = nullptr;
    if (distances != nullptr) {
      row = &distances->costs[distances->number.at(from) * distances->layouts.size()];
    }
    for (size_t j = 0; j < key.to.size(); ++j) {
      const bool same = from == key.to[j];
      const int64_t cost = same ? 0 : key.tied ? kForbidden : row[column[j]];
      matrix.costs.push_back(cost);
      if (usages) matrix.usages.push_back(same || cost == kForbidden ? 0 : bytes[j]);
    }
  }
  return matrix;
}

// ---------------------------------------------------------------------------------------------------------------------
// Pins

namespace {

std::vector<NodeId> nodes_of_pin(const Graph& graph, const ShardingPin& pin, const DeviceMesh& mesh) {
  if (pin.layout.size() != mesh.axes.size()) {
    throw Error(fmt::format("the pin {}={} is not of the mesh {}", pin.name, to_string(pin.layout), mesh.to_string()));
  }
  std::vector<NodeId> nodes = nodes_named(graph, pin.name);
  if (nodes.empty()) {
    throw Error(fmt::format("the pin {}={}: no placeholder or node is called so", pin.name, to_string(pin.layout)));
  }
  return nodes;
}

}  // namespace

// A pin of some of the nodes that are alike parts them from the others.
void ShardingProblemBuilder::split_pinned_classes() {
  if (options_.pins.empty()) return;
  for (const ShardingPin& pin : options_.pins) {
    std::map<uint32_t, uint32_t> split;
    for (const NodeId node : nodes_of_pin(graph_, pin, options_.mesh)) {
      const auto [at, is_new] = split.try_emplace(classes_.class_of[node], classes_.count);
      if (is_new) ++classes_.count;
      classes_.class_of[node] = at->second;
    }
  }
}

AssignmentProblem ShardingProblem::pinned(std::span<const ShardingPin> pins) const {
  AssignmentProblem pinned = assignment_;
  if (pins.empty()) return pinned;
  std::map<NodeId, size_t> pin_of;
  for (size_t p = 0; p < pins.size(); ++p) {
    for (const NodeId node : nodes_of_pin(*graph_, pins[p], mesh_)) pin_of[node] = p;
  }
  std::map<uint32_t, size_t> last;  // by variable
  for (const auto& [node, p] : pin_of) {
    const std::optional<uint32_t> variable = variable_of(node);
    if (!variable) throw Error(fmt::format("the pin {}: it has no tensors", pins[p].name));
    const std::vector<NodeId>& alike = variables_[*variable].nodes;
    const auto same = [&](NodeId other) {
      const auto pin = pin_of.find(other);
      return pin != pin_of.end() && pins[pin->second].layout == pins[p].layout;
    };
    if (!std::ranges::all_of(alike, same)) {
      throw Error(
          fmt::format("the pin {}={} is not of all the {} nodes that one variable stands for ({}); give it with "
                      "the options of the problem",
                      pins[p].name, to_string(pins[p].layout), alike.size(), assignment_.nodes[*variable].name));
    }
    last[*variable] = p;
  }
  for (const auto& [v, p] : last) {
    const Variable& variable = variables_[v];
    AssignmentNode& node = pinned.nodes[v];
    std::vector<std::string> possible;
    bool found = false;
    for (uint32_t s = 0; s < node.costs.size(); ++s) {
      const Layout& layout = layouts_[variable.layout(s, variable.results > 0 ? variable.operands : 0)];
      if (layout == pins[p].layout) {
        found = true;
        continue;
      }
      node.costs[s] = kForbidden;
      if (std::ranges::find(possible, to_string(layout)) == possible.end()) possible.push_back(to_string(layout));
    }
    if (!found) {
      throw Error(fmt::format("the pin {}={}: {} can lie as {}", pins[p].name, to_string(pins[p].layout), node.name,
                              fmt::join(possible, "  ")));
    }
  }
  return pinned;
}

// ---------------------------------------------------------------------------------------------------------------------
// What a choice says

std::optional<uint32_t> ShardingProblem::variable_of(NodeId node) const {
  const uint32_t variable = variable_of_[node];
  if (variable == 0) return std::nullopt;
  return variable - 1;
}

std::vector<ShardingProblem::TensorOf> ShardingProblem::tensors_of(NodeId node) const {
  std::vector<TensorOf> tensors;
  const uint32_t number = variable_of_[node];
  if (number == 0) return tensors;
  const auto places = places_.find(node);
  if (places == places_.end()) {
    const Variable& variable = variables_[number - 1];
    for (uint32_t i = 0; i < variable.operands + variable.results; ++i) tensors.push_back({number - 1, i});
    return tensors;
  }
  size_t operands = 0;
  for (const Place& place : places->second) operands += place.operands.size();
  for (const Place& place : places->second) {
    tensors.resize(std::max(tensors.size(), operands + place.results.size()));
    const uint32_t own = static_cast<uint32_t>(place.operands.size());
    for (uint32_t i = 0; i < own; ++i) tensors[place.operands[i]] = {place.variable, i};
    for (uint32_t i = 0; i < place.results.size(); ++i) {
      const size_t at = operands + place.results[i];
      tensors.resize(std::max(tensors.size(), at + 1));
      tensors[at] = {place.variable, own + i};
    }
  }
  return tensors;
}

std::span<const NodeId> ShardingProblem::nodes_of(uint32_t variable) const { return variables_[variable].nodes; }

ShardingPlan ShardingProblem::plan(std::span<const uint32_t> choice) const {
  if (choice.size() != assignment_.nodes.size()) {
    throw Error(fmt::format("{} choices for {} variables", choice.size(), assignment_.nodes.size()));
  }
  ShardingPlan plan;
  plan.mesh = mesh_;
  for (const NodeId node : graph_->nodes()) {
    const std::vector<TensorOf> tensors = tensors_of(node);
    const size_t operands = NodeTensors::of(*graph_, node).operands.size();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto [variable, tensor] = tensors[i];
      NodeLayouts& layouts = plan.nodes[node];
      (i < operands ? layouts.operands : layouts.results)
          .push_back(layouts_[variables_[variable].layout(choice[variable], tensor)]);
    }
  }
  return plan;
}

std::optional<std::vector<uint32_t>> ShardingProblem::choice_of(const ShardingPlan& plan) const {
  std::vector<std::optional<uint32_t>> found(variables_.size());
  for (const NodeId node : graph_->nodes()) {
    const std::vector<TensorOf> tensors = tensors_of(node);
    if (tensors.empty()) continue;
    const NodeLayouts& layouts = plan.nodes[node];
    const size_t operands = layouts.operands.size();
    if (operands + layouts.results.size() != tensors.size()) return std::nullopt;
    const auto lies = [&](size_t i) -> const Layout& {
      return i < operands ? layouts.operands[i] : layouts.results[i - operands];
    };
    std::map<uint32_t, std::vector<size_t>> of_variable;  // its tensors
    for (size_t i = 0; i < tensors.size(); ++i) of_variable[tensors[i].variable].push_back(i);
    for (const auto& [v, own] : of_variable) {
      const Variable& variable = variables_[v];
      const auto fits = [&](uint32_t strategy) {
        return std::ranges::all_of(
            own, [&](size_t i) { return layouts_[variable.layout(strategy, tensors[i].tensor)] == lies(i); });
      };
      if (found[v]) {
        if (!fits(*found[v])) return std::nullopt;
        continue;
      }
      const uint32_t count = static_cast<uint32_t>(assignment_.nodes[v].costs.size());
      for (uint32_t s = 0; s < count && !found[v]; ++s) {
        if (assignment_.nodes[v].costs[s] != kForbidden && fits(s)) found[v] = s;
      }
      if (!found[v]) return std::nullopt;
    }
  }
  // What is left follows from its neighbours: copies from who makes and takes them, other results from the first.
  std::vector<std::vector<AssignmentCost::Wide>> costs(variables_.size());
  for (size_t v = 0; v < found.size(); ++v) {
    if (!found[v]) costs[v].assign(assignment_.nodes[v].costs.size(), 0);
  }
  for (const AssignmentEdge& edge : assignment_.edges) {
    const CostMatrix& matrix = assignment_.matrices[edge.matrix];
    for (const bool first : {true, false}) {
      const uint32_t open = first ? edge.a : edge.b;
      const uint32_t other = first ? edge.b : edge.a;
      if (found[open] || !found[other]) continue;
      for (uint32_t s = 0; s < costs[open].size(); ++s) {
        const int64_t cost = first ? matrix.at(s, *found[other]) : matrix.at(*found[other], s);
        costs[open][s] += AssignmentCost::Wide{cost} * edge.times;
      }
    }
  }
  std::vector<uint32_t> choice;
  for (size_t v = 0; v < found.size(); ++v) {
    choice.push_back(found[v] ? *found[v]
                              : static_cast<uint32_t>(std::ranges::min_element(costs[v]) - costs[v].begin()));
  }
  return choice;
}

ShardingProblem::Cost ShardingProblem::cost(std::span<const uint32_t> choice) const {
  Cost cost;
  for (size_t v = 0; v < assignment_.nodes.size(); ++v) {
    const AssignmentNode& node = assignment_.nodes[v];
    cost.compute += AssignmentCost::Wide{node.costs[choice[v]]} * node.times;
  }
  for (const AssignmentEdge& edge : assignment_.edges) {
    cost.communication +=
        AssignmentCost::Wide{assignment_.matrices[edge.matrix].at(choice[edge.a], choice[edge.b])} * edge.times;
  }
  return cost;
}

std::vector<Layout> ShardingProblem::layouts_of(NodeId placeholder) const {
  std::vector<Layout> layouts;
  const std::optional<uint32_t> number = variable_of(placeholder);
  if (!number) return layouts;
  const Variable& variable = variables_[*number];
  for (uint32_t s = 0; s < assignment_.nodes[*number].costs.size(); ++s) {
    layouts.push_back(layouts_[variable.layout(s, variable.operands)]);
  }
  return layouts;
}

std::vector<PlannedTensor> ShardingProblem::placeholders(const ShardingPlan& plan) const {
  std::vector<PlannedTensor> found;
  for (const NodeId node : graph_->nodes()) {
    if (!graph_->is_placeholder(node)) break;
    const NodeLayouts& layouts = plan.nodes[node];
    if (layouts.results.empty()) continue;
    const ValueId value = graph_->results(node)[0].ref.value;
    PlannedTensor tensor{.name = placeholder_name(*graph_, node),
                         .node = node,
                         .layout = layouts.results[0],
                         .bytes = graph_->logical_bytes(value)};
    int64_t parts = 1;
    for (size_t a = 0; a < tensor.layout.size(); ++a) {
      if (tensor.layout[a].is_shard()) parts *= mesh_.axes[a].size;
    }
    tensor.local_bytes = tensor.bytes / parts;
    found.push_back(std::move(tensor));
  }
  return found;
}

}  // namespace shadowgraph
