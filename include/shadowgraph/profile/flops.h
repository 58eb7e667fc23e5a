// FLOPs of every node, totals by phase, and the operators that have no formula.
//
//     const Flops flops = Flops::of(graph);
//     flops.of(node).matmul;                       // 2 per multiply-accumulate
//     flops.of_phase(Graph::kBackward).matmul;     // what FlopCounterMode counts, and `beyond_pytorch` more
//     flops.uncovered();                           // [{"aten::fft_c2c", 3}]
//
// Formulas are rows of flop_table.h and elementwise_table.h. A node is uncovered if its operator has no elementwise
// formula (row, view schema or pointwise tag) or if a formula refuses its shapes. What is known of it is still counted.
// One pass over the nodes; formulas are looked up once a target.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

struct NodeFlops {
  int64_t matmul = 0;          // matrix products, convolutions, attention, recurrent gates: 2 per MAC
  int64_t elementwise = 0;     // additions, multiplications, divisions, comparisons, selections
  int64_t transcendental = 0;  // exp, log, sqrt, ... evaluations; not in elementwise
  int64_t beyond_pytorch = 0;  // the part of `matmul` that FlopCounterMode counts as 0

  NodeFlops& operator+=(const NodeFlops& other);
  friend bool operator==(const NodeFlops&, const NodeFlops&) = default;
};

struct UncoveredOperator {
  std::string op;     // with overload
  int64_t count = 0;  // calls
  friend bool operator==(const UncoveredOperator&, const UncoveredOperator&) = default;
};

class Flops {
 public:
  static Flops of(const Graph& graph);

  const NodeFlops& of(NodeId node) const { return by_node_[node]; }
  const NodeFlops& of_phase(PhaseId phase) const { return by_phase_[phase]; }
  const std::vector<UncoveredOperator>& uncovered() const { return uncovered_; }  // by name
  bool is_uncovered(NodeId node) const;

 private:
  IdMap<NodeId, NodeFlops> by_node_;
  IdMap<PhaseId, NodeFlops> by_phase_;
  std::vector<UncoveredOperator> uncovered_;
  std::vector<NodeId> uncovered_nodes_;  // by id
};

}  // namespace shadowgraph
