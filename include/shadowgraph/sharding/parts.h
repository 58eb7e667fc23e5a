// Real tensors cut into the parts that devices hold, and joined again: for loading, simulators and tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "shadowgraph/export.h"
#include "shadowgraph/sharding/apply.h"
#include "shadowgraph/sharding/layout.h"

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

}  // namespace shadowgraph
