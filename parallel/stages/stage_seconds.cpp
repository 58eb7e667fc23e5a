#include "parallel/stages/stage_seconds.h"

#include <algorithm>

#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

NodeSeconds::NodeSeconds(const ProgramCosts& costs, const DeviceSpec& spec, const Interconnect* links)
    : communication_(Communication::of(costs.graph(), {.interconnect = links})) {
  const StepTime time = StepTime::of(costs, spec);
  for (const NodeId n : costs.nodes) {
    const NodeTime& at = time.of(n);
    if (at.kind != KernelClass::kFree) seconds_[n] = std::max(at.seconds, spec.host_call);
  }
  for (const Collective& collective : communication_.collectives()) {
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

namespace {

void add_segment(std::vector<PieceSegment>& segments, const PieceSegment& segment) {
  const bool joins = segment.collective == PieceSegment::kComputes && !segments.empty() &&
                     segments.back().collective == PieceSegment::kComputes;
  if (!joins) return segments.push_back(segment);
  segments.back().seconds += segment.seconds;
  segments.back().flops += segment.flops;
  segments.back().bytes += segment.bytes;
}

}  // namespace

void add_segments(const ProgramCosts& costs, const StageAssignment& assignment, const NodeSeconds& seconds,
                  StageParts& parts) {
  for (const ProcessGroupInfo& group : seconds.communication().groups()) {
    std::vector<int64_t>& ranks = parts.groups.emplace_back(group.ranks);
    for (int64_t r = 0; group.ranks.empty() && r < group.size; ++r) ranks.push_back(r);
  }
  for (const NodeId n : costs.nodes) {
    const Collective* collective = seconds.communication().find(n);
    PieceSegment segment{.seconds = seconds.of(n)};
    if (collective != nullptr) {
      segment.collective = static_cast<int>(collective->kind);
      segment.bytes = collective->payload;
      segment.group = collective->group;
    } else {
      segment.flops = costs.flops().of(n).matmul;
      segment.bytes = costs.traffic().of(n).total();
      if (segment.seconds == 0 && segment.flops == 0) continue;
    }
    for (const int32_t stage : assignment.stages_of(n)) {
      PieceSegments& of = parts.stages[static_cast<size_t>(stage)].segments;
      const Piece piece = assignment.piece(n);
      if (piece == Piece::kForward) add_segment(of.forward, segment);
      if (piece == Piece::kInputGradient) add_segment(of.input_gradient, segment);
      if (piece == Piece::kWeightGradient) add_segment(of.weight_gradient, segment);
      if (piece != Piece::kForward) add_segment(of.backward, segment);
    }
  }
}

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
