// Holds a node's sharding strategies against what its operator does. Its operands, filled with integers, are cut as a
// strategy says. The operator runs on every device's parts with local arguments, and what is put together again must be
// what it gives on the whole.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "shadowgraph/shard/rules.h"

namespace shadowgraph {

struct RuleCheck {
  int64_t calls = 0;                                     // distinct ones that ran
  int64_t strategies = 0;                                // checked, each on one mesh
  int64_t products = 0;                                  // of two strategies on a mesh of two axes
  std::vector<std::string> wrong;                        // what does not hold: the call, the strategy, the mesh, how
  std::map<std::string, std::string> silent;             // why calls cannot run here, by operator
  std::set<std::string> operators;                       // of the calls that ran
  std::map<std::string, std::set<std::string>> missing;  // by operator: placements that hold and no strategy offers
};

struct RuleCheckOptions {
  std::vector<int64_t> devices = {2, 3, 4};
  std::vector<std::string> meshes = {"2x2", "2x3"};  // for products; none: no products
  size_t most_products = 24;                         // of a call, each on one mesh
  bool missing = false;                              // look for those, too: all placements of up to four operands
};

// Every call of `graph`, each distinct one once; `seen` remembers those of other graphs. Leaves the local calls at the
// graph's end.
void check_rules(Graph& graph, const ShardingRules& rules, const RuleCheckOptions& options, std::set<std::string>& seen,
                 RuleCheck& check);

// Checks calls that have no kernel here, CUDA's own forms among them. Every strategy's local call, on tensors of the
// innermost FakeTensorMode, gives results of the sizes that the strategy says.
void check_rule_shapes(Graph& graph, const ShardingRules& rules, const std::vector<int64_t>& devices,
                       std::set<std::string>& seen, RuleCheck& check);

// What a call is, without the numbers of its values.
std::string call_of(const Graph& graph, NodeId node);

}  // namespace shadowgraph
