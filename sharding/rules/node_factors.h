// A node's dimensions as factors: what a rule says of one call. The node's strategies and its local arguments follow
// from them.
//
//     %2 = aten::mm(%0: [2,3], %1: [3,5])      factors m=2 k=3 n=5; operands [m][k], [k][n]; result [m][n]
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"
#include "shadowgraph/shard/rules.h"
#include "sharding/rules/rule_text.h"

namespace shadowgraph {

using FactorId = uint16_t;

struct Factor {
  std::string name;
  int64_t extent = -1;             // -1: not known yet
  bool whole = false;              // nobody cuts it
  PartialOp op = PartialOp::kSum;  // of results that lack it
  int32_t masked_by = -1;          // position of the argument with indices into it; -1: none
};

struct TensorFactors {
  int64_t operand = -1;   // which of the node's operands in for_each_input's order; -1: a constant, which is never cut
  uint16_t argument = 0;  // position in the schema
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<std::vector<FactorId>> dims;  // outermost factor first
  bool same = false;                        // replicated whatever is cut
  bool added = false;                       // operands: partial where the first result is
  std::vector<uint16_t> of;                 // results: positions of the arguments that it is made of; none: all
  int64_t tied = -1;                        // operands that are written: the result that they are afterwards, -1: none
  bool overwritten = false;                 // whether whatever it held is lost, for operands that are written

  bool has(FactorId factor) const;
};

// Says how an argument of the local call follows from the call's argument.
struct LocalArgument {
  enum class Kind : uint8_t {
    kSizes,    // the sizes of the tensor: of result `tensor`
    kStrides,  // strides of the same order as they are, for those sizes
    kScaled,   // an int, or one of a list, divided as its factors are
  };
  Kind kind = Kind::kSizes;
  uint16_t argument = 0;
  int element = -1;  // -1: all of a list
  uint16_t tensor = 0;
  std::vector<FactorId> factors;
};

struct NodeFactors {
  RuleSource source = RuleSource::kReplicated;
  bool random = false;
  bool independent = false;  // several factors may be cut by one axis at once
  std::vector<Factor> factors;
  std::vector<TensorFactors> operands;  // constants included
  std::vector<TensorFactors> results;
  std::vector<AxisStrategy> partial;  // strategies that cut nothing
  std::vector<LocalArgument> local;
  size_t tensors = 0;  // operands without constants
};

// A call as rules read it.
class NodeCall {
 public:
  NodeCall(const Graph& graph, NodeId node);

  const Graph& graph() const { return graph_; }
  const Target& target() const { return graph_.target(node_); }
  NodeId node() const { return node_; }
  const Signature& signature() const { return target().signature(); }
  // Returns the position of an argument in the schema; -1 if it has none of this name.
  int position(std::string_view name) const;
  const Argument* argument(std::string_view name) const;
  // Returns what an argument says, or `otherwise` if it is absent, None or not known before the program runs.
  int64_t integer(std::string_view name, int64_t otherwise) const;
  bool flag(std::string_view name, bool otherwise = false) const { return integer(name, otherwise ? 1 : 0) != 0; }
  // Returns an empty list if the argument is absent or None. A number is a list of one.
  std::vector<int64_t> integers(std::string_view name) const;
  bool holds(const RuleCondition& condition) const;

 private:
  const Graph& graph_;
  NodeId node_;
};

// Thrown where a rule does not fit a call; what() says how.
class Misfit : public Error {
 public:
  using Error::Error;
};

// Builds NodeFactors. What it refuses throws Misfit.
class FactorBuilder {
 public:
  explicit FactorBuilder(const NodeCall& call);

  const NodeCall& call;
  NodeFactors made;

  FactorId factor(std::string name, int64_t extent, bool whole = false);
  // Returns the operand that is argument `name`, if that is one tensor; otherwise nullptr.
  TensorFactors* operand(std::string_view name);
  // Returns the operands of an argument, one for each element of a list.
  std::vector<TensorFactors*> operands(uint16_t argument);
  TensorFactors& result(size_t i);

  // Keeps all dimensions of an operand uncut.
  void whole(TensorFactors& tensor);
  // Each group lists argument names. Partial sums and means of one group's operands give partial sums and means.
  void linear(const std::vector<std::vector<std::string>>& groups);
  // Does the same for maxima and minima; with `turn`, one becomes the other.
  void monotone(const std::vector<std::vector<std::string>>& groups, bool turn);
  void sizes(std::string_view argument, size_t result = 0);
  void strides(std::string_view argument, size_t result = 0);
  void scaled(std::string_view argument, std::vector<FactorId> factors, int element = -1);
  void apply(const std::vector<RuleClause>& clauses);
  // Checks and completes. Dimensions nobody spoke of are whole; operands that are written lie as what they become.
  NodeFactors finish();

 private:
  void tie_written();
  void partial(const std::vector<std::string>& group, PartialOp from, PartialOp to);
  std::vector<FactorId> named(const std::vector<std::string>& names) const;
};

// Binds a rule of patterns to a call.
void bind_patterns(const RuleText& rule, FactorBuilder& builder);

// Builds the factors of a class of operators, by the word that stands for it in a rule.
using ClassBuilder = void (*)(const RuleText& rule, FactorBuilder& builder);
ClassBuilder find_class(std::string_view word);

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
