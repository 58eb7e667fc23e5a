// What operators do with tensors that are cut: the rules from which sharding strategies come.
//
// A rule names the factors of an operator's dimensions, as an einsum does, one line of text for each:
//
//     aten::mm: m k, k n -> m n
//
// A mesh axis may cut any one factor. All operands that have it are then cut along their dimension, and so are results
// that have it; results that lack it are partial sums. So m: S(0),R -> S(0); n: R,S(1) -> S(1); k: S(1),S(0) -> P(sum).
//
// docs/adding-an-operator.md has what else a rule can say: factors that must stay whole, other reductions, factors through
// views, which arguments are sizes. The notation follows Shardy's factors; strategies mean what DTensor's do.
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

class FactorAnalysis;

// Thread-safe but for add(). Copies are cheap; they share what was worked out.
class ShardingRules {
 public:
  ShardingRules();  // the built-in rules, and those registered for all (register_sharding_rule)

  // Adds one rule or many, a line each. A line for a name replaces what was known of it before. Several lines of one
  // text, each with its `if`, are alternatives. Throws ParseError with line and column.
  void add(std::string_view text);

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

// Says what the dimensions of a graph's values are made of, as far as its views tell, and which values can be partial
// at all. By the rules' factors, [batch * sequence, hidden] between two views of [batch, sequence, hidden] is (batch
// sequence) hidden wherever it flows. Linear in the graph, whose nodes must not change meanwhile.
//
//     FactorAnalysis analysis = FactorAnalysis::run(graph, rules);
//     analysis.splits(value, 0);                                   // {8}: of 8 * 512
class FactorAnalysis {
 public:
  static FactorAnalysis run(const Graph& graph, const ShardingRules& rules);

  // Where a dimension may be cut besides at 1: each a multiple of the one before, none 1 or all of it.
  std::span<const int64_t> splits(ValueId value, int64_t dim) const;

 private:
  friend class ShardingRules;
  class Finder;
  uint32_t find(uint32_t element) const;
  bool may_be_partial(ValueId value, PartialOp op) const;
  // Says whether any of the operands that the strategy takes as partial can be.
  bool can_be_given(const AxisStrategy& strategy, std::span<const ValueId> operands) const;

  std::vector<uint32_t> first_of_value_;      // elements of dimensions, by value
  std::vector<uint32_t> first_of_node_;       // elements of the factors of its rule, by node
  std::vector<uint32_t> parent_;              // of elements that are one
  std::vector<std::vector<int64_t>> splits_;  // of roots
  std::vector<uint8_t> partial_;              // by value, a bit for each PartialOp
};

// For all ShardingRules made from now on. Throws ParseError. May be called before main. Thread-safe.
void register_sharding_rule(std::string_view text);

// Rewrites averages of losses as sums that are divided: aten::nll_loss_forward with reduction "mean" becomes one with
// "sum" and a division by its total weight. The loss is then a partial sum where the batch is cut, whatever targets are
// ignored and however classes weigh. The division waits for the total weight. Returns how many there were.
int64_t split_mean_losses(Graph& graph);

// Rewrites aten::_log_softmax and its backward as maxima, exponentials and sums, which may be partial. A loss over a
// vocabulary that is cut then exchanges a maximum and two sums a row. The operator by itself wants all logits of a row
// on each device. On one device the rewrite moves more memory. Returns how many there were.
int64_t split_log_softmaxes(Graph& graph);

// How the nodes of a graph get their strategies.
struct RuleCoverage {
  int64_t nodes = 0;                              // that have tensors
  int64_t by_rule = 0;                            // of them
  int64_t by_class = 0;                           // of them
  std::map<std::string, int64_t> without_a_rule;  // by operator: replicated
  double share() const;                           // of nodes with a rule, 0 to 1; 1 if there are no nodes
  static RuleCoverage of(const Graph& graph, const ShardingRules& rules = {});
};

}  // namespace shadowgraph
