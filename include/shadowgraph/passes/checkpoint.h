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
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/passes/pass.h"

namespace SHADOWGRAPH_API shadowgraph {

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
// outer one, without being kept, and once for its own backward. Otherwise they must not overlap. Throws GraphEditError,
// before any change, for segments that overlap, that are empty, or whose regions are not siblings. Throws it, too, for
// segments by regions among others by nodes.
//
// A segment that has nothing to compute again, a second time for instance, is left as it is. In a forward graph so is one
// of which something cannot run twice; `obstacles` say why, and `keep` and `offload` are refused. Linear in the graph,
// times the depth of nesting.
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
// shadowgraph/passes/checkpoint_curve.h finds the least to compute again within a budget.
CheckpointPolicy within_budget(int64_t bytes);

// Most bytes live at a node, by the rule of shadowgraph/profile.h; with a device: of its storages alone.
int64_t peak_of_live_bytes(const Graph& graph);
int64_t peak_of_live_bytes(const Graph& graph, c10::DeviceType device);

// A forward graph with the backward that autograd would run: its gradients, what it saved, and how long. Nodes of forward
// keep their ids; those of backward compute nothing. Plans for the forward are made on it. Throws Error for a forward
// whose outputs have no gradient.
Graph assumed_step(const Graph& forward);

// ---- The passes.

// "40GB", "512 MiB", "1000". Throws Error.
int64_t bytes_from_text(const std::string& text);

struct CheckpointModulesOptions {
  enum class Policy : uint8_t { kEach, kEvery, kSqrt, kBudget, kOptimal };
  std::string modules;  // as regions_named takes it; of kOptimal, "" without regions of kind checkpoint: found stages
  Policy policy = Policy::kEach;
  int64_t every = 2;  // of kEvery: k
  int64_t bytes = 1;  // of kBudget and kOptimal

  static OptionTable<CheckpointModulesOptions> table() {
    return OptionTable<CheckpointModulesOptions>()
        .text("modules", &CheckpointModulesOptions::modules,
              "patterns of paths joined by '+', or auto: the longest run of numbered modules; none: "
              "regions marked as checkpoints")
        .choice("policy", &CheckpointModulesOptions::policy, {"each", "every", "sqrt", "budget", "optimal"},
                "each, every (k-th), sqrt (segments), budget (the fewest from the first on), or optimal (the least to "
                "compute again)")
        .whole_number("every", &CheckpointModulesOptions::every, 1, "with policy=every: k")
        .parsed<int64_t>(
            "bytes", &CheckpointModulesOptions::bytes, bytes_from_text,
            [](const int64_t& bytes) { return std::to_string(bytes); },
            "with policy=budget and optimal: the peak of live bytes that is allowed: 40GB, 512MiB, 1000");
  }
};
// The pass `checkpoint`: segments by name and policy. Throws Error for patterns that no region matches. Throws it, too,
// for `budget` and `optimal` of a forward graph that has checkpoints already. A plan that changes nothing is a warning.
CheckpointResult checkpoint_modules(Graph& graph, const CheckpointModulesOptions& options = {});

struct FreeAtLastUseResult {
  int64_t moved = 0;  // storages that die elsewhere now
  PassResult summary() const;
};
// Storages die after their last use, as a replay frees them (shadowgraph/replay.h), and not when the program let go.
FreeAtLastUseResult free_at_last_use(Graph& graph);

}  // namespace shadowgraph
