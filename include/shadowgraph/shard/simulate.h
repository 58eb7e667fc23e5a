// Real tensors cut into the parts that devices hold, and joined again: for loading, simulators and tests.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/shard/apply.h"
#include "shadowgraph/shard/layout.h"

namespace SHADOWGRAPH_API shadowgraph {

// The part of `full` that `rank` has: a new contiguous tensor. Partial axes: coordinate 0 has all of it and the others
// zeros (kSum), or all have it (kAverage, kMax, kMin). Throws Error if the layout does not divide it.
at::Tensor local_part(const at::Tensor& full, const Layout& layout, const DeviceMesh& mesh, int64_t rank);
// Returns the whole tensor from the parts of all ranks, in order of ranks. Throws Error if the parts do not fit the
// layout. Throws it, too, if devices that must have the same do not (compared bit for bit, NaN included).
at::Tensor whole_of(std::span<const at::Tensor> parts, const Layout& layout, const DeviceMesh& mesh,
                    std::span<const int64_t> sizes);

// The part of a whole parameter, buffer or input that this rank's program is to be given: local_part() with the strides
// that the graph has. Throws Error if it does not fit.
at::Tensor local_input(const ShardedGraph& sharded, size_t input, const at::Tensor& whole);

// Runs all ranks of a sharded program in one process, on real tensors: this says whether a plan computes what the
// program did.
//
//     std::vector<ShardedGraph> ranks = apply_to_all(step.graph, plan);
//     const SimulatedRun run = simulate(ranks, {weight, bias, batch});      // whole tensors, in order
//     run.outputs, run.gradients["weight"], run.inputs[0]                   // whole again: compare with an Interpreter
//
// Every rank is an Interpreter (shadowgraph/capture/replay.h) on a thread of its own. They run freely and meet at
// collectives, which are functions over the ranks' tensors: no process group is needed. Sums go over the ranks in
// order, so a run gives the same bits every time.
//
// Every rank begins with the default generator's state, as processes that were seeded alike. So what is replicated
// stays the same when operators are random. The generator is left where rank 0 ends. The memory is that of the parts
// that all ranks hold.

struct SimulationOptions {
  std::optional<c10::Device> device;  // every device in the graphs means this one
};

struct SimulatedRun {
  std::vector<at::Tensor> outputs;              // of sg::output; None is undefined
  std::map<std::string, at::Tensor> gradients;  // of sg::gradient, by parameter name
  std::vector<at::Tensor> inputs;               // what the program left in them: updated parameters
};

// apply() for every rank of the plan's mesh.
std::vector<ShardedGraph> apply_to_all(const Graph& graph, const ShardingPlan& plan, const ApplyOptions& options = {});

// `inputs` are the whole parameters, buffers and inputs in program order; they are not written to. Throws Error if
// there are not as many ranks as the mesh has, or if a tensor does not fit. Throws it, too, if ranks differ in what
// must be the same, or communicate in different order. Throws ReplayError if a rank's program fails.
SimulatedRun simulate(std::span<const ShardedGraph> ranks, std::span<const at::Tensor> inputs,
                      const SimulationOptions& options = {});

}  // namespace shadowgraph
