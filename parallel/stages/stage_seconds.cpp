#include "parallel/stages/stage_seconds.h"

#include <algorithm>

#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

NodeSeconds::NodeSeconds(const ProgramCosts& costs, const DeviceSpec& spec, const Interconnect* links) {
  const StepTime time = StepTime::of(costs, spec);
  for (const NodeId n : costs.nodes) {
    const NodeTime& at = time.of(n);
    if (at.kind != KernelClass::kFree) seconds_[n] = std::max(at.seconds, spec.host_call);
  }
  if (links == nullptr) return;
  const Communication communication = Communication::of(costs.graph(), {.interconnect = links});
  for (const Collective& collective : communication.collectives()) {
    seconds_[collective.node] += collective.cost.seconds();
  }
}

namespace {

// The optimizer's lists hold tensors of all stages: each stage takes its share of a node's bytes.
void add_optimizer(const Graph& graph, NodeId node, double seconds, const StageMemory& memory,
                   std::vector<StageFigures>& figures) {
  std::vector<double> share(figures.size(), 0);
  double all = 0;
  const auto count = [&](ValueId v) {
    const StorageId s = graph.value(v).storage;
    if (!s.valid()) return;
    const auto bytes = static_cast<double>(graph.logical_bytes(v));
    for (const int32_t stage : memory.holders_by_share(s)) {
      share[static_cast<size_t>(stage)] += bytes;
      all += bytes;
    }
  };
  graph.for_each_input(node, count);
  graph.for_each_output(node, count);
  if (all == 0) return;
  for (size_t s = 0; s < figures.size(); ++s) figures[s].optimizer += seconds * share[s] / all;
}

}  // namespace

void add_seconds(const ProgramCosts& costs, const StageAssignment& assignment, const StageMemory& memory,
                 const NodeSeconds& seconds, const DeviceSpec& spec, std::vector<StageFigures>& figures) {
  const Graph& graph = costs.graph();
  for (const NodeId n : costs.nodes) {
    const double takes = seconds.of(n);
    if (takes == 0) continue;
    const Piece piece = assignment.piece(n);
    if (piece == Piece::kOptimizer) add_optimizer(graph, n, takes, memory, figures);
    for (const int32_t stage : assignment.stages_of(n)) {
      StageFigures& of = figures[static_cast<size_t>(stage)];
      (piece == Piece::kForward         ? of.forward
       : piece == Piece::kInputGradient ? of.input_gradient
                                        : of.weight_gradient) += takes;
    }
  }
  // A gradient is read, and what it is added to is read and written.
  for (StageFigures& of : figures) {
    const auto bytes = 3 * static_cast<double>(of.gradients);
    if (bytes > 0) of.accumulate = bytes / spec.memory_rate(KernelClass::kPointwiseInPlace, bytes);
  }
}

}  // namespace shadowgraph
