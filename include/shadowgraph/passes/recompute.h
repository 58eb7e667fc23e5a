// Recompute: activation checkpointing of captured steps, choice of the activations to save, and offload to CPU.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

// An option to save a stage from forward to backward.
struct ChainOption {
  int64_t saved = 0;      // bytes on the device, including the stage's output
  int64_t cost = 0;       // of recomputing the rest, or exposed transfer time
  int64_t offloaded = 0;  // bytes offloaded to CPU
  friend bool operator==(const ChainOption&, const ChainOption&) = default;
};

// A stage of a chain. Bytes exclude the stage's input; costs are integers in any unit.
struct ChainStage {
  std::string name;
  int64_t forward = 0;        // cost of recomputing it with all its outputs
  int64_t backward = 0;       // cost of its backward; the same for all schedules
  int64_t recompute = 0;      // cost of recomputing only what its own backward needs: at most `forward`
  int64_t output = 0;         // bytes passed to the next stage
  int64_t forward_peak = 0;   // peak bytes in forward if only the output is saved
  int64_t keeping_peak = 0;   // peak bytes in forward if everything is saved
  int64_t backward_peak = 0;  // peak bytes in its backward, including everything it saved and everything left by later
                              // stages (gradients of parameters)
  int64_t resident = 0;  // bytes live when it is recomputed, without its forward: the gradient of its output, tensors
                         // left by later stages
  std::vector<ChainOption> options;  // the first saves everything at no cost
  // If true, a recomputed segment may start and end here. A stage within a segment is recomputed in any case.
  bool droppable = true;
  friend bool operator==(const ChainStage&, const ChainStage&) = default;
};

// Stages that are run without saving anything, and recomputed together when backward reaches them.
struct ChainSegment {
  size_t first = 0;
  size_t last = 0;
  friend bool operator==(const ChainSegment&, const ChainSegment&) = default;
};

struct ChainSchedule {
  int64_t cost = 0;                    // total recompute cost
  int64_t bytes = 0;                   // maximum memory, in whole slots
  std::vector<size_t> option;          // by stage: option used in the last run before its backward
  std::vector<ChainSegment> segments;  // outer segments before nested ones
  friend bool operator==(const ChainSchedule&, const ChainSchedule&) = default;
};

// Minimizes the recompute cost of a chain of stages, with backward in reverse, within a memory budget.
//
// Uses the dynamic program of rotor (Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, "Optimal checkpointing
// for heterogeneous chains"), extended with several options to save a stage, as in Rockmate (Zhao et al. 2023). For
// stages s..t, with the input of s in memory and m additional bytes, the minimum cost is the minimum of
//
//     keep       an option o of s:    cost of o  +  min(s+1, t, m - saved of o)
//     drop       run s .. k-1, saving only the input of k:
//                forward of s .. k-1  +  min(k, t, m - that input)  +  min(s, k-1, m)
//
// It is optimal among schedules that keep saved activations until their backward. Memory is discretized into slots,
// with all sizes rounded up: a schedule never exceeds its budget, but may cost slightly more than necessary. Time:
// slots x stages^3 / 6; 100 stages and 500 slots take tens of milliseconds. Memory: 8 x slots x stages^2 bytes.
class ChainSolver {
 public:
  // Solves for all budgets up to `bytes`. Throws Error for no options, negative values, and `slots` below 1.
  ChainSolver(std::span<const ChainStage> stages, int64_t bytes, int64_t slots = 500);

  // Returns std::nullopt if no schedule fits.
  std::optional<ChainSchedule> schedule(int64_t bytes) const;
  // Returns the Pareto curve, by increasing cost and decreasing memory.
  std::vector<ChainSchedule> curve() const;

 private:
  const double* row(size_t first, size_t last) const { return costs_.data() + (first * count_ + last) * width_; }
  double* row(size_t first, size_t last) { return costs_.data() + (first * count_ + last) * width_; }
  size_t slots_of(int64_t bytes) const;
  double units_of(int64_t cost) const;
  void solve(size_t first, size_t last);
  ChainSchedule trace(size_t memory) const;

  std::vector<ChainStage> stages_;
  size_t count_ = 0;
  int64_t slot_ = 1;  // bytes per slot
  double unit_ = 1;   // unit of costs: greater than 1 if their sums would exceed 2^53
  size_t width_ = 1;  // number of slots, plus one
  // Integers stored as doubles, since CPUs have vector comparisons for doubles, but not for integers of this size.
  std::vector<double> costs_;   // minimum cost by first and last stage and memory
  std::vector<size_t> fewest_;  // minimum slots for each range
};

