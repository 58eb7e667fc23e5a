// Memory that kernels take and give back inside one call: reorders, im2col, workspaces, accumulators. It is alive beside a
// node's operands and results and nowhere else, so it is in no storage of the graph.
//
// What is known of a call, by the first that applies:
//   registered   the rule of shadowgraph/operators.h
//   measured     MeasuredCalls has this very call (CPU)
//   rule         a row of profiler/cost/scratch_rules.cpp, each with its reason and source
//   none         by nature: views, fills, pointwise operators on operands of one dtype
//   unknown      listed, with the number of calls; its bytes are in no figure
#pragma once

#include <cstdint>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/flops.h"
#include "shadowgraph/profile/measure.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class ScratchSource : uint8_t { kRegistered, kMeasured, kRule, kNone, kUnknown };

struct NodeScratch {
  int64_t bytes = 0;
  ScratchSource source = ScratchSource::kNone;
};

class Scratch {
 public:
  // `measured`, if given, is asked for calls on CPU tensors.
  static Scratch of(const Graph& graph, const MeasuredCalls* measured = nullptr);

  const NodeScratch& of(NodeId node) const { return by_node_[node]; }
  const std::vector<UncoveredOperator>& unknown() const { return unknown_; }  // by name
  int64_t unknown_calls() const;

 private:
  IdMap<NodeId, NodeScratch> by_node_;
  std::vector<UncoveredOperator> unknown_;
};

}  // namespace shadowgraph
