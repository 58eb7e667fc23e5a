// Makes the nodes that bring a tensor from one layout to another. Internal to sharding/apply.
#pragma once

#include <set>
#include <span>

#include "shadowgraph/sharding/redistribution.h"
#include "sharding/apply/local_program.h"

namespace shadowgraph {

class Redistributor {
 public:
  // All arguments must outlive it.
  Redistributor(LocalProgram& program, Graph& made, const DeviceMesh& mesh, int64_t rank)
      : program_(program), made_(made), mesh_(mesh), rank_(rank) {}

  // Returns the local part of a tensor after the steps. `source` is the local part before them; `sizes` are those of
  // the whole tensor, which lies as `from`. Returns `source` itself if no step does anything (axes of one device).
  ValueId redistribute(ValueId source, std::span<const int64_t> sizes, const Layout& from, const Redistribution& way);

 private:
  ValueId step(ValueId source, std::span<const int64_t> sizes, const Layout& before, const RedistributionStep& step);
  ValueId slice(ValueId source, std::span<const int64_t> sizes, const Layout& after, size_t axis);
  ValueId all_gather(ValueId source, std::span<const int64_t> sizes, const Layout& before, size_t axis);
  ValueId all_reduce(ValueId source, PartialOp op, size_t axis);
  ValueId reduce_scatter(ValueId source, std::span<const int64_t> sizes, PartialOp op, const Layout& after,
                         size_t axis);
  ValueId all_to_all(ValueId source, std::span<const int64_t> sizes, const Layout& before,
                     const RedistributionStep& step);
  // Moves the factor at `position` to the front of memory. `factors` are the dimensions, split; all of them lie in the
  // resulting order.
  ValueId to_front(ValueId source, std::span<const int64_t> factors, size_t position);
  // Moves the first factor back to `position`. `factors` are those of the result.
  ValueId from_front(ValueId source, std::span<const int64_t> factors, size_t position);
  // Returns the sum over an axis, divided where the reduction is a mean.
  ValueId finished(ValueId reduced, PartialOp op, size_t axis);
  // Returns the name of the axis' group and describes the group before its first use.
  Argument group(size_t axis);

  LocalProgram& program_;
  Graph& made_;
  const DeviceMesh& mesh_;
  int64_t rank_;
  std::set<size_t> described_;
};

}  // namespace shadowgraph