// Returns the exposed time of tensors that are offloaded to CPU in forward and copied back in backward, which overlap
// with `hidden_out` and `hidden_back` of compute, in the same unit. `bytes_per_unit` is the bandwidth of the link.
int64_t exposed_transfer(int64_t bytes, double bytes_per_unit, int64_t hidden_out, int64_t hidden_back);

// Activation checkpointing of a captured training step: backward recomputes activations that forward does not save.
// docs/checkpoints.md describes the rewritten graph and the policies.
//
// In a forward graph, which has no backward, segments become regions of kind checkpoint: calls of checkpoint() in
// generated code and in torch.fx. A segment is then recomputed as a whole. See also assumed_step().

// A segment that is recomputed together: the forward nodes of some regions, including all nodes between the first and
// the last, or the nodes from `first` to `last`, regardless of regions.
struct CheckpointSegment {
  std::string name;               // name of its region of kind checkpoint
  std::vector<RegionId> regions;  // siblings, in program order; one or more
  NodeId first = {}, last = {};   // alternative to regions
  // Storages created in the segment that are saved, with everything their producers create; recompute reuses them. In a
  // nested segment, they are saved from the recompute of the outer segment on.
  std::vector<StorageId> keep = {};
  // Saved storages that are offloaded to CPU until backward; only for segments that are not nested. Storages that
  // backward writes, that an output uses, or that no value covers completely remain on the device.
  std::vector<StorageId> offload = {};
  // Also recompute collectives. Valid if all ranks have the same program with the same segments.
  bool collectives = false;
};

struct CheckpointResult {
  int64_t segments = 0;       // segments with recomputed nodes
  int64_t recomputed = 0;     // nodes added to backward
  int64_t redirected = 0;     // operands of backward nodes that are recomputed
  int64_t kept = 0;           // tensors created in segments that backward still reads from forward
  int64_t random_states = 0;  // generator states saved, to reproduce random numbers
  int64_t offloaded = 0;      // tensors offloaded to CPU between forward and backward
  int64_t offloaded_bytes = 0;
  std::vector<NodeId> repeated;  // forward node of each added node; repeated if it is recomputed twice
  // Reasons for saved tensors, by operator or reason.
  std::map<std::string, int64_t> obstacles;
  // Peak live bytes before and after checkpoint_modules, if it changed the graph (or a forward graph's assumed_step()).
  int64_t peak_before = 0;
  int64_t peak_after = 0;
  // For a forward graph: bytes it allocates that autograd saves.
  int64_t saved_before = 0;
  int64_t saved_after = 0;
  std::string warning;  // of checkpoint_modules: why nothing was changed; "" if changed, or if the graph fits as it is

  PassResult summary() const;
};

// Rewrites the graph. Segments may be nested: the inner one is then recomputed for the outer one, without being saved,
// and for its backward. Otherwise they must not overlap. Throws GraphError, before any change, for segments that
// overlap or are empty, for regions that are not siblings, and for segments by regions mixed with ones by nodes.
//
// Segments without anything to recompute (for instance because they were checkpointed before) are unchanged. In a
// forward graph, so are segments with nodes that cannot run twice; `obstacles` has the reasons, and `keep` and
// `offload` are not supported. Linear in the graph, times the nesting depth.
CheckpointResult checkpoint_segments(Graph& graph, std::span<const CheckpointSegment> segments);

// Selection of regions. Names of regions are paths of modules, and labels of checkpoint regions and scopes.

// Returns all regions outside of backward that have forward nodes and whose name matches a pattern ("*" and "?" as in
// file names; patterns are joined by '+'). Of nested regions that match the same pattern, the outermost is used.
// "auto": the longest run of numbered modules (layers.0, layers.1, ...). "": regions of kind checkpoint.
std::vector<RegionId> regions_named(const Graph& graph, std::string_view patterns);

// A policy creates segments from the selected regions.
using CheckpointPolicy =
    std::function<std::vector<CheckpointSegment>(const Graph& graph, std::span<const RegionId> regions)>;
CheckpointPolicy each_region();                // one segment per region
CheckpointPolicy every_kth_region(int64_t k);  // the first, the (k+1)-th, ...
// Splits a run of n sibling regions into sqrt(n) segments of about equal length (Chen et al. 2016, arXiv:1604.06174).
CheckpointPolicy square_root_segments();
// Uses as few regions as possible, starting from the first, such that peak live bytes are within the budget. Throws
// Error with the lowest possible peak otherwise. Evaluates about log2(n) copies.
CheckpointPolicy within_budget(int64_t bytes);

// Returns the peak of live bytes as defined in shadowgraph/profile/memory.h, of all devices or of one.
int64_t peak_of_live_bytes(const Graph& graph);
int64_t peak_of_live_bytes(const Graph& graph, c10::DeviceType device);

// Returns a forward graph with the backward that autograd would run: gradients, saved tensors, lifetimes. Forward nodes
// keep their ids; backward nodes compute nothing. Throws Error if its outputs do not require grad.
Graph assumed_step(const Graph& forward);

