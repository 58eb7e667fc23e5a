// Pipelines: schedules, the stages of a step, replicas, and all ranks in seconds and bytes.
//
//     const PipelineSchedule schedule = PipelineSchedule::named("1f1b", {.ranks = 4, .microbatches = 8});
//     schedule.with_transfers().to_csv();             // as torch.distributed.pipelining reads it ("compute_comms")
//     PipelineSchedule::read_csv_file("plan.csv");
//
// Stages are numbered in the order of forward; several may lie on one rank. A rank does its actions in order. The
// orders are those of torch.distributed.pipelining (2.13), and tests compare them action by action. It has no v_half
// and v_min, and runs them from their CSV.
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
  kSendForward,      // SEND_F: the output, to the next stage
  kReceiveForward,   // RECV_F
  kSendBackward,     // SEND_B: the input's gradient, to the stage before
  kReceiveBackward,  // RECV_B
  kUnshard,          // UNSHARD: parameters are gathered; of the stage, not of a micro-batch
  kReshard,          // RESHARD
  kReduceGradients,  // REDUCE_GRAD
  // Until the transfer or the reduction of an earlier action is over. torch has them since 2.15.
  kWaitSendForward,   // WAIT_SEND_F
  kWaitSendBackward,  // WAIT_SEND_B
  kWaitReduce,        // WAIT_REDUCE_GRAD
};
constexpr int kPipelineWorks = 14;

struct PipelineAction {
  PipelineWork work = PipelineWork::kForward;
  bool overlaps_next = false;  // computed together with the action behind it: (..;..)OVERLAP_F_B
  int32_t stage = 0;
  int32_t microbatch = -1;  // below 0: none
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};
// "2F0", "3SEND_B1", "0UNSHARD".
std::string to_string(const PipelineAction& action);
// Whether it computes: F, B, I or W.
bool computes(const PipelineAction& action);
// Whether it sends or receives.
bool transfers(const PipelineAction& action);

struct PipelineSize {
  int32_t ranks = 1;
  int32_t stages_per_rank = 1;
  int32_t microbatches = 1;
};

class PipelineSchedule {
 public:
  using Rows = std::vector<std::vector<PipelineAction>>;  // by rank

  // Throws Error for an order that cannot be run, and names the action. A stage may be on two ranks, a micro-batch be
  // computed twice or not at all, or ranks wait for each other.
  PipelineSchedule(std::string name, Rows rows);

  // One of names(); docs/many-devices.md says what each is. Throws Error for sizes that the schedule is not made for.
  static PipelineSchedule named(std::string_view name, const PipelineSize& size);
  static std::vector<std::string> names();
  // How many stages each rank has: the number given, where the schedule leaves it open.
  static int32_t stages_per_rank(std::string_view name, int32_t asked);

  // A row a rank, a cell an action; empty cells are passed over. With transfers or without. Throws ParseError.
  static PipelineSchedule from_csv(std::string_view text, const std::string& name);
  static PipelineSchedule read_csv_file(const std::string& path);  // throws FileError, too
  std::string to_csv() const;

  // Sends and receives between ranks, each as early as torch puts it. What has some already is given back as it is.
  PipelineSchedule with_transfers() const;
  // A wait for each send that has none, where torch puts it: behind the backward of its micro-batch, else at the end.
  // torch from 2.15 on wants them where a CSV has transfers; earlier ones know no such action.
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
  std::shared_ptr<const Rows> rows_;  // of all copies
  std::vector<int32_t> rank_of_;
  int32_t microbatches_ = 0;
  bool has_transfers_ = false;
};

// A captured training step of one micro-batch, cut into the stages of a pipeline.
//
//     const Graph& step = capture.graph;                                  // forward, backward, optimizer
//     const auto stages = PipelineStages::balanced(step, 4, {.spec = &h100, .interconnect = &links});
//     stages.of(2).forward;                                               // seconds of a micro-batch
//
// A stage is a stretch of forward. What its nodes hand on to later stages is sent from stage to stage. Each stage has
// its nodes' backward in two pieces: W has what leads to gradients of its own weights alone, I all else. What depends
// on the program's inputs alone, such as masks and tables of positions, is computed in each stage that uses it.
//
// Memory is held as torch.distributed.pipelining holds it: a stage keeps what it was given and what it sent until its
// backward of that micro-batch. Gradients of weights stay from the first micro-batch on; later ones are added to them.

