// Implements layouts as reshapes. A sharded dimension is split into smaller ones: one for each axis that shards it, and
// one for each stretch between. A device's shard is selected by its coordinates in the dimensions of the axes.
//
//     dimension 0 of 24, S(0) on x=2 and S(0,4) on y=3:    24 = 2 (x) * 2 * 3 (y) * 2       24 -> 4 per device
#include "shadowgraph/shard/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <tuple>

#include "shadowgraph/profile/communication.h"
#include "shadowgraph/shard/solver.h"
#include "sharding/layout/dimension_cuts.h"
#include "support/text.h"

namespace shadowgraph {

DeviceMesh DeviceMesh::parse(std::string_view text) {
  DeviceMesh mesh;
  if (text.find('=') != std::string_view::npos) {
    mesh.axes = parse_mesh(text);
  } else {
    constexpr std::string_view kNames = "xyzw";
    const auto sizes = parse_numbers<int64_t>(text, 'x');
    if (!sizes || sizes->empty() || text.ends_with('x') || std::ranges::min(*sizes) < 1) {
      throw Error(fmt::format("invalid mesh \"{}\": expected a form such as \"8\", \"8x8\" or \"dp=8,tp=4\"", text));
    }
    for (const int64_t size : *sizes) {
      const std::string name(1, kNames[std::min(mesh.axes.size(), kNames.size() - 1)]);
      mesh.axes.push_back({.name = name, .size = size});
    }
  }
  if (mesh.axes.empty() || mesh.axes.size() > kMaxMeshAxes) {
    throw Error(fmt::format("mesh \"{}\" has {} axes; the number must be between 1 and {}", text, mesh.axes.size(),
                            kMaxMeshAxes));
  }
  std::set<std::string> names;
  int64_t devices = 1;
  for (const MeshAxis& axis : mesh.axes) {
    if (!names.insert(axis.name).second)
      throw Error(fmt::format("mesh \"{}\" has two axes named {}; names must be unique", text, axis.name));
    if (axis.size < 1)
      throw Error(fmt::format("axis {} of mesh \"{}\" must have at least one device", axis.name, text));
    if (__builtin_mul_overflow(devices, axis.size, &devices) || devices > (int64_t{1} << 31)) {
      throw Error(fmt::format("mesh \"{}\" has more than 2^31 devices", text));
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

std::vector<int64_t> DeviceMesh::ranks_along(size_t axis, int64_t rank) const {
  int64_t stride = 1;
  for (size_t later = axis + 1; later < axes.size(); ++later) stride *= axes[later].size;
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < axes[axis].size; ++i) ranks.push_back(rank + (i - coordinate(rank, axis)) * stride);
  return ranks;
}

std::string DeviceMesh::to_string() const {
  std::string text;
  for (const MeshAxis& axis : axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  return text;
}

Layout::Layout(std::span<const Placement> placements) : size_(static_cast<uint8_t>(placements.size())) {
  if (placements.size() > kMaxMeshAxes) {
    throw Error(fmt::format("a layout of {} axes; the maximum is {}", placements.size(), kMaxMeshAxes));
  }
  std::copy(placements.begin(), placements.end(), placements_.begin());
}

bool Layout::is_replicated() const { return std::ranges::all_of(*this, &Placement::is_replicate); }

bool Layout::has_partial() const { return std::ranges::any_of(*this, &Placement::is_partial); }

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

// Parses one placement such as "S(0,8)" from the front of `rest`; returns nullopt if there is none.
static std::optional<Placement> take_placement(std::string_view& rest) {
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
  const auto outer = take(",") ? number(1, std::numeric_limits<int64_t>::max()) : std::optional<int64_t>(1);
  if (!dim || !outer || !take(")")) return std::nullopt;
  return Placement::shard(*dim, *outer);
}

Layout Layout::parse(std::string_view text) {
  std::vector<Placement> placements;
  std::string_view rest = text;
  while (true) {
    const std::optional<Placement> placement = take_placement(rest);
    const bool more = rest.starts_with(',');
    if (!placement || (!more && !rest.empty())) {
      throw Error(fmt::format("invalid layout \"{}\": expected a form such as \"S(0),R,P(sum)\"", text));
    }
    placements.push_back(*placement);
    if (!more) return Layout(placements);
    rest.remove_prefix(1);
  }
}

std::optional<DimensionCuts> DimensionCuts::of(std::span<const int64_t> sizes, const Layout& layout,
                                               const DeviceMesh& mesh) {
  DimensionCuts cuts;
  cuts.dimension_of_axis.assign(layout.size(), -1);
  for (size_t axis = 0; axis < layout.size(); ++axis) {
    if (layout[axis].is_shard() && layout[axis].dim >= sizes.size()) return std::nullopt;
  }
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    std::array<uint8_t, kMaxMeshAxes> axes{};
    size_t count = 0;
    for (size_t axis = 0; axis < layout.size(); ++axis) {
      if (layout[axis].is_shard() && layout[axis].dim == dim) axes[count++] = static_cast<uint8_t>(axis);
    }
    std::stable_sort(axes.begin(), axes.begin() + count,
                     [&](uint8_t a, uint8_t b) { return layout[a].outer < layout[b].outer; });
    int64_t before = 1;  // product of the dimension's factors so far
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

// Finds redistributions as shortest paths: layouts are the vertices, steps on one axis are the edges. Intermediate
// layouts depend on both ends: every axis may be replicated, shard any dimension as a whole (S(d)), or have a placement
// of either end. Vertices are created on demand, their edges once. Each starting layout has a separate search.

static bool same_shard(const Placement& a, const Placement& b) {
  return a.is_shard() && b.is_shard() && a.dim == b.dim && a.outer == b.outer;
}

// Returns the layout after a gather over `axis`. Shards nested within it become nested within each of its pieces, and
// the pieces of an axis around it are multiplied accordingly.
static Layout gathered(Layout layout, size_t axis, const DeviceMesh& mesh) {
  const Placement cut = layout[axis];
  int64_t pieces = 1;
  for (size_t outer = 0; outer <= axis; ++outer) {
    if (same_shard(layout[outer], cut)) pieces *= mesh.axes[outer].size;
  }
  layout[axis] = Placement::replicate();
  for (size_t other = axis + 1; other < layout.size(); ++other) {
    if (same_shard(layout[other], cut)) layout[other].outer *= pieces;
  }
  return layout;
}

std::optional<RedistributionStep> redistribution_step(const Layout& layout, size_t axis, const Placement& to,
                                                      const DeviceMesh& mesh, std::span<const int64_t> sizes) {
  const Placement from = layout[axis];
  if (from == to || to.is_partial()) return std::nullopt;
  RedistributionStep step{.axis = static_cast<uint8_t>(axis), .from = from, .to = to};
  step.after = from.is_shard() ? gathered(layout, axis, mesh) : layout;
  if (to.is_replicate()) {
    step.kind = from.is_shard() ? RedistributionKind::kAllGather : RedistributionKind::kAllReduce;
  } else {
    step.kind = from.is_shard()     ? RedistributionKind::kAllToAll
                : from.is_partial() ? RedistributionKind::kReduceScatter
                                    : RedistributionKind::kSlice;
    // The pieces of a later axis with the same shard would have to be nested within the new ones, but enclose them.
    for (size_t later = axis + 1; later < layout.size(); ++later) {
      if (same_shard(step.after[later], to)) return std::nullopt;
    }
  }
  step.after[axis] = to;
  if (!local_sizes(sizes, step.after, mesh)) return std::nullopt;
  return step;
}

int64_t parts_of(const Layout& layout, const DeviceMesh& mesh) {
  int64_t parts = 1;
  for (size_t a = 0; a < layout.size(); ++a) {
    if (layout[a].is_shard()) parts *= mesh.axes[a].size;
  }
  return parts;
}

int64_t stretches(const Layout& layout, size_t axis, const DeviceMesh& mesh) {
  const Placement& cut = layout[axis];
  int64_t stretches = cut.outer;
  for (size_t other = 0; other < layout.size(); ++other) {
    const Placement& placement = layout[other];
    if (other == axis || !placement.is_shard() || placement.dim != cut.dim) continue;
    if (placement.outer < cut.outer) stretches /= mesh.axes[other].size;
  }
  return stretches;
}

int64_t piece_block_count(const Layout& layout, size_t axis, std::span<const int64_t> sizes, const DeviceMesh& mesh) {
  const Placement& cut = layout[axis];
  const std::optional<std::vector<int64_t>> local = local_sizes(sizes, layout, mesh);
  if (!cut.is_shard() || !local) return 1;
  int64_t blocks = stretches(layout, axis, mesh);
  for (size_t dim = 0; dim < cut.dim; ++dim) blocks *= (*local)[dim];
  return blocks;
}

namespace {

struct LayoutOrder {
  static auto key(const Placement& p) { return std::tuple(p.kind, p.op, p.dim, p.outer); }
  bool operator()(const Layout& a, const Layout& b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                        [](const Placement& x, const Placement& y) { return key(x) < key(y); });
  }
};

struct PricedStep {
  RedistributionStep step;
  uint32_t to = 0;
  int64_t picoseconds = 0, wire = 0;
};

// The data about a step that the search needs.
struct Arc {
  int64_t picoseconds = 0;
  uint32_t to = 0;
};

struct Reached {
  int64_t picoseconds = kForbidden;
  int32_t steps = 0;
  uint32_t before = 0;
  uint32_t by = 0;  // step from the previous vertex
};

}  // namespace

struct RedistributionPlanner::State {
  DeviceMesh mesh;
  RedistributionRates rates;
  std::vector<ProcessGroupInfo> groups;  // by axis

  class Space {
   public:
    Space(const State& state, std::span<const int64_t> sizes, int64_t element_bytes, std::vector<Placement> placements)
        : state_(state), sizes_(sizes), element_bytes_(element_bytes), placements_(std::move(placements)) {}

    uint32_t vertex(const Layout& layout) {
      const auto [found, is_new] = ids_.try_emplace(layout, static_cast<uint32_t>(layouts_.size()));
      if (is_new) {
        layouts_.push_back(layout);
        steps_.emplace_back();
        arcs_.emplace_back();
        expanded_.push_back(false);
      }
      return found->second;
    }
    std::optional<uint32_t> find(const Layout& layout) const {
      const auto found = ids_.find(layout);
      return found == ids_.end() ? std::nullopt : std::optional(found->second);
    }
    const std::vector<PricedStep>& steps(uint32_t vertex) {
      if (expanded_[vertex]) return steps_[vertex];
      expanded_[vertex] = true;
      const Layout layout = layouts_[vertex];
      const int64_t bytes_before = bytes(layout);
      std::vector<PricedStep> found;
      for (size_t axis = 0; axis < layout.size(); ++axis) {
        for (const Placement& to : placements_) {
          const auto step = redistribution_step(layout, axis, to, state_.mesh, sizes_);
          if (!step) continue;
          found.push_back(state_.priced(*step, layout, sizes_, bytes_before, bytes(step->after)));
          found.back().to = this->vertex(step->after);
        }
      }
      for (const PricedStep& step : found) arcs_[vertex].push_back({step.picoseconds, step.to});
      return steps_[vertex] = std::move(found);
    }

    // Returns shortest paths to all vertices, or to those reached before `target`.
    std::vector<Reached> search(uint32_t from, std::optional<Layout> target = std::nullopt) {
      std::vector<Reached> reached(layouts_.size());
      reached[from] = {.picoseconds = 0};
      using Entry = std::tuple<int64_t, int32_t, uint32_t>;
      std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
      queue.emplace(0, 0, from);
      while (!queue.empty()) {
        const auto [picoseconds, count, vertex] = queue.top();
        queue.pop();
        if (std::tie(picoseconds, count) > std::tie(reached[vertex].picoseconds, reached[vertex].steps)) continue;
        if (target && layouts_[vertex] == *target) break;
        if (!expanded_[vertex]) {
          steps(vertex);
          reached.resize(layouts_.size());
        }
        const std::vector<Arc>& arcs = arcs_[vertex];
        for (uint32_t i = 0; i < arcs.size(); ++i) {
          const Reached next{picoseconds + arcs[i].picoseconds, count + 1, vertex, i};
          Reached& best = reached[arcs[i].to];
          if (std::tie(next.picoseconds, next.steps) >= std::tie(best.picoseconds, best.steps)) continue;
          best = next;
          queue.emplace(next.picoseconds, next.steps, arcs[i].to);
        }
      }
      return reached;
    }

   private:
    int64_t bytes(const Layout& layout) const {
      const std::optional<std::vector<int64_t>> local = local_sizes(sizes_, layout, state_.mesh);
      int64_t bytes = element_bytes_;
      for (const int64_t size : *local) bytes *= size;
      return bytes;
    }

    const State& state_;
    std::span<const int64_t> sizes_;
    int64_t element_bytes_;
    std::vector<Placement> placements_;
    std::map<Layout, uint32_t, LayoutOrder> ids_;
    std::vector<Layout> layouts_;
    std::vector<std::vector<PricedStep>> steps_;
    std::vector<std::vector<Arc>> arcs_;
    std::vector<bool> expanded_;
  };

  PricedStep priced(const RedistributionStep& step, const Layout& before, std::span<const int64_t> sizes,
                    int64_t bytes_before, int64_t bytes_after) const {
    double seconds = 0;
    PricedStep priced{.step = step};
    const auto copy = [&](int64_t bytes) { seconds += rates.launch + 2.0 * bytes / rates.memory_bandwidth; };
    const auto communicate = [&](CollectiveKind kind, int64_t payload) {
      const CollectiveCost cost = collective_cost(kind, payload, groups[step.axis], *rates.interconnect);
      seconds += cost.seconds();
      priced.wire = cost.wire;
    };
    const bool scattered_before = step.from.is_shard() && piece_block_count(before, step.axis, sizes, mesh) != 1;
    const bool scattered_after = step.to.is_shard() && piece_block_count(step.after, step.axis, sizes, mesh) != 1;
    switch (step.kind) {
      case RedistributionKind::kSlice:
        copy(bytes_after);
        break;
      case RedistributionKind::kAllGather:
        communicate(CollectiveKind::kAllGather, bytes_after);
        if (scattered_before) copy(bytes_after);
        break;
      case RedistributionKind::kAllReduce:
        communicate(CollectiveKind::kAllReduce, bytes_before);
        break;
      case RedistributionKind::kReduceScatter:
        if (scattered_after) copy(bytes_before);
        communicate(CollectiveKind::kReduceScatter, bytes_before);
        break;
      case RedistributionKind::kAllToAll:
        if (scattered_after) copy(bytes_before);
        communicate(CollectiveKind::kAllToAll, bytes_before);
        if (scattered_before) copy(bytes_after);
        break;
    }
    if (step.from.is_partial() && step.from.op == PartialOp::kAverage) copy(bytes_after);
    priced.picoseconds = std::llround(seconds * 1e12);
    return priced;
  }

  // Returns R, sharding of each dimension as a whole, and the placements of these layouts.
  std::vector<Placement> placements(std::span<const int64_t> sizes, std::initializer_list<const Layout*> ends) const {
    std::vector<Placement> placements{Placement::replicate()};
    for (size_t dim = 0; dim < sizes.size() && dim < 256; ++dim) {
      if (sizes[dim] > 1) placements.push_back(Placement::shard(static_cast<int64_t>(dim)));
    }
    for (const Layout* layout : ends) {
      for (const Placement& placement : *layout) {
        if (placement.is_shard() && std::find(placements.begin(), placements.end(), placement) == placements.end()) {
          placements.push_back(placement);
        }
      }
    }
    return placements;
  }
};

RedistributionPlanner::RedistributionPlanner(const DeviceMesh& mesh, const RedistributionRates& rates)
    : state_(std::make_unique<State>()) {
  if (rates.interconnect == nullptr) throw Error("RedistributionPlanner requires an interconnect");
  state_->mesh = mesh;
  state_->rates = rates;
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    const MeshAxis& axis = mesh.axes[a];
    state_->groups.push_back(
        {.name = axis.name, .size = axis.size, .ranks = mesh.ranks_along(a, 0), .axis = axis.name});
  }
}
RedistributionPlanner::~RedistributionPlanner() = default;
RedistributionPlanner::RedistributionPlanner(RedistributionPlanner&&) noexcept = default;
RedistributionPlanner& RedistributionPlanner::operator=(RedistributionPlanner&&) noexcept = default;

Redistribution RedistributionPlanner::path(std::span<const int64_t> sizes, int64_t element_bytes, const Layout& from,
                                           const Layout& to) const {
  Redistribution way;
  if (from == to) return way;
  way.possible = local_sizes(sizes, from, state_->mesh).has_value() && local_sizes(sizes, to, state_->mesh).has_value();
  if (!way.possible) return way;
  State::Space space(*state_, sizes, element_bytes, state_->placements(sizes, {&from, &to}));
  const uint32_t source = space.vertex(from);
  const std::vector<Reached> reached = space.search(source, to);
  const std::optional<uint32_t> target = space.find(to);
  way.possible = target && *target < reached.size() && reached[*target].picoseconds != kForbidden;
  if (!way.possible) return way;
  way.picoseconds = reached[*target].picoseconds;
  for (uint32_t vertex = *target; vertex != source; vertex = reached[vertex].before) {
    const PricedStep& step = space.steps(reached[vertex].before)[reached[vertex].by];
    way.steps.push_back(step.step);
    way.wire_bytes += step.wire;
  }
  std::reverse(way.steps.begin(), way.steps.end());
  return way;
}

std::vector<int64_t> RedistributionPlanner::costs(std::span<const int64_t> sizes, int64_t element_bytes,
                                                  std::span<const Layout> from, std::span<const Layout> to) const {
  std::vector<int64_t> costs(from.size() * to.size(), kForbidden);
  // Ends with the same strided shards share a search space.
  std::map<std::vector<std::tuple<uint8_t, int64_t>>, std::unique_ptr<State::Space>> spaces;
  std::map<std::pair<State::Space*, uint32_t>, std::vector<Reached>> searches;
  const auto strided = [](const Layout& layout, std::vector<std::tuple<uint8_t, int64_t>>& cuts) {
    for (const Placement& placement : layout) {
      if (placement.is_shard() && placement.outer != 1) cuts.emplace_back(placement.dim, placement.outer);
    }
  };
  const auto fits = [&](const Layout& layout) { return local_sizes(sizes, layout, state_->mesh).has_value(); };
  std::vector<bool> to_fits(to.size());
  for (size_t j = 0; j < to.size(); ++j) to_fits[j] = fits(to[j]);
  for (size_t i = 0; i < from.size(); ++i) {
    const bool from_fits = fits(from[i]);
    for (size_t j = 0; j < to.size(); ++j) {
      int64_t& cost = costs[i * to.size() + j];
      if (from[i] == to[j]) {
        cost = 0;
        continue;
      }
      if (!from_fits || !to_fits[j]) continue;
      std::vector<std::tuple<uint8_t, int64_t>> cuts;
      strided(from[i], cuts);
      strided(to[j], cuts);
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      std::unique_ptr<State::Space>& space = spaces[cuts];
      if (!space) {
        space = std::make_unique<State::Space>(*state_, sizes, element_bytes,
                                               state_->placements(sizes, {&from[i], &to[j]}));
      }
      const uint32_t source = space->vertex(from[i]);
      std::vector<Reached>& reached = searches[{space.get(), source}];
      if (reached.empty()) reached = space->search(source);
      const std::optional<uint32_t> target = space->find(to[j]);
      if (target && *target < reached.size()) cost = reached[*target].picoseconds;
    }
  }
  return costs;
}

NodeTensors NodeTensors::of(const Graph& graph, NodeId node) {
  NodeTensors tensors;
  const auto into = [&](std::vector<ValueId>& list) {
    return [&](ValueId v) {
      if (graph.value(v).kind == ValueKind::kTensor) list.push_back(v);
    };
  };
  graph.for_each_input(node, into(tensors.operands));
  graph.for_each_output(node, into(tensors.results));
  return tensors;
}

}  // namespace shadowgraph
