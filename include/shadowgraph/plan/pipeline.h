// Pipeline parallelism: schedules, stages of a captured step, data parallel replicas, and simulation of all ranks.
//
//     const PipelineSchedule schedule = PipelineSchedule::named("1f1b", {.ranks = 4, .microbatches = 8});
//     schedule.with_transfers().to_csv();             // format of torch.distributed.pipelining ("compute_comms")
//
// Stages are numbered in forward order; a rank may have several. A rank executes its actions in order. Schedules have
// the same order as in torch.distributed.pipelining (2.13). It lacks v_half and v_min, but can run them from CSV.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/options.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"

namespace SHADOWGRAPH_API shadowgraph {

enum class PipelineWork : uint8_t {
  kForward,          // F
  kBackward,         // B: gradients of inputs and weights
  kInputGradient,    // I
  kWeightGradient,   // W
  kSendForward,      // SEND_F: output to the next stage
  kReceiveForward,   // RECV_F
  kSendBackward,     // SEND_B: input gradient to the previous stage
  kReceiveBackward,  // RECV_B
  kUnshard,          // UNSHARD: gather parameters; per stage, not per micro-batch
  kReshard,          // RESHARD
  kReduceGradients,  // REDUCE_GRAD
  // Wait for the transfer or reduction of an earlier action. Available in torch since 2.15.
  kWaitSendForward,   // WAIT_SEND_F
  kWaitSendBackward,  // WAIT_SEND_B
  kWaitReduce,        // WAIT_REDUCE_GRAD
};
constexpr int kPipelineWorks = 14;

struct PipelineAction {
  PipelineWork work = PipelineWork::kForward;
  bool overlaps_next = false;  // executed together with the next action: (..;..)OVERLAP_F_B
  int32_t stage = 0;
  int32_t microbatch = -1;  // negative: none
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};
// Returns "2F0", "3SEND_B1", "0UNSHARD".
std::string to_string(const PipelineAction& action);
// Returns whether the action computes: F, B, I or W.
bool computes(const PipelineAction& action);
bool transfers(const PipelineAction& action);

struct PipelineSize {
  int32_t ranks = 1;
  int32_t stages_per_rank = 1;
  int32_t microbatches = 1;
};

class PipelineSchedule {
 public:
  using Rows = std::vector<std::vector<PipelineAction>>;  // by rank

  // Throws Error that names the action for stages on two ranks, micro-batches not computed once, and deadlocks.
  PipelineSchedule(std::string name, Rows rows);

  // `name` is one of names(), described in docs/many-devices.md. Throws Error for sizes that it does not support.
  static PipelineSchedule named(std::string_view name, const PipelineSize& size);
  static std::vector<std::string> names();
  // Returns the number of stages per rank: `asked`, unless the schedule determines it.
  static int32_t stages_per_rank(std::string_view name, int32_t asked);

  // Parses one row per rank and one cell per action, with or without transfers; skips empty cells. Throws ParseError.
  static PipelineSchedule from_csv(std::string_view text, const std::string& name);
  static PipelineSchedule read_csv_file(const std::string& path);  // also throws FileError
  std::string to_csv() const;

  // Adds sends and receives between ranks, as early as torch does. Returns schedules that have transfers unchanged.
  PipelineSchedule with_transfers() const;
  // Adds missing waits for sends, placed as in torch: after the backward of the micro-batch, otherwise at the end.
  // Required by torch 2.15 and later for a CSV with transfers; not supported by earlier versions.
  PipelineSchedule with_send_waits() const;

  const std::string& name() const { return name_; }
  int32_t ranks() const { return static_cast<int32_t>(rows_->size()); }
  int32_t stages() const { return static_cast<int32_t>(rank_of_.size()); }
  int32_t microbatches() const { return microbatches_; }
  bool has_transfers() const { return has_transfers_; }
  int32_t rank_of(int32_t stage) const { return rank_of_[static_cast<size_t>(stage)]; }
  std::span<const PipelineAction> of(int32_t rank) const { return (*rows_)[static_cast<size_t>(rank)]; }

