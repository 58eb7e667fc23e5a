// Propagates splits of dimensions along the graph. Every dimension of a value and every factor of a node's rule is an
// element. A factor that is a whole dimension is unified with it. A factor that is part of a dimension is tied to it,
// with the product of the factors outside it.
//
// A split found at one end of a tie is propagated to the other end until a fixpoint. A dimension has at most log2(size)
// splits, each propagated once along each tie.
#include "sharding/rules/factor_analysis.h"

#include <algorithm>
#include <numeric>

#include "sharding/layout/dimension_cuts.h"
#include "sharding/rules/node_factors.h"

namespace shadowgraph {
namespace {

constexpr uint32_t kNoElement = 0xFFFFFFFFU;

struct Tie {
  uint32_t dim;
  uint32_t factor;
  int64_t before;  // product of the factors outside it in this dimension
};

uint32_t root_of(std::vector<uint32_t>& parent, uint32_t element) {
  while (parent[element] != element) element = parent[element] = parent[parent[element]];
  return element;
}

// Inserts a split into a chain in which each divides the next. Returns false if it is present or does not fit.
bool insert_split(std::vector<int64_t>& splits, int64_t at, int64_t extent) {
  if (at <= 1 || at >= extent || extent % at != 0) return false;
  const auto place = std::lower_bound(splits.begin(), splits.end(), at);
  if (place != splits.end() && (*place == at || *place % at != 0)) return false;
  if (place != splits.begin() && at % *(place - 1) != 0) return false;
  splits.insert(place, at);
  return true;
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

bool FactorAnalysis::can_be_given(const AxisStrategy& strategy, std::span<const ValueId> operands) const {
  for (size_t i = 0; i < operands.size(); ++i) {
    const Placement& placement = strategy.operands[i];
    if (placement.is_partial() && may_be_partial(operands[i], placement.op)) return true;
  }
  return false;
}

std::span<const int64_t> FactorAnalysis::splits(ValueId value, int64_t dim) const {
  if (value.index >= first_of_value_.size() || first_of_value_[value.index] == kNoElement) return {};
  return splits_[find(first_of_value_[value.index] + static_cast<uint32_t>(dim))];
}

class FactorAnalysis::Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph) {
    found_.first_of_value_.assign(graph.value_capacity(), kNoElement);
    found_.first_of_node_.assign(graph.node_capacity(), kNoElement);
    found_.partial_.assign(graph.value_capacity(), 0);
  }

  void add(NodeId node, const KnownCall& call) {
    const NodeTensors tensors = NodeTensors::of(graph_, node);
    join_tensors(node, call.factors, tensors);
    mark_partial(call, tensors);
  }

  FactorAnalysis finish() {
    for (uint32_t e = 0; e < found_.parent_.size(); ++e) found_.parent_[e] = root_of(found_.parent_, e);
    found_.splits_.resize(found_.parent_.size());
    ties_of_.resize(found_.parent_.size());
    for (uint32_t t = 0; t < ties_.size(); ++t) begin_tie(t);
    // Also start from ends without splits: their extents restrict the others.
    while (!changed_.empty()) {
      const uint32_t element = changed_.back();
      changed_.pop_back();
      for (const uint32_t t : ties_of_[element]) tell_both_ends(ties_[t]);
    }
    return std::move(found_);
  }

 private:
  uint32_t add_elements(size_t count) {
    std::vector<uint32_t>& parent = found_.parent_;
    const auto first = static_cast<uint32_t>(parent.size());
    parent.resize(parent.size() + count);
    std::iota(parent.begin() + first, parent.end(), first);
    extents_.resize(parent.size(), 1);
    return first;
  }

  uint32_t first_element_of(ValueId value) {
    uint32_t& first = found_.first_of_value_[value.index];
    if (first == kNoElement) {
      const std::span<const int64_t> sizes = graph_.sizes(value);
      first = add_elements(sizes.size());
      std::copy(sizes.begin(), sizes.end(), extents_.begin() + first);
    }
    return first;
  }

  // Creates elements for the node's factors, and unifies or ties them with the dimensions of its tensors.
  void join_tensors(NodeId node, const NodeFactors& factors, const NodeTensors& tensors) {
    const uint32_t own = found_.first_of_node_[node.index] = add_elements(factors.factors.size());
    for (size_t f = 0; f < factors.factors.size(); ++f) extents_[own + f] = factors.factors[f].extent;
    for (const TensorFactors& tensor : factors.operands) {
      if (tensor.operand >= 0) join(factors, own, tensor, tensors.operands[static_cast<size_t>(tensor.operand)]);
    }
    size_t at = 0;
    for (const ValueId value : tensors.results) join(factors, own, factors.results[at++], value);
  }

