// Finds training plans for a cluster: degrees of parallelism, pipeline stages, recompute, and the resulting step time.
//
//     const ClusterPlan answer = plan_training(source, request);
//     answer.best().plan.tensor;  answer.best().run.seconds();  answer.bound;
//
// Algorithm:
//   1. A few layers are captured for each sharding of a micro-batch (tensor, context and expert parallel sizes,
//      micro-batch size), without and with full or selective recompute. The cost of an additional layer is extrapolated
//      to all layers (layer_chain.h).
//   2. All pipelines, schedules, ZeRO stages and mesh orders are searched, in order of their lower bounds. Stages are
//      chosen to minimize the time of the slowest stage, each recomputing as many layers as its memory requires.
//   3. The most promising plans are captured completely, split, and simulated on all ranks of a pipeline, including
//      allocators (PipelineRun).
//
// All plans returned have been simulated and fit in memory. According to the layer costs, no plan of the search space
// with stages split as described takes less than `bound` seconds.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shadowgraph/capture/attention_kernel.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/options.h"
#include "shadowgraph/plan/pipeline.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/shard/apply.h"

namespace SHADOWGRAPH_API shadowgraph {

struct StepSize {
  int64_t micro_batch = 1;
  int64_t layers = 0;  // number of layers of the model; 0: all
  AttentionKernel attention = AttentionKernel::kDevice;
};

struct StepSource {
  std::function<Graph(const StepSize&)> capture;  // forward, backward and optimizer (if any), on one device
  int64_t layers = 0;                             // of the model; 0: the number of layers cannot be reduced
  int64_t first_layers = 0;                       // number of leading layers of a different kind
  std::string name = "model";
  bool any_micro_batch = true;  // false: captures have a fixed micro-batch size, regardless of StepSize
  // Returns the same model with another sequence length; empty: not supported, disables context parallelism.
  std::function<StepSource(int64_t tokens)> with_sequence = {};
};

// Recompute of a layer's activations in backward. kSelective: everything except the results of products with weights,
// attention and convolutions (after their all-reduce). kCurve: points on the memory/time Pareto curve of rotor.
enum class Recompute : uint8_t { kNone, kSelective, kFull, kCurve };
constexpr auto enum_names(Recompute) { return names_in_order<Recompute>("none", "selective", "full", "curve"); }

// Layout over tensor parallel ranks: rules of Megatron-LM, or the solver of shadowgraph/shard/shard.h.
enum class TensorParallelLayout : uint8_t {
  kMegatron,
  kSolved,  // minimum time
  kLean,    // minimum time, where saved activations cost as much as recomputing them
};
constexpr auto enum_names(TensorParallelLayout) {
  return names_in_order<TensorParallelLayout>("megatron", "solved", "lean");
}

// Tensors that may be offloaded to CPU: saved activations, or main weights and moments with the optimizer step.
enum class Offload : uint8_t { kActivations, kOptimizer };
constexpr auto enum_names(Offload) { return names_in_order<Offload>("activations", "optimizer"); }

// To add an option, add a field and a row to the table, from which interfaces are derived (CONTRIBUTING.md).
struct ClusterRequest {
  int64_t devices = 1;
  DeviceSpec device;
  Interconnect links;
  std::optional<int64_t> memory;  // bytes per device; std::nullopt: the device's
  int64_t leave_free = 0;         // bytes of it to leave unused
  int64_t batch = 1;              // samples, or sequences, per step on all devices
  int64_t sequence = 0;           // tokens per sample; 0: unknown
  TrainingState state = kMixedPrecision;
  bool float8 = false;  // matrix products of layers in float8, except the head (passes/precision/float8.h)
  // Search space; empty: all reasonable values.
  std::vector<int64_t> tensor, context, pipeline, stages_per_rank, micro_batch, experts;
  std::vector<int> zero;
  std::vector<std::string> schedules;
  std::vector<AttentionKernel> attention;     // empty: PyTorch's choice for the device
  std::vector<TensorParallelLayout> layouts;  // empty: Megatron-LM's
  std::vector<Recompute> recompute;           // in addition to kNone; empty: all except kCurve
  std::vector<Offload> offload;               // tensors that may be offloaded to CPU
  // Expert capacity factor: rows that an expert rank has space for, relative to the mean. 1: balanced routing.
  double expert_capacity = 1;
  // Overlap of tensor parallel collectives in the target framework.
  CollectiveOverlap overlap = CollectiveOverlap::kNone;
  int simulated = 3;  // minimum number of plans to simulate