 private:
  std::string name_;
  std::shared_ptr<const Rows> rows_;  // shared by copies
  std::vector<int32_t> rank_of_;
  int32_t microbatches_ = 0;
  bool has_transfers_ = false;
};

// Stages of a pipeline, split from a captured training step of one micro-batch.
//
// A stage is a contiguous range of forward. Values used by later stages are sent from stage to stage. The backward of a
// stage is split in W, which computes only gradients of its own weights, and I, the rest. Nodes that depend on the
// program's inputs only, such as masks and position tables, are replicated in each stage that uses them.
//
// Memory is held as in torch.distributed.pipelining: a stage keeps its inputs and outputs until its backward of that
// micro-batch. Weight gradients are kept from the first micro-batch on; later ones are accumulated into them.

struct StageOptions {
  const DeviceSpec* spec = nullptr;            // nullptr: default for the graph's device (Machine::find)
  const Interconnect* interconnect = nullptr;  // of collectives within a stage; nullptr: they take no time
  // FSDP: parameters are gathered once per step (UNSHARD), and gradients are reduce-scattered once per step. Otherwise
  // for each micro-batch, as in tensor parallel layouts. All-reduces of gradients are done once in any case.
  bool gathers_once = true;
};

template <class T>
struct ByPiece {
  T forward{}, backward{}, input_gradient{}, weight_gradient{};
  const T& operator[](PipelineWork work) const {
    return work == PipelineWork::kForward         ? forward
           : work == PipelineWork::kBackward      ? backward
           : work == PipelineWork::kInputGradient ? input_gradient
                                                  : weight_gradient;
  }
};

// Seconds by piece. Backward as a whole may hide more communication than its two pieces separately.
using PieceSeconds = ByPiece<double>;

struct StageCosts {
  std::string begins;  // the module of its first node
  double forward = 0;  // seconds per micro-batch; likewise below
  double input_gradient = 0;
  double weight_gradient = 0;
  // Exposed communication of collectives within the stage (waits, and slowdown of concurrent compute), included above.
  // A piece ends when its collectives have completed.
  PieceSeconds exposed;
  // The same without collectives that the schedule itself runs once per step (UNSHARD, REDUCE_GRAD).
  PieceSeconds exposed_unsharded;
  // Time of offload copies, to CPU in forward and back in backward (shadowgraph/passes/recompute.h). They overlap with
  // all compute and communication of the rank: a piece takes at least as long as its copies.
  PieceSeconds copies;
  double unshard = 0;
  double reduce_gradients = 0;
  double accumulate = 0;       // accumulation of gradients
  double optimizer = 0;        // once per step
  int64_t weights = 0;         // elements of trained parameters
  int64_t expert_weights = 0;  // those of experts distributed over ranks (sharding/ranks/ranks.h)
  int64_t parameters = 0;      // bytes of persistent tensors:
  int64_t expert_parameters = 0;
  int64_t optimizer_state = 0;
  int64_t other = 0;           // buffers, constants
  int64_t inputs = 0;          // bytes of the program inputs it uses, per micro-batch
  int64_t gradients = 0;       // bytes of gradients of its weights
  int64_t carried = 0;         // bytes live from forward to backward, per micro-batch
  int64_t on_host = 0;         // bytes offloaded to CPU from forward to backward, per micro-batch
  int64_t awaiting = 0;        // additional bytes live between input gradient and weight gradient, per micro-batch
  int64_t sends_forward = 0;   // bytes to the next stage
  int64_t sends_backward = 0;  // bytes to the previous stage
  double backward() const {
    return input_gradient - exposed.input_gradient + weight_gradient - exposed.weight_gradient + exposed.backward;
  }
  // Seconds per micro-batch if the schedule gathers parameters and reduces gradients once per step.
  PieceSeconds unsharded() const {
    const PieceSeconds &with = exposed, &without = exposed_unsharded;
    return {.forward = forward - with.forward + without.forward,
            .backward = backward() - with.backward + without.backward,
            .input_gradient = input_gradient - with.input_gradient + without.input_gradient,
            .weight_gradient = weight_gradient - with.weight_gradient + without.weight_gradient};
  }
};

// A parameter shared by several stages, whose gradients are summed over them before the optimizer step.
struct TiedParameter {
  std::string name;
  int64_t gradient_bytes = 0;
  int64_t weights = 0;  // elements, if trained
  std::vector<int32_t> stages;
};

struct StageParts;

class PipelineStages {
 public:
  // `modules`: the modules whose first nodes start the second stage, the third, ... Throws Error for a module that does
  // not exist or is out of order, and for graphs that are not training steps.
  static PipelineStages at_modules(const Graph& step, std::span<const std::string> modules,
                                   const StageOptions& options = {});
  // Minimizes the time of the slowest stage over the cuts with the least communication; ties are broken by
  // communication. Also throws Error if forward has too few such cuts.
  static PipelineStages balanced(const Graph& step, int32_t stages, const StageOptions& options = {});

