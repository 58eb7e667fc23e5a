// Works out, once a graph, what more than one figure is made of. That is program order, kinds of storages, FLOPs,
// traffic, bytes by node, the tree of modules. Summaries, timelines, findings and plans of a Profile read it.
//
// Order, kinds, custom costs and scratch are made at once, in time linear in the graph. The rest is made when somebody
// first asks, since a caller who wants the peak needs no FLOPs. Several threads may ask.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/profile/profile.h"

namespace shadowgraph {

// Holds answers of a Profile that not every caller wants to pay for. Findings run the allocator under other settings,
// and the plan runs several planners. Each is worked out when first asked for; several threads may ask.
struct ProfileViews {
  std::once_flag findings_once, plan_once;
  std::vector<Finding> findings;
  MemoryPlan plan;
};
// Has the modules, and the one that each node is charged to. A backward node is charged to the module of its forward
// node.
struct NodeModules {
  ModuleTree tree;
  IdMap<NodeId, uint32_t> of_node;  // index into tree.modules
};
// Has, for each node, the bytes of storages that it makes, that die at it, and that it is the first to keep for
// backward. Storages that existed before the program count nowhere.
struct NodeBytes {
  IdMap<NodeId, int64_t> allocated, freed, saved;
};

class ProgramCosts {
 public:
  explicit ProgramCosts(const Graph& graph, const MeasuredCalls* measured = nullptr);
  static const ProgramCosts& of(const Profile& profile) { return *profile.costs_; }
  static ProfileViews& views(const Profile& profile) { return *profile.views_; }

  // Throws Error if the graph is gone: a Profile may live longer. Functions that ask often keep the reference.
  const Graph& graph() const { return graph_.get("profile"); }
  const std::vector<NodeId> nodes;            // in program order
  const IdMap<NodeId, uint32_t> order;        // place in `nodes`
  const IdMap<StorageId, StorageKind> kinds;  // of every storage
  const CustomOperators custom;
  const Scratch scratch;
  // Worked out when first asked for.
  const Flops& flops() const;
  const Traffic& traffic() const;
  const NodeBytes& node_bytes() const;
  const NodeModules& modules() const;

  // Returns live bytes of one device, or of all storages there are.
  MemoryTimeline timeline(std::optional<c10::Device> device) const;
  SummaryTable summary(const SummaryOptions& options) const;

 private:
  const WeakGraph graph_;
  mutable std::once_flag flops_once_, traffic_once_, node_bytes_once_, modules_once_;
  mutable std::optional<Flops> flops_;
  mutable NodeBytes node_bytes_;
  mutable Traffic traffic_;
  mutable NodeModules modules_;
};

// What each storage is for, refined from what the recorder noted and from how the graph uses it.
//
// The first that applies:
//   gradient                             an input that is the second argument of an sg::gradient
//   parameter, buffer, input, constant   born at the placeholder of that name
//   what the recorder says               if it says anything but temporary
//   gradient                             the storage of an sg::gradient's second argument
//   optimizer_state                      born in phase optimizer and alive at the end
//   activation                           born in phase forward, and saved for backward by any node, or alive at the
//                                        first backward node
//   temporary                            everything else; also all results of a graph without a backward phase
//
// docs/memory.md#what-is-counted says it for people. `order` is that of ProgramCosts.
IdMap<StorageId, StorageKind> storage_kinds(const Graph& graph, const IdMap<NodeId, uint32_t>& order);

// Returns the device whose memory a figure is about. That is the one asked for, or else the one that the graph was
// captured for. If it has no index, it is the one of its type that holds most bytes of storages.
c10::Device main_device(const Graph& graph, std::optional<c10::Device> asked);
// Says whether a device is the one wanted: any of its type if that has no index, and any at all if none is wanted.
bool is_on(c10::Device device, const std::optional<c10::Device>& wanted);
// Returns bytes of storages by device, in the order of first use.
std::vector<std::pair<c10::Device, int64_t>> bytes_by_device(const Graph& graph);

// {"parameter": 12, ...}
nlohmann::json kinds_json(const BytesByKind& bytes);
// Describes storages in words, in their order.
std::vector<LiveStorage> describe_storages(const Graph& graph, const MemoryTimeline& timeline,
                                           const std::vector<StorageId>& storages);

// These do what shadowgraph/profile/memory.h says, on costs that are known already.
DeviceMemory device_memory(const ProgramCosts& costs, const DeviceMemoryOptions& options);
std::vector<SettingsOutcome> other_settings(const ProgramCosts& costs, const DeviceMemoryOptions& options);
std::vector<PinnedMemory> pinned_memory(const ProgramCosts& costs, const DeviceMemoryOptions& options);
MemoryPlan plan_memory(const ProgramCosts& costs, const PlanOptions& options);

// On which stream a node was issued, and for what it waits there: the notes that a capture leaves
// (core/capture/recorder.h).
struct StreamNotes {
  uint32_t stream = 0;
  uint32_t event = 0;             // recorded after the node; 0: none
  std::vector<uint32_t> waits;    // for these events its stream waits before the node
  std::vector<uint32_t> used_on;  // streams that use what memory the node makes, beside the node's own
};

// Throws Error for a note that is no list of numbers.
StreamNotes stream_notes(const Graph& graph, NodeId node);

// In the words of the graph's guards, each once: "routing0: 64 evenly over 4, assumed, read at moe.py:12".
std::vector<std::string> assumptions_of(const Graph& graph);

}  // namespace shadowgraph
