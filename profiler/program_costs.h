// What every figure of a graph is made of, worked out once: Profile and its views read it.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/profile.h"
#include "shadowgraph/profile/device_memory.h"
#include "shadowgraph/profile/time.h"

namespace shadowgraph {

// What is worked out when it is first asked for; from several threads, too.
struct ProfileViews {
  std::once_flag findings_once, plan_once;
  std::vector<Finding> findings;
  MemoryPlan plan;
};
// The modules, and which one each node is charged to.
struct NodeModules {
  ModuleTree tree;
  IdMap<NodeId, uint32_t> of_node;  // index into tree.modules
};
// Bytes of storages by the node that makes them, that they die at, and that is the first to keep them for backward (what
// existed before is in none).
struct NodeBytes {
  IdMap<NodeId, int64_t> allocated, freed, saved;
};

class ProgramCosts {
 public:
  explicit ProgramCosts(const Graph& graph, const MeasuredCalls* measured = nullptr);
  static const ProgramCosts& of(const Profile& profile) { return *profile.costs_; }
  static ProfileViews& views(const Profile& profile) { return *profile.views_; }

  const Graph& graph;
  const std::vector<NodeId> nodes;            // in program order
  const IdMap<NodeId, uint32_t> order;        // place in `nodes`
  const IdMap<StorageId, StorageKind> kinds;  // of every storage
  const CustomOperators custom;
  const Scratch scratch;
  // Worked out when first asked for; from several threads, too.
  const Flops& flops() const;
  const Traffic& traffic() const;
  const NodeBytes& node_bytes() const;
  const NodeModules& modules() const;

  // Live bytes of one device, or of all storages there are.
  MemoryTimeline timeline(std::optional<c10::Device> device) const;
  SummaryTable summary(const SummaryOptions& options) const;

 private:
  mutable std::once_flag flops_once_, traffic_once_, node_bytes_once_, modules_once_;
  mutable std::optional<Flops> flops_;
  mutable NodeBytes node_bytes_;
  mutable Traffic traffic_;
  mutable NodeModules modules_;
};

// The kinds of storages, by an order that is known already.
IdMap<StorageId, StorageKind> storage_kinds(const Graph& graph, const IdMap<NodeId, uint32_t>& order);

// Whose memory a figure without a device is about: of the devices that hold storages, the one asked for, or else the
// one that the graph was captured for; without an index the fullest that fits.
c10::Device main_device(const Graph& graph, std::optional<c10::Device> asked);
// Whether a device is the one wanted: any of its type if that has no index, and any at all if none is wanted.
bool is_on(c10::Device device, const std::optional<c10::Device>& wanted);
// Bytes of storages by device, in the order of first use.
std::vector<std::pair<c10::Device, int64_t>> bytes_by_device(const Graph& graph);

// Storages in words, in their order.
std::vector<LiveStorage> describe_storages(const Graph& graph, const MemoryTimeline& timeline,
                                           const std::vector<StorageId>& storages);

// As of shadowgraph/profile/device_memory.h, of costs that are known already.
DeviceMemory device_memory(const ProgramCosts& costs, const DeviceMemoryOptions& options);
std::vector<SettingsOutcome> other_settings(const ProgramCosts& costs, const DeviceMemoryOptions& options);
std::vector<PinnedMemory> pinned_memory(const ProgramCosts& costs, const DeviceMemoryOptions& options);
MemoryPlan plan_memory(const ProgramCosts& costs, const PlanOptions& options);

}  // namespace shadowgraph
