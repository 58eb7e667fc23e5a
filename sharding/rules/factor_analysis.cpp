// Finds splits of dimensions, along the graph. Every dimension of a value and every factor of a node's rule is an
// element. Elements that are the same are joined: a factor that is a whole dimension. A factor that is a stretch of a
// dimension is tied to it, with its distance from the outer end.
//
// A split that is found at one end of a tie is then told to the other end, until nothing changes. A dimension has at
// most log2(size) splits, each told once along each tie.
#include <algorithm>
#include <numeric>

#include "sharding/rules/rule_table.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kNoElement = 0xFFFFFFFFU;

struct Tie {
  uint32_t dim;
  uint32_t factor;
  int64_t before;  // product of what is outside the factor in this dimension
};

uint32_t root_of(std::vector<uint32_t>& parent, uint32_t element) {
  while (parent[element] != element) element = parent[element] = parent[parent[element]];
  return element;
}

// Inserts a split into a chain in which each divides the next. Returns false if it is there already or fits no chain
// with the others.
bool insert_split(std::vector<int64_t>& splits, int64_t at, int64_t extent) {
  if (at <= 1 || at >= extent || extent % at != 0) return false;
  const auto place = std::lower_bound(splits.begin(), splits.end(), at);
  if (place != splits.end() && (*place == at || *place % at != 0)) return false;
  if (place != splits.begin() && at % *(place - 1) != 0) return false;
  splits.insert(place, at);
  return true;
}

template <class F>
void for_each_tensor(const Graph& graph, std::span<const Argument> arguments, F&& f) {
  graph.for_each_value(arguments, [&](ValueId value) {
    if (graph.value(value).kind == ValueKind::kTensor) f(value);
  });
}

constexpr uint8_t bit_of(PartialOp op) { return static_cast<uint8_t>(1U << static_cast<unsigned>(op)); }

}  // namespace

uint32_t FactorAnalysis::find(uint32_t element) const {
  while (parent_[element] != element) element = parent_[element];
  return element;
}

bool FactorAnalysis::may_be_partial(ValueId value, PartialOp op) const {
  return value.index < partial_.size() && (partial_[value.index] & bit_of(op)) != 0;
}

std::span<const int64_t> FactorAnalysis::splits(ValueId value, int64_t dim) const {
  if (value.index >= first_of_value_.size() || first_of_value_[value.index] == kNoElement) return {};
  return splits_[find(first_of_value_[value.index] + static_cast<uint32_t>(dim))];
}