struct StageOptions {
  const DeviceSpec* spec = nullptr;            // none: what fits the graph's device (Machine::find)
  const Interconnect* interconnect = nullptr;  // of collectives inside a stage; none: they cost nothing
  // Schedules gather what the program itself gathers of parameters (UNSHARD), and scatter sums of gradients once a
  // step: FSDP. Otherwise each micro-batch does, as a layout of tensor parallel may. Whole gradients are summed once in
  // any case.
  bool gathers_once = true;
};

template <class T>
struct ByPiece {
  T forward{}, backward{}, input_gradient{}, weight_gradient{};
  // `work`: kForward, kBackward, kInputGradient or kWeightGradient.
  const T& operator[](PipelineWork work) const {
    return work == PipelineWork::kForward         ? forward
           : work == PipelineWork::kBackward      ? backward
           : work == PipelineWork::kInputGradient ? input_gradient
                                                  : weight_gradient;
  }
};

// Seconds by piece. Backward as a whole may hide more than its two pieces apart.
using PieceSeconds = ByPiece<double>;

struct StageFigures {
  std::string begins;  // the module of its first node
  double forward = 0;  // seconds of one micro-batch, as all here
  double input_gradient = 0;
  double weight_gradient = 0;
  // What collectives inside the stage cost a piece: it waits for them, or computes slower beside them. It is in the
  // seconds above. What is under way when a piece ends is waited for.
  PieceSeconds exposed;
  // The same where schedules gather the stage's parameters (UNSHARD) and add up gradients (REDUCE_GRAD): those
  // collectives are then in no piece, and take these seconds.
  PieceSeconds exposed_unsharded;
  // What copies of engines take, to the host in forward and back in backward (shadowgraph/passes/recompute.h). They run
  // beside all that the rank computes and communicates: a piece takes as long as its copies at least.
  PieceSeconds copies;
  double unshard = 0;
  double reduce_gradients = 0;
  double accumulate = 0;       // adding gradients to those of earlier micro-batches
  double optimizer = 0;        // once a step
  int64_t weights = 0;         // elements of parameters that are trained
  int64_t expert_weights = 0;  // of these, of experts that are on several ranks (sharding/ranks/ranks.h)
  int64_t parameters = 0;      // bytes of what is there from the beginning:
  int64_t expert_parameters = 0;
  int64_t optimizer_state = 0;
  int64_t other = 0;           // buffers, constants
  int64_t inputs = 0;          // bytes of the program's inputs that it uses, of one micro-batch
  int64_t gradients = 0;       // bytes of gradients of its weights
  int64_t carried = 0;         // bytes alive from forward to backward, of one micro-batch
  int64_t on_host = 0;         // bytes that wait on the host from forward to backward, of one micro-batch
  int64_t awaiting = 0;        // bytes alive from the input's gradient to the weights' beside those, of one micro-batch
  int64_t sends_forward = 0;   // bytes to the next stage
  int64_t sends_backward = 0;  // bytes to the stage before
  double backward() const {
    return input_gradient - exposed.input_gradient + weight_gradient - exposed.weight_gradient + exposed.backward;
  }
  // What each micro-batch takes where a schedule gathers and sums once a step.
  PieceSeconds unsharded() const {
    const PieceSeconds &with = exposed, &without = exposed_unsharded;
    return {.forward = forward - with.forward + without.forward,
            .backward = backward() - with.backward + without.backward,
            .input_gradient = input_gradient - with.input_gradient + without.input_gradient,
            .weight_gradient = weight_gradient - with.weight_gradient + without.weight_gradient};
  }
};

// A parameter that several stages hold: its gradients are added over them before the optimizer's step.
struct TiedParameter {
  std::string name;
  int64_t gradient_bytes = 0;
  int64_t weights = 0;  // elements, if it is trained
  std::vector<int32_t> stages;
};

struct StageParts;

class PipelineStages {
 public:
  // `modules`: where the second stage begins, the third, ..: at the first node of a module. Throws Error for a module
  // that is not there or does not come after the one before, and for graphs that are no training steps.
  static PipelineStages at_modules(const Graph& step, std::span<const std::string> modules,
                                   const StageOptions& options = {});
  // Where the slowest stage is quickest, of cuts that hand on least; of equally quick ones those that send least.
  // Throws Error, too, if forward has fewer such places.
  static PipelineStages balanced(const Graph& step, int32_t stages, const StageOptions& options = {});

