// Makes one device's call: which factors the layouts of a node cut, and what its arguments are on a part.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "shadowgraph/saturating.h"
#include "shadowgraph/text.h"
#include "sharding/rules/rule_table.h"

namespace shadowgraph {

namespace {

// Says which factor, if any, a mesh axis cuts.
struct AxisCut {
  std::optional<FactorId> factor;
  int64_t devices = 1;
};

bool lies_as(const AxisStrategy& strategy, std::span<const Layout> operands, std::span<const Layout> results,
             size_t axis) {
  if (operands.size() != strategy.operands.size() || results.size() != strategy.results.size()) return false;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i][axis] != strategy.operands[i]) return false;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i][axis] != strategy.results[i]) return false;
  }
  return true;
}

// Returns how far behind the factor's beginning a tensor that has it is cut; 0 if it is not cut.
int64_t outer_of(const NodeFactors& factors, FactorId factor, const TensorFactors& tensor, const Placement& placement) {
  if (!placement.is_shard() || placement.dim >= tensor.dims.size()) return 0;
  int64_t before = 1;
  for (const FactorId f : tensor.dims[placement.dim]) {
    if (f == factor) return placement.outer % before == 0 ? placement.outer / before : 0;
    before *= factors.factors[f].extent;
  }
  return 0;
}

// Returns the outer of the first tensor in which an axis cuts a factor; 0 if there is none.
int64_t outer_of_cut(const NodeFactors& factors, FactorId factor, std::span<const Layout> operands,
                     std::span<const Layout> results, size_t axis) {
  for (const TensorFactors& tensor : factors.operands) {
    if (tensor.operand < 0 || static_cast<size_t>(tensor.operand) >= operands.size()) continue;
    const int64_t outer = outer_of(factors, factor, tensor, operands[static_cast<size_t>(tensor.operand)][axis]);
    if (outer != 0) return outer;
  }
  for (size_t r = 0; r < factors.results.size() && r < results.size(); ++r) {
    const int64_t outer = outer_of(factors, factor, factors.results[r], results[r][axis]);
    if (outer != 0) return outer;
  }
  return 0;
}

std::optional<AxisCut> find_cut(const KnownCall& call, std::span<const Layout> operands,
                                std::span<const Layout> results, size_t axis, int64_t devices) {
  for (const AxisStrategy& strategy : call.strategies.axis) {
    if (strategy.extent == 0 && lies_as(strategy, operands, results, axis)) return AxisCut{.devices = devices};
  }
  const NodeFactors& factors = call.factors;
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const Factor& factor = factors.factors[f];
    if (factor.whole || factor.extent % devices != 0) continue;
    const auto id = static_cast<FactorId>(f);
    const int64_t outer = outer_of_cut(factors, id, operands, results, axis);
    if (outer == 0 || factor.extent % outer != 0 || factor.extent / outer % devices != 0) continue;
    const std::optional<AxisStrategy> strategy = strategy_of(factors, id, outer);
    if (strategy && lies_as(*strategy, operands, results, axis)) return AxisCut{.factor = id, .devices = devices};
  }
  return std::nullopt;
}

// Says whether each tensor of an axis lies as some factor says, where factors have nothing to do with one another.
bool lies_independently(const NodeFactors& factors, std::span<const Layout> operands, std::span<const Layout> results,
                        size_t axis, int64_t devices) {
  AxisStrategy all = replicated(factors);
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const Factor& factor = factors.factors[f];
    if (factor.whole || factor.extent % devices != 0) continue;
    const auto id = static_cast<FactorId>(f);
    const int64_t outer = outer_of_cut(factors, id, operands, results, axis);
    if (outer == 0 || factor.extent % outer != 0 || factor.extent / outer % devices != 0) continue;
    const std::optional<AxisStrategy> strategy = strategy_of(factors, id, outer);
    if (!strategy) continue;
    for (size_t i = 0; i < all.operands.size(); ++i) {
      if (!strategy->operands[i].is_replicate()) all.operands[i] = strategy->operands[i];
    }
    for (size_t i = 0; i < all.results.size(); ++i) {
      if (!strategy->results[i].is_replicate()) all.results[i] = strategy->results[i];
    }
  }
  return lies_as(all, operands, results, axis);
}

// Returns strides without gaps for tensors of these sizes, in the order of `strides`; 0 stays 0.
std::vector<int64_t> strides_in_order(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Where strides are equal, the outer dimension has one element and may have any stride.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return strides[a] != strides[b] ? strides[a] < strides[b] : a > b; });
  std::vector<int64_t> made(sizes.size(), 0);
  int64_t next = 1;
  for (const size_t d : order) {
    if (strides[d] == 0) continue;
    made[d] = next;
    next = saturating_multiply(next, sizes[d]);
  }
  return made;
}

}  // namespace

