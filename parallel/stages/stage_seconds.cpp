#include "parallel/stages/stage_seconds.h"

#include <algorithm>

#include "parallel/stages/forward_line.h"
#include "profiler/communication/stream_tasks.h"
#include "profiler/time/kernel_work.h"

namespace shadowgraph {

ShardedParameters::ShardedParameters(const ProgramCosts& costs, const StageAssignment& assignment,
                                     const Communication& communication, bool gathers_once) {
  const ParameterSources sources(costs);
  for (const Collective& collective : communication.collectives()) {
    const NodeId n = collective.node;
    const bool scatters = gathers_once && collective.kind == CollectiveKind::kReduceScatter;
    const bool adds = scatters || collective.kind == CollectiveKind::kAllReduce;
    const bool gathers = gathers_once && collective.kind == CollectiveKind::kAllGather;
    if (gathers && sources.reads_only_parameters(n)) gathers_[n] = 1;
    if (adds && assignment.piece(n) == Piece::kWeightGradient) reduces_[n] = 1;
  }
}

NodeSeconds::NodeSeconds(const ProgramCosts& costs, const DeviceSpec& spec, const Interconnect* links)
    : graph_(costs.graph()),
      time_(StepTime::of(costs, spec)),
      communication_(Communication::of(costs.graph(), {.interconnect = links})) {
  for (const NodeId n : costs.nodes) {
    const NodeTime& at = time_.of(n);
    if (at.kind != KernelClass::kFree && !overlaps_kernels(graph_, n))
      seconds_[n] = std::max(at.seconds, spec.host_call);
  }
  for (const Collective& collective : communication_.collectives()) {
    seconds_[collective.node] += collective.cost.seconds();
  }
}

double NodeSeconds::computing(NodeId node) const {
  const Collective* collective = communication_.find(node);
  return seconds_[node] - (collective != nullptr ? collective->cost.seconds() : 0);
}

double NodeSeconds::exposed(std::span<const NodeId> nodes, const std::function<bool(const Collective&)>& takes) const {
  const bool any = std::ranges::any_of(nodes, [&](NodeId node) {
    const Collective* collective = communication_.find(node);
    return collective != nullptr && collective->cost.seconds() > 0 && takes(*collective);
  });
  if (!any) return 0;
  const double alone = scheduled(nodes, false, [](const Collective&) { return 0.0; });
  return scheduled(nodes, true, [&](const Collective& c) { return takes(c) ? c.cost.seconds() : 0.0; }) - alone;
}

double NodeSeconds::scheduled(std::span<const NodeId> nodes, bool communicate,
                              const std::function<double(const Collective&)>& seconds) const {
  StreamSchedule schedule;
  StreamTasks tasks(graph_, communication_, time_, schedule,
                    {.seconds = seconds, .is_part = true, .whole = !communicate});
  for (const NodeId node : nodes) {
    if (!overlaps_kernels(graph_, node)) tasks.add(node);
  }
  schedule.run(communication_.device_share());
  return schedule.seconds();
}

// Optimizer nodes process tensors of all stages: their time is divided by bytes.
static void add_optimizer(const Graph& graph, NodeId node, double seconds, const StageMemory& memory,
                          std::vector<StageCosts>& figures) {
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

static void add_segment(std::vector<PieceSegment>& segments, const PieceSegment& segment) {
  const bool joins = segment.collective == PieceSegment::kComputes && !segments.empty() &&
                     segments.back().collective == PieceSegment::kComputes;
  if (!joins) return segments.push_back(segment);
  segments.back().seconds += segment.seconds;
  segments.back().flops += segment.flops;
  segments.back().bytes += segment.bytes;
}

static PieceSeconds exposed(const StageNodes& nodes, const NodeSeconds& seconds,
                            const std::function<bool(const Collective&)>& takes) {
  return {.forward = seconds.exposed(nodes.forward, takes),
          .backward = seconds.exposed(nodes.backward, takes),
          .input_gradient = seconds.exposed(nodes.input_gradient, takes),
          .weight_gradient = seconds.exposed(nodes.weight_gradient, takes)};
}

static void add_copies(const Graph& graph, const StageNodes& nodes, const NodeSeconds& seconds, StageCosts& of) {
  for (const NodeId n : nodes.forward) {
    if (!overlaps_kernels(graph, n)) continue;
    of.copies.forward += seconds.copying(n);
    of.on_host += graph.logical_bytes(graph.results(n)[0].ref.value);
  }
  for (const NodeId n : nodes.input_gradient) of.copies.input_gradient += seconds.copying(n);
  for (const NodeId n : nodes.weight_gradient) of.copies.weight_gradient += seconds.copying(n);
  of.copies.backward = of.copies.input_gradient + of.copies.weight_gradient;
}

std::vector<StageNodes> nodes_by_stage(const ProgramCosts& costs, const StageAssignment& assignment) {
  std::vector<StageNodes> stages(static_cast<size_t>(assignment.stages()));
  for (const NodeId n : costs.nodes) {
    const Piece piece = assignment.piece(n);
    if (piece == Piece::kOptimizer || piece == Piece::kNone) continue;
    for (const int32_t s : assignment.stages_of(n)) {
      StageNodes& of = stages[static_cast<size_t>(s)];
      (piece == Piece::kForward         ? of.forward
       : piece == Piece::kInputGradient ? of.input_gradient
                                        : of.weight_gradient)
          .push_back(n);
      if (piece != Piece::kForward) of.backward.push_back(n);
    }
  }
  return stages;
}

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
      segment.flops =
          static_cast<int64_t>(causal_share(costs.graph(), n) * static_cast<double>(costs.flops().of(n).matmul));
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
                 const NodeSeconds& seconds, const ShardedParameters& sharded, const DeviceSpec& spec,
                 std::span<const StageNodes> nodes, std::vector<StageCosts>& figures) {
  const Graph& graph = costs.graph();
  for (size_t s = 0; s < figures.size(); ++s) {
    StageCosts& of = figures[s];
    for (const NodeId n : nodes[s].forward) of.forward += seconds.computing(n);
    for (const NodeId n : nodes[s].input_gradient) of.input_gradient += seconds.computing(n);
    for (const NodeId n : nodes[s].weight_gradient) of.weight_gradient += seconds.computing(n);
    add_copies(graph, nodes[s], seconds, of);
    of.exposed = exposed(nodes[s], seconds, [](const Collective&) { return true; });
    of.exposed_unsharded =
        exposed(nodes[s], seconds, [&](const Collective& c) { return !sharded.gathers(c) && !sharded.reduces(c); });
    of.forward += of.exposed.forward;
    of.input_gradient += of.exposed.input_gradient;
    of.weight_gradient += of.exposed.weight_gradient;
    for (const NodeId n : nodes[s].forward) {
      const Collective* collective = seconds.communication().find(n);
      if (collective != nullptr && sharded.gathers(*collective)) of.unshard += collective->cost.seconds();
    }
    for (const NodeId n : nodes[s].backward) {
      const Collective* collective = seconds.communication().find(n);
      if (collective != nullptr && sharded.reduces(*collective)) of.reduce_gradients += collective->cost.seconds();
    }
    // Accumulation reads the gradient, and reads and writes the buffer.
    const auto bytes = 3 * static_cast<double>(of.gradients);
    if (bytes > 0) of.accumulate = bytes / spec.memory_rate(KernelClass::kPointwiseInPlace, bytes);
  }
  for (const NodeId n : costs.nodes) {
    if (assignment.piece(n) == Piece::kOptimizer && seconds.of(n) > 0) {
      add_optimizer(graph, n, seconds.of(n), memory, figures);
    }
  }
}

}  // namespace shadowgraph
