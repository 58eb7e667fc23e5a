#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "profiler/cost/scratch_rules.h"
#include "profiler/program_costs.h"
#include "shadowgraph/profile.h"

namespace shadowgraph {
namespace {

// Numbers that the program's text has, and the host writes into a tensor, are in no memory of their own.
bool is_literal(const Graph& graph, const Storage& storage) {
  return storage.kind == StorageKind::kConstant && existed_before(graph, storage) && storage.born.valid() &&
         !graph.is_erased(storage.born) && !graph.note(storage.born, "literal").empty();
}

}  // namespace

MemoryTimeline MemoryTimeline::of(const Graph& graph, std::optional<c10::Device> device) {
  std::vector<NodeId> nodes;
  nodes.reserve(graph.node_count());
  for (const NodeId node : graph.nodes()) nodes.push_back(node);
  const auto order = program_order(graph);
  return of(graph, std::move(nodes), order, storage_kinds(graph, order), CustomOperators::of(graph), Scratch::of(graph),
            device);
}

MemoryTimeline ProgramCosts::timeline(std::optional<c10::Device> device) const {
  return MemoryTimeline::of(graph(), nodes, order, kinds, custom, scratch, device);
}

MemoryTimeline MemoryTimeline::of(const Graph& graph, std::vector<NodeId> nodes, const IdMap<NodeId, uint32_t>& order,
                                  IdMap<StorageId, StorageKind> kinds, const CustomOperators& custom,
                                  const Scratch& scratch, std::optional<c10::Device> device) {
  MemoryTimeline timeline;
  timeline.kinds_ = std::move(kinds);
  timeline.nodes_ = std::move(nodes);
  const uint32_t steps = timeline.steps();
  if (steps == 0) return timeline;

  // First the changes at each step, then their running sums.
  timeline.live_.assign(steps, BytesByKind{});
  timeline.total_.assign(steps, 0);
  timeline.rounded_.assign(steps, 0);
  const auto add = [&](uint32_t born, uint32_t last, StorageKind kind, int64_t bytes) {
    timeline.live_[born][static_cast<size_t>(kind)] += bytes;
    timeline.rounded_[born] += rounded_bytes(bytes);
    if (last + 1 == steps) return;
    timeline.live_[last + 1][static_cast<size_t>(kind)] -= bytes;
    timeline.rounded_[last + 1] -= rounded_bytes(bytes);
  };
  timeline.intervals_.reserve(graph.storage_count());
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = graph.storage(id);
    if (!is_on(storage.device(), device)) continue;
    const bool freed = storage.freed_after.valid() && !graph.is_erased(storage.freed_after);
    const uint32_t born = existed_before(graph, storage) ? 0 : order[storage.born];
    const uint32_t last = std::max(born, freed ? order[storage.freed_after] : steps - 1);
    if (is_literal(graph, storage)) continue;
    timeline.intervals_.push_back({id, born, last, storage.bytes});
    add(born, last, timeline.kinds_[id], storage.bytes);
  }

  for (const auto& own : custom.scratch()) {
    if (is_on(own.device, device)) add(order[own.node], order[own.node], StorageKind::kTemporary, own.bytes);
  }

  for (uint32_t step = 0; step < steps; ++step) {
    BytesByKind& live = timeline.live_[step];
    int64_t total = 0;
    for (size_t kind = 0; kind < live.size(); ++kind) {
      if (step > 0) live[kind] += timeline.live_[step - 1][kind];
      total += live[kind];
    }
    if (step > 0) timeline.rounded_[step] += timeline.rounded_[step - 1];
    timeline.total_[step] = total;
    timeline.rounded_peak_ = std::max(timeline.rounded_peak_, timeline.rounded_[step]);
    const NodeId node = timeline.nodes_[step];
    const auto see = [&](MemoryPeak& peak, int64_t bytes) {
      if (step > 0 && bytes <= peak.bytes) return;
      peak = {.bytes = bytes, .step = step, .node = node, .phase = graph.node(node).phase, .by_kind = live};
    };
    see(timeline.peak_, total);
    // Scratch that was registered is in `live`; the rest is on the device of the node's tensors.
    const NodeScratch& inside = scratch.of(node);
    const bool counts = inside.bytes > 0 && inside.source != ScratchSource::kRegistered &&
                        is_on(device_of_call(graph, node).value_or(c10::Device(c10::kCPU)), device);
    see(timeline.peak_with_scratch_, counts ? total + inside.bytes : total);
  }
  return timeline;
}

std::vector<StorageId> MemoryTimeline::alive_at(uint32_t step, size_t count) const {
  std::vector<Interval> alive;
  for (const Interval& interval : intervals_) {
    if (interval.born <= step && step <= interval.last && interval.bytes > 0) alive.push_back(interval);
  }
  count = std::min(count, alive.size());
  std::partial_sort(alive.begin(), alive.begin() + static_cast<std::ptrdiff_t>(count), alive.end(),
                    [](const Interval& a, const Interval& b) {
                      return a.bytes != b.bytes ? a.bytes > b.bytes : a.storage < b.storage;
                    });
  std::vector<StorageId> storages;
  for (size_t i = 0; i < count; ++i) storages.push_back(alive[i].storage);
  return storages;
}

std::vector<LiveStorage> live_storages(const Graph& graph, const MemoryTimeline& timeline, uint32_t step,
                                       size_t count) {
  if (timeline.steps() == 0) return {};
  return describe_storages(graph, timeline, timeline.alive_at(step, count));
}

std::vector<LiveStorage> describe_storages(const Graph& graph, const MemoryTimeline& timeline,
                                           const std::vector<StorageId>& storages) {
  std::vector<LiveStorage> result;
  IdMap<StorageId, size_t> place(storages.size());
  for (StorageId id : storages) {
    place[id] = result.size();
    result.push_back({.storage = id, .bytes = graph.storage(id).bytes, .kind = timeline.kind(id)});
    const NodeId born = graph.storage(id).born;
    if (!born.valid() || graph.is_erased(born)) continue;
    LiveStorage& live = result.back();
    live.producer = graph.target(born).name();
    if (const std::string name = placeholder_name(graph, born); !name.empty()) live.producer += " " + name;
    live.module = module_path(graph, born);
    if (graph.node(born).source.valid()) live.source = graph.text(graph.node(born).source);
  }
  // Take the first value in each storage.
  size_t missing = result.size();
  for (NodeId node : graph.nodes()) {
    if (missing == 0) break;
    graph.for_each_output(node, [&](ValueId value) {
      const StorageId storage = graph.value(value).storage;
      if (!storage.valid()) return;
      const size_t at = std::as_const(place)[storage];
      if (at >= result.size() || result[at].dtype != c10::ScalarType::Undefined) return;
      result[at].dtype = graph.value(value).dtype;
      result[at].shape.assign(graph.sizes(value).begin(), graph.sizes(value).end());
      --missing;
    });
  }
  return result;
}

}  // namespace shadowgraph
