// Treats layouts as reshapes. A dimension that is cut becomes a row of smaller dimensions: one for each axis that cuts
// it, and one for what lies between. A device's part is what is left when its coordinates are selected in the axes'
// dimensions.
//
//     dimension 0 of 24, S(0) on x=2 and S(0,4) on y=3:    24 = 2 (x) * 2 * 3 (y) * 2       24 -> 4 a device
#include "shadowgraph/sharding/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <set>

#include "sharding/layout/dimension_cuts.h"

namespace shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// The mesh

DeviceMesh DeviceMesh::parse(std::string_view text) {
  DeviceMesh mesh;
  if (text.find('=') != std::string_view::npos) {
    mesh.axes = parse_mesh(text);
  } else {
    constexpr std::string_view kNames = "xyzw";
    size_t at = 0;
    while (true) {
      const size_t end = std::min(text.find('x', at), text.size());
      int64_t size = 0;
      const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, size);
      if (error != std::errc() || stop != text.data() + end || size < 1) {
        throw Error(fmt::format("a mesh is written as \"8\", \"8x8\" or \"dp=8,tp=4\", not \"{}\"", text));
      }
      const std::string name(1, kNames[std::min(mesh.axes.size(), kNames.size() - 1)]);
      mesh.axes.push_back({.name = name, .size = size});
      if (end == text.size()) break;
      at = end + 1;
    }
  }
  if (mesh.axes.empty() || mesh.axes.size() > kMostMeshAxes) {
    throw Error(
        fmt::format("the mesh \"{}\" has {} axes; 1 to {} are possible", text, mesh.axes.size(), kMostMeshAxes));
  }
  std::set<std::string> names;
  int64_t devices = 1;
  for (const MeshAxis& axis : mesh.axes) {
    if (!names.insert(axis.name).second) throw Error(fmt::format("the mesh \"{}\" has two axes {}", text, axis.name));
    if (axis.size < 1) throw Error(fmt::format("the axis {} of mesh \"{}\" has no device", axis.name, text));
    if (__builtin_mul_overflow(devices, axis.size, &devices) || devices > (int64_t{1} << 31)) {
      throw Error(fmt::format("the mesh \"{}\" has more than 2^31 devices", text));
    }
  }
  return mesh;
}

int64_t DeviceMesh::size() const {
  int64_t size = 1;
  for (const MeshAxis& axis : axes) size *= axis.size;
  return size;
}

int64_t DeviceMesh::coordinate(int64_t rank, size_t axis) const {
  for (size_t a = axes.size(); --a > axis;) rank /= axes[a].size;
  return rank % axes[axis].size;
}

std::string DeviceMesh::to_string() const {
  std::string text;
  for (const MeshAxis& axis : axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  return text;
}

// ---------------------------------------------------------------------------------------------------------------------
// Words

std::string_view to_string(PartialOp op) {
  switch (op) {
    case PartialOp::kSum:
      return "sum";
    case PartialOp::kAverage:
      return "avg";
    case PartialOp::kMax:
      return "max";
    case PartialOp::kMin:
      return "min";
  }
  return "sum";
}

Layout::Layout(std::span<const Placement> placements) : size_(static_cast<uint8_t>(placements.size())) {
  if (placements.size() > kMostMeshAxes) {
    throw Error(fmt::format("a layout of {} axes; at most {} are possible", placements.size(), kMostMeshAxes));
  }
  std::copy(placements.begin(), placements.end(), placements_.begin());
}

bool Layout::is_replicated() const {
  return std::all_of(begin(), end(), [](const Placement& placement) { return placement.is_replicate(); });
}

bool Layout::has_partial() const {
  return std::any_of(begin(), end(), [](const Placement& placement) { return placement.is_partial(); });
}

std::string to_string(const Placement& placement) {
  if (placement.is_partial()) return fmt::format("P({})", to_string(placement.op));
  if (placement.is_replicate()) return "R";
  return placement.outer == 1 ? fmt::format("S({})", placement.dim)
                              : fmt::format("S({},{})", placement.dim, placement.outer);
}

std::string to_string(const Layout& layout) {
  std::string text;
  for (const Placement& placement : layout) text += fmt::format("{}{}", text.empty() ? "" : ",", to_string(placement));
  return text;
}

namespace {

// Reads "S(0,8)" and its like from the front of `rest`; returns nothing if `rest` begins with something else.
std::optional<Placement> take_placement(std::string_view& rest) {
  const auto take = [&](std::string_view word) {
    const bool found = rest.starts_with(word);
    if (found) rest.remove_prefix(word.size());
    return found;
  };
  const auto number = [&](int64_t least, int64_t most) -> std::optional<int64_t> {
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() || value < least || value > most) return std::nullopt;
    rest.remove_prefix(static_cast<size_t>(stop - rest.data()));
    return value;
  };
  if (take("R")) return Placement::replicate();
  if (take("P(")) {
    for (const PartialOp op : {PartialOp::kSum, PartialOp::kAverage, PartialOp::kMax, PartialOp::kMin}) {
      if (take(fmt::format("{})", to_string(op)))) return Placement::partial(op);
    }
    return std::nullopt;
  }
  if (!take("S(")) return std::nullopt;
  const std::optional<int64_t> dim = number(0, 255);
  if (!dim) return std::nullopt;
  int64_t outer = 1;
  if (take(",")) {
    const std::optional<int64_t> written = number(1, std::numeric_limits<int64_t>::max());
    if (!written) return std::nullopt;
    outer = *written;
  }
  if (!take(")")) return std::nullopt;
  return Placement::shard(*dim, outer);
}

}  // namespace

