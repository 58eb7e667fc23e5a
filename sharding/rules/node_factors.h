// The dimensions of a node's tensors as factors, from its rule. The node's strategies and local arguments are derived
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

using FactorId = uint32_t;

struct Factor {
  std::string name;
  int64_t extent = -1;             // -1: unknown
  bool whole = false;              // must not be sharded
  PartialOp op = PartialOp::kSum;  // reduction of results without the factor
  int32_t masked_by = -1;          // position of the argument with indices into it; -1: none
};

struct TensorFactors {
  int64_t operand = -1;   // operand index in for_each_input's order; -1: a constant, which is never sharded
  uint16_t argument = 0;  // position in the schema
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes;
  std::vector<std::vector<FactorId>> dims;  // outermost factor first
  bool same = false;                        // always replicated
  bool added = false;                       // operands: partial if the first result is
  std::vector<uint16_t> of;                 // results: positions of the arguments it depends on; empty: all
  int64_t tied = -1;                        // written operands: index of the result that aliases it; -1: none
  bool overwritten = false;                 // written operands: previous contents are not read
};

// Describes how an argument of the local call is computed.
struct LocalArgument {
  enum class Kind : uint8_t {
    kSizes,    // local sizes of the first result
    kStrides,  // strides for those sizes, in the same order
    kScaled,   // an int or the elements of a list, divided as its factors are
  };
  Kind kind = Kind::kSizes;
  uint16_t argument = 0;
  std::vector<FactorId> factors;
};

struct NodeFactors {
  RuleSource source = RuleSource::kReplicated;
  bool random = false;
  bool independent = false;  // one axis may shard several factors at once
  std::vector<Factor> factors;
  std::vector<TensorFactors> operands;  // including constants
  std::vector<TensorFactors> results;
  std::vector<AxisStrategy> partial;  // strategies without sharding
  std::vector<LocalArgument> local;
  size_t tensors = 0;  // operands without constants
};

// Independent tensors of a call, with factors of their own.
struct PlaceFactors {
  std::vector<uint32_t> operands, results;  // indices in the node
  FactorId first = 0;                       // index of the first factor in the call
  NodeFactors factors;
};

class NodeCall {
 public:
  NodeCall(const Graph& graph, NodeId node);

  const Graph& graph() const { return graph_; }
  const Target& target() const { return graph_.target(node_); }
  NodeId node() const { return node_; }
  const Signature& signature() const { return target().signature(); }
  // Returns the position of an argument in the schema; -1 without one of this name.
  int position(std::string_view name) const;
  const Argument* argument(std::string_view name) const;
  // Returns an argument's value; `otherwise` if it is absent, None or unknown before the program runs.
  int64_t integer(std::string_view name, int64_t otherwise) const;
  // Returns an empty list if the argument is absent or None; a number is a list of one.
  std::vector<int64_t> integers(std::string_view name) const;
  bool holds(const RuleCondition& condition) const;

 private:
  const Graph& graph_;
  NodeId node_;
};

// Thrown if a rule does not match a call; what() describes the mismatch.
class Misfit : public Error {
 public:
  using Error::Error;
};

class FactorBuilder {
 public:
  explicit FactorBuilder(const NodeCall& call);

  const NodeCall& call;
  NodeFactors made;

  FactorId factor(std::string name, int64_t extent, bool whole = false);
  // Returns the operand for argument `name` if it is a single tensor; otherwise nullptr.
  TensorFactors* operand(std::string_view name);
  // Returns the operands of an argument, one per element of a list.
  std::vector<TensorFactors*> operands(uint16_t argument);
  TensorFactors& result(size_t i);

  // Excludes all dimensions of an operand from sharding.
  void whole(TensorFactors& tensor);
  // Each group lists argument names. If the operands of one group are partial sums or means, so are the results.
  void linear(const std::vector<std::vector<std::string>>& groups);
  // The same for partial maxima and minima; with `turn`, maxima become minima and vice versa.
  void monotone(const std::vector<std::vector<std::string>>& groups, bool turn);
  void sizes(std::string_view argument) { local(LocalArgument::Kind::kSizes, argument); }
  void strides(std::string_view argument) { local(LocalArgument::Kind::kStrides, argument); }
  void scaled(std::string_view argument, std::vector<FactorId> factors) {
    local(LocalArgument::Kind::kScaled, argument, std::move(factors));
  }
  void apply(const std::vector<RuleClause>& clauses);
  // Completes and checks: unmentioned dimensions are not sharded; written operands get their result's layout.
  NodeFactors finish();

 private:
  void local(LocalArgument::Kind kind, std::string_view argument, std::vector<FactorId> factors = {});
  void tie_written();
  void partial(const std::vector<std::string>& group, PartialOp from, PartialOp to);
  std::vector<FactorId> named(const std::vector<std::string>& names) const;
};

void bind_patterns(const RuleText& rule, FactorBuilder& builder);

// Builds the factors of an operator class, which a rule selects by name.
using ClassBuilder = void (*)(const RuleText& rule, FactorBuilder& builder);
ClassBuilder find_class(std::string_view word);

// Cached result for a call; applies to all nodes with the same call on tensors of the same geometry.
struct KnownCall {
  NodeFactors factors;
  std::vector<PlaceFactors> places;  // see NodeStrategies::places
  // Strategies of the call itself, without constraints from other nodes. Computed when they are first needed: those of
  // sg::output, each with a placement of every output, are not.
  const NodeStrategies& strategies() const;

 private:
  mutable std::once_flag once_;
  mutable NodeStrategies strategies_;
};

struct ShardingRules::Table {
  std::unordered_map<std::string, std::vector<RuleText>> rules;  // alternatives, in order

  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<const KnownCall>> calls;

  void add(std::vector<RuleText> added);
  std::shared_ptr<const KnownCall> known(const Graph& graph, NodeId node);
  // Returns the rules of an operator, or of its functional form: aten::add for aten::add_. nullptr without one.
  const std::vector<RuleText>* lines(std::string_view name) const;

 private:
  const RuleText* find(const NodeCall& call) const;
  const std::vector<RuleText>* lines_of(std::string_view name) const;  // with or without its overload
  NodeFactors work_out(const Graph& graph, NodeId node) const;
};

// Returns the strategy that shards `factor` after `outer` of its elements; nullopt if a tensor has the factor twice, or
// a written operand would change its layout.
std::optional<AxisStrategy> strategy_of(const NodeFactors& factors, FactorId factor, int64_t outer);
AxisStrategy replicated(const NodeFactors& factors);
// Returns true if written operands keep their layouts. An overwritten operand takes its new layout.
bool fits_writes(const NodeFactors& factors, AxisStrategy& strategy);

}  // namespace shadowgraph
