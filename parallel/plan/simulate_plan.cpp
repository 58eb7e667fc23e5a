// Simulates a plan: captures the step, shards it, splits it into stages, and runs these on all ranks of a pipeline.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "parallel/plan/candidate.h"
#include "parallel/plan/layer_chain.h"
#include "parallel/plan/planner.h"
#include "parallel/plan/recompute.h"
#include "passes/precision/float8.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/shard/shard.h"
#include "shadowgraph/shard/solver.h"
#include "shadowgraph/units.h"
#include "sharding/ranks/ranks.h"

namespace shadowgraph {
namespace {

// Names of nodes without layer numbers, made unique by their order.
class Names {
 public:
  std::string of(const AssignmentNode& node) {
    std::string name = node.name;
    std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
    return fmt::format("{} #{}", name, seen_[name]++);
  }

 private:
  std::map<std::string, int64_t> seen_;
};

// Transfers the strategies solved for a model with few layers to the model with all layers.
class SolvedStrategies {
 public:
  // Call remember() with the problem first, then choose() with its solution.
  void remember(const AssignmentProblem& problem) { nodes_ = problem.nodes; }
  void choose(const std::vector<uint32_t>& choice) {
    Names names;
    for (size_t v = 0; v < nodes_.size(); ++v) strategies_[names.of(nodes_[v])] = nodes_[v].strategies[choice[v]];
  }

  // Returns nullopt if the problem has other variables or lacks a strategy.
  std::optional<std::vector<uint32_t>> choice_of(const AssignmentProblem& problem) const {
    if (problem.nodes.size() != strategies_.size()) return std::nullopt;
    Names names;
    std::vector<uint32_t> choice;
    for (const AssignmentNode& node : problem.nodes) {
      const auto chosen = strategies_.find(names.of(node));
      if (chosen == strategies_.end()) return std::nullopt;
      const auto found = std::ranges::find(node.strategies, chosen->second);
      if (found == node.strategies.end()) return std::nullopt;
      choice.push_back(static_cast<uint32_t>(found - node.strategies.begin()));
    }
    return choice;
  }

