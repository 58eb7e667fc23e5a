// Sharding and unsharding of real tensors, and execution of all ranks of a sharded program in one process.
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

// Returns the local tensor of `rank` as a new contiguous tensor. On partial axes, coordinate 0 has all of it and others
// have zeros (kSum), or all devices have it (kAverage, kMax, kMin). Throws Error if the layout does not fit.
at::Tensor local_shard(const at::Tensor& full, const Layout& layout, const DeviceMesh& mesh, int64_t rank);
// Returns the whole tensor from the local tensors of all ranks, in order of ranks. Throws Error if they do not match
// the layout, or if replicas differ (compared bitwise, including NaN).
at::Tensor full_tensor(std::span<const at::Tensor> parts, const Layout& layout, const DeviceMesh& mesh,
                       std::span<const int64_t> sizes);

// Returns the local tensor of a parameter, buffer or input for this rank's program: same as local_shard(), with the
// strides of the graph. Throws Error if it does not match.
at::Tensor local_input(const ShardedGraph& sharded, size_t input, const at::Tensor& whole);

// Runs all ranks of a sharded program in one process on real tensors, to verify a plan.
//
// Every rank is an Interpreter (shadowgraph/capture/replay.h) on its own thread. Ranks synchronize at collectives,
// which are functions of the ranks' tensors: no process group is needed. Sums are in order of ranks, for determinism.
//
// Every rank starts with the state of the default generator, like processes with the same seed, so that replicated
// results of random operators agree. The generator ends in the state of rank 0. Memory is the sum of all ranks.

struct SimulationOptions {
  std::optional<c10::Device> device;  // replaces all devices in the graphs
};

struct SimulatedRun {
  std::vector<at::Tensor> outputs;              // of sg::output; None is an undefined tensor
  std::map<std::string, at::Tensor> gradients;  // of sg::gradient, by parameter name
  std::vector<at::Tensor> inputs;               // inputs after the run, such as updated parameters
};

// Calls apply() for every rank of the plan's mesh.
std::vector<ShardedGraph> apply_to_all(const Graph& graph, const GraphLayouts& plan, const ApplyOptions& options = {});

// `inputs` are the whole parameters, buffers and inputs in program order; they are not modified. Throws Error if the
// number of ranks differs from the mesh, a tensor does not match, replicas differ, or ranks communicate in different
// orders. Throws ReplayError if a rank's program fails.
SimulatedRun simulate(std::span<const ShardedGraph> ranks, std::span<const at::Tensor> inputs,
                      const SimulationOptions& options = {});

}  // namespace shadowgraph