FactorAnalysis FactorAnalysis::run(const Graph& graph, const ShardingRules& rules) {
  FactorAnalysis analysis;
  analysis.first_of_value_.assign(graph.value_capacity(), kNoElement);
  analysis.first_of_node_.assign(graph.node_capacity(), kNoElement);
  analysis.partial_.assign(graph.value_capacity(), 0);
  std::vector<uint32_t>& parent = analysis.parent_;
  std::vector<int64_t> extents;
  std::vector<Tie> ties;
  const auto elements = [&](size_t count) {
    const auto first = static_cast<uint32_t>(parent.size());
    parent.resize(parent.size() + count);
    std::iota(parent.begin() + first, parent.end(), first);
    extents.resize(parent.size(), 1);
    return first;
  };
  const auto element_of = [&](ValueId value) {
    uint32_t& first = analysis.first_of_value_[value.index];
    if (first == kNoElement) {
      const std::span<const int64_t> sizes = graph.sizes(value);
      first = elements(sizes.size());
      std::copy(sizes.begin(), sizes.end(), extents.begin() + first);
    }
    return first;
  };
  for (const NodeId node : graph.nodes()) {
    const std::shared_ptr<const KnownCall> call = rules.table_->known(graph, node);
    const NodeFactors& factors = call->factors;
    const uint32_t own = analysis.first_of_node_[node.index] = elements(factors.factors.size());
    for (size_t f = 0; f < factors.factors.size(); ++f) extents[own + f] = factors.factors[f].extent;
    const auto join = [&](const TensorFactors& tensor, ValueId value) {
      const uint32_t first = element_of(value);
      for (size_t d = 0; d < tensor.dims.size(); ++d) {
        const auto dim = static_cast<uint32_t>(first + d);
        int64_t before = 1;
        for (const FactorId f : tensor.dims[d]) {
          const Factor& factor = factors.factors[f];
          const bool shared = !factor.whole && factor.extent > 1;
          if (shared && tensor.dims[d].size() == 1) {
            parent[root_of(parent, dim)] = root_of(parent, own + f);
          } else if (tensor.dims[d].size() > 1 && factor.extent > 1) {
            ties.push_back({dim, own + f, before});
          }
          before *= factor.extent;
        }
      }
    };
    size_t at = 0;
    std::vector<ValueId> values;
    for_each_tensor(graph, graph.arguments(node), [&](ValueId value) { values.push_back(value); });
    for (const TensorFactors& tensor : factors.operands) {
      if (tensor.operand >= 0) join(tensor, values[static_cast<size_t>(tensor.operand)]);
    }
    for_each_tensor(graph, graph.results(node), [&](ValueId value) { join(factors.results[at++], value); });

    // A value can be partial if a node makes it so or passes it on.
    for (const AxisStrategy& strategy : call->strategies.axis) {
      bool possible = strategy.extent > 0;
      for (size_t i = 0; i < values.size() && !possible; ++i) {
        possible = strategy.operands[i].is_partial() && analysis.may_be_partial(values[i], strategy.operands[i].op);
      }
      if (!possible) continue;
      size_t r = 0;
      for_each_tensor(graph, graph.results(node), [&](ValueId value) {
        const Placement& placement = strategy.results[r++];
        if (placement.is_partial()) analysis.partial_[value.index] |= bit_of(placement.op);
      });
    }
  }

  // ---- Splits, told along ties until nothing changes
  for (uint32_t e = 0; e < parent.size(); ++e) parent[e] = root_of(parent, e);
  analysis.splits_.resize(parent.size());
  std::vector<std::vector<uint32_t>> ties_of(parent.size());  // of roots
  std::vector<uint32_t> changed;
  for (uint32_t t = 0; t < ties.size(); ++t) {
    ties[t].dim = parent[ties[t].dim];
    ties[t].factor = parent[ties[t].factor];
    ties_of[ties[t].dim].push_back(t);
    ties_of[ties[t].factor].push_back(t);
    const auto tell = [&](int64_t at) {
      if (insert_split(analysis.splits_[ties[t].dim], at, extents[ties[t].dim])) changed.push_back(ties[t].dim);
    };
    tell(ties[t].before);
    tell(ties[t].before * extents[ties[t].factor]);
  }
  // Ends of ties without a split have something to say, too: that there is none, until a neighbour has one.
  while (!changed.empty()) {
    const uint32_t element = changed.back();
    changed.pop_back();
    for (const uint32_t t : ties_of[element]) {
      const Tie& tie = ties[t];
      for (const int64_t at : std::vector<int64_t>(analysis.splits_[tie.factor])) {
        if (insert_split(analysis.splits_[tie.dim], tie.before * at, extents[tie.dim])) changed.push_back(tie.dim);
      }
      for (const int64_t at : std::vector<int64_t>(analysis.splits_[tie.dim])) {
        if (at % tie.before != 0) continue;
        if (insert_split(analysis.splits_[tie.factor], at / tie.before, extents[tie.factor])) {
          changed.push_back(tie.factor);
        }
      }
    }
  }
  return analysis;
}

NodeStrategies ShardingRules::strategies(const Graph& graph, NodeId node, const FactorAnalysis& analysis) const {
  const std::shared_ptr<const KnownCall> call = table_->known(graph, node);
  const NodeFactors& factors = call->factors;
  std::vector<ValueId> values;
  for_each_tensor(graph, graph.arguments(node), [&](ValueId value) { values.push_back(value); });
  NodeStrategies all{.source = factors.source, .random = factors.random, .independent = factors.independent};
  for (const AxisStrategy& strategy : call->strategies.axis) {
    // A strategy that is partial throughout stays only where something can be partial.
    if (strategy.extent == 0 && &strategy != &call->strategies.axis[0]) {
      bool possible = false;
      for (size_t i = 0; i < values.size() && !possible; ++i) {
        possible = strategy.operands[i].is_partial() && analysis.may_be_partial(values[i], strategy.operands[i].op);
      }
      if (!possible) continue;
    }
    all.axis.push_back(strategy);
  }
  const uint32_t own = node.index < analysis.first_of_node_.size() ? analysis.first_of_node_[node.index] : kNoElement;
  if (own == kNoElement || own + factors.factors.size() > analysis.parent_.size()) return all;
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    if (factors.factors[f].whole || factors.factors[f].extent < 2) continue;
    for (const int64_t at : analysis.splits_[analysis.find(static_cast<uint32_t>(own + f))]) {
      if (factors.factors[f].extent % at != 0) continue;
      std::optional<AxisStrategy> strategy = strategy_of(factors, static_cast<FactorId>(f), at);
      if (strategy) all.axis.push_back(std::move(*strategy));
    }
  }
  return all;
}

}  // namespace shadowgraph