std::vector<Argument> ShardingRules::local_arguments(Graph& graph, NodeId node, std::span<const Layout> operands,
                                                     std::span<const Layout> results, const DeviceMesh& mesh) const {
  const std::shared_ptr<const KnownCall> call = table_->known(graph, node);
  const NodeFactors& factors = call->factors;
  const auto fail = [&](std::string_view what) {
    std::string layouts;
    for (const Layout& layout : operands) layouts += " (" + to_string(layout) + ")";
    layouts += " ->";
    for (const Layout& layout : results) layouts += " (" + to_string(layout) + ")";
    throw Error(
        fmt::format("{} cannot lie as{} on the mesh {}: {}", to_text(graph, node), layouts, mesh.to_string(), what));
  };
  if (operands.size() != factors.tensors || results.size() != factors.results.size()) {
    fail(fmt::format("it has {} operands and {} results", factors.tensors, factors.results.size()));
  }
  for (const std::span<const Layout>& layouts : {operands, results}) {
    for (const Layout& layout : layouts) {
      if (layout.size() != mesh.axes.size()) fail("a layout has other axes than the mesh");
    }
  }
  std::vector<AxisCut> cuts;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    std::optional<AxisCut> cut = find_cut(*call, operands, results, axis, mesh.axes[axis].size);
    if (!cut && factors.independent && lies_independently(factors, operands, results, axis, mesh.axes[axis].size)) {
      cut = AxisCut{};
    }
    if (!cut) fail(fmt::format("that is no strategy of axis {}", mesh.axes[axis].name));
    cuts.push_back(*cut);
  }
  std::vector<std::vector<int64_t>> local(factors.results.size());
  for (const TensorFactors& tensor : factors.operands) {
    if (tensor.operand < 0) continue;
    if (!local_sizes(tensor.sizes, operands[static_cast<size_t>(tensor.operand)], mesh)) fail("it does not divide");
  }
  for (size_t r = 0; r < factors.results.size(); ++r) {
    std::optional<std::vector<int64_t>> sizes = local_sizes(factors.results[r].sizes, results[r], mesh);
    if (!sizes) fail("it does not divide");
    local[r] = std::move(*sizes);
  }

  const std::span<const Argument> whole = graph.arguments(node);
  std::vector<Argument> arguments(whole.begin(), whole.end());
  for (const LocalArgument& made : factors.local) {
    Argument& argument = arguments[made.argument];
    if (argument.kind == ArgumentKind::kNone) continue;
    if (made.kind == LocalArgument::Kind::kSizes) {
      argument = graph.int_list(local[made.tensor]);
      continue;
    }
    if (made.kind == LocalArgument::Kind::kStrides) {
      argument = graph.int_list(strides_in_order(local[made.tensor], graph.ints(argument)));
      continue;
    }
    int64_t divisor = 1;
    for (const AxisCut& cut : cuts) {
      if (!cut.factor) continue;
      if (std::find(made.factors.begin(), made.factors.end(), *cut.factor) != made.factors.end())
        divisor *= cut.devices;
    }
    if (divisor == 1) continue;
    // A value that does not divide is an end beyond the dimension's end.
    const auto scaled = [&](int64_t value) {
      const bool beyond = value >= std::numeric_limits<int64_t>::max() - divisor;
      return beyond ? value : (value >= 0 ? value + divisor - 1 : value) / divisor;
    };
    if (argument.kind == ArgumentKind::kInt) {
      argument = Argument::of_int(scaled(argument.i));
    } else if (argument.kind == ArgumentKind::kIntList) {
      std::vector<int64_t> ints(graph.ints(argument).begin(), graph.ints(argument).end());
      for (size_t i = 0; i < ints.size(); ++i) {
        if (made.element < 0 || static_cast<size_t>(made.element) == i) ints[i] = scaled(ints[i]);
      }
      argument = graph.int_list(ints);
    }
  }
  return arguments;
}

std::optional<ShardingRules::Lookup> ShardingRules::lookup(const Graph& graph, NodeId node,
                                                           std::span<const Layout> operands,
                                                           std::span<const Layout> results, const DeviceMesh& mesh,
                                                           int64_t rank) const {
  const NodeFactors& factors = table_->known(graph, node)->factors;
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    const Factor& factor = factors.factors[f];
    if (factor.masked_by < 0) continue;
    const auto id = static_cast<FactorId>(f);
    Lookup found{.end = factor.extent};
    for (const TensorFactors& tensor : factors.operands) {
      if (tensor.argument == factor.masked_by && tensor.operand >= 0)
        found.operand = static_cast<size_t>(tensor.operand);
    }
    for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
      if (outer_of_cut(factors, id, operands, results, axis) == 0) continue;
      const int64_t part = (found.end - found.begin) / mesh.axes[axis].size;
      found.begin += part * mesh.coordinate(rank, axis);
      found.end = found.begin + part;
    }
    if (found.end - found.begin < factor.extent) return found;
  }
  return std::nullopt;
}

}  // namespace shadowgraph
