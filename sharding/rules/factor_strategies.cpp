// From the factors of a call to the strategies of one mesh axis.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sharding/rules/rule_table.h"

namespace shadowgraph {

bool fits_writes(const NodeFactors& factors, AxisStrategy& strategy) {
  for (const TensorFactors& operand : factors.operands) {
    if (operand.tied < 0 || operand.operand < 0) continue;
    Placement& before = strategy.operands[static_cast<size_t>(operand.operand)];
    const Placement& after = strategy.results[static_cast<size_t>(operand.tied)];
    if (operand.overwritten) before = after;
    if (before != after) return false;
  }
  return true;
}

std::optional<AxisStrategy> strategy_of(const NodeFactors& factors, FactorId factor, int64_t outer) {
  const Factor& cut = factors.factors[factor];
  // A device's indices are one range.
  if (cut.masked_by >= 0 && outer != 1) return std::nullopt;
  AxisStrategy strategy{.name = outer == 1 ? cut.name : fmt::format("{}/{}", cut.name, outer),
                        .extent = cut.extent / outer};
  // Returns where a tensor has the factor; nothing if it lacks it.
  const auto placed = [&](const TensorFactors& tensor, bool& twice) -> std::optional<Placement> {
    std::optional<Placement> placement;
    for (size_t d = 0; d < tensor.dims.size(); ++d) {
      int64_t before = outer;
      for (const FactorId f : tensor.dims[d]) {
        if (f == factor) {
          twice = twice || placement.has_value();
          placement = Placement::shard(static_cast<int64_t>(d), before);
        }
        before *= factors.factors[f].extent;
      }
    }
    return placement;
  };
  bool twice = false;
  strategy.operands.resize(factors.tensors);
  std::vector<uint16_t> reads;  // arguments that have the factor
  for (const TensorFactors& tensor : factors.operands) {
    const std::optional<Placement> placement = placed(tensor, twice);
    if (!placement) continue;
    reads.push_back(tensor.argument);
    if (tensor.operand >= 0) strategy.operands[static_cast<size_t>(tensor.operand)] = *placement;
  }
  for (const TensorFactors& tensor : factors.results) {
    const std::optional<Placement> placement = placed(tensor, twice);
    const bool depends = std::any_of(reads.begin(), reads.end(), [&](uint16_t argument) {
      return tensor.of.empty() || std::find(tensor.of.begin(), tensor.of.end(), argument) != tensor.of.end();
    });
    const bool empty = std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) != tensor.sizes.end();
    strategy.results.push_back(placement                                                 ? *placement
                               : tensor.same || empty || !depends || factors.independent ? Placement::replicate()
                                                                                         : Placement::partial(cut.op));
  }
  if (twice) return std::nullopt;
  if (!strategy.results.empty() && strategy.results[0].is_partial()) {
    for (const TensorFactors& tensor : factors.operands) {
      if (!tensor.added) continue;
      if (tensor.operand < 0) return std::nullopt;
      strategy.operands[static_cast<size_t>(tensor.operand)] = strategy.results[0];
    }
  }
  if (!fits_writes(factors, strategy)) return std::nullopt;
  return strategy;
}

AxisStrategy replicated(const NodeFactors& factors) {
  AxisStrategy strategy;
  strategy.operands.resize(factors.tensors);
  strategy.results.resize(factors.results.size());
  return strategy;
}

NodeStrategies strategies_of(const NodeFactors& factors) {
  NodeStrategies all{.source = factors.source, .random = factors.random, .independent = factors.independent};
  all.axis.push_back(replicated(factors));
  const auto add = [&](AxisStrategy strategy) {
    const bool known = std::any_of(all.axis.begin(), all.axis.end(), [&](const AxisStrategy& other) {
      return other.operands == strategy.operands && other.results == strategy.results;
    });
    if (!known) all.axis.push_back(std::move(strategy));
  };
  for (size_t f = 0; f < factors.factors.size(); ++f) {
    if (factors.factors[f].whole || factors.factors[f].extent < 2) continue;
    std::optional<AxisStrategy> strategy = strategy_of(factors, static_cast<FactorId>(f), 1);
    if (strategy) add(std::move(*strategy));
  }
  for (AxisStrategy strategy : factors.partial) {
    if (fits_writes(factors, strategy)) add(std::move(strategy));
  }
  return all;
}

}  // namespace shadowgraph
