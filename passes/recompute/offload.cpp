
#include <array>
#include <map>
#include <ranges>
#include <unordered_map>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "ir/edit/bulk_edits.h"
#include "ir/records.h"
#include "passes/recompute/host_copies.h"
#include "passes/recompute/recompute_schedule.h"
#include "passes/recompute/regions.h"
#include "shadowgraph/graph/analysis.h"
#include "shadowgraph/passes/recompute.h"

namespace shadowgraph {

void update_lifetimes(Graph& graph, const StorageChanges& changes) {
  const auto is_copy = [&](NodeId n) { return changes.copies[n] != 0; };
  // Last uses of everything, in one walk.
  std::vector<NodeId> last_use(graph.storage_count());
  std::vector<bool> read_by_copy(graph.storage_count(), false);
  for (const NodeId n : graph.nodes()) {
    const auto touch = [&](ValueId v) {
      const StorageId s = graph.value(v).storage;
      if (!s.valid()) return;
      last_use[s.index] = n;
      if (is_copy(n)) read_by_copy[s.index] = true;
    };
    graph.for_each_input(n, touch);
    graph.for_each_output(n, touch);
  }
  std::map<StorageId, NodeId> free_points;
  for (uint32_t i = 0; i < graph.storage_count(); ++i) {
    const StorageId s(i);
    const Storage& storage = graph.storage(s);
    if (!last_use[i].valid()) continue;
    const bool is_freed = storage.freed_after.valid() && !graph.is_erased(storage.freed_after);
    const bool is_new =
        storage.born.valid() && !graph.is_erased(storage.born) && (is_copy(storage.born) || changes.made[s] != 0);
    const bool later = is_freed && read_by_copy[i] && graph.is_before(storage.freed_after, last_use[i]);
    const bool earlier = is_freed && changes.touched[s] != 0 && graph.is_before(last_use[i], storage.freed_after) &&
                         graph.node(storage.freed_after).phase != Graph::kForward;
    if ((!is_new || storage.freed_after == last_use[i]) && !later && !earlier) continue;
    free_points[s] =
        is_end(graph.node(last_use[i]).target) ? NodeId() : last_use[i];  // never freed if an end node uses it
  }
  free_storages_after(graph, free_points);
}

namespace {

class HostCopies {
 public:
  HostCopies(Graph& graph, StorageChanges& changes, CheckpointResult& result)
      : graph_(graph), changes_(changes), result_(result) {}

  void send(const OffloadPoints& points) {
    NodeId first;
    for (const ValueId v : points.read) {
      const auto readers = readers_of(v);
      if (!readers.empty() && (!first.valid() || graph_.is_before(readers.front(), first))) first = readers.front();
    }
    if (!first.valid()) return;  // all readers read copies
    if (points.fetch.valid() && graph_.is_before(points.fetch, first)) first = points.fetch;
    const ValueId whole = points.whole;
    const StorageId storage = graph_.value(whole).storage;
    const NodeId born = graph_.storage(storage).born;
    const ValueId host = copy_to(whole, c10::Device(c10::DeviceType::CPU), graph_.node(points.last_forward).next, born);
    changes_.made[graph_.value(host).storage] = 1;
    const ValueId back = copy_to(host, graph_.storage(storage).device(), first, born);
    mark_fetched(back, first, born);
    for (const ValueId v : points.read) {
      if (readers_of(v).empty()) continue;
      const ValueId replacement = v == whole ? back : view_like(v, back, first, born);
      graph_.replace_uses_if(v, replacement,
                             [&](NodeId user, const Argument&) { return graph_.node(user).phase == Graph::kBackward; });
    }
    changes_.touched[storage] = 1;
    ++result_.offloaded;
    result_.offloaded_bytes += graph_.storage(storage).bytes;
  }

 private:
  // Returns backward users, including recomputed nodes.
  std::vector<NodeId> readers_of(ValueId v) const {
    std::vector<NodeId> readers = graph_.users_of(v);
    std::erase_if(readers, [&](NodeId n) { return graph_.node(n).phase != Graph::kBackward; });
    return readers;
  }

  void mark_fetched(ValueId made, NodeId first, NodeId born) {
    const NodeId n = graph_.value(made).producer;
    mutable_node(graph_, n).phase = Graph::kBackward;
    mutable_node(graph_, n).region = graph_.node(first).region;
    mutable_node(graph_, n).forward = born;
    changes_.copies[n] = 1;
  }

  // Returns the view of another storage with the geometry of `v`.
  ValueId view_like(ValueId v, ValueId of, NodeId position, NodeId born) {
    const TargetId as_strided = graph_.intern_operator("aten::as_strided");
    const auto sizes = graph_.sizes(v), strides = graph_.strides(v);
    const int64_t offset = graph_.value(v).offset;
    const std::array<Argument, 4> arguments{Argument::of_value(of), graph_.int_list(sizes), graph_.int_list(strides),
                                            Argument::of_int(offset)};
    const NodeId n = graph_.insert_before(position, as_strided, arguments);
    const ValueId view = graph_.add_tensor_result(n, {.dtype = graph_.value(v).dtype,
                                                      .sizes = sizes,
                                                      .strides = strides,
                                                      .storage = graph_.value(of).storage,
                                                      .offset = offset,
                                                      .device = graph_.value(of).device()});
    mark_fetched(view, position, born);
    return view;
  }

