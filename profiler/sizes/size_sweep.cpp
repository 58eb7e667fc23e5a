#include <fmt/format.h>

#include <array>

#include "profiler/program_costs.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/steady_state.h"
#include "shadowgraph/profile/sweep.h"

namespace shadowgraph {
namespace {

// Takes powers up to two of each size, one value more to check, and a point off the grid. That is enough for sizes that
// are linear in batch and quadratic in sequence length. A graph at a size costs next to nothing.
std::vector<std::vector<int64_t>> sample_points(const SymbolicGraph& symbolic) {
  std::vector<std::vector<int64_t>> points{{}};
  for (const auto& dimension : symbolic.dimensions()) {
    std::vector<std::vector<int64_t>> longer;
    for (const auto& point : points) {
      for (const int64_t k : {0, 1, 2, 5}) {
        longer.push_back(point);
        longer.back().push_back(dimension.smallest + k * dimension.step);
      }
    }
    points = std::move(longer);
  }
  auto& off = points.emplace_back();
  for (const auto& dimension : symbolic.dimensions()) off.push_back(dimension.smallest + 9 * dimension.step);
  return points;
}

NamedSizes named(const SymbolicGraph& symbolic, const std::vector<int64_t>& point) {
  NamedSizes sizes;
  for (size_t i = 0; i < point.size(); ++i) sizes.emplace(symbolic.dimensions()[i].name, point[i]);
  return sizes;
}

constexpr std::array<int64_t NodeFlops::*, 4> kKinds = {&NodeFlops::matmul, &NodeFlops::elementwise,
                                                        &NodeFlops::transcendental, &NodeFlops::beyond_pytorch};

NodeFlops sum_of_phases(const Graph& graph, const Flops& flops) {
  NodeFlops sum;
  for (uint32_t i = 0; i < graph.phase_count(); ++i) sum += flops.of_phase(PhaseId(i));
  return sum;
}

int64_t steady_peak(const Graph& graph, const MemoryTimeline& timeline) {
  const auto steady = steady_state(graph, timeline);
  return steady ? steady->peak.bytes : timeline.peak().bytes;
}

void add(SizeCost& cost, const DeviceMemory& memory) {
  cost.reserved_bytes = memory.reserved_peak;
  cost.footprint_bytes = memory.footprint();
}

}  // namespace

SizeCost size_cost(const Profile& profile) {
  SizeCost cost{.peak_bytes = profile.leading_peak().bytes, .saved_bytes = profile.saved.activations};
  for (const auto& [phase, flops] : profile.flops) cost.flops += flops;
  if (profile.device_memory) add(cost, *profile.device_memory);
  return cost;
}

std::string_view to_string(BoundedBytes bytes) {
  switch (bytes) {
    case BoundedBytes::kLive:
      return "live";
    case BoundedBytes::kReserved:
      return "reserved";
    case BoundedBytes::kDevice:
      return "device";
  }
  return "";
}

BoundedBytes bounded_bytes_named(std::string_view word) {
  for (const BoundedBytes bytes : {BoundedBytes::kLive, BoundedBytes::kReserved, BoundedBytes::kDevice}) {
    if (to_string(bytes) == word) return bytes;
  }
  throw Error(fmt::format("'{}' are no bytes that a memory bounds: live, reserved or device", word));
}

int64_t bytes_of(const SizeCost& cost, BoundedBytes bytes) {
  if (bytes == BoundedBytes::kLive) return cost.peak_bytes;
  const auto& asked = bytes == BoundedBytes::kReserved ? cost.reserved_bytes : cost.footprint_bytes;
  if (!asked)
    throw Error(fmt::format("--by {}: a CPU has no caching allocator; --by live, or --device cuda", to_string(bytes)));
  return *asked;
}

SizeSweep::SizeSweep(const SymbolicGraph& symbolic, std::optional<c10::Device> device,
                     const AllocatorSettings& allocator)
    : symbolic_(symbolic), instance_(symbolic), device_(main_device(symbolic.base(), device)), allocator_(allocator) {
  const auto points = sample_points(symbolic);
  const PolynomialFit fit(points);
  std::vector<Flops> samples;
  for (const auto& point : points) samples.push_back(Flops::of(instance_.at(named(symbolic, point))));
  std::vector<int64_t> row(points.size());
  const auto fitted = [&](auto&& value) {
    for (size_t i = 0; i < points.size(); ++i) row[i] = value(samples[i]);
    return fit.of(row);
  };
  const Graph& graph = instance_.graph();
  std::map<std::vector<int64_t>, std::optional<Polynomial>> known;  // many nodes cost the same
  for (const NodeId node : graph.nodes()) {
    for (size_t i = 0; i < points.size(); ++i) row[i] = samples[i].of(node).matmul;
    if (std::ranges::all_of(row, [](int64_t flops) { return flops == 0; })) {
      by_node_[node] = Polynomial();
      continue;
    }
    const auto [entry, added] = known.try_emplace(row);
    if (added) entry->second = fit.of(row);
    by_node_[node] = entry->second;
  }
  for (uint32_t i = 0; i < graph.phase_count(); ++i) {
    by_phase_[PhaseId(i)] = fitted([&](const Flops& flops) { return flops.of_phase(PhaseId(i)).matmul; });
  }
  for (size_t k = 0; k < kKinds.size(); ++k) {
    total_[k] = fitted([&](const Flops& flops) { return sum_of_phases(graph, flops).*kKinds[k]; });
  }
}

SizeCost SizeSweep::at(const NamedSizes& sizes) {
  const Graph& graph = instance_.at(sizes);
  SizeCost cost;
  cost.saved_bytes = SavedBytes::of(graph).activations;
  if (device_->is_cpu()) {
    cost.peak_bytes = steady_peak(graph, MemoryTimeline::of(graph, device_));
  } else {
    const ProgramCosts costs(graph);
    cost.peak_bytes = steady_peak(graph, costs.timeline(device_));
    add(cost, device_memory(costs, {.device = device_, .allocator = allocator_}));
  }
  std::vector<int64_t> point;
  for (const auto& [name, size] : sizes) point.push_back(size);
  std::optional<NodeFlops> counted;
  for (size_t k = 0; k < kKinds.size(); ++k) {
    if (total_[k]) {
      cost.flops.*kKinds[k] = total_[k]->evaluate(point);
      continue;
    }
    if (!counted) counted = sum_of_phases(graph, Flops::of(graph));
    cost.flops.*kKinds[k] = (*counted).*kKinds[k];
  }
  return cost;
}

std::string SizeSweep::flops_text(PhaseId phase) const {
  if (!by_phase_[phase]) return "no polynomial";
  std::vector<std::string> names;
  for (const auto& dimension : symbolic_.dimensions()) names.push_back(dimension.name);
  return by_phase_[phase]->to_text(names);
}

}  // namespace shadowgraph