 private:
  std::vector<AssignmentNode> nodes_;
  std::map<std::string, std::string> strategies_;  // by name
};

// Replicas reduce and gather a parameter byte once per step, here of sixteen micro-batches. Overlap is not known yet,
// so all of it counts: among equally fast layouts the one with the least memory is then preferred.
double seconds_of_parameter_byte(const Interconnect& links) {
  constexpr double kMicroBatches = 16;
  return links.levels.empty() ? 0 : 2 / links.levels.back().bandwidth / kMicroBatches;
}

// Time to recompute a byte by a kernel that reads two bytes and writes one.
double seconds_of_kept_byte(const DeviceSpec& device) { return device.bandwidth > 0 ? 3 / device.bandwidth : 0; }

ShardingRequest request_of(const LayoutSizes& sizes, const ClusterRequest& request) {
  return {.mesh = DeviceMesh::parse(fmt::format("tp={}", sizes.tensor)),
          .device = request.device,
          .links = request.links,
          .shard_vocabulary = true};
}

Graph shard_by_rules(Graph step, const LayoutSizes& sizes, const ClusterRequest& request) {
  ShardingRequest layout = request_of(sizes, request);
  layout.parallelism = "megatron";
  try {
    return std::move(shard_step(clone(step), layout).result.rank->graph);
  } catch (const InfeasibleError&) {
    layout.parallelism = "tensor-parallel";
    return std::move(shard_step(std::move(step), layout).result.rank->graph);
  }
}

Graph captured(const StepSource& source, int64_t layers, const LayoutSizes& sizes, const ClusterRequest& request) {
  return sequence_shard(source, request, sizes.context)
      .capture({.micro_batch = sizes.micro_batch, .layers = layers, .attention = sizes.attention});
}

// Solves for a few layers, weighted to represent all, and applies the result to all layers.
Graph shard_by_solver(Graph step, const StepSource& source, int64_t layers, const LayoutSizes& sizes,
                      const ClusterRequest& request) {
  ShardingRequest layout = request_of(sizes, request);
  layout.overlap = sizes.overlap;
  layout.seconds_per_parameter_byte = seconds_of_parameter_byte(request.links);
  if (sizes.layout == TensorParallelLayout::kLean) layout.seconds_per_kept_byte = seconds_of_kept_byte(request.device);
  SolvedStrategies strategies;
  const int64_t few = representative_layers(source), first = source.first_layers;
  if (layers > 0) {
    layout.layer_repeats = static_cast<double>(source.layers - first) / static_cast<double>(layers - first);
  } else if (few > 0) {
    ShardingRequest reduced = layout;
    reduced.layer_repeats = static_cast<double>(source.layers - first) / static_cast<double>(few - first);
    reduced.problem = [&](const ShardingProblem& problem) { strategies.remember(problem.assignment()); };
    strategies.choose(shard_step(captured(source, few, sizes, request), reduced).result.solution.choice);
    layout.custom_solver = [&](const ShardingProblem& problem) { return strategies.choice_of(problem.assignment()); };
  }
  return std::move(shard_step(std::move(step), layout).result.rank->graph);
}

// The middle rank, which has the most kinds of calls.
ContextRanks context_ranks(int64_t context, int64_t tensor) {
  return {.ranks = context, .rank = context / 2, .apart = tensor};
}

// Bytes and elements of trained parameters that are in no layer.
std::pair<int64_t, int64_t> outside_layers(const Graph& step) {
  int64_t bytes = 0, weights = 0;
  for (const NodeId node : step.nodes()) {
    if (!step.is_placeholder(node)) break;
    if (step.node(node).target != target_of(Builtin::kParameter)) continue;
    if (number_in_path(placeholder_name(step, node)).second > 0) continue;
    step.for_each_output(node, [&](ValueId value) {
      if (!step.value(value).requires_grad) return;
      bytes += step.logical_bytes(value);
      weights += step.numel(value);
    });
  }
  return {bytes, weights};
}

std::map<std::string, std::string> layouts_of(const Graph& rank) {
  std::map<std::string, std::string> layouts;
  for (const NodeId node : rank.nodes()) {
    if (!rank.is_placeholder(node)) break;
    if (rank.node(node).target != target_of(Builtin::kParameter)) continue;
    layouts[placeholder_name(rank, node)] = rank.note(node, "layout");
  }
  return layouts;
}

}  // namespace

int64_t representative_layers(const StepSource& source) {
  constexpr int64_t kLayers = 4;  // of the most frequent kind
  const int64_t few = source.first_layers + kLayers;
  return source.layers > few ? few : 0;
}

StepSource sequence_shard(const StepSource& source, const ClusterRequest& request, int64_t context) {
  if (context == 1) return source;
  if (!source.with_sequence || request.sequence == 0) {
    throw Error(
        fmt::format("context parallelism of {} needs other sequence lengths: give the length (--seq, sequence=), and "
                    "in Python make `inputs` a function of samples and tokens",
                    source.name));
  }
  if (request.sequence % (2 * context) != 0) {
    throw Error(fmt::format("sequences of {} tokens do not divide into {} equal chunks, two for each of {} ranks",
                            request.sequence, 2 * context, context));
  }
  return source.with_sequence(request.sequence / context);
}

Graph rank_of_step(const StepSource& source, int64_t layers, const LayoutSizes& sizes, const ClusterRequest& request) {
  Graph rank = captured(source, layers, sizes, request);
  if (sizes.tensor > 1) {
    rank = sizes.layout == TensorParallelLayout::kMegatron
               ? shard_by_rules(std::move(rank), sizes, request)
               : shard_by_solver(std::move(rank), source, layers, sizes, request);
    overlap_collectives(rank, sizes.overlap);  // must run before matmuls are rewritten
  }
  if (request.float8 && float8_products(rank).products == 0) {
    throw Error("no matmul of a layer can use float8: parameters must be bfloat16 and sizes divisible by 16");
  }
  return shard_sequence_over(std::move(rank), context_ranks(sizes.context, sizes.tensor));
}

void check_sequence_shards(const Graph& whole, const Graph& part, int64_t context) {
  shard_sequence_over(clone(part), context_ranks(context, 1));
  check_tokens_are_independent(whole, part, context);
}

int64_t SimulatedPlan::bytes() const { return run.rank(run.worst_rank()).reserved_peak + other_streams; }

double ClusterPlan::tokens_per_second() const {
  return static_cast<double>(request.batch * request.sequence) / best().run.seconds() /
         static_cast<double>(request.devices);
}

double ClusterPlan::model_flops_share() const {
  const auto peak = request.device.matmul.find(c10::kBFloat16);
  if (peak == request.device.matmul.end()) return 0;
  return flops * static_cast<double>(request.batch) / best().run.seconds() / static_cast<double>(request.devices) /
         peak->second;
}

SimulatedPlan PlanSimulator::of(const StepSource& source, const ClusterRequest& request, TrainingPlan plan) {
  const LayoutSizes sizes = LayoutSizes::of(plan);
  auto known = ranks_.find(sizes);
  if (known == ranks_.end()) known = ranks_.emplace(sizes, rank_of_step(source, 0, sizes, request)).first;
  Graph rank = clone(known->second);
  apply_recompute(rank, plan.recomputed, plan.selective, plan.in_part);
  apply_offload(rank, plan.offloaded);
  const Graph step = shard_experts_over(
      std::move(rank), {.ranks = plan.experts, .apart = plan.tensor, .capacity = request.expert_capacity});
  std::vector<std::string> cuts;
  for (size_t s = 1; s < plan.stages.size(); ++s) cuts.push_back(plan.stages[s].begins);
  const StageOptions options{.spec = &request.device, .interconnect = &request.links, .gathers_once = false};
  const PipelineStages stages = PipelineStages::at_modules(step, cuts, options);
  const PlanSchedules::Entry* entry = schedules_.full(plan);
  if (entry == nullptr) {
    schedule_of(plan, plan.microbatches);  // throws the reason
    throw Error("no schedule exists for the sizes of " + to_string(plan));
  }
  int64_t units = 0;
  for (const PlannedStage& stage : plan.stages) units += stage.units;
  int64_t parameters = 0;
  for (int32_t s = 0; s < stages.count(); ++s) parameters += stages.of(s).parameters;
  const Replicas replicas = replicas_of(plan, request, units > 0 ? parameters / units : 0);
  TrainingPlan key = plan;
  key.data_outermost = false;
  const auto like = std::ranges::find_if(cached_runs_, [&](const CachedRun& other) {
    return other.plan == key && other.expert_capacity == request.expert_capacity;
  });
  PipelineRun run = PipelineRun::of(replicated(stages, replicas, request.device, &request.links), entry->schedule,
                                    {.interconnect = &request.links,
                                     .rank_stride = rank_stride(plan),
                                     .bytes_of = like != cached_runs_.end() ? &like->run : nullptr});
  if (like == cached_runs_.end()) {
    constexpr size_t kKept = 3;
    if (cached_runs_.size() == kKept) cached_runs_.pop_front();
    cached_runs_.push_back({std::move(key), request.expert_capacity, run});
  }
  int64_t on_host = 0;  // of the rank with the most
  for (int32_t rank = 0; rank < run.ranks(); ++rank) {
    int64_t bytes = run.rank(rank).host_peak;
    for (const int32_t s : run.rank(rank).stages) bytes += state_on_host(stages.of(s), replicas);
    on_host = std::max(on_host, bytes);
  }
  const auto [outside, weights] = outside_layers(step);
  const int64_t streams = other_streams(plan, request, outside, weights);
  SimulatedPlan result{.run = std::move(run), .other_streams = streams, .on_host = on_host};
  if (plan.layout != TensorParallelLayout::kMegatron) result.layouts = layouts_of(known->second);
  result.plan = std::move(plan);
  return result;
}

SimulatedPlan simulate_plan(const StepSource& source, const ClusterRequest& request, TrainingPlan plan) {
  return PlanSimulator().of(source, request, std::move(plan));
}

int64_t usable_memory(const ClusterRequest& request) {
  const int64_t all = request.memory.value_or(request.device.memory) - request.leave_free;
  const int64_t overhead = runtime_overhead_bytes(request.device);
  if (all <= overhead) {
    throw InfeasibleError(
        fmt::format("{} of device memory is not enough: the CUDA context and NCCL buffers alone need {}",
                    human_bytes(all), human_bytes(overhead)));
  }
  return all - overhead;
}

// NCCL groups: tensor parallel, data parallel, pipeline, and world.
int64_t runtime_overhead_bytes(const DeviceSpec& device) {
  const DeviceAssumptions assumed = DeviceAssumptions::of(device);
  return assumed.context + 4 * assumed.nccl_group;
}

}  // namespace shadowgraph