  bool may_offload(Offload what) const { return std::ranges::find(offload, what) != offload.end(); }
  // `devices`: "1024xh100", or "8" for the default device. `links`: name or file; "": the device's. Throws Error.
  static ClusterRequest on(const std::string& devices, const std::string& links);
  static const OptionTable<ClusterRequest>& table();
};

// Layers for which the same activations are saved and the rest is recomputed (Recompute::kCurve).
struct PartialRecompute {
  std::vector<std::string> layers;
  std::vector<std::string> keeps;  // saved forward results: "aten::mm#2" is that of the third aten::mm in the layer
  friend bool operator==(const PartialRecompute&, const PartialRecompute&) = default;
};

struct PlannedStage {
  std::string begins;      // module
  int64_t units = 0;       // layers, embedding, head, ...
  int64_t recomputed = 0;  // number of units with full recompute, the first ones
  int64_t selective = 0;   // number of units with selective recompute, following those
  int64_t in_part = 0;     // number of units with partial recompute (kCurve), following those
  int64_t offloaded = 0;   // number of units with activations offloaded to CPU
  friend bool operator==(const PlannedStage&, const PlannedStage&) = default;
};

struct TrainingPlan {
  int64_t tensor = 1;
  int64_t context = 1;  // ranks per sequence (sharding/ranks/ranks.h)
  int64_t data = 1;
  int64_t pipeline = 1;
  int64_t stages_per_rank = 1;
  int64_t experts = 1;       // consecutive replicas that share the experts of a layer
  int64_t micro_batch = 1;   // samples
  int64_t microbatches = 1;  // per step and replica
  int zero = 0;              // ZeRO stage: optimizer state, gradients, parameters sharded over the replicas
  std::string schedule = "1f1b";
  TensorParallelLayout layout = TensorParallelLayout::kMegatron;
  CollectiveOverlap overlap = CollectiveOverlap::kNone;  // of tensor parallel collectives
  AttentionKernel attention = AttentionKernel::kDevice;
  bool data_outermost = false;  // true: ranks of a pipeline are consecutive; false: data parallel ranks are
  std::vector<PlannedStage> stages;
  std::vector<std::string> recomputed;    // modules with full recompute
  std::vector<std::string> selective;     // modules with selective recompute (Recompute::kSelective)
  std::vector<PartialRecompute> in_part;  // modules recomputed by the curve
  std::vector<std::string> offloaded;     // modules with saved activations offloaded to CPU
  bool optimizer_on_host = false;         // optimizer state and step are on the CPU

  // Table of scalar fields: JSON keys, values by which neighbors differ (group), text of non-default values (summary).
  static const OptionTable<TrainingPlan>& table();
  int64_t replicas() const { return context * data; }  // ranks with the same weights
  int64_t devices() const { return tensor * replicas() * pipeline; }
  friend bool operator==(const TrainingPlan&, const TrainingPlan&) = default;
};
// Returns "tp 8, pp 16 x 4 interleaved, dp 64 zero 1, 128 x 1, optimizer on the host".
std::string to_string(const TrainingPlan& plan);

struct SimulatedPlan {
  TrainingPlan plan;
  PipelineRun run;
  double estimated = 0;         // seconds estimated from layer costs
  int64_t estimated_bytes = 0;  // on the rank with the highest memory use
  // Bytes reserved on streams that gather and reduce parameters outside of layers (ZeRO 2 and 3), which other streams
  // cannot reuse, and NCCL buffers of expert groups.
  int64_t other_streams = 0;
  int64_t on_host = 0;  // bytes offloaded to CPU, maximum of all ranks
  // Solver's layouts of parameters over tensor parallel ranks, for `shadowgraph shard --solution`: "S(0)".
  std::map<std::string, std::string> layouts;
  int64_t bytes() const;  // maximum device memory reserved by a rank, including other streams
};

// Best plan with another value of one option, estimated from layer costs.
struct PlanNeighbor {
  std::string option;             // "tensor"
  std::string value;              // "4"
  std::optional<double> seconds;  // std::nullopt: no such plan fits
  std::optional<int64_t> bytes;
  std::string plan;
  std::string why_not;
};

// A plan of the search, without stages, estimated from layer costs.
struct EstimatedPlan {
  TrainingPlan plan;
  double seconds = 0;
  int64_t bytes = 0;  // on the rank with the highest memory use
};

struct ClusterPlan {
  std::string name;
  ClusterRequest request;
  int64_t memory = 0;                    // bytes that a rank may reserve
  std::vector<SimulatedPlan> simulated;  // fastest first; all fit
  double bound = 0;                      // lower bound of the step time in seconds
  std::vector<PlanNeighbor> neighbors;
  // Seconds and bytes of the best plan if all rows possible are routed to the experts of one rank.
  std::optional<std::pair<double, int64_t>> worst_routing;
  std::vector<EstimatedPlan> estimated_plans;  // by lower bound; all others have higher bounds or do not fit
  std::map<std::string, int64_t> counted;      // statistics of the search: "tried", "too large", ...
  std::vector<std::string> notes;
  double table_seconds = 0, search_seconds = 0, simulation_seconds = 0;

