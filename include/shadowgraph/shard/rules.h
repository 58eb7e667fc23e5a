// What operators do with tensors that are cut: the rules from which sharding strategies come.
//
// A rule names the factors of an operator's dimensions, as an einsum does, one line of text for each:
//
//     aten::mm: m k, k n -> m n
//
// A mesh axis may cut any one factor. All operands that have it are then cut along their dimension, and so are results
// that have it; results that lack it are partial sums. So m: S(0),R -> S(0); n: R,S(1) -> S(1); k: S(1),S(0) -> P(sum).
//
// docs/adding-an-operator.md has what else a rule can say: factors that must stay whole, other reductions, factors
// through views, which arguments are sizes. The notation follows Shardy's factors; strategies mean what DTensor's do.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/shard/layout.h"

namespace SHADOWGRAPH_API shadowgraph {

// What one mesh axis may do with a node: where each of its tensors lies on that axis. Tensors come as for_each_input
// and for_each_output give them, repeats and list elements included; values that are no tensors are left out.
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
  // For lists of tensors that have nothing to do with one another (_foreach_add_, _fused_adamw_). Each strategy is
  // about the tensors of one place. Any number of them, for different places, may hold on an axis at once.
  bool independent = false;
};

class FactorAnalysis;  // sharding/rules/factor_analysis.h

// Thread-safe but for add(). Copies are cheap; they share what was worked out.
class ShardingRules {
 public:
  ShardingRules();  // the built-in rules, and those registered for all (register_sharding_rule)

  // Adds one rule or many, a line each. A line for a name replaces what was known of it before. Several lines of one
  // text, each with its `if`, are alternatives. Throws ParseError with line and column.
  void add(std::string_view text);

  // What is known of an operator before any call of it.
  struct OfOperator {
    RuleSource source = RuleSource::kReplicated;
    std::vector<std::string> lines;  // alternatives with their conditions, or the name of a class
    std::string place;               // "sharding/rules/builtin.txt:12", of the first; "" for a user's
  };
  OfOperator of_operator(const Target& target) const;

  // Depends on the node's call and its values' geometry alone; the strategies of a call are worked out once. Throws
  // Error, naming node, operator and rule, if a user's rule does not fit the call; one that no built-in line fits has
  // no rule.
  NodeStrategies strategies(const Graph& graph, NodeId node) const;

  // Returns the same with what the whole graph says. Dimensions that views take apart or put together elsewhere are
  // offered factor by factor, S(0) and S(0,8) of [8 * 512]. Partial operands are offered only where something could be
  // partial. `analysis` must be of this graph as it is, by these rules.
  NodeStrategies strategies(const Graph& graph, NodeId node, const FactorAnalysis& analysis) const;

  // Returns the arguments of the node's call on one device's parts. They are as the graph has them, with sizes and
  // counts among them made local (view's size, expand's, convolution's groups ...). Only ints change, so values stay
  // the graph's. Throws Error if the layouts are not a product of strategies of this node or do not divide.
  //
  // Strides (aten::_reshape_alias, as_strided, empty_strided) become those of a part that lies in the order of the
  // whole. Where it lies otherwise, call aten::reshape with the sizes.
  std::vector<Argument> local_arguments(Graph& graph, NodeId node, std::span<const Layout> operands,
                                        std::span<const Layout> results, const DeviceMesh& mesh) const;

  // Says where the layouts cut what a node looks up by index (a vocabulary). It names the operand with the indices, and
  // the indices that are this rank's, [begin, end). A local call takes indices from 0, and others count as nothing;
  // apply() writes that.
  struct Lookup {
    size_t operand = 0;  // of the tensors
    int64_t begin = 0;
    int64_t end = 0;
  };
  std::optional<Lookup> lookup(const Graph& graph, NodeId node, std::span<const Layout> operands,
                               std::span<const Layout> results, const DeviceMesh& mesh, int64_t rank) const;

 private:
  friend class FactorAnalysis;
  struct Table;
  std::shared_ptr<Table> table_;
};

// For all ShardingRules made from now on. Throws ParseError. May be called before main. Thread-safe.
void register_sharding_rule(std::string_view text);

// How the nodes of a graph get their strategies.
struct RuleCoverage {
  int64_t nodes = 0;                              // that have tensors
  int64_t by_rule = 0;                            // of them
  int64_t by_class = 0;                           // of them
  std::map<std::string, int64_t> without_a_rule;  // by operator: replicated
  double seconds_without_a_rule = 0;              // that each device spends on them; of a problem's coverage
  double share() const;                           // of nodes with a rule, 0 to 1; 1 if there are no nodes
  static RuleCoverage of(const Graph& graph, const ShardingRules& rules = {});
};

}  // namespace shadowgraph
