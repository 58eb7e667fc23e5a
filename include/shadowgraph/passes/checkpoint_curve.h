// Finds the least recomputing within a number of bytes. Treats a training step as a chain of stages, and gives the
// curve of peak against what is computed again. It is the policy `optimal` of the pass `checkpoint`.
//
//     const CheckpointCurve curve = CheckpointCurve::of(graph);
//     for (const CheckpointChoice& choice : curve.choices()) ...      // cheapest first, each with a lower peak
//     const CheckpointChoice* best = curve.within(40'000'000'000);    // nullptr: none is
//     checkpoint_segments(graph, best->segments);
//
// Every choice was made on a copy of the graph and its live bytes counted. So its peak is that of the graph that it
// makes, to the byte. What is tried does not depend on the budget that is asked for. Hence
//
//   - no choice is above the budget that it is asked for;
//   - a smaller budget never gives a higher peak, nor less to compute again;
//   - no choice is worse than those of the policies each, every (second), sqrt and budget, which are among what is
// tried.
//
// The policies are tried for these regions or, where stages are found, for the longest run of numbered modules.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/chain_solver.h"
#include "shadowgraph/passes/checkpoint.h"

namespace SHADOWGRAPH_API shadowgraph {

// What running a node again costs, a whole number in any unit that is the same for all nodes.
using CostOfNode = std::function<int64_t(const Graph& graph, NodeId node)>;
// FLOPs of matrix products, convolutions, attention and recurrent layers, 2 per multiply-accumulate, from the shapes; 0 for
// all else. What passes know of costs: shadowgraph/profile.h has the table of all operators, and seconds.
int64_t product_flops(const Graph& graph, NodeId node);
// Those, and 1 for each byte that it reads or writes: of two ways with equal products the one that moves less.
CostOfNode flops_and_bytes();

// ---------------------------------------------------------------------------------------------------------------------
// A training step as a chain.
//
// Forward is cut where all that comes later depends on what came before by one tensor alone: its maker dominates what
// follows. Tensors without gradients do not count, such as masks and tables of positions. The program may have no such
// place for long (skip connections over half of a network). Then those tensors that pass over the most are set aside:
// they are kept, and `not_a_chain` says which. With regions, these are the stages, and what lies between them is always
// kept.
//
// The options of a stage are sets of tensors to keep among those that backward reads. They are found from both ends.
// From all, the tensor goes that costs least for its bytes; to none, the one comes that saves most. Those that no other
// beats in both stay.

struct CheckpointStage {
  NodeId first, last;                           // forward nodes
  std::vector<std::vector<StorageId>> keep;     // by option of the chain's stage; of the first: all, and not listed
  std::vector<std::vector<StorageId>> offload;  // by option: of those, what waits on the host
  std::vector<int64_t> exposed;                 // by option: of its cost, what is not computing again but the link
};

struct CheckpointChainOptions {
  CostOfNode cost = {};      // flops_and_bytes()
  int64_t most_stages = 80;  // neighbours are taken together beyond that
  int64_t most_options = 8;  // of a stage
  // A stage runs again as a whole or not at all, as a forward graph's checkpoints do. Nothing in it is kept, and none
  // begins between a tensor's making and the last write to it.
  bool whole_stages = false;
  // Bytes that a link to the host carries in a unit of cost, each way at once. Kept tensors may then wait for backward
  // on the host. The part of a stage's transfers that its own forward and its own backward hide costs nothing. 0: no
  // link.
  double link = 0;
};

struct CheckpointChain {
  std::vector<ChainStage> stages;
  std::vector<CheckpointStage> parts;    // of the graph, for each stage
  int64_t elsewhere = 0;                 // bytes of what is in no stage: parameters, inputs, what was set aside
  int64_t input = 0;                     // bytes that the first stage reads
  std::vector<std::string> not_a_chain;  // why; empty: it is one

  // A forward graph stands for its assumed_step(). No stages for one without gradients. Linear, times the stages.
  static CheckpointChain of(const Graph& graph, std::span<const RegionId> regions = {},
                            const CheckpointChainOptions& options = {});

  // A plan as what checkpoint_segments takes. What is run again has no time to go to the host: it is kept.
  std::vector<CheckpointSegment> segments(const ChainPlan& plan) const;
  // What the plan's transfers cost.
  int64_t exposed(const ChainPlan& plan) const;
};

// ---------------------------------------------------------------------------------------------------------------------
// The curve.

struct CheckpointChoice {
  std::string made_by;  // "none", "optimal", "each", "every 2", "sqrt", "budget"
  std::vector<CheckpointSegment> segments;
  int64_t peak = 0;       // of live bytes, with these segments
  int64_t cost = 0;       // of the nodes that are computed again, and of transfers that nothing hides
  int64_t offloaded = 0;  // bytes that wait on the host
  std::vector<NodeId> repeated;
};

struct CheckpointCurveOptions {
  CheckpointChainOptions chain = {};
  int64_t slots = 500;
  int64_t most_plans = 64;  // of the chain, tried on the graph; evenly over the bytes
};

class CheckpointCurve {
 public:
  // `regions` are the stages, and what the other policies choose among. Without them stages are found, and the other
  // policies take the longest run of numbered modules. A forward graph stands for its assumed_step(), with whole
  // stages. Makes some 80 rewritten copies of the graph. With a link to the host, peaks are the bytes on the device that holds most; a step on the CPU gains nothing there.
  static CheckpointCurve of(const Graph& graph, std::span<const RegionId> regions = {},
                            const CheckpointCurveOptions& options = {});

  // Cheapest first, each with a lower peak than all before it; the first computes nothing again.
  const std::vector<CheckpointChoice>& choices() const { return choices_; }
  // The cheapest whose peak is at most that; nullptr if there is none.
  const CheckpointChoice* within(int64_t bytes) const;
  const CheckpointChain& chain() const { return chain_; }
  // All that was tried, in the order in which it was.
  const std::vector<CheckpointChoice>& tried() const { return tried_; }

 private:
  CheckpointChain chain_;
  std::vector<CheckpointChoice> choices_, tried_;
};

// The cheapest of the curve within these bytes; Error that says how low it gets.
CheckpointPolicy least_recompute(int64_t bytes, CheckpointCurveOptions options = {});

}  // namespace shadowgraph