  // Creates stages from costs alone. `carried` bytes are allocated in F and freed in W; gradients are allocated in W.
  static PipelineStages of_costs(std::vector<StageCosts> figures);

  int32_t count() const { return static_cast<int32_t>(figures_.size()); }
  const StageCosts& of(int32_t stage) const { return figures_[static_cast<size_t>(stage)]; }
  const std::vector<TiedParameter>& tied() const { return tied_; }
  // Remarks for reports: parameters shared by several stages, tensors passed through stages.
  const std::vector<std::string>& notes() const { return notes_; }
  // Internal: parallel/stages/stage_parts.h.
  const StageParts& parts() const { return *parts_; }

 private:
  friend class StageCutting;
  friend class ReplicatedStages;
  std::vector<StageCosts> figures_;
  std::vector<TiedParameter> tied_;
  std::vector<std::string> notes_;
  std::shared_ptr<const StageParts> parts_;
};

// Extracts the pieces of a stage as graphs.
//
// Inputs of a piece are all values it reads: parameters, values from other stages, values saved by its forward. The
// note "parameter" has a parameter's name. Outputs are values that other pieces read or save. Executed in the order F,
// then I and W from the last stage to the first, the pieces compute the step's gradients.

// `work`: kForward, kBackward, kInputGradient or kWeightGradient. `step` is the unchanged graph that was split. Throws
// Error for other graphs, for stages created from costs, and for an invalid stage. Linear.
Subgraph stage_piece(const Graph& step, const PipelineStages& stages, int32_t stage, PipelineWork work);

// Data parallel replicas of a pipeline, optionally with ZeRO.
//
//     const Replicas replicas{.count = 64, .zero = 1, .ranks = ranks, .state = kMixedPrecision};
//     const PipelineStages shared = replicated(stages, replicas, h100, &links);
//     const PipelineSchedule schedule = with_gradient_reduction(PipelineSchedule::named("1f1b", size));
//     PipelineRun::of(shared, schedule, {.interconnect = &links});
//
// The step is captured for one replica. Memory and communication of replicas are derived from its costs:
//
//     zero  memory of each of D ranks                    communication per step
//     0     everything                                   all_reduce of gradients
//     1     state / D                                    reduce_scatter of gradients, all_gather of parameters
//     2     state / D, gradients / D, and one whole      the same, the former for each micro-batch
//           bucket of gradients, computed and sent
//     3     state, gradients, parameters / D, and two    the same, and all_gather in each forward and backward
//           whole buckets of parameters
//
// Experts distributed over ranks (sharding/ranks/ranks.h) have fewer replicas: the ranks with the same experts.
//
// With the optimizer offloaded to CPU (ZeRO-Offload, arXiv:2101.06840), its state is in host memory. After the last
// backward, a rank's gradients are copied to the host, the host runs the step, and parameters are copied back.
//
// Communication overlaps with forward and backward by bucket. It costs its exposed time, at least that of one bucket,
// and the device share that it uses (Interconnect::device_share).

// Bytes per element of a trained parameter, in addition to the parameter itself. std::nullopt: as captured.
struct TrainingState {
  // Gradient accumulation buffer, which is persistent.
  std::optional<int64_t> gradient;
  // Optimizer state, including main weights in higher precision. Read and written once by the optimizer step.
  std::optional<int64_t> optimizer;
};
// bfloat16 parameters; float32 gradients, main weights and both moments: Megatron-LM, FSDP2 with mixed precision.
constexpr TrainingState kMixedPrecision{.gradient = 4, .optimizer = 12};

struct Replicas {
  int64_t count = 1;
  int zero = 0;
  int64_t experts = 1;             // number of consecutive ranks that share the experts of a layer
  std::vector<int64_t> ranks;      // global ranks of the replicas of a stage; empty: consecutive
  bool optimizer_on_host = false;  // optimizer state and step are on the CPU: gradients and weights are copied
  int64_t bucket = 0;              // bytes of parameters per communication, such as a layer's; 0: the whole stage
  TrainingState state;
};

// Memory of a stage on a rank, except activations, in bytes.
struct ReplicaMemory {
  int64_t parameters = 0;       // sharded
  int64_t gathered = 0;         // buckets of unsharded parameters
  int64_t gradients = 0;        // sharded
  int64_t whole_gradients = 0;  // a bucket of unsharded gradients, as computed and as sent
  int64_t state = 0;            // optimizer state, sharded
  int64_t all() const { return parameters + gathered + gradients + whole_gradients + state; }
};
// `stage`: costs of one replica, as captured. Uses its parameters, weights, gradients and optimizer state.
ReplicaMemory replica_memory(const StageCosts& stage, const Replicas& replicas);

// Throws Error for an unknown ZeRO stage, a count below 1, a number of expert ranks that does not divide the count, and
// for experts with captured optimizer state. An optimizer on the CPU requires a device with known host bandwidth, and
// TrainingState::optimizer.
PipelineStages replicated(PipelineStages stages, const Replicas& replicas, const DeviceSpec& spec,
                          const Interconnect* links);

// Adds UNSHARD of each stage before its first action and REDUCE_GRAD after its last.
PipelineSchedule with_gradient_reduction(const PipelineSchedule& schedule);

// Simulates all ranks of a pipeline: time and memory.
//
// Each rank executes its actions in the order of the schedule on one stream. Sends and receives run concurrently, those
// between two ranks in one direction one after another, as do UNSHARD and REDUCE_GRAD. Gradients of tied weights are
// summed at the end of backward. Each rank has a caching allocator, which replays allocations in the order of its host.
// The step is one of the steady state; the optimizer step comes last.

class PipelineRun;

struct PipelineRunOptions {
  const Interconnect* interconnect = nullptr;  // between ranks; nullptr: transfers take no time
  // Distance in global rank between neighbors of the pipeline: the number of processes per stage.
  int64_t rank_stride = 1;
  AllocatorSettings allocator;
  // Fraction of exposed collective time that is hidden by the compute of an overlapped action, from 0 (none) to 1 (all
  // that fits). Compute times of overlapped actions are added in any case.
  double overlap = 1;
  // Allocate the receive buffers of all micro-batches in advance, as torch.distributed.pipelining does.
  bool preallocate_receives = false;
  // Reuse the memory results of a run of the same stages and schedule, as they do not depend on links.
  const PipelineRun* bytes_of = nullptr;
  bool memory = true;  // false: simulate time only
  size_t threads = 0;  // 0: all cores; does not affect the result