  ValueId copy_to(ValueId v, c10::Device device, NodeId position, NodeId like) {
    const TargetId to_copy = graph_.intern_operator("aten::_to_copy");
    // No synchronization with the host is needed: later kernels on the same stream run after the copy.
    const bool asynchronous = graph_.value(v).device() != device;
    const std::array<Argument, 7> arguments{Argument::of_value(v), Argument::none(),
                                            Argument::none(),      Argument::of_device(device),
                                            Argument::none(),      Argument::of_bool(asynchronous),
                                            Argument::none()};
    const NodeId n = graph_.insert_before(position, to_copy, arguments);
    mutable_node(graph_, n).region = graph_.node(like).region;
    mutable_node(graph_, n).phase = Graph::kForward;
    graph_.set_note(n, kKernelNote, kCopyEngine);
    const Storage& from = graph_.storage(graph_.value(v).storage);
    const StorageId storage = graph_.add_storage(
        {.bytes = from.bytes, .device_type = device.type(), .device_index = device.index(), .born = n});
    return graph_.add_tensor_result(n, {.dtype = graph_.value(v).dtype,
                                        .sizes = graph_.sizes(v),
                                        .strides = graph_.strides(v),
                                        .storage = storage,
                                        .device = device});
  }

  Graph& graph_;
  StorageChanges& changes_;
  CheckpointResult& result_;
};

}  // namespace

void offload_to_cpu(Graph& graph, const OffloadPoints& points, StorageChanges& changes, CheckpointResult& result) {
  HostCopies(graph, changes, result).send(points);
}

// offload: moves tensors that modules save for backward to CPU memory until they are needed.
//
// Selection: a tensor produced in forward and read in backward belongs to the module of its last use in forward.
// offload_points() decides whether it can be offloaded. All of backward then reads the copy.
//
// Timing: the tensors of module i are copied out while module i + 1 runs, and back while backward of i + 1 runs:
//
//     forward    i: kernels        i + 1: kernels       end of i + 1: device memory is freed
//                                  copies of i
//     backward   i + 1: kernels                         i: kernels
//                begin of i + 1: memory for i; copies
//
// So the originals are freed at the last forward node of the next module, and the copy back is inserted at its first
// backward node. The last module of a parent has no next one: its tensors are copied out and back in place.

namespace {

class Offload {
 public:
  Offload(Graph& graph, std::span<const RegionId> regions, int64_t least)
      : graph_(graph), least_(least), effects_(Effects::of(graph)) {
    for (const RegionId region : regions) modules_.emplace(region, Module{});
    for (uint32_t i = 0; i < graph.storage_count(); ++i) has_device_ |= !graph.storage(StorageId(i)).device().is_cpu();
  }

  OffloadResult run() {
    find_neighbors();
    std::vector<std::pair<OffloadPoints, const Module*>> offloads;
    for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
      const StorageId storage(i);
      if (!waits_for_backward(storage)) continue;
      OffloadPoints points = offload_points(graph_, effects_, storage);
      const Module* module =
          module_of(points.last_forward.valid() ? points.last_forward : graph_.storage(storage).born);
      if (module == nullptr) continue;
      if (!points.last_forward.valid()) {
        ++result_.left["written by backward, part of an output, or not covered by one tensor"];
        continue;
      }
      points.fetch = module->fetch;
      offloads.emplace_back(std::move(points), module);
    }
    send(offloads);
    return std::move(result_);
  }

 private:
  struct Module {
    NodeId fetch;  // the first backward node of the next module
    NodeId held;   // the last forward node of the next module
  };

  // Returns the selected region that a node is in, or belongs to.
  RegionId listed(NodeId node) const {
    RegionId region = charged_region(graph_, node);
    while (region.valid() && !modules_.contains(region)) region = graph_.region(region).parent;
    return region;
  }
  const Module* module_of(NodeId node) const {
    const RegionId region = listed(node);
    return region.valid() ? &modules_.at(region) : nullptr;
  }

  // By module of a family, such as all layers: the previous one, if it is selected.
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

  void find_neighbors() {
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

  void send(const std::vector<std::pair<OffloadPoints, const Module*>>& offloads) {
    StorageChanges changes;
    CheckpointResult done;
    std::map<StorageId, NodeId> held;
    // Tensors that backward reads first are copied back first.
    for (const auto& [points, module] : std::views::reverse(offloads)) {
      offload_to_cpu(graph_, points, changes, done);
      const NodeId last = module->held;
      if (last.valid() && graph_.is_before(points.last_forward, last)) {
        held.emplace(graph_.value(points.whole).storage, last);
      }
    }
    if (done.offloaded == 0) return;
    for (const NodeId node : graph_.nodes()) {
      if (graph_.node(node).phase == Graph::kForward) drop_saved(node, changes);
    }
    update_lifetimes(graph_, changes);
    free_storages_after(graph_, held);
    result_.tensors = done.offloaded;
    result_.bytes = done.offloaded_bytes;
  }

  // The CPU copies are saved for backward instead.
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
  bool has_device_ = false;  // otherwise the program runs on the CPU, and copies are from CPU to CPU
  std::unordered_map<RegionId, Module> modules_;
  OffloadResult result_;
};

}  // namespace

OffloadResult offload_regions(Graph& graph, std::span<const RegionId> regions, int64_t least) {
  return Offload(graph, regions, least).run();
}

OffloadResult offload_modules(Graph& graph, const OffloadOptions& options) {
  // A program without numbered modules is not an error if the default was used.
  const bool any = options.modules == "auto";
  return offload_regions(graph,
                         any ? regions_named(graph, options.modules) : regions_that_match(graph, options.modules),
                         options.min_bytes);
}

PassResult OffloadResult::summary() const {
  PassResult result{.changed = tensors > 0, .counters = {{"tensors", tensors}, {"bytes", bytes}}};
  for (const auto& [why, count] : left) result.counters.emplace_back("left: " + why, count);
  if (tensors == 0) result.warnings.emplace_back("no tensor that backward reads can be offloaded to CPU");
  return result;
}

}  // namespace shadowgraph