  const SimulatedPlan& best() const { return simulated.front(); }
  double tokens_per_second() const;  // per device; 0 without a sequence length
  double model_flops_share() const;  // model FLOPs utilization (MFU); 0 if unknown
  // Per sample, forward and backward without recompute and without scores that causal masks exclude.
  double flops = 0;
};

// Throws InfeasibleError if no plan fits; Error for an invalid request, and the errors of captures.
ClusterPlan plan_training(const StepSource& source, const ClusterRequest& request);

// Captures a plan completely and simulates all ranks of one of its pipelines. Throws Error for an invalid plan.
SimulatedPlan simulate_plan(const StepSource& source, const ClusterRequest& request, TrainingPlan plan);

std::string to_text(const ClusterPlan& answer);
nlohmann::json to_json(const ClusterPlan& answer);
nlohmann::json to_json(const TrainingPlan& plan);

// Simulation of plans from other sources, for comparison.
//
// {"tensor": 8, "pipeline": 16, "stages_per_rank": 8, "schedule": "interleaved", "zero": 1, "micro_batch": 1}
//
// Keys are those of to_json(TrainingPlan), as in plan.json. Some may be omitted or abbreviated:
//   data, microbatches  default: determined by devices and batch
//   overlap             default: that of the request
//   stages              numbers of units, such as [9, 8, 8, 7], or the first module of each; default: equal numbers,
//                       with one more in the first stages
//   recomputed          names of layers; "all"; or the number of leading layers of each stage: [4, 4, 0, 0]
//   selective           likewise, for layers not in `recomputed`
//
// Throws ParseError for unknown keys, invalid values, and stages and layers that the model does not have. Throws Error
// for more ranks than devices or more stages than units.
TrainingPlan parse_plan(std::string_view text, const StepSource& source, const ClusterRequest& request);
// Parses a plan for a captured step. Degrees that are omitted are 1.
TrainingPlan parse_plan(std::string_view text, const Graph& step);

// Scenarios: re-plans a model with more devices, faster links, other memory, other batches.
//
// A row of a table is the best plan for a modified request, simulated as in plan_training(). Layer costs are cached
// between rows and between scenarios if the captured step and the links are the same.

enum class PlanSweepKind : uint8_t {
  kDevices,   // step time by number of devices, and where efficiency drops below `share`
  kNetwork,   // step time with faster links, and exposed communication
  kMemory,    // step time by device memory, and the minimum required
  kBatch,     // step time by batch, and the largest batch without accumulation
  kSequence,  // the longest sequence that fits
  kPrice,     // the cheapest cluster that trains a number of tokens in time
};
constexpr auto enum_names(PlanSweepKind) {
  return names_in_order<PlanSweepKind>("devices", "network", "memory", "batch", "sequence", "price");
}

// Available devices with a user-defined price.
struct DeviceOffer {
  DeviceSpec device;
  Interconnect links;
  double per_hour = 0;  // per device, in any currency
  int64_t most = 0;     // number of devices; 0: unlimited
};
// Reads JSON {"h100": 2.5, "a100": {"per_hour": 1.2, "most": 512, "interconnect": "a100"}}, with devices by name or
// file. Throws ParseError, FileError, and Error for unknown devices and interconnects.
std::vector<DeviceOffer> read_offers(const std::string& path);
std::vector<DeviceOffer> parse_offers(const std::string& text, const std::string& name);

struct PlanSweepOptions {
  PlanSweepKind kind = PlanSweepKind::kDevices;
  // Numbers of devices; bandwidth factors; bytes per device; samples; tokens per sequence. Empty: around the request's.
  std::vector<double> values = {};
  double share = 0.4;  // minimum model FLOPs utilization, for kDevices and kBatch
  double tokens = 0;   // total training tokens
  double within = 0;   // time limit in seconds
  std::vector<DeviceOffer> offers = {};

  // All options except `about` and `values`.
  static const OptionTable<PlanSweepOptions>& table();
};

// Parses values of a topic: "512", "80GB", "2". Throws Error.
std::vector<double> sweep_values(PlanSweepKind kind, const std::vector<std::string>& words);

struct PlanRow {
  std::string value;  // "2048", "infiniband x 2"
  double number = 0;
  std::string why_not;  // reason if there is no plan; fields below are then unset
  TrainingPlan plan;
  int64_t devices = 0;
  double seconds = 0;              // per step
  int64_t bytes = 0;               // on the rank with the highest memory use
  double tokens_per_second = 0;    // per device; 0 without a sequence length
  double share = 0;                // model FLOPs utilization
  double exposed = 0;              // exposed communication per step in seconds, mean of all ranks
  double waiting = 0;              // fraction of the time of all ranks that is idle
  double training = 0, price = 0;  // total seconds and price, for kPrice
};

struct PlanTable {
  PlanSweepKind kind = PlanSweepKind::kDevices;
  std::string title, head;  // head: heading of the first column
  std::vector<PlanRow> rows;
  std::vector<std::string> findings;  // conclusions, in sentences
};

class PlanSweep {
 public:
  PlanSweep(StepSource source, ClusterRequest request);
  ClusterPlan plan();
  // Throws Error if the source does not support the scenario, and the errors of captures.
  PlanTable run(const PlanSweepOptions& question);
  // Simulates a plan from another source, see parse_plan(). It need not fit in memory.
  SimulatedPlan simulate(std::string_view plan);

 private:
  struct Kept;
  std::shared_ptr<Kept> kept_;
};

std::string to_text(const PlanTable& table);
nlohmann::json to_json(const PlanTable& table);

}  // namespace shadowgraph
