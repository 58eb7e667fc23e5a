// offload: what modules keep for backward waits on the host.
//
// Which. A tensor that forward makes and backward reads, of the module of its last use in forward. host_trip() says
// whether it may leave. Where it comes back, all of backward reads the copy.
//
// When. Module i's tensors leave while module i + 1 runs, and come back while backward of i + 1 runs:
//
//     forward    i: kernels        i + 1: kernels       end of i + 1: the device's memory is free
//                                  copies of i
//     backward   i + 1: kernels                         i: kernels
//                begin of i + 1: memory for i; copies
//
// So the originals die at the last forward node of the module behind, and the copy back stands at its first backward
// node. The last module of a parent has none behind it: its tensors leave and come back where they stand.
#include "shadowgraph/passes/offload.h"

#include <fmt/format.h>

#include <map>
#include <ranges>
#include <unordered_map>
#include <vector>

#include "ir/analysis/kernel_note.h"
#include "ir/analysis/module_tree.h"
#include "ir/edit/deaths.h"
#include "passes/checkpoint/checkpoint_plan.h"
#include "passes/checkpoint/host_copies.h"
#include "passes/checkpoint/region_names.h"
#include "passes/checkpoint/storage_lives.h"
#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/passes/checkpoint.h"

namespace shadowgraph {
namespace {

class Offload {
 public:
  Offload(Graph& graph, std::span<const RegionId> regions, int64_t least)
      : graph_(graph), least_(least), effects_(Effects::of(graph)) {
    for (const RegionId region : regions) modules_.emplace(region, Module{});
    for (uint32_t i = 0; i < graph.storage_count(); ++i) has_device_ |= !graph.storage(StorageId(i)).device().is_cpu();
  }

  OffloadResult run() {
    find_neighbours();
    std::vector<std::pair<HostTrip, const Module*>> trips;
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const StorageId storage(i);
      if (!waits_for_backward(storage)) continue;
      HostTrip trip = host_trip(graph_, effects_, storage);
      const Module* module = module_of(trip.last_forward.valid() ? trip.last_forward : graph_.storage(storage).born);
      if (module == nullptr) continue;
      if (!trip.last_forward.valid()) {
        ++result_.left["backward writes it, an output holds it, or no tensor fills its memory"];
        continue;
      }
      trip.fetch = module->fetch;
      trips.emplace_back(std::move(trip), module);
    }
    send(trips);
    return std::move(result_);
  }

 private:
  struct Module {
    NodeId fetch;  // the first backward node of the module behind it
    NodeId held;   // the last forward node of it
  };

  // The region of the list that a node is in, or belongs to.
  RegionId listed(NodeId node) const {
    RegionId region = charged_region(graph_, node);
    while (region.valid() && !modules_.contains(region)) region = graph_.region(region).parent;
    return region;
  }
  const Module* module_of(NodeId node) const {
    const RegionId region = listed(node);
    return region.valid() ? &modules_.at(region) : nullptr;
  }

  // By module of a family, such as all layers, the one before it, if that is listed.
  std::unordered_map<RegionId, RegionId> modules_before() const {
    std::unordered_map<RegionId, RegionId> before;
    std::map<std::string_view, RegionId> last;
    for (const RegionId region : nameable_regions(graph_)) {
      const std::string_view family = family_of(graph_.text_or_empty(graph_.region(region).name));
      if (graph_.region(region).kind != RegionKind::kModule || family.empty()) continue;
      const auto [entry, first] = last.try_emplace(family, region);
      if (!first && modules_.contains(entry->second)) before.emplace(region, entry->second);
      entry->second = region;
    }
    return before;
  }

  void find_neighbours() {
    const std::unordered_map<RegionId, RegionId> before = modules_before();
    for (const NodeId node : graph_.nodes()) {
      const PhaseId phase = graph_.node(node).phase;
      if (phase != Graph::kForward && phase != Graph::kBackward) continue;
      for (RegionId region = charged_region(graph_, node); region.valid(); region = graph_.region(region).parent) {
        const auto found = before.find(region);
        if (found == before.end()) continue;
        Module& module = modules_.at(found->second);
        if (phase == Graph::kForward) module.held = node;
        if (phase == Graph::kBackward && !module.fetch.valid()) module.fetch = node;
        break;
      }
    }
  }

  bool waits_for_backward(StorageId storage) const {
    const Storage& of = graph_.storage(storage);
    if (of.bytes < least_ || !of.born.valid() || graph_.is_erased(of.born)) return false;
    if ((has_device_ && of.device().is_cpu()) || graph_.note(of.born, kKernelNote) == kCopyEngine) return false;
    if (graph_.node(of.born).phase != Graph::kForward || graph_.is_placeholder(of.born)) return false;
    return of.freed_after.valid() && graph_.node(of.freed_after).phase == Graph::kBackward;
  }

  void send(const std::vector<std::pair<HostTrip, const Module*>>& trips) {
    StorageChanges changes;
    CheckpointResult done;
    std::map<StorageId, NodeId> held;
    // What backward reads first comes back first.
    for (const auto& [trip, module] : std::views::reverse(trips)) {
      send_to_host(graph_, trip, changes, done);
      const NodeId last = module->held;
      if (last.valid() && graph_.is_before(trip.last_forward, last)) {
        held.emplace(graph_.value(trip.whole).storage, last);
      }
    }
    if (done.offloaded == 0) return;
    for (const NodeId node : graph_.nodes()) {
      if (graph_.node(node).phase == Graph::kForward) drop_saved(node, changes);
    }
    end_lives(graph_, changes);
    die_at(graph_, held);
    result_.tensors = done.offloaded;
    result_.bytes = done.offloaded_bytes;
  }

  // Autograd keeps what is on the host in their place.
  void drop_saved(NodeId node, const StorageChanges& changes) {
    std::vector<SavedTensor> kept;
    for (const SavedTensor& saved : graph_.saved(node)) {
      const StorageId storage = graph_.value(saved.value).storage;
      if (!storage.valid() || changes.touched[storage] == 0) kept.push_back(saved);
    }
    if (kept.size() != graph_.saved(node).size()) graph_.set_saved(node, kept);
  }

  Graph& graph_;
  const int64_t least_;
  const Effects effects_;
  bool has_device_ = false;  // else the program is on the host, and copies go from there to there
  std::unordered_map<RegionId, Module> modules_;
  OffloadResult result_;
};

}  // namespace

OffloadResult offload_regions(Graph& graph, std::span<const RegionId> regions, int64_t least) {
  return Offload(graph, regions, least).run();
}

OffloadResult offload_modules(Graph& graph, const OffloadOptions& options) {
  // A program without numbered modules is no mistake of whoever named none.
  const bool any = options.modules == "auto";
  return offload_regions(
      graph, any ? regions_named(graph, options.modules) : regions_that_match(graph, options.modules), options.least);
}

PassResult OffloadResult::summary() const {
  PassResult result{.changed = tensors > 0, .counters = {{"tensors", tensors}, {"bytes", bytes}}};
  for (const auto& [why, count] : left) result.counters.emplace_back("left: " + why, count);
  if (tensors == 0) result.warnings.emplace_back("no tensor that backward reads may wait on the host");
  return result;
}

}  // namespace shadowgraph