  // Stages of which no more is known than these figures: from a planner, or from measurements. What is carried is
  // allocated in F and freed in W, and gradients come in W.
  static PipelineStages of_figures(std::vector<StageFigures> figures);

  int32_t count() const { return static_cast<int32_t>(figures_.size()); }
  const StageFigures& of(int32_t stage) const { return figures_[static_cast<size_t>(stage)]; }
  const std::vector<TiedParameter>& tied() const { return tied_; }
  // What a reader should know: parameters that several stages hold, tensors that are handed through.
  const std::vector<std::string>& notes() const { return notes_; }
  // For the rooms of parallel/: parallel/stages/stage_parts.h.
  const StageParts& parts() const { return *parts_; }

 private:
  friend class StageCutting;
  friend class ReplicatedStages;
  std::vector<StageFigures> figures_;
  std::vector<TiedParameter> tied_;
  std::vector<std::string> notes_;
  std::shared_ptr<const StageParts> parts_;
};

// The pieces of a stage as graphs.
//
//     const Subgraph forward = stage_piece(step.graph, stages, 2, PipelineWork::kForward);
//     forward.graph;                      // to print, verify, profile, replay, emit
//     forward.inputs; forward.outputs;    // values of the step, in the order of the graph's inputs and outputs
//
// What a piece reads is an input: parameters, what other stages hand on, what its own forward has kept. The note
// "parameter" has a parameter's name. What others read or keep is an output. Run in the order F, then I and W of the
// last stage, of the one before, ..., they give the step's gradients.

// `work`: kForward, kBackward, kInputGradient or kWeightGradient. `step` is the graph that the stages were cut from, as
// it was. Throws Error for others, for stages of figures alone, and for a stage that is not there. Linear.
Subgraph stage_piece(const Graph& step, const PipelineStages& stages, int32_t stage, PipelineWork work);

// Replicas of a pipeline: data parallel ranks that share one stage, with ZeRO or without.
//
//     const PipelineStages shared = replicated(stages, {.count = 64, .zero = 1, .ranks = ranks, .state = kMixed}, h100, &links);
//     const PipelineSchedule schedule = with_sums(PipelineSchedule::named("1f1b", size));
//     PipelineRun::of(shared, schedule, {.interconnect = &links});
//
// The step is captured for one replica. What replicas share is a law of its figures, as the engines of the field do it:
//
//     zero  what each of D ranks has                     what is sent, a step
//     0     everything                                   all_reduce of gradients
//     1     state / D                                    reduce_scatter of gradients, all_gather of parameters
//     2     state / D, gradients / D, and those of one   the same, the former each micro-batch
//           bucket whole, as computed and as sent
//     3     state, gradients, parameters / D, and those  the same, and all_gather in each forward and backward
//           of two buckets whole
//
// Experts that are on several ranks (sharding/ranks/ranks.h) have fewer replicas: those ranks that have the
// same ones. Theirs is the same law over these.
//
// An optimizer on the host has its state there (ZeRO-Offload, arXiv:2101.06840). Behind the last backward a rank's
// share of gradients is copied, the host steps, and parameters are copied back, one after another.
//
// What is sent goes bucket by bucket beside forward and backward. It costs what they do not hide, one bucket at least,
// and what it takes of the device meanwhile (Interconnect::device_share).

// Bytes of an element of a trained parameter, beside the parameter itself. Nothing: as captured.
struct TrainingState {
  // The buffer to which gradients are added. It is there from the beginning.
  std::optional<int64_t> gradient;
  // The optimizer's state, weights in higher precision included. Its step reads and writes all of it once.
  std::optional<int64_t> optimizer;
};
// Parameters in bfloat16, gradients, main weights and both moments in float32: Megatron-LM, FSDP2 with mixed precision.
constexpr TrainingState kMixedPrecision{.gradient = 4, .optimizer = 12};

