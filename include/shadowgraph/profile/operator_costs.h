// Costs of operators: FLOPs, memory traffic and scratch memory, computed by rules from the shapes of a call.
//
// OperandShapes has the shapes and numbers of a call by schema position, without a graph. Cost rules (flop_table.h,
// elementwise_table.h) are pure functions of it and can be tested with literal shapes. Rules must not rely on ranks or
// counts, since graphs may come from files. Reading past the end returns kAbsent.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/graph/target.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/units.h"

namespace SHADOWGRAPH_API shadowgraph {

using Shape = std::span<const int64_t>;  // sizes, elements

struct Operand {
  enum class Kind : uint8_t {
    kAbsent,   // None, an undefined tensor, or position out of range
    kTensor,   // shape
    kTensors,  // tensors, without undefined ones
    kNumber,   // number: int, float or bool
    kInts,     // shape holds the integers; bools are 0 and 1
    kOther,    // a string, a device, a generator, ...
  };
  Kind kind = Kind::kAbsent;
  double number = 0;
  Shape shape;
  std::span<const Shape> tensors;
  int64_t element_bytes = 0;   // of a tensor, or of the first of a list; 0: unknown
  bool channels_last = false;  // for images with three or more dimensions

  static Operand of_tensor(Shape sizes, int64_t element_bytes = 0) {
    return {.kind = Kind::kTensor, .shape = sizes, .element_bytes = element_bytes};
  }
  static Operand of_tensors(std::span<const Shape> list, int64_t element_bytes = 0) {
    return {.kind = Kind::kTensors, .tensors = list, .element_bytes = element_bytes};
  }
  static Operand of_ints(Shape ints) { return {.kind = Kind::kInts, .shape = ints}; }
  static Operand of_number(double value) { return {.kind = Kind::kNumber, .number = value}; }
  bool is_tensor() const { return kind == Kind::kTensor; }
  bool present() const { return kind != Kind::kAbsent; }
};

struct OperandShapes {
  std::span<const Operand> arguments;  // one per schema argument
  std::span<const Operand> results;    // one per schema return

  const Operand& argument(size_t i) const { return i < arguments.size() ? arguments[i] : kAbsentOperand; }
  const Operand& result(size_t i) const { return i < results.size() ? results[i] : kAbsentOperand; }
  // Returns a tensor argument's shape; empty if it is not a tensor (or is 0-dimensional: check is_tensor()).
  Shape shape(size_t i) const { return argument(i).is_tensor() ? argument(i).shape : Shape(); }
  size_t rank(size_t i) const { return argument(i).is_tensor() ? argument(i).shape.size() : kNoRank; }
  double number(size_t i, double otherwise) const {
    return argument(i).kind == Operand::Kind::kNumber ? argument(i).number : otherwise;
  }
  // Returns the number as an integer, or `otherwise` if it does not fit in int64.
  int64_t integer(size_t i, int64_t otherwise) const {
    const double value = number(i, static_cast<double>(otherwise));
    return value > -9.2e18 && value < 9.2e18 ? static_cast<int64_t>(value) : otherwise;
  }
  bool flag(size_t i, bool otherwise = false) const { return number(i, otherwise ? 1 : 0) != 0; }
  // Returns element `k` of a list of ints or bools.
  int64_t element(size_t i, size_t k, int64_t otherwise) const {
    const Operand& list = argument(i);
    return list.kind == Operand::Kind::kInts && k < list.shape.size() ? list.shape[k] : otherwise;
  }

  static constexpr size_t kNoRank = static_cast<size_t>(-1);

 private:
  static constexpr Operand kAbsentOperand{};
};

// Products and counts saturate (shadowgraph/units.h).
inline int64_t product_of(Shape sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) product = saturating_multiply(product, size);
  return product;
}
inline int64_t product_of(std::initializer_list<int64_t> sizes) {
  return product_of(Shape(sizes.begin(), sizes.size()));
}
// Returns the elements of a tensor, or of all tensors of a list; 0 for other kinds.
inline int64_t element_count(const Operand& operand) {
  if (operand.kind == Operand::Kind::kTensor) return product_of(operand.shape);
  int64_t count = 0;
  for (Shape shape : operand.tensors) count = saturating_add(count, product_of(shape));
  return count;
}
// Returns the bytes of the elements without gaps.
inline int64_t byte_count(const Operand& operand) {
  return saturating_multiply(element_count(operand), operand.element_bytes);
}

// Costs of a call of an operator, as rules over the shapes of its operands: for the tables of the profiler and for
// custom operators (shadowgraph/profile/register_operator.h).

// Returns std::nullopt if the cost is unknown for these operands.
using CostRule = std::function<std::optional<int64_t>(const OperandShapes&)>;

struct OperatorCosts {
  CostRule flops;
  CostRule bytes;
  CostRule scratch;
};

// Throws Error if `operator_name` is not of the form "space::name", or is already registered.
void register_cost(const std::string& operator_name, OperatorCosts costs);

// Returns the costs registered for a target or for its functional variant, or nullptr.
std::shared_ptr<const OperatorCosts> registered_costs(const Target& target);

// Returns the result of `rule`, or std::nullopt if there is no rule, it throws, or its result is negative.
std::optional<int64_t> evaluate(const CostRule& rule, const OperandShapes& call);

