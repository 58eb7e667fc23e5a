// Sharding rules: the sharding strategies of operators.
//
// A rule names the factors of an operator's dimensions, as einsum does, in one line of text:
//
//     aten::mm: m k, k n -> m n
//
// A mesh axis may shard any one factor. Operands and results that have it are sharded along that dimension; results
// without it are partial sums. So m: S(0),R -> S(0); n: R,S(1) -> S(1); k: S(1),S(0) -> P(sum).
//
// docs/adding-an-operator.md describes the full syntax: factors that cannot be sharded, other reductions, factors
// through views, size arguments. Factors are as in Shardy; strategies are as in DTensor.
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

// A strategy of a node on one mesh axis: the placement of each of its tensors. Tensors are in the order of
// for_each_input and for_each_output, including repeated ones and list elements, without other values.
struct AxisStrategy {
  std::string name;  // name of the factor, "m"; "" if replicated
  std::vector<Placement> operands;
  std::vector<Placement> results;
  int64_t extent = 0;  // elements of the sharded factor, which the axis size must divide; 0: nothing is sharded
};

enum class RuleSource : uint8_t {
  kRule,        // a line of text
  kClass,       // class of the operator: elementwise, reduction, view, in-place, ...
  kReplicated,  // none: all tensors are replicated, and the operator is listed
};

// Strategies of tensors of a node that are independent of its others, such as one index of the lists of _foreach_add_.
struct PlaceStrategies {
  std::vector<uint32_t> operands, results;  // indices in the node
  std::vector<AxisStrategy> axis;           // of these tensors only; the first is replicated
};

struct NodeStrategies {
  RuleSource source = RuleSource::kReplicated;
  std::vector<AxisStrategy> axis;  // the first is fully replicated
  bool random = false;             // draws random numbers: a shard draws others than the whole would
  // For operators on lists of independent tensors (_foreach_add_, _fused_adamw_), whose `axis` has only the first
  // strategy. Each place uses any of its strategies on an axis. Tensors that are never sharded are the last place.
  std::vector<PlaceStrategies> places;
};

class FactorAnalysis;  // sharding/rules/factor_analysis.h

// Thread-safe except for add(). Copies are cheap and share cached results.
class ShardingRules {
 public:
  ShardingRules();  // built-in rules, and those of register_sharding_rule

  // Adds one or more rules, one per line. A line replaces the existing rules of the operator. Several lines in one
  // text, each with an `if`, are alternatives. Throws ParseError with line and column.
  void add(std::string_view text);

  // Rules of an operator, independent of a call.
  struct OfOperator {
    RuleSource source = RuleSource::kReplicated;
    std::vector<std::string> lines;  // alternatives with their conditions, or the name of a class
    std::string place;               // "sharding/rules/builtin.txt:12", of the first line; "" for a user's
  };
  OfOperator of_operator(const Target& target) const;

  // Depends on the node's call and the geometry of its values only; cached by call. Throws Error that names node,
  // operator and rule if a user-defined rule does not match the call. A built-in rule that does not match is ignored.
  NodeStrategies strategies(const Graph& graph, NodeId node) const;

  // Dimensions that are split or merged by views elsewhere can be sharded by factor, S(0) and S(0,8) of [8 * 512].
  // Partial operands are offered only where a producer may be partial. `analysis` is of this graph and these rules.
  NodeStrategies strategies(const Graph& graph, NodeId node, const FactorAnalysis& analysis) const;

  // Returns the arguments of the node's call on local tensors: those of the graph, with sizes and counts made local
  // (sizes of view and expand, groups of convolution, ...). Only ints change; values are those of the graph. Throws
  // Error if the layouts are not a product of strategies of this node, or do not divide the sizes.
  //
  // Strides (aten::_reshape_alias, as_strided, empty_strided) are for a local tensor with the dimension order of the
  // whole. Otherwise, call aten::reshape with the sizes instead.
  std::vector<Argument> local_arguments(Graph& graph, NodeId node, std::span<const Layout> operands,
                                        std::span<const Layout> results, const DeviceMesh& mesh) const;

  // For a node that looks up rows of a sharded table by index (a vocabulary): the operand with the indices, and this
  // rank's range of indices [begin, end). The local call uses indices from 0 and must ignore others, see apply().
  struct Lookup {
    size_t operand = 0;  // index among the tensors
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

// Adds rules to all ShardingRules created afterwards. Throws ParseError. May be called before main. Thread-safe.
void register_sharding_rule(std::string_view text);

// Coverage of a graph's nodes by rules.
struct RuleCoverage {
  int64_t nodes = 0;                              // nodes with tensors
  int64_t by_rule = 0;                            // nodes with RuleSource::kRule
  int64_t by_class = 0;                           // nodes with RuleSource::kClass
  std::map<std::string, int64_t> without_a_rule;  // number of replicated nodes by operator
  double seconds_without_a_rule = 0;              // time per device; only in a problem's coverage
  double share() const;                           // fraction of nodes with a rule; 1 if there are no nodes
  static RuleCoverage of(const Graph& graph, const ShardingRules& rules = {});
};

}  // namespace shadowgraph