struct Replicas {
  int64_t count = 1;
  int zero = 0;
  int64_t experts = 1;             // of these ranks, neighbours, share the experts of a layer
  std::vector<int64_t> ranks;      // of those that share a stage, in the whole program; empty: neighbours
  bool optimizer_on_host = false;  // its state is there: gradients go, weights come back, the host runs the step
  int64_t bucket = 0;              // bytes of parameters that are sent at once, such as a layer's; 0: all of a stage
  TrainingState state;
};

// What a rank holds of a stage beside activations. Bytes.
struct HeldBytes {
  int64_t parameters = 0;       // its share
  int64_t gathered = 0;         // buckets of parameters, whole
  int64_t gradients = 0;        // its share
  int64_t whole_gradients = 0;  // a bucket of gradients, as computed and as sent
  int64_t state = 0;            // of the optimizer: its share
  int64_t all() const { return parameters + gathered + gradients + whole_gradients + state; }
};
// `stage`: of one replica, as captured. Its parameters, weights, gradients and optimizer state count.
HeldBytes held_by(const StageFigures& stage, const Replicas& replicas);

// Throws Error for a stage of ZeRO that there is none of, and for a count below 1. Throws it, too, for experts on a
// number of ranks that does not divide the count, and for those with captured optimizer state. An optimizer on the host
// needs a device whose host's bandwidth is known, and its state by element.
PipelineStages replicated(PipelineStages stages, const Replicas& replicas, const DeviceSpec& spec,
                          const Interconnect* links);

// The same order, with UNSHARD of each stage before its first action and REDUCE_GRAD behind its last.
PipelineSchedule with_sums(const PipelineSchedule& schedule);

// All ranks of a pipeline, in seconds and bytes.
//
//     const auto stages = PipelineStages::balanced(step.graph, 4, {.spec = &h100});
//     const auto schedule = PipelineSchedule::named("1f1b", {.ranks = 4, .microbatches = 16});
//     const PipelineRun run = PipelineRun::of(stages, schedule, {.interconnect = &links});
//     run.seconds(); run.bubble(); run.rank(0).peak;
//     to_text(run);
//
// Each rank does its actions in the schedule's order on one stream. Sends and receives run beside it, one after another
// between two ranks in one direction; so do UNSHARD and REDUCE_GRAD. Gradients of weights that several ranks hold are
// added at the end of backward. Bytes are played through the caching allocator of each rank, in the order in which
// its host allocates them. The step is one of the steady state, and the optimizer's comes last.

class PipelineRun;

struct PipelineRunOptions {
  const Interconnect* interconnect = nullptr;  // between ranks; none: sending takes no time
  // How far apart two neighbours of the pipeline are in rank: the processes of one stage, such as 8 of tensor parallel.
  int64_t ranks_apart = 1;
  AllocatorSettings allocator;
  // Where two actions overlap, this share of what collectives expose hides behind the other's computing, as far as that
  // goes: 1 all, 0 nothing. Their computing takes its sum in any case.
  double overlap = 1;
  // torch.distributed.pipelining has room for what it receives of all micro-batches from the beginning; other engines
  // take it when it comes.
  bool receives_ahead = false;
  // Bytes are those of this run of the same stages in the same order, which links do not change.
  const PipelineRun* bytes_of = nullptr;
  bool memory = true;  // false: seconds alone, and no bytes
  size_t threads = 0;  // 0: as many as the machine has; the result is the same

  static const OptionTable<PipelineRunOptions>& table();
};

// Seconds in which a rank does not compute, by cause.
struct PipelineWaits {
  double before = 0;    // its first action
  double forward = 0;   // for what the stage before sends
  double backward = 0;  // for gradients of the next stage
  double unshard = 0;   // for a stage's parameters: UNSHARD
  double reduce = 0;    // for sums of gradients: REDUCE_GRAD, and weights that several stages hold
  double after = 0;     // its last action, until the last rank is done
  double total() const { return before + forward + backward + unshard + reduce + after; }
};

struct PipelineRank {
  std::vector<int32_t> stages;
  double computing = 0;  // seconds, the optimizer included
  double optimizer = 0;  // seconds of its step, the last that the rank computes
  PipelineWaits waits;
  int64_t resident = 0;           // bytes of parameters, state, buffers and inputs
  int64_t peak = 0;               // most live bytes, resident ones included
  PipelineAction peak_at;         // while it did this; stage below 0: in the optimizer's step
  int64_t allocated_peak = 0;     // of the allocator, in blocks
  int64_t reserved_peak = 0;      // in segments
  int64_t activations_peak = 0;   // most bytes carried from forward to backward
  int64_t host_peak = 0;          // most bytes that waited on the host
  int32_t microbatches_peak = 0;  // most that were between forward and backward, counted by stage
};

