// Bytes that a call reads and writes, if every operand is read once and every result is written once.
//
// An operand counts once however often it is named, and only with the elements it has (an expanded tensor with those
// that are different). Views and calls that look at geometry alone move nothing; what a call overwrites it does not
// read. From a table from which rows are taken (embedding, index, gather), as much is read as there is in the result.
// Memory that a kernel reads twice, and scratch, are not in it.
//
//     Traffic::of(graph).of(node).total();  // bytes
#pragma once

#include <cstdint>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"

namespace SHADOWGRAPH_API shadowgraph {

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

}  // namespace shadowgraph
