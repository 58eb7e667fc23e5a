// Chooses which stages of a chain to keep, to keep in part, or to compute again in backward. Recomputing then costs
// least within a number of bytes. Only numbers are needed, no graph; shadowgraph/passes/recompute.h makes them of one.
//
//     std::vector<ChainStage> stages = ...;                  // forward runs 0, 1, ..., backward the other way
//     const ChainSolver solver(stages, 8'000'000'000);       // bytes; once for all smaller budgets, too
//     const std::optional<ChainPlan> plan = solver.plan(4'000'000'000);
//     plan->cost;                                            // of what is computed again
//
// The dynamic programme is rotor's (Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova 2019, "Optimal checkpointing
// for heterogeneous chains"). A stage may be kept in more than one way, as in Rockmate (Zhao et al. 2023). For the
// stages s..t, with the input of s in memory and m bytes besides, the least cost is the least of
//
//     keep       an option o of s:    cost of o  +  least(s+1, t, m - saved of o)
//     drop       s .. k-1 run, and leave but the input of k:
//                forward of s .. k-1  +  least(k, t, m - that input)  +  least(s, k-1, m)
//
// It is the least among schedules that, once they keep something for backward, keep it until backward has been there.
// tests/passes/chain_test.cpp holds it against an enumeration of all of these.
//
// Memory is counted in slots, each a part of the budget, with every size rounded up to whole ones. So a plan never
// needs more than it was made for, and may cost a little more than it would have to. Time: slots x stages^3 / 6; 100
// stages and 500 slots take tens of milliseconds. Memory: 8 x slots x stages^2 bytes.
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

// One way to keep a stage from its forward to its backward.
struct ChainOption {
  int64_t saved = 0;      // bytes on the device, the stage's output included
  int64_t cost = 0;       // of what is then missing: to compute it again, or the seconds of a link that nothing hides
  int64_t offloaded = 0;  // bytes that are on the host meanwhile
  friend bool operator==(const ChainOption&, const ChainOption&) = default;
};

// Bytes are those besides the stage's input; costs are whole numbers of any one unit.
struct ChainStage {
  std::string name;
  int64_t forward = 0;        // cost of running it again with all that it hands on
  int64_t backward = 0;       // cost of its backward; no plan depends on it
  int64_t again = 0;          // cost of running it again for its own backward alone: no more than `forward`
  int64_t output = 0;         // bytes that it hands to the next stage
  int64_t forward_peak = 0;   // most bytes in forward if nothing but the output is kept
  int64_t keeping_peak = 0;   // if everything is kept
  int64_t backward_peak = 0;  // most bytes in its backward, with all that it saved and all that later stages left
                              // behind (gradients of parameters)
  int64_t resident = 0;       // bytes that are there when it has to be run again, without its forward: the gradient of
                              // its output, what later stages left behind
  std::vector<ChainOption> options;  // the first keeps everything at no cost
  // What is dropped may begin and end here. A stage between others that are run again is run again in any case.
  bool droppable = true;
  friend bool operator==(const ChainStage&, const ChainStage&) = default;
};

// Stages that are run a first time without keeping anything, and again as a whole when backward comes to them.
struct ChainSegment {
  size_t first = 0;
  size_t last = 0;
  friend bool operator==(const ChainSegment&, const ChainSegment&) = default;
};

struct ChainPlan {
  int64_t cost = 0;                    // of all that is computed again
  int64_t bytes = 0;                   // that it needs at most, in whole slots
  std::vector<size_t> option;          // by stage: the way it is kept the last time that it is run before its backward
  std::vector<ChainSegment> segments;  // outer ones before those within
  friend bool operator==(const ChainPlan&, const ChainPlan&) = default;
};

class ChainSolver {
 public:
  // For budgets up to `bytes`. Throws Error for stages without options or with negative figures, and for no slots.
  ChainSolver(std::span<const ChainStage> stages, int64_t bytes, int64_t slots = 500);

  // Empty if no plan fits.
  std::optional<ChainPlan> plan(int64_t bytes) const;
  // One plan for each cost that there is, the cheapest first: each needs less memory than those before it.
  std::vector<ChainPlan> curve() const;

 private:
  const double* row(size_t first, size_t last) const { return costs_.data() + (first * count_ + last) * width_; }
  double* row(size_t first, size_t last) { return costs_.data() + (first * count_ + last) * width_; }
  size_t slots_of(int64_t bytes) const;
  double units_of(int64_t cost) const;
  void solve(size_t first, size_t last);
  ChainPlan trace(size_t memory) const;

  std::vector<ChainStage> stages_;
  size_t count_ = 0;
  int64_t slot_ = 1;  // bytes of one
  double unit_ = 1;   // of costs: more than 1 where their sums would pass 2^53
  size_t width_ = 1;  // slots, and none
  // Whole numbers: processors of today compare doubles, not integers of this size, several at once.
  std::vector<double> costs_;   // least cost by first and last stage and memory
  std::vector<size_t> fewest_;  // slots with which the range can be done at all
};