struct CheckpointModulesOptions {
  enum class Policy : uint8_t { kEach, kEvery, kSqrt, kBudget, kOptimal };
  std::string modules;  // see regions_named(); for kOptimal, "" without regions of kind checkpoint: automatic stages
  Policy policy = Policy::kEach;
  int64_t every = 2;  // for kEvery: k
  int64_t bytes = 1;  // for kBudget and kOptimal

  static OptionTable<CheckpointModulesOptions> table() {
    return OptionTable<CheckpointModulesOptions>()
        .add("modules", &CheckpointModulesOptions::modules,
             "Path patterns of modules, separated by '+', or auto (longest run of numbered modules); default: "
             "regions marked as checkpoints")
        .choice("policy", &CheckpointModulesOptions::policy, {"each", "every", "sqrt", "budget", "optimal"},
                "Recompute each module, every k-th, sqrt(n) segments, the first within a budget, or the optimal "
                "segments")
        .add("every", &CheckpointModulesOptions::every, "k for policy=every", {.min = 1})
        .add("bytes", &CheckpointModulesOptions::bytes,
             "Peak memory limit for policy=budget and policy=optimal: 40GB, 512MiB, 1000",
             {.kind = OptionKind::kBytes, .min = 1});
  }
};
// The pass `checkpoint`: segments by name and policy. Throws Error for patterns without match, and for `budget` and
// `optimal` of a forward graph that already has checkpoints. If nothing is changed, there is a warning.
CheckpointResult checkpoint_modules(Graph& graph, const CheckpointModulesOptions& options = {});

struct FreeAtLastUseResult {
  int64_t moved = 0;  // storages with changed free points
  PassResult summary() const;
};
// Frees storages after their last use, as replay does (shadowgraph/capture/replay.h), not where the program did.
FreeAtLastUseResult free_at_last_use(Graph& graph);

// Minimizes recompute within a memory budget, treating a training step as a chain of stages: returns the Pareto curve
// of peak memory and recompute. Used by the policy `optimal` of the pass `checkpoint`.
//
//     const CheckpointCurve curve = CheckpointCurve::of(graph);
//     for (const CheckpointChoice& choice : curve.choices()) ...      // by increasing cost and decreasing peak
//     const CheckpointChoice* best = curve.within(40'000'000'000);    // nullptr: none fits
//     checkpoint_segments(graph, best->segments);
//
// Every choice is evaluated on a rewritten copy of the graph, so its peak is exact, and no choice exceeds its budget.
// The choices evaluated do not depend on the budget, so a smaller budget never has a higher peak or less recompute. No
// choice is worse than the policies each, every (second), sqrt and budget, which are evaluated as well, with the given
// regions or, with automatic stages, the longest run of numbered modules.

// Cost of running a node again: an integer in any unit common to all nodes.
using CostOfNode = std::function<int64_t(const Graph& graph, NodeId node)>;
// Returns the FLOPs of matrix products, convolutions, attention and recurrent layers, 2 per multiply-accumulate; 0 for
// other nodes. See shadowgraph/profile/profile.h for all operators, and for times.
int64_t product_flops(const Graph& graph, NodeId node);
// Returns these FLOPs plus 1 for each byte read or written, to break ties.
CostOfNode flops_and_bytes();

// A training step as a chain of stages.
//
// Forward is split at tensors on which all later nodes depend exclusively: their producer dominates the rest. Tensors
// without gradients, such as masks and position tables, are ignored. If there are no such positions over long ranges
// (skip connections over half of a network), the tensors that skip the most are excluded: they are saved, and listed in
// `not_a_chain`. With regions, these are the stages, and everything between them is saved.
//
// The options of a stage are sets of saved tensors that backward reads, found greedily from both ends: removing the
// tensor with the least cost per byte, and adding the one with the greatest savings. Only Pareto-optimal sets are used.
struct CheckpointStage {
  NodeId first, last;                           // forward nodes
  std::vector<std::vector<StorageId>> keep;     // saved storages by option; the first saves all and is not listed
  std::vector<std::vector<StorageId>> offload;  // by option: saved storages that are offloaded to CPU
  std::vector<int64_t> exposed;                 // by option: exposed transfer time included in its cost
};

struct CheckpointChainOptions {
  CostOfNode cost = {};     // default: flops_and_bytes()
  int64_t max_stages = 80;  // limit; adjacent stages are merged
  int64_t max_options = 8;  // per stage
  // Recompute stages as a whole or not at all, as checkpoints of a forward graph do. Nothing within a stage is saved,
  // and no stage starts between the creation of a tensor and the last write to it.
  bool whole_stages = false;
  // Bandwidth of the link to the host in bytes per unit of cost, in each direction, to offload saved tensors to CPU.
  // Transfers of a stage that overlap with its own forward and backward cost nothing. 0: no offload.
  double link = 0;
};

