// Checks a node's sharding strategies against its operator: operands filled with integers are sharded as a strategy
// says, the operator runs on every device's shards with local arguments, and the reassembled results must equal those
// of the unsharded call.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "shadowgraph/shard/rules.h"

namespace shadowgraph {

struct RuleCheck {
  int64_t calls = 0;                          // distinct calls that ran
  int64_t strategies = 0;                     // strategies checked, each on one mesh
  int64_t products = 0;                       // combinations of two strategies on a mesh of two axes
  std::vector<std::string> wrong;             // violations: the call, the strategy, the mesh, the difference
  std::map<std::string, std::string> silent;  // by operator: why calls cannot run here
  std::set<std::string> operators;            // operators of the calls that ran
  // by operator: placements that are valid but offered by no strategy
  std::map<std::string, std::set<std::string>> missing;
};

struct RuleCheckOptions {
  std::vector<int64_t> devices = {2, 3, 4};
  std::vector<std::string> meshes = {"2x2", "2x3"};  // for combinations of axes; none: no combinations
  size_t most_products = 24;                         // per call, each on one mesh
  bool missing = false;  // also collects `missing`: tries all placements of up to four operands
};

// Checks every distinct call of `graph` once; `seen` has the calls of earlier graphs. Leaves the local calls at the end
// of the graph.
void check_rules(Graph& graph, const ShardingRules& rules, const RuleCheckOptions& options, std::set<std::string>& seen,
                 RuleCheck& check);

// Checks calls without a kernel in this build, such as CUDA's: the local call of every strategy, run on tensors of the
// innermost FakeTensorMode, returns results of the sizes given by the strategy.
void check_rule_shapes(Graph& graph, const ShardingRules& rules, const std::vector<int64_t>& devices,
                       std::set<std::string>& seen, RuleCheck& check);

// Describes a call without the ids of its values.
std::string call_of(const Graph& graph, NodeId node);

}  // namespace shadowgraph