// Costs of registered operators (shadowgraph/profile/register_operator.h) in a graph, by node and by operator.
struct CustomOperatorCosts {
  std::string op;  // with overload
  int64_t calls = 0;
  int64_t flops = 0;    // sum of all calls
  int64_t bytes = 0;    // sum of all calls
  int64_t scratch = 0;  // maximum of all calls
  int64_t unknown = 0;  // calls for which a rule returned no result
  friend bool operator==(const CustomOperatorCosts&, const CustomOperatorCosts&) = default;
};

class CustomOperators {
 public:
  static CustomOperators of(const Graph& graph);

  const std::vector<CustomOperatorCosts>& by_operator() const { return by_operator_; }  // by name
  // Scratch memory of nodes in program order, without those that have none.
  struct Scratch {
    NodeId node;
    int64_t bytes = 0;
    c10::Device device;
  };
  const std::vector<Scratch>& scratch() const { return scratch_; }

 private:
  std::vector<CustomOperatorCosts> by_operator_;
  std::vector<Scratch> scratch_;
};

// FLOPs of every node, totals by phase, and operators without a formula.
//
// Formulas are rows of flop_table.h and elementwise_table.h. A node is uncovered if its operator has no formula, or if
// it does not support the shapes. The known part is still counted. Linear; formulas are looked up once per target.
struct NodeFlops {
  int64_t matmul = 0;          // matrix products, convolutions, attention, recurrent gates: 2 per MAC
  int64_t elementwise = 0;     // additions, multiplications, divisions, comparisons, selections
  int64_t transcendental = 0;  // evaluations of exp, log, sqrt, ...; not included in elementwise
  int64_t beyond_pytorch = 0;  // part of `matmul` that FlopCounterMode counts as 0

  NodeFlops& operator+=(const NodeFlops& other);
  friend bool operator==(const NodeFlops&, const NodeFlops&) = default;
};

struct UncoveredOperator {
  std::string op;     // with overload
  int64_t count = 0;  // number of calls
  friend bool operator==(const UncoveredOperator&, const UncoveredOperator&) = default;
};

class Flops {
 public:
  static Flops of(const Graph& graph);

  const NodeFlops& of(NodeId node) const { return by_node_[node]; }
  const NodeFlops& of_phase(PhaseId phase) const { return by_phase_[phase]; }
  NodeFlops total() const;
  const std::vector<UncoveredOperator>& uncovered() const { return uncovered_; }  // by name
  bool is_uncovered(NodeId node) const;

 private:
  IdMap<NodeId, NodeFlops> by_node_;
  IdMap<PhaseId, NodeFlops> by_phase_;
  std::vector<UncoveredOperator> uncovered_;
  std::vector<NodeId> uncovered_nodes_;  // by id
};

// Bytes that a call reads and writes, if every operand is read once and every result is written once.
//
// An operand counts once, even if it is passed repeatedly, with its distinct elements (relevant for expanded tensors).
// Views and calls that read only geometry move nothing; operands that are overwritten completely are not read. Tables
// from which rows are selected (embedding, index, gather) are read as far as the result requires. Without scratch.
struct NodeTraffic {
  int64_t read = 0;
  int64_t written = 0;
  int64_t total() const;  // saturates
  NodeTraffic& operator+=(const NodeTraffic& other);
  friend bool operator==(const NodeTraffic&, const NodeTraffic&) = default;
};

class Traffic {
 public:
  static Traffic of(const Graph& graph);
  const NodeTraffic& of(NodeId node) const { return by_node_[node]; }
  const NodeTraffic& of_phase(PhaseId phase) const { return by_phase_[phase]; }

 private:
  IdMap<NodeId, NodeTraffic> by_node_;
  IdMap<PhaseId, NodeTraffic> by_phase_;
};

// Scratch memory that kernels allocate and free within one call: reorders, im2col, workspaces, accumulators. It is live
// together with a node's operands and results only, and in no storage of the graph.
//
// The first source that applies is used:
//   registered   a rule of shadowgraph/profile/register_operator.h
//   measured     a measurement of the same call in MeasuredCalls (CPU)
//   rule         a row of profiler/cost/scratch_rules.cpp, with its reason and source
//   none         no scratch by definition: views, fills, pointwise operators on operands of one dtype
//   unknown      listed with the number of calls; not included in the results
enum class ScratchSource : uint8_t { kRegistered, kMeasured, kRule, kNone, kUnknown };
constexpr auto enum_names(ScratchSource) {
  return names_in_order<ScratchSource>("registered", "measured", "rule", "none", "unknown");
}

struct NodeScratch {
  int64_t bytes = 0;
  ScratchSource source = ScratchSource::kNone;
};

class Scratch {
 public:
  // `measured`, if given, is used for calls on CPU tensors.
  static Scratch of(const Graph& graph, const MeasuredCalls* measured = nullptr);

  const NodeScratch& of(NodeId node) const { return by_node_[node]; }
  const std::vector<UncoveredOperator>& unknown() const { return unknown_; }  // by name

 private:
  IdMap<NodeId, NodeScratch> by_node_;
  std::vector<UncoveredOperator> unknown_;
};

}  // namespace shadowgraph