  static const OptionTable<PipelineRunOptions>& table();
};

// Idle seconds of a rank, by cause.
struct PipelineWaits {
  double before = 0;    // before its first action
  double forward = 0;   // for outputs of the previous stage
  double backward = 0;  // for gradients of the next stage
  double unshard = 0;   // for parameters: UNSHARD
  double reduce = 0;    // for gradients: REDUCE_GRAD, and sums of tied weights
  double after = 0;     // after its last action, until the last rank finishes
  double total() const { return before + forward + backward + unshard + reduce + after; }
};

struct PipelineRank {
  std::vector<int32_t> stages;
  double computing = 0;  // seconds, including the optimizer
  double optimizer = 0;  // seconds of the optimizer step, which comes last
  PipelineWaits waits;
  int64_t resident = 0;           // bytes of parameters, state, buffers and inputs
  int64_t peak = 0;               // peak live bytes, including resident ones
  PipelineAction peak_at;         // action at the peak; negative stage: the optimizer step
  int64_t allocated_peak = 0;     // of the allocator, in blocks
  int64_t reserved_peak = 0;      // of the allocator, in segments
  int64_t activations_peak = 0;   // peak bytes carried from forward to backward
  int64_t host_peak = 0;          // peak bytes offloaded to CPU
  int32_t microbatches_peak = 0;  // maximum number in flight, counted by stage
};

struct PipelineActionTime {
  PipelineAction action;
  double begin = 0;
  double end = 0;
  int64_t live = 0;  // bytes after the action
};

class PipelineRun {
 public:
  // Throws Error if the schedule has a different number of stages. Linear in the number of allocations.
  static PipelineRun of(PipelineStages stages, const PipelineSchedule& schedule,
                        const PipelineRunOptions& options = {});