struct CheckpointChain {
  std::vector<ChainStage> stages;
  std::vector<CheckpointStage> parts;    // nodes and storages of each stage
  int64_t elsewhere = 0;                 // bytes outside of all stages: parameters, inputs, excluded tensors
  int64_t input = 0;                     // bytes read by the first stage
  std::vector<std::string> not_a_chain;  // reasons; empty if the step is a chain

  // For a forward graph, uses its assumed_step(). Without gradients, there are no stages. Linear, times the stages.
  static CheckpointChain of(const Graph& graph, std::span<const RegionId> regions = {},
                            const CheckpointChainOptions& options = {});

  // Returns the segments of a schedule for checkpoint_segments. Recomputed segments are not offloaded.
  std::vector<CheckpointSegment> segments(const ChainSchedule& plan) const;
  // Returns the exposed transfer time of the schedule.
  int64_t exposed(const ChainSchedule& plan) const;
};

struct CheckpointChoice {
  std::string policy;  // "none", "optimal", "each", "every 2", "sqrt", "budget"
  std::vector<CheckpointSegment> segments;
  int64_t peak = 0;       // peak live bytes with these segments
  int64_t cost = 0;       // of recomputed nodes, and exposed transfers
  int64_t offloaded = 0;  // bytes offloaded to CPU
  std::vector<NodeId> repeated;
};

struct CheckpointCurveOptions {
  CheckpointChainOptions chain = {};
  int64_t slots = 500;
  int64_t max_schedules = 64;  // schedules of the chain to evaluate on the graph, at evenly spaced budgets
};

class CheckpointCurve {
 public:
  // `regions` are the stages, and the regions for the other policies. By default, stages are found automatically, and
  // the other policies use the longest run of numbered modules. For a forward graph, uses its assumed_step(), with
  // whole stages. Evaluates some 80 rewritten copies of the graph. With a link to the host, peaks are bytes on the
  // device with the most; offload has no effect for a step on the CPU.
  static CheckpointCurve of(const Graph& graph, std::span<const RegionId> regions = {},
                            const CheckpointCurveOptions& options = {});

  // By increasing cost and decreasing peak; the first recomputes nothing.
  const std::vector<CheckpointChoice>& choices() const { return choices_; }
  // Returns the cheapest choice with a peak of at most `bytes`, or nullptr.
  const CheckpointChoice* within(int64_t bytes) const;
  const CheckpointChain& chain() const { return chain_; }
  // All evaluated choices, in order of evaluation.
  const std::vector<CheckpointChoice>& tried() const { return tried_; }

 private:
  CheckpointChain chain_;
  std::vector<CheckpointChoice> choices_, tried_;
};

// Returns the policy that uses the cheapest choice of the curve; Error if none fits.
CheckpointPolicy least_recompute(int64_t bytes, CheckpointCurveOptions options = {});

// Offloads activations that modules save for backward to CPU.
//
// A tensor is copied out after its last use in forward and back before its first use in backward:
//
//     %12 = aten::_to_copy(%2, device=cpu, non_blocking=true)
//     %13 = aten::_to_copy(%12, device=cuda:0, non_blocking=true) | backward
//
// The copies run concurrently with kernels. Tensors saved by a module therefore remain until the next module has run,
// and are fetched when backward of that module starts. The copies have the note "kernel"="copy engine".
//
// A tensor belongs to the module of its last use in forward. Run after `checkpoint` to offload its tensors.

struct OffloadOptions {
  std::string modules = "auto";          // see regions_named()
  int64_t min_bytes = int64_t{1} << 20;  // minimum bytes of a tensor to offload

  static OptionTable<OffloadOptions> table() {
    return OptionTable<OffloadOptions>()
        .add("modules", &OffloadOptions::modules,
             "Modules to offload: path patterns separated by '+', or auto (the longest run of numbered modules)")
        .add("min_bytes", &OffloadOptions::min_bytes, "Minimum size of offloaded tensors",
             {.kind = OptionKind::kBytes, .min = 0});
  }
};

struct OffloadResult {
  int64_t tensors = 0, bytes = 0;       // offloaded
  std::map<std::string, int64_t> left;  // saved tensors of the modules that remain on the device, by reason
  PassResult summary() const;
};

// Throws Error for patterns without match, except "auto". A graph without backward is unchanged. Linear.
OffloadResult offload_modules(Graph& graph, const OffloadOptions& options = {});
OffloadResult offload_regions(Graph& graph, std::span<const RegionId> regions, int64_t least = int64_t{1} << 20);

}  // namespace shadowgraph