struct PipelineActionTime {
  PipelineAction action;
  double begin = 0;
  double end = 0;
  int64_t live = 0;  // bytes after it
};

class PipelineRun {
 public:
  // Throws Error where the schedule has another number of stages. Linear in what the actions allocate.
  static PipelineRun of(PipelineStages stages, const PipelineSchedule& schedule,
                        const PipelineRunOptions& options = {});

  double seconds() const { return seconds_; }  // of a step
  // The share of all ranks' time in which they wait.
  double bubble() const;
  int32_t ranks() const { return static_cast<int32_t>(ranks_.size()); }
  const PipelineRank& rank(int32_t rank) const { return ranks_[static_cast<size_t>(rank)]; }
  int32_t worst_rank() const;  // by reserved bytes, then live ones
  // In order: what computes, and transfers when they ran. The optimizer's step is none of them.
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

// A table of ranks, the worst of them and why, waits by cause.
std::string to_text(const PipelineRun& run);
nlohmann::json to_json(const PipelineRun& run);
// All ranks for chrome://tracing and Perfetto. A rank has a lane for computing, one for each direction of transfers,
// and a counter of live bytes; arrows go from sends to receives.
std::string to_chrome_trace(const PipelineRun& run);

// Captured graphs of many ranks, run against each other: what they wait for, and how long the step takes.
//
//     const std::vector<RankGraph> ranks = {{.graph = &first, .ranks = {0, 1}}, {.graph = &last, .ranks = {2, 3}}};
//     const RankGraphsRun run = RankGraphsRun::of(ranks, {.spec = &h100, .interconnect = &links});
//     run.seconds(); run.rank(1).waits;
//
// Each graph is that of ranks[0], which runs for all that do the same (RankGraph::ranks). What it sends to another rank
// goes to the one that runs for that, and in a group those meet who run. A rank's kernels and collectives lie on the
// streams on which its program issued them (shadowgraph/profile/step_time.h). A collective begins when all who take
// part have come. Sends to a rank run one after another, as do receives from it.

struct RankGraph {
  const Graph* graph = nullptr;  // outlives the run
  std::vector<int64_t> ranks;    // of the whole program: the one it was captured as, then those that do the same
};

struct RankGraphsOptions {
  const DeviceSpec* spec = nullptr;            // none: what fits the graphs' device
  const Interconnect* interconnect = nullptr;  // none: communicating takes no time
};

struct RankFigures {
  int64_t rank = 0;
  double computing = 0;  // seconds
  double end = 0;        // of its computing
  // Seconds by cause: "receive from rank 3", "all_reduce of 8", "the host", "the end of the step".
  std::map<std::string, double> waits;
  double waiting() const;
};

class RankGraphsRun {
 public:
  // Throws Error for a rank that several graphs run for, and for one that is sent to and that none runs for. Throws it,
  // too, for ranks that wait for ever or do not meet in what they communicate.
  static RankGraphsRun of(std::span<const RankGraph> ranks, const RankGraphsOptions& options = {});

  double seconds() const { return seconds_; }       // of a step
  size_t ranks() const { return figures_.size(); }  // that run
  const RankFigures& rank(size_t index) const { return figures_[index]; }
  // What a rank did when: name, begin, end; communications too.
  struct Event {
    std::string name;
    bool computes = false;
    double begin = 0;
    double end = 0;
    int64_t other = -1;  // rank of a send or receive
    uint64_t pair = 0;   // number of a transfer, the same at both ends; 0: none
    bool sends = false;
  };
  std::span<const Event> events(size_t index) const { return events_[index]; }

 private:
  double seconds_ = 0;
  std::vector<RankFigures> figures_;
  std::vector<std::vector<Event>> events_;
};

std::string to_text(const RankGraphsRun& run);
nlohmann::json to_json(const RankGraphsRun& run);
// A process a rank, lanes for computing and communicating, arrows from sends to receives.
std::string to_chrome_trace(const RankGraphsRun& run);

}  // namespace shadowgraph
