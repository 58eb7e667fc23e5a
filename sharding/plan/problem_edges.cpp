// Makes the edges of a sharding problem. They go from the maker of a tensor to its users, directly or through the
// copies that several uses of a phase share. problem.cpp has the picture.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sharding/plan/problem_builder.h"

namespace shadowgraph {

PhaseId phase_of_copies(const Graph& graph, NodeId node) {
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
                             .phase = phase_of_copies(graph_, node),
                             .tied = memory_.is_tied(graph_, node, v)});
      ++slot;
    });
  }
}

// Makes a variable for the layout in which several uses of a value in one phase find it. Only uses that copies may
// serve count, where there are two or more.
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

// Returns one past the last node that uses the copy made for `node`: its views live on the copy.
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
  const auto picoseconds = [](double seconds) { return static_cast<int64_t>(std::llround(seconds * 1e12)); };
  const HiddenCollectives::Products& beside = hidden_.beside(edge.value);
  return {.from = layouts_of(key.producer, key.result),
          .to = layouts_of(key.user, key.slot),
          .sizes = {graph_.sizes(edge.value).begin(), graph_.sizes(edge.value).end()},
          .element_bytes = static_cast<int64_t>(c10::elementSize(graph_.value(edge.value).dtype)),
          .tied = key.tied,
          .kept = options_.kept_byte > 0 && std::ranges::any_of(edge.live, [&](const auto& l) { return is_kept(l); }),
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
  // All layouts of a tensor shape come first, so that the ways between them are searched once.
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

// Ties the variables of add_memory to those whose results they are.
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

// What products leave of the cost of a redistribution, and what it takes of them.
int64_t ShardingProblemBuilder::exposed(const MatrixKey& key, uint16_t from, uint16_t to, int64_t cost) const {
  // Rows lie behind one another where dimensions before them are one.
  const auto cuts_rows = [&](const Placement& placement) {
    if (!placement.is_shard() || placement.outer != 1) return false;
    const auto rows = key.sizes.begin() + placement.dim;
    return std::all_of(key.sizes.begin(), rows, [](int64_t size) { return size == 1; });
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
