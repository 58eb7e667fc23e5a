// What operators do with tensors that are cut: the rules from which sharding strategies come.
//
// A rule names the factors of an operator's dimensions, as an einsum does, one line of text for each:
//
//     aten::mm: m k, k n -> m n
//
// A mesh axis may cut any one factor: all operands that have it are then cut along their dimension, results that have it
// likewise, results that lack it are partial sums. So m: S(0),R -> S(0); n: R,S(1) -> S(1); k: S(1),S(0) -> P(sum). What
// else a rule can say (factors that must stay whole, other reductions, factors through views, which arguments are sizes)
// is in docs/sharding.md. The notation follows Shardy's factors; strategies mean what DTensor's do.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/layout.h"

namespace SHADOWGRAPH_API shadowgraph {

// What one mesh axis may do with a node: where each of its tensors lies on that axis. Tensors come as for_each_input and
// for_each_output give them, repeats and list elements included; values that are no tensors are left out.
struct AxisStrategy {
  std::string name;  // of the factor, "m"; "" for replicated
  std::vector<Placement> operands;
  std::vector<Placement> results;
  int64_t extent = 0;  // elements of the factor that is cut, which the axis must divide; 0: nothing is cut
};

enum class RuleSource : uint8_t {
  kRule,        // a line of text
  kClass,       // elementwise, reduction, view, in-place ...: from what is known of the operator
  kReplicated,  // none: everything replicated, and listed
};

struct NodeStrategies {
  RuleSource source = RuleSource::kReplicated;
  std::vector<AxisStrategy> axis;  // the first: all replicated
  bool random = false;             // draws random numbers: a part draws others than the whole would
};

class ShardingRules {
 public:
  ShardingRules();  // the built-in rules, and those registered for all (register_sharding_rule)

  // One rule or many, a line each; a later one of the same name replaces an earlier. Throws ParseError with line and
  // column.
  void add(std::string_view text);

  // Depends on the node's call and its values' sizes alone.
  NodeStrategies strategies(const Graph& graph, NodeId node) const;

  // The node's call on one device's parts: arguments as the graph has them, with sizes and counts among them made local
  // (view's size, expand's, convolution's groups ...). Ints alone change, so that values stay the graph's. Throws Error
  // if the layouts are not a product of strategies of this node or do not divide.
  std::vector<Argument> local_arguments(Graph& graph, NodeId node, std::span<const Layout> operands,
                                        std::span<const Layout> results, const DeviceMesh& mesh) const;

 private:
  struct Table;
  std::shared_ptr<const Table> table_;
};

// For all ShardingRules made from now on. Throws ParseError. May be called before main.
void register_sharding_rule(std::string_view text);

// How the nodes of a graph get their strategies.
struct RuleCoverage {
  int64_t nodes = 0;                              // that have tensors
  std::map<std::string, int64_t> without_a_rule;  // by operator: replicated
  double share() const;                           // of nodes with a rule, 0 to 1; 1 if there are no nodes
  static RuleCoverage of(const Graph& graph, const ShardingRules& rules = {});
};

}  // namespace shadowgraph
