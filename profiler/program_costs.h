// Inputs of several analyses, computed once per graph. Order, kinds, custom costs and scratch are computed in the
// constructor, in time linear in the graph; the rest on first use, since the peak needs no FLOPs. Thread-safe.
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

// Lazily computed results of a Profile that are expensive: findings (runs the allocator under other settings) and the
// static plan (runs several planners). Thread-safe.
struct ProfileViews {
  std::once_flag findings_once, plan_once;
  std::vector<Finding> findings;
  MemoryLayout plan;
};
// The modules, and the module that each node is charged to. A backward node is charged to that of its forward node.
struct NodeModules {
  ModuleTree tree;
  IdMap<NodeId, uint32_t> of_node;  // index into tree.modules
};
// For each node, the bytes of storages that it allocates, that it frees, and that it is the first to save for backward.
// Storages that existed before the program are not counted.
struct NodeBytes {
  IdMap<NodeId, int64_t> allocated, freed, saved;
};

class ProgramCosts {
 public:
  explicit ProgramCosts(const Graph& graph, const MeasuredCalls* measured = nullptr);
  static const ProgramCosts& of(const Profile& profile) { return *profile.costs_; }
  static ProfileViews& views(const Profile& profile) { return *profile.views_; }

  // Throws Error if the graph has been destroyed (a Profile may outlive it). Keep the reference in hot loops.
  const Graph& graph() const { return graph_.get("profile"); }
  const std::vector<NodeId> nodes;            // in program order
  const IdMap<NodeId, uint32_t> order;        // index into `nodes`
  const IdMap<StorageId, StorageKind> kinds;  // of every storage
  const CustomOperators custom;
  const Scratch scratch;
  // Computed on first use.
  const Flops& flops() const;
  const Traffic& traffic() const;
  const NodeBytes& node_bytes() const;
  const NodeModules& modules() const;

  // Returns live bytes of one device, or of all storages if `device` is empty.
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

// Classifies each storage by its purpose, from the recorder's notes and its uses in the graph.
//
// The first match applies:
//   gradient                             an input that is the second argument of an sg::gradient
//   parameter, buffer, input, constant   allocated by the placeholder of that kind
//   the recorder's kind                  unless it is temporary
//   gradient                             the storage of an sg::gradient's second argument
//   optimizer_state                      allocated in phase optimizer and alive at the end
//   activation                           allocated in phase forward, and saved for backward or alive at the first
//                                        backward node
//   temporary                            everything else; also all results of a graph without a backward phase
//
// docs/memory.md#what-is-counted explains it. `order` is ProgramCosts::order.
IdMap<StorageId, StorageKind> storage_kinds(const Graph& graph, const IdMap<NodeId, uint32_t>& order);

// Returns the device to report memory of: `asked`, or else the one that the graph was captured for. Without an index,
// the device of that type that holds most bytes of storages.
c10::Device main_device(const Graph& graph, std::optional<c10::Device> asked);
// Returns true if `device` matches `wanted`: any index matches a `wanted` without one, any device an empty `wanted`.
bool is_on(c10::Device device, const std::optional<c10::Device>& wanted);
// Returns bytes of storages by device, in the order of first use.
std::vector<std::pair<c10::Device, int64_t>> bytes_by_device(const Graph& graph);

// {"parameter": 12, ...}
nlohmann::json kinds_json(const BytesByKind& bytes);
// Describes storages (producer, module, shape, kind), in the given order.
std::vector<LiveStorage> describe_storages(const Graph& graph, const MemoryTimeline& timeline,
                                           const std::vector<StorageId>& storages);

// As in shadowgraph/profile/memory.h, on costs that have been computed already.
DeviceMemory device_memory(const ProgramCosts& costs, const DeviceMemoryOptions& options);
std::vector<SettingsOutcome> other_settings(const ProgramCosts& costs, const DeviceMemoryOptions& options);
std::vector<FragmentationCause> fragmentation_causes(const ProgramCosts& costs, const DeviceMemoryOptions& options);
MemoryLayout memory_layout(const ProgramCosts& costs, const MemoryLayoutOptions& options);

// The stream a node was issued on and the events it waits for: notes that the recorder leaves
// (core/capture/recorder.h).
struct StreamNotes {
  uint32_t stream = 0;
  uint32_t event = 0;             // recorded after the node; 0: none
  std::vector<uint32_t> waits;    // events that its stream waits for before the node
  std::vector<uint32_t> used_on;  // other streams that use memory the node allocates (Tensor.record_stream)
};

// Throws Error if a note is not a list of numbers.
StreamNotes stream_notes(const Graph& graph, NodeId node);

// Lists the graph's guards, each once: "routing0: 64 evenly over 4, assumed, read at moe.py:12".
std::vector<std::string> assumptions_of(const Graph& graph);

}  // namespace shadowgraph