// Returns the cost of tensors that go to the host in forward and come back in backward: what computing does not hide.
// Each direction runs beside `hidden_out` and `hidden_back` of computing, in the same unit. `bytes_per_unit` is what
// the link carries in one unit.
int64_t exposed_transfer(int64_t bytes, double bytes_per_unit, int64_t hidden_out, int64_t hidden_back);

// Activation checkpointing of a captured training step: backward computes again what forward no longer keeps.
//
//     Graph graph = capture_training_step(...).graph;
//     CheckpointResult done = checkpoint_modules(graph, {.modules = "transformer.h.*"});
//     // or: segments of one's own
//     std::vector<CheckpointSegment> segments = ...;
//     done = checkpoint_segments(graph, segments);
//
// A forward graph has no backward that could compute anything again. There, segments become regions of kind checkpoint:
// calls of checkpoint() in the code that the graph becomes, and in torch.fx. A segment then runs again as a whole. What
// backward would hold is worked out by assumed_step().
//
// docs/checkpoints.md says what the rewritten graph looks like and which policies there are; the essay at the head of
// checkpoint.cpp how it is made.

// What is computed again together: the forward nodes of some regions, and those between the first and the last of them.
// Or the nodes from one to another, whatever regions they are in.
struct CheckpointSegment {
  std::string name;               // of the region of kind checkpoint that it becomes
  std::vector<RegionId> regions;  // siblings, in program order; one or more
  NodeId first = {}, last = {};   // in place of regions
  // Storages made in the segment that are kept as if they were in none, with all that their makers make. What computing
  // the others again needs of them is taken from there. In a segment within another, they are kept from the outer one's
  // second run on.
  std::vector<StorageId> keep = {};
  // Kept storages that wait for backward on the host; only for segments that are in no other. What backward writes to,
  // what an output holds, and what no value fills as a whole stays where it is.
  std::vector<StorageId> offload = {};
  // Collectives run again, too. That is right in a program that every rank of them has, with the same segments.
  bool collectives = false;
};

struct CheckpointResult {
  int64_t segments = 0;       // with something to compute again
  int64_t recomputed = 0;     // nodes added to backward for it
  int64_t redirected = 0;     // operands of backward nodes that are computed again
  int64_t kept = 0;           // tensors made in segments that backward still reads as forward left them
  int64_t random_states = 0;  // states of generators kept, so that random nodes draw the same numbers
  int64_t offloaded = 0;      // tensors that are on the host between forward and backward
  int64_t offloaded_bytes = 0;
  std::vector<NodeId> repeated;  // the forward node of each that was added; one that is run again twice comes twice
  // Why tensors are kept: by operator or reason.
  std::map<std::string, int64_t> obstacles;
  // Peaks of live bytes around checkpoint_modules, where it did something. For a forward graph they are those of its
  // assumed_step().
  int64_t peak_before = 0;
  int64_t peak_after = 0;
  // For a forward graph: bytes that it makes and autograd keeps.
  int64_t saved_before = 0;
  int64_t saved_after = 0;
  std::string warning;  // of checkpoint_modules: why a plan came to nothing; "" if it did something or fits as it is

  PassResult summary() const;
};

// Rewrites the graph. Segments may lie within one another. The inner one is then computed again twice: once for the
// outer one, without being kept, and once for its own backward. Otherwise they must not overlap. Throws GraphError,
// before any change, for segments that overlap, that are empty, or whose regions are not siblings. Throws it, too, for
// segments by regions among others by nodes.
//
// A segment that has nothing to compute again, a second time for instance, is left as it is. In a forward graph so is
// one of which something cannot run twice; `obstacles` say why, and `keep` and `offload` are refused. Linear in the
// graph, times the depth of nesting.
CheckpointResult checkpoint_segments(Graph& graph, std::span<const CheckpointSegment> segments);

// ---- Choosing. Regions are modules by path, checkpoint regions and scopes by label.

// Every region that has forward nodes, is not a part of backward, and whose name matches a pattern ("*" and "?" as in
// file names, several joined by '+'); of regions within one another that match the same pattern, the outermost. "auto":
// the longest run of numbered modules (layers.0, layers.1, ...). "": regions of kind checkpoint.
std::vector<RegionId> regions_named(const Graph& graph, std::string_view patterns);

// A policy makes segments of the regions that were named.
using CheckpointPolicy =
    std::function<std::vector<CheckpointSegment>(const Graph& graph, std::span<const RegionId> regions)>;
CheckpointPolicy each_region();                // every one by itself
CheckpointPolicy every_kth_region(int64_t k);  // the first, the one k after it, ...
// Runs of siblings in about as many parts as they are long: n regions in sqrt(n) segments (Chen et al. 2016,
// arXiv:1604.06174).
CheckpointPolicy square_root_segments();
// Takes the fewest regions, from the first on, so that the peak of live bytes is within the budget. Throws Error that
// says how low it gets if it cannot be. Tries out about log2(n) rewritten copies of the graph.
// shadowgraph/passes/recompute.h finds the least to compute again within a budget.
CheckpointPolicy within_budget(int64_t bytes);