  void join(const NodeFactors& factors, uint32_t own, const TensorFactors& tensor, ValueId value) {
    std::vector<uint32_t>& parent = found_.parent_;
    const uint32_t first = first_element_of(value);
    for (size_t d = 0; d < tensor.dims.size(); ++d) {
      const auto dim = static_cast<uint32_t>(first + d);
      int64_t before = 1;
      for (const FactorId f : tensor.dims[d]) {
        const Factor& factor = factors.factors[f];
        if (!factor.whole && factor.extent > 1 && tensor.dims[d].size() == 1) {
          parent[root_of(parent, dim)] = root_of(parent, own + f);
        } else if (tensor.dims[d].size() > 1 && factor.extent > 1) {
          ties_.push_back({dim, own + f, before});
        }
        before *= factor.extent;
      }
    }
  }

  // A value can be partial if a node produces or passes on partial values.
  void mark_partial(const KnownCall& call, const NodeTensors& tensors) {
    if (tensors.results.empty()) return;
    for (const AxisStrategy& strategy : call.strategies().axis) {
      if (strategy.extent == 0 && !found_.can_be_given(strategy, tensors.operands)) continue;
      size_t r = 0;
      for (const ValueId value : tensors.results) {
        const Placement& placement = strategy.results[r++];
        if (placement.is_partial()) found_.partial_[value.index] |= bit_of(placement.op);
      }
    }
  }

  // Both ends of a factor within its dimension are splits.
  void begin_tie(uint32_t t) {
    Tie& tie = ties_[t];
    tie.dim = found_.parent_[tie.dim];
    tie.factor = found_.parent_[tie.factor];
    ties_of_[tie.dim].push_back(t);
    ties_of_[tie.factor].push_back(t);
    split(tie.dim, tie.before);
    split(tie.dim, tie.before * extents_[tie.factor]);
  }

  void tell_both_ends(const Tie& tie) {
    // Copies, since both ends may be the same element.
    for (const int64_t at : std::vector<int64_t>(found_.splits_[tie.factor])) split(tie.dim, tie.before * at);
    for (const int64_t at : std::vector<int64_t>(found_.splits_[tie.dim])) {
      if (at % tie.before == 0) split(tie.factor, at / tie.before);
    }
  }

  void split(uint32_t element, int64_t at) {
    if (insert_split(found_.splits_[element], at, extents_[element])) changed_.push_back(element);
  }

  const Graph& graph_;
  FactorAnalysis found_;
  std::vector<int64_t> extents_;  // by element
  std::vector<Tie> ties_;
  std::vector<std::vector<uint32_t>> ties_of_;  // by root
  std::vector<uint32_t> changed_;               // roots with splits to propagate
};

FactorAnalysis FactorAnalysis::run(const Graph& graph, const ShardingRules& rules) {
  Finder finder(graph);
  for (const NodeId node : graph.nodes()) finder.add(node, *rules.table_->known(graph, node));
  return finder.finish();
}

NodeStrategies ShardingRules::strategies(const Graph& graph, NodeId node, const FactorAnalysis& analysis) const {
  const std::shared_ptr<const KnownCall> call = table_->known(graph, node);
  const NodeFactors& factors = call->factors;
  const std::vector<ValueId> operands = NodeTensors::of(graph, node).operands;
  const NodeStrategies& known = call->strategies();
  NodeStrategies all{.source = known.source, .random = known.random, .places = known.places};
  for (const AxisStrategy& strategy : known.axis) {
    // Keep a strategy that is partial throughout only if something can be partial.
    const bool is_first = &strategy == &known.axis[0];
    if (is_first || strategy.extent > 0 || analysis.can_be_given(strategy, operands)) all.axis.push_back(strategy);
  }
  const uint32_t own = node.index < analysis.first_of_node_.size() ? analysis.first_of_node_[node.index] : kNoElement;
  if (own == kNoElement || own + factors.factors.size() > analysis.parent_.size()) return all;
  const auto add_splits = [&](const NodeFactors& of, FactorId first, std::vector<AxisStrategy>& axis) {
    for (FactorId f = 0; f < of.factors.size(); ++f) {
      if (of.factors[f].whole || of.factors[f].extent < 2) continue;
      for (const int64_t at : analysis.splits_[analysis.find(own + first + f)]) {
        if (of.factors[f].extent % at != 0) continue;
        std::optional<AxisStrategy> strategy = strategy_of(of, f, at);
        if (strategy) axis.push_back(std::move(*strategy));
      }
    }
  };
  if (call->places.empty()) add_splits(factors, 0, all.axis);
  for (size_t p = 0; p < call->places.size(); ++p) {
    add_splits(call->places[p].factors, call->places[p].first, all.places[p].axis);
  }
  return all;
}

}  // namespace shadowgraph
