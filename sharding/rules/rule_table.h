// Holds the rules by operator, and the calls whose factors are known already. Internal to sharding/rules.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadowgraph/sharding/rules.h"
#include "sharding/rules/node_factors.h"
#include "sharding/rules/rule_text.h"

namespace shadowgraph {

// Keeps what is known of a call: it holds for all nodes that make the same call on tensors of the same geometry.
struct KnownCall {
  NodeFactors factors;
  NodeStrategies strategies;  // of the call itself, without what other nodes say
};

struct ShardingRules::Table {
  std::unordered_map<std::string, std::vector<RuleText>> rules;  // alternatives, in order

  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const KnownCall>> calls;

  void add(std::vector<RuleText> added);
  std::shared_ptr<const KnownCall> known(const Graph& graph, NodeId node);
  // Returns the lines of an operator, or of that which it does in place: aten::add for aten::add_. nullptr if none.
  const std::vector<RuleText>* lines(std::string_view name) const;

 private:
  const RuleText* find(const NodeCall& call) const;
  const RuleText* find(std::string_view name, const NodeCall& call) const;
  NodeFactors work_out(const Graph& graph, NodeId node) const;
};

// Returns the strategy that cuts `factor` behind `outer` of its elements. There is none if a tensor has the factor
// twice, or an operand that is written would lie otherwise afterwards.
std::optional<AxisStrategy> strategy_of(const NodeFactors& factors, FactorId factor, int64_t outer);
// Returns the strategy that replicates all tensors.
AxisStrategy replicated(const NodeFactors& factors);
// Returns all strategies, that which replicates first.
NodeStrategies strategies_of(const NodeFactors& factors);
// Says whether every operand that is written lies as before. An operand that is overwritten takes its new layout.
bool fits_writes(const NodeFactors& factors, AxisStrategy& strategy);

}  // namespace shadowgraph