// Most bytes live at a node, by the rule of shadowgraph/profile/profile.h; with a device: of its storages alone.
int64_t peak_of_live_bytes(const Graph& graph);
int64_t peak_of_live_bytes(const Graph& graph, c10::DeviceType device);

// A forward graph with the backward that autograd would run: its gradients, what it saved, and how long. Nodes of
// forward keep their ids; those of backward compute nothing. Plans for the forward are made on it. Throws Error for a
// forward whose outputs have no gradient.
Graph assumed_step(const Graph& forward);

// ---- The passes.

struct CheckpointModulesOptions {
  enum class Policy : uint8_t { kEach, kEvery, kSqrt, kBudget, kOptimal };
  std::string modules;  // as regions_named takes it; of kOptimal, "" without regions of kind checkpoint: found stages
  Policy policy = Policy::kEach;
  int64_t every = 2;  // of kEvery: k
  int64_t bytes = 1;  // of kBudget and kOptimal

  static OptionTable<CheckpointModulesOptions> table() {
    return OptionTable<CheckpointModulesOptions>()
        .add("modules", &CheckpointModulesOptions::modules,
             "module patterns joined by '+', or auto: the longest run of numbered modules (default: regions marked as "
             "checkpoints)")
        .choice(
            "policy", &CheckpointModulesOptions::policy, {"each", "every", "sqrt", "budget", "optimal"},
            "each, every (k-th), sqrt (segments), budget (as few as possible, in order), or optimal (least recompute)")
        .add("every", &CheckpointModulesOptions::every, "with policy=every: k", {.least = 1})
        .add("bytes", &CheckpointModulesOptions::bytes,
             "with policy=budget and optimal: limit of peak live bytes: 40GB, 512MiB, 1000",
             {.kind = OptionKind::kBytes, .least = 1});
  }
};
// The pass `checkpoint`: segments by name and policy. Throws Error for patterns that no region matches. Throws it, too,
// for `budget` and `optimal` of a forward graph that has checkpoints already. A plan that changes nothing is a warning.
CheckpointResult checkpoint_modules(Graph& graph, const CheckpointModulesOptions& options = {});

struct FreeAtLastUseResult {
  int64_t moved = 0;  // storages that die elsewhere now
  PassResult summary() const;
};
// Storages die after their last use, as a replay frees them (shadowgraph/capture/replay.h), and not when the program
// let go.
FreeAtLastUseResult free_at_last_use(Graph& graph);

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

// What running a node again costs, a whole number in any unit that is the same for all nodes.
using CostOfNode = std::function<int64_t(const Graph& graph, NodeId node)>;
// FLOPs of matrix products, convolutions, attention and recurrent layers, 2 per multiply-accumulate, from the shapes; 0
// for all else. What passes know of costs: shadowgraph/profile/profile.h has the table of all operators, and seconds.
int64_t product_flops(const Graph& graph, NodeId node);
// Those, and 1 for each byte that it reads or writes: of two ways with equal products the one that moves less.
CostOfNode flops_and_bytes();

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
  // stages. Makes some 80 rewritten copies of the graph. With a link to the host, peaks are the bytes on the device
  // that holds most; a step on the CPU gains nothing there.
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

// What modules keep for backward waits on the host meanwhile.
//
//     const OffloadResult done = offload_modules(graph, {.modules = "model.layers.*"});    // done.tensors, done.bytes
//
// A tensor leaves after its last use in forward and comes back before its first use in backward:
//
//     %12 = aten::_to_copy(%2, device=cpu, non_blocking=true)
//     %13 = aten::_to_copy(%12, device=cuda:0, non_blocking=true) | backward
//
// Engines run these copies beside kernels. So what a module keeps stays until the module behind it has run, and is
// fetched when backward of that one begins. The copies carry the note "kernel"="copy engine".
//
// A tensor belongs to the module of its last use in forward. What a checkpoint keeps may wait on the host, too: run the
// pass behind `checkpoint`.

struct OffloadOptions {
  std::string modules = "auto";      // as regions_named() takes them (shadowgraph/passes/recompute.h)
  int64_t least = int64_t{1} << 20;  // bytes of a tensor; smaller ones stay

  static OptionTable<OffloadOptions> table() {
    return OptionTable<OffloadOptions>()
        .add("modules", &OffloadOptions::modules,
             "module patterns joined by '+', or auto: the longest run of numbered modules")
        .add("least", &OffloadOptions::least, "smallest tensor to offload, in bytes",
             {.kind = OptionKind::kBytes, .least = 0});
  }
};

struct OffloadResult {
  int64_t tensors = 0, bytes = 0;       // that wait on the host
  std::map<std::string, int64_t> left;  // of the modules, kept on the device, by reason
  PassResult summary() const;
};

// Throws Error if no region matches but for "auto". A graph without backward is left as it is. Linear.
OffloadResult offload_modules(Graph& graph, const OffloadOptions& options = {});
OffloadResult offload_regions(Graph& graph, std::span<const RegionId> regions, int64_t least = int64_t{1} << 20);

}  // namespace shadowgraph
