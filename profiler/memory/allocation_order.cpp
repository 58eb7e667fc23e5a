#include "profiler/memory/allocation_order.h"

#include <algorithm>
#include <utility>

#include "profiler/cost/scratch_rules.h"
#include "profiler/stream_notes.h"

namespace shadowgraph {
namespace {

// Makes rows by step of pairs (step, storage), in the order given within a step.
void group(const std::vector<std::pair<uint32_t, StorageId>>& entries, uint32_t steps, std::vector<StorageId>& all,
           std::vector<uint32_t>& begin) {
  begin.assign(steps + 1, 0);
  for (const auto& [step, storage] : entries) ++begin[step + 1];
  for (uint32_t step = 0; step < steps; ++step) begin[step + 1] += begin[step];
  all.resize(entries.size());
  std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
  for (const auto& [step, storage] : entries) all[next[step]++] = storage;
}

}  // namespace

AllocationOrder::AllocationOrder(const ProgramCosts& costs, c10::Device device) {
  const Graph& graph = costs.graph();
  const auto steps = static_cast<uint32_t>(costs.nodes.size());
  const auto is_here = [&](c10::Device other) { return is_on(other, device); };
  std::vector<std::pair<uint32_t, StorageId>> before, born, dead;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = graph.storage(id);
    if (!is_here(storage.device())) continue;
    const bool there = existed_before(graph, storage);
    const bool has_place = storage.born.valid() && !graph.is_erased(storage.born);
    const uint32_t first = has_place ? costs.order[storage.born] : 0;
    (there ? before : born).emplace_back(first, id);
    first_[id] = there ? 0 : first;
    last_[id] = steps == 0 ? 0 : steps - 1;
    if (storage.freed_after.valid() && !graph.is_erased(storage.freed_after)) {
      last_[id] = std::max(first, costs.order[storage.freed_after]);
      dead.emplace_back(last_[id], id);
    } else if (!there) {
      left_.push_back(id);
    }
  }
  std::stable_sort(before.begin(), before.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [step, id] : before) before_.push_back(id);
  group(born, steps, born_, born_begin_);
  group(dead, steps, dead_, dead_begin_);
  scratch_.assign(steps, 0);
  streams_.assign(steps, 0);
  for (uint32_t step = 0; step < steps; ++step) {
    if (!graph.has_notes(costs.nodes[step])) continue;
    StreamNotes notes = stream_notes(graph, costs.nodes[step]);
    streams_[step] = static_cast<int32_t>(notes.stream);
    if (!notes.used_on.empty()) used_on_[step] = std::move(notes.used_on);
  }
  for (uint32_t step = 0; step < steps; ++step) {
    const int64_t bytes = costs.scratch.of(costs.nodes[step]).bytes;
    if (bytes > 0 && is_here(device_of_call(graph, costs.nodes[step]).value_or(c10::Device(c10::kCPU)))) {
      scratch_[step] = bytes;
    }
  }
}

}  // namespace shadowgraph
