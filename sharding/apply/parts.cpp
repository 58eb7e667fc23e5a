#include "shadowgraph/sharding/parts.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "shadowgraph/error.h"
#include "sharding/layout/dimension_cuts.h"

namespace shadowgraph {
namespace {

DimensionCuts cuts_of(std::span<const int64_t> sizes, const Layout& layout, const DeviceMesh& mesh) {
  if (layout.size() != mesh.axes.size()) {
    throw Error(fmt::format("the layout {} is not one of the mesh {}", to_string(layout), mesh.to_string()));
  }
  std::optional<DimensionCuts> cuts = DimensionCuts::of(sizes, layout, mesh);
  if (!cuts) {
    throw Error(fmt::format("a tensor of sizes [{}] cannot lie as {} on the mesh {}", fmt::join(sizes, ", "),
                            to_string(layout), mesh.to_string()));
  }
  return std::move(*cuts);
}

// Where `rank`'s part is in a tensor of the expanded sizes.
at::Tensor part_of(at::Tensor expanded, const DimensionCuts& cuts, const DeviceMesh& mesh, int64_t rank) {
  std::vector<std::pair<int64_t, int64_t>> selected;  // dimension, coordinate
  for (size_t axis = 0; axis < cuts.dimension_of_axis.size(); ++axis) {
    if (cuts.dimension_of_axis[axis] >= 0) {
      selected.emplace_back(cuts.dimension_of_axis[axis], mesh.coordinate(rank, axis));
    }
  }
  std::sort(selected.rbegin(), selected.rend());
  for (const auto& [dimension, coordinate] : selected) expanded = expanded.select(dimension, coordinate);
  return expanded;
}

at::Tensor combined(PartialOp op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case PartialOp::kMax:
      return at::maximum(a, b);
    case PartialOp::kMin:
      return at::minimum(a, b);
    case PartialOp::kSum:
    case PartialOp::kAverage:
      break;
  }
  return at::add(a, b);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return left.sizes() == right.sizes() && left.dtype() == right.dtype() &&
         (left.numel() == 0 || std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0);
}

}  // namespace

at::Tensor local_part(const at::Tensor& full, const Layout& layout, const DeviceMesh& mesh, int64_t rank) {
  const DimensionCuts cuts = cuts_of(full.sizes(), layout, mesh);
  for (size_t axis = 0; axis < layout.size(); ++axis) {
    if (layout[axis].is_partial() && layout[axis].op == PartialOp::kSum && mesh.coordinate(rank, axis) != 0) {
      return at::zeros(cuts.local, full.options());
    }
  }
  return part_of(full.reshape(cuts.expanded), cuts, mesh, rank).reshape(cuts.local).clone(at::MemoryFormat::Contiguous);
}

at::Tensor whole_of(std::span<const at::Tensor> parts, const Layout& layout, const DeviceMesh& mesh,
                    std::span<const int64_t> sizes) {
  const DimensionCuts cuts = cuts_of(sizes, layout, mesh);
  if (parts.size() != static_cast<size_t>(mesh.size())) {
    throw Error(fmt::format("{} parts of a tensor on the mesh {}", parts.size(), mesh.to_string()));
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].sizes() != at::IntArrayRef(cuts.local)) {
      throw Error(fmt::format("rank {} has a part of sizes [{}], not [{}]", rank, fmt::join(parts[rank].sizes(), ", "),
                              fmt::join(cuts.local, ", ")));
    }
  }
  // Axes that do not cut are folded into coordinate 0, the last axis first.
  std::vector<at::Tensor> folded(parts.begin(), parts.end());
  const int64_t devices = mesh.size();
  int64_t stride = 1;
  for (size_t axis = layout.size(); axis-- > 0; stride *= mesh.axes[axis].size) {
    const Placement& placement = layout[axis];
    if (placement.is_shard()) continue;
    for (int64_t rank = 0; rank < devices; ++rank) {
      const int64_t coordinate = mesh.coordinate(rank, axis);
      if (coordinate == 0 || !folded[rank].defined()) continue;
      at::Tensor& first = folded[rank - coordinate * stride];
      if (placement.is_partial()) {
        first = combined(placement.op, first, folded[rank]);
      } else if (!same_bits(first, folded[rank])) {
        throw Error(fmt::format("ranks {} and {} differ in what {} says is the same on axis {}",
                                rank - coordinate * stride, rank, to_string(layout), mesh.axes[axis].name));
      }
      folded[rank] = at::Tensor();
    }
    if (placement.is_partial() && placement.op == PartialOp::kAverage) {
      for (at::Tensor& tensor : folded) {
        if (tensor.defined()) tensor = at::div(tensor, mesh.axes[axis].size);
      }
    }
  }
  at::Tensor whole = at::empty(cuts.expanded, folded[0].options());
  for (int64_t rank = 0; rank < devices; ++rank) {
    if (!folded[rank].defined()) continue;
    at::Tensor place = part_of(whole, cuts, mesh, rank);
    place.copy_(folded[rank].reshape(place.sizes()));
  }
  return whole.reshape(sizes);
}

at::Tensor local_input(const ShardedGraph& sharded, size_t input, const at::Tensor& whole) {
  const ShardedTensor& tensor = sharded.inputs.at(input);
  if (!std::ranges::equal(whole.sizes(), tensor.sizes)) {
    throw Error(fmt::format("{} has sizes [{}], not [{}]", tensor.name, fmt::join(tensor.sizes, ", "),
                            fmt::join(whole.sizes(), ", ")));
  }
  at::Tensor part = local_part(whole, tensor.layout, sharded.mesh, sharded.rank);
  size_t next = 0;
  for (const NodeId node : sharded.graph.nodes()) {
    if (sharded.graph.node(node).target.index > target_of(Builtin::kInput).index || next++ != input) continue;
    const auto strides = sharded.graph.strides(sharded.graph.results(node)[0].ref.value);
    if (std::ranges::equal(strides, part.strides())) return part;
    const at::Tensor strided =
        at::empty_strided(part.sizes(), c10::IntArrayRef(strides.data(), strides.size()), part.options());
    return strided.copy_(part);
  }
  return part;
}

}  // namespace shadowgraph
