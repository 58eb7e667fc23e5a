// The rules by operator, and the calls whose factors are known already. Internal to sharding/rules.
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

// What is known of a call: of all nodes that call the same with tensors of the same geometry.
struct KnownCall {
  NodeFactors factors;
  NodeStrategies strategies;  // of its own, without what other nodes say
};

struct ShardingRules::Table {
  std::unordered_map<std::string, std::vector<RuleText>> rules;  // alternatives, in order

  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const KnownCall>> calls;

  void add(std::vector<RuleText> added);
  std::shared_ptr<const KnownCall> known(const Graph& graph, NodeId node);

 private:
  const RuleText* find(const NodeCall& call) const;
  const RuleText* find(std::string_view name, const NodeCall& call) const;
  NodeFactors work_out(const Graph& graph, NodeId node) const;
};

// The strategy that cuts `factor` behind `outer` of its elements. Empty if there is none: a tensor has the factor
// twice, or an operand that is written would lie otherwise afterwards.
std::optional<AxisStrategy> strategy_of(const NodeFactors& factors, FactorId factor, int64_t outer);
// All tensors replicated.
AxisStrategy replicated(const NodeFactors& factors);
// `strategy` if no operand that is written would lie otherwise afterwards; what is overwritten lies as it will.
bool fits_writes(const NodeFactors& factors, AxisStrategy& strategy);

}  // namespace shadowgraph