Layout Layout::parse(std::string_view text) {
  std::vector<Placement> placements;
  std::string_view rest = text;
  while (true) {
    const std::optional<Placement> placement = take_placement(rest);
    const bool more = rest.starts_with(',');
    if (!placement || (!more && !rest.empty())) {
      throw Error(fmt::format("a layout is written as \"S(0),R,P(sum)\", not \"{}\"", text));
    }
    placements.push_back(*placement);
    if (!more) return Layout(placements);
    rest.remove_prefix(1);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Parts

std::optional<DimensionCuts> DimensionCuts::of(std::span<const int64_t> sizes, const Layout& layout,
                                               const DeviceMesh& mesh) {
  DimensionCuts cuts;
  cuts.dimension_of_axis.assign(layout.size(), -1);
  for (size_t axis = 0; axis < layout.size(); ++axis) {
    if (layout[axis].is_shard() && layout[axis].dim >= sizes.size()) return std::nullopt;
  }
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    std::array<uint8_t, kMostMeshAxes> axes{};
    size_t count = 0;
    for (size_t axis = 0; axis < layout.size(); ++axis) {
      if (layout[axis].is_shard() && layout[axis].dim == dim) axes[count++] = static_cast<uint8_t>(axis);
    }
    std::stable_sort(axes.begin(), axes.begin() + count,
                     [&](uint8_t a, uint8_t b) { return layout[a].outer < layout[b].outer; });
    int64_t before = 1;  // elements of the dimension's factors so far
    int64_t local = sizes[dim];
    for (size_t i = 0; i < count; ++i) {
      const int64_t outer = layout[axes[i]].outer;
      const int64_t devices = mesh.axes[axes[i]].size;
      const bool nested = i > 0 && layout[axes[i - 1]].outer == outer;
      if (!nested) {
        if (outer < before || outer % before != 0) return std::nullopt;
        if (outer > before || i == 0) cuts.expanded.push_back(outer / before);
        before = outer;
      }
      cuts.dimension_of_axis[axes[i]] = static_cast<int64_t>(cuts.expanded.size());
      cuts.expanded.push_back(devices);
      before *= devices;
      if (local % devices != 0) return std::nullopt;
      local /= devices;
    }
    if (sizes[dim] % before != 0 && count > 0) return std::nullopt;
    cuts.expanded.push_back(count > 0 ? sizes[dim] / before : sizes[dim]);
    cuts.local.push_back(local);
  }
  return cuts;
}

std::optional<std::vector<int64_t>> local_sizes(std::span<const int64_t> sizes, const Layout& layout,
                                                const DeviceMesh& mesh) {
  std::optional<DimensionCuts> cuts = DimensionCuts::of(sizes, layout, mesh);
  if (!cuts) return std::nullopt;
  return std::move(cuts->local);
}

}  // namespace shadowgraph