  double seconds() const { return seconds_; }  // per step
  // Returns the fraction of the time of all ranks that is idle.
  double bubble() const;
  int32_t ranks() const { return static_cast<int32_t>(ranks_.size()); }
  const PipelineRank& rank(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]; }
  int32_t worst_rank() const;  // by reserved bytes, then live ones
  // Returns compute actions, and transfers when they ran, in order; without the optimizer step.
  std::span<const PipelineActionTime> actions(int32_t rank) const { return actions_[static_cast<size_t>(rank)]; }
  const PipelineSchedule& schedule() const { return *schedule_; }
  const PipelineStages& stages() const { return *stages_; }

 private:
  friend class PipelineClock;
  void take_bytes(const PipelineRun& other);
  double seconds_ = 0;
  std::vector<PipelineRank> ranks_;
  std::vector<std::vector<PipelineActionTime>> actions_;
  std::shared_ptr<const PipelineSchedule> schedule_;
  std::shared_ptr<const PipelineStages> stages_;
};

// Formats a table of ranks, the rank with the highest memory use, and idle time by cause.
std::string to_text(const PipelineRun& run);
nlohmann::json to_json(const PipelineRun& run);
// Writes a trace of all ranks for chrome://tracing and Perfetto: per rank, a lane for compute, lanes for each direction
// of transfers, and a counter of live bytes; arrows connect sends and receives.
std::string to_chrome_trace(const PipelineRun& run);

// Simulates captured graphs of several ranks together: waits between ranks, and the time of the step.
//
// Each graph is that of ranks[0] and represents all ranks in RankGraph::ranks, which do the same. Sends to a rank are
// received by its representative, and collectives are matched between the representatives of a group. Kernels and
// collectives run on the streams on which the program issued them (shadowgraph/profile/step_time.h). A collective
// starts when all participants have arrived. Sends from one rank to another run one after another.

struct RankGraph {
  const Graph* graph = nullptr;  // must outlive the run
  std::vector<int64_t> ranks;    // global ranks: the one it was captured for, then those that do the same
};

struct DistributedRunOptions {
  const DeviceSpec* spec = nullptr;            // nullptr: default for the graphs' device
  const Interconnect* interconnect = nullptr;  // nullptr: communication takes no time
};

struct DistributedRank {
  int64_t rank = 0;
  double computing = 0;  // seconds
  double end = 0;        // end of its compute
  // Seconds by cause: "receive from rank 3", "all_reduce of 8", "the host", "the end of the step".
  std::map<std::string, double> waits;
  double waiting() const;
};

class DistributedRun {
 public:
  // Throws Error if a rank is in several graphs, a destination in none, or communication deadlocks or does not match.
  static DistributedRun of(std::span<const RankGraph> ranks, const DistributedRunOptions& options = {});

  double seconds() const { return seconds_; }       // per step
  size_t ranks() const { return figures_.size(); }  // number of simulated ranks
  const DistributedRank& rank(size_t index) const { return figures_[index]; }
  struct Event {
    std::string name;
    bool computes = false;
    double begin = 0;
    double end = 0;
    int64_t other = -1;  // peer of a send or receive
    uint64_t pair = 0;   // id of a transfer, the same at both ends; 0: none
    bool sends = false;
  };
  std::span<const Event> events(size_t index) const { return events_[index]; }

 private:
  double seconds_ = 0;
  std::vector<DistributedRank> figures_;
  std::vector<std::vector<Event>> events_;
};

std::string to_text(const DistributedRun& run);
nlohmann::json to_json(const DistributedRun& run);
// Writes a trace with a process per rank, lanes for compute and communication, arrows from sends to receives.
std::string to_chrome_trace(const DistributedRun& run);

}  // namespace shadowgraph
