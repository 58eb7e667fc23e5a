// Profile of a captured step: costs, memory and time of its nodes, and their totals.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shadowgraph/capture/process_group.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/names.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/operator_costs.h"
#include "shadowgraph/units.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceSpec;     // shadowgraph/profile/device_spec.h
class StepTime;        // shadowgraph/profile/step_time.h
class OverlappedStep;  // shadowgraph/profile/step_time.h
struct Interconnect;   // shadowgraph/profile/communication.h
class Communication;   // shadowgraph/profile/communication.h
struct Profile;

// Model size: elements and bytes of parameters and buffers, counting shared ones once.
//
// Placeholders with the same storage, offset and sizes are the same tensor (tied weights). Parameters that are
// different parts of one storage (flattened recurrent weights) are counted separately. Bytes are of tensors.
struct ParameterCount {
  int64_t parameters = 0;  // elements in this process
  // Elements on all ranks, for placeholders with the unsharded sizes as note "whole_sizes"; otherwise as `parameters`.
  int64_t whole_parameters = 0;
  int64_t parameter_bytes = 0;
  int64_t parameter_tensors = 0;
  int64_t buffers = 0;  // elements
  int64_t buffer_bytes = 0;
  int64_t buffer_tensors = 0;

  static ParameterCount of(const Graph& graph);
  friend bool operator==(const ParameterCount&, const ParameterCount&) = default;
};

// Suggestions derived from a profile, by decreasing savings: observation, cost, and option or source line to change.
struct Finding {
  std::string name;    // "activations", "logits", "layout-copies", ...: stable across versions
  std::string seen;    // the observation, with numbers
  std::string remedy;  // the option or source line to change
  int64_t bytes = 0;   // potential savings of peak memory or data movement; 0: not about memory
  double seconds = 0;  // potential savings; 0: not about time, or times are unavailable
};

// Returns all findings. docs/memory.md lists the conditions.
std::vector<Finding> findings(const Profile& profile);
std::string to_text(const std::vector<Finding>& findings);

// Costs of a group of nodes, as shown in the module tree and the summary table.
//
// A group is any set of nodes: a module, a composite call, an operator. Bytes are those of whole storages, each counted
// once per group, so views are free and shared tensors are not counted twice.
//   incremental      storages saved for backward (activations: not storages that existed before), attributed to the
//                    group of the first forward node that saves them; the sum over all groups is saved_activation_bytes
//   output           storages allocated by the group's forward nodes and saved by any node
//   temporary        storages allocated by the group's forward nodes and not saved
//   parameters       parameters read by the group's forward nodes, counted once in every group that reads them
//   backward         storages allocated by the group's backward nodes
//   forward_flops,   NodeFlops of the group's nodes of that phase
//   backward_flops
struct GroupCosts {
  int64_t forward_nodes = 0;
  int64_t backward_nodes = 0;
  int64_t incremental = 0;  // in bytes, as are those below
  int64_t output = 0;
  int64_t temporary = 0;
  int64_t parameters = 0;
  int64_t backward = 0;
  NodeFlops forward_flops;
  NodeFlops backward_flops;

  // Adds all fields except `parameters`, since groups may share parameters.
  void add_disjoint(const GroupCosts& other);
  friend bool operator==(const GroupCosts&, const GroupCosts&) = default;
};

constexpr uint32_t kNoGroup = 0xFFFFFFFFU;

// Computes the costs of all groups. `group_of` returns the group of a node, or kNoGroup. Only nodes of phases forward
// and backward count, without placeholders, sg::output and sg::gradient. `parents`, if given, is a tree of groups
// (parents before children, kNoGroup for a root); `parameters` are then those of the subtree, all others of the group.
std::vector<GroupCosts> group_costs(const Graph& graph, const IdMap<StorageId, StorageKind>& kinds, const Flops& flops,
                                    const IdMap<NodeId, uint32_t>& group_of, uint32_t group_count,
                                    std::span<const uint32_t> parents = {});

// Summary table: costs per module, composite call or operator, one row each, in program order.
//
//   Op type      module class, "composite" or "operator"; "x12" for twelve equal, adjacent ones in one row
//   Op           module path, or operator with the path of its module
//   Accumulate   bytes saved for backward so far: running sum of Saved, up to saved_activation_bytes
//   Saved        bytes first saved by this row (see GroupCosts for exact definitions of the byte columns)
//   Output       bytes allocated in forward and saved by autograd
//   Temp         bytes allocated in forward and not saved
//   Param        bytes of parameters read in forward
//   Backward     bytes allocated in backward
//   Fwd FLOPs,   matrix products, convolutions, attention: 2 per MAC
//   Bwd FLOPs
//   Fwd elem.,   elementwise operations
//   Bwd elem.
//
// All bytes are those of whole storages, counted once. The columns are those of ColossalAI's analyzer, which sums the
// logical bytes of tensors by data pointer. Unlike there,
//
//   - views are free, and Output and Temp never overlap;
//   - a tensor saved by the operator that creates it is in Output instead of being dropped as an alias;
//   - Backward is the memory that backward allocates, rather than the size of the inputs;
//   - FLOPs are counted as 2 per MAC rather than 1.
enum class SummaryGrouping : uint8_t {
  kModule,     // one row per module, down to `depth`
  kComposite,  // one row per call of an outermost composite operator, or of an operator outside of any
  kOperator,   // one row per operator name, where composite operators count as in kComposite
};
constexpr auto enum_names(SummaryGrouping) {
  return names_in_order<SummaryGrouping>("module", "composite", "operator");
}

struct SummaryOptions {
  SummaryGrouping grouping = SummaryGrouping::kModule;
  int depth = 0;             // kModule: levels of the module tree; 0: the deepest that fits in max_rows
  size_t max_rows = 40;      // remaining rows are summed in a last row; 0: no limit
  bool fold_repeats = true;  // kModule: merge equal numbered siblings into one row, as in pictures
};

struct SummaryRow {
  std::string op_type;
  std::string op;
  int64_t repeats = 1;
  int64_t accumulate = 0;
  GroupCosts figures;  // sum of all repeats
};

struct SummaryTable {
  std::vector<SummaryRow> rows;
  size_t left_out = 0;  // rows beyond max_rows, summed in the last one
  int depth = 0;        // kModule: the depth shown
};

// Formats the table with aligned columns and human-readable units.
std::string to_text(const SummaryTable& table);

// All results of the profiler for a graph: memory over time, FLOPs, saved activations, costs per module. Linear in the
// graph, except for findings and the static memory plan, which run allocators and planners on request.
//
// Views use the graph, which must not change; data members do not refer to it. Unknown values are absent (an empty
// optional, a missing JSON key) or listed (uncovered operators), never zero. docs/memory.md defines all values.

struct ProfileOptions {
  size_t top_at_peak = 10;
  bool timeline = false;  // include live bytes of every step in the JSON, which makes it large
  // Device to report memory of. Default: the graph's "device" metadata, else the device with the most storage bytes.
  std::optional<c10::Device> device;
  const MeasuredCalls* measured = nullptr;     // measurements of this machine: scratch and time of CPU calls
  DeviceMemoryOptions memory;                  // `memory.device` is replaced by `device`
  std::optional<MemoryLimit> limit;            // memory of the device; also replaces memory.capacity
  const DeviceSpec* spec = nullptr;            // device to estimate times for; nullptr: no times
  const Interconnect* interconnect = nullptr;  // links between processes; nullptr: no times of collectives
  std::vector<MeshAxis> mesh;                  // for process groups that the graph does not describe
};

struct OutputInfo {
  bool defined = true;  // false: None
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> stride;
  c10::Device device = c10::kCPU;
};

struct PeakInfo {
  int64_t bytes = 0;
  uint32_t node = 0;  // position in program order
  std::string op;
  std::string module;
  std::string source;
  std::string phase;
  BytesByKind by_kind{};
};

// KV cache of an inference step, from the graph's metadata (shadowgraph capture --mode decode).
struct CacheInfo {
  std::string step;             // "prefill" or "decode"
  std::string kind;             // "grown" (by cat) or "static"
  int64_t context = 0;          // tokens in the cache after the step
  int64_t bytes_per_token = 0;  // of one sequence
  int64_t bytes = 0;            // of the whole batch, after the step
  int64_t positions = 0;        // maximum context the model was trained for
};

struct DevicePeak {
  c10::Device device = c10::kCPU;
  int64_t bytes = 0;
  std::optional<DeviceMemory> memory;  // see Profile::device_memory
  std::string out_of_memory;           // see Profile::out_of_memory
};

struct ModuleProfile {
  std::string path;
  std::string class_name;
  uint32_t calls = 0;
  std::vector<uint32_t> children;  // indices into Profile::modules
  GroupCosts figures;              // of the module and its descendants
  int64_t peak = 0;  // peak live bytes on the profile's device while nodes of the module run, including backward
};

class ProgramCosts;
struct ProfileViews;

struct Profile {
  // Copied from Graph::metadata, if present.
  std::optional<std::string> model;
  std::optional<ProgramMode> mode;
  std::optional<std::string> optimizer;
  // Implementation of the optimizer's step, by torch.optim's arguments: "foreach" (all parameters at once, with
  // temporaries of all), "fused", or "single" (one after another). Absent if the step updates no parameters.
  std::optional<std::string> optimizer_implementation;
  std::optional<double> capture_seconds;  // set by the caller, if known

  c10::Device device = c10::kCPU;  // device of `peak` and `timeline`
  uint32_t nodes = 0;
  std::map<std::string, int64_t> operators;  // number of calls by operator name, including placeholders
  ParameterCount size;
  std::map<std::string, NodeFlops> flops;  // by phase: forward, backward, optimizer, and others with FLOPs
  std::vector<UncoveredOperator> uncovered;
  std::vector<CustomOperatorCosts>
      custom_operators;  // called operators that are registered (shadowgraph/profile/register_operator.h)
  SavedBytes saved;
  PeakInfo peak;  // lower bound: without scratch; of the recorded step
  // Peak of later steps, if the recorded step is a first one that creates optimizer state.
  std::optional<PeakInfo> steady_peak;
  const PeakInfo& leading_peak() const { return steady_peak ? *steady_peak : peak; }
  int64_t peak_rounded_bytes = 0;
  std::map<std::string, PeakInfo> phase_peaks;     // by phase: peak while its nodes run
  PeakInfo peak_with_scratch;                      // estimate including known scratch memory
  std::vector<UncoveredOperator> unknown_scratch;  // calls with unknown scratch memory
  // Device memory according to the model of its caching allocator. Absent for CPUs, and if out_of_memory.
  std::optional<DeviceMemory> device_memory;
  std::string out_of_memory;
  // Compared by `fits` (shadowgraph/profile/fits.h): the requested memory or that of ProfileOptions::spec; the usage on
  // a device of unlimited memory; and on one of that memory, whose allocator releases cached blocks before it runs out.
  // Absent if unknown; `limited_bytes` also if the run does not fit.
  std::optional<MemoryLimit> limit;
  std::optional<int64_t> unlimited_bytes;
  std::optional<int64_t> limited_bytes;
  std::optional<CacheInfo> cache;
  std::optional<RunMemory> run;           // first steps of a training run; set by the caller, if captured
  std::vector<DevicePeak> other_devices;  // peaks of other devices with storages
  std::vector<LiveStorage> top_at_peak;
  std::vector<ModuleProfile> modules;              // [0] is the root
  std::optional<std::vector<OutputInfo>> outputs;  // absent if the graph has no sg::output
  bool timeline_in_json = false;

  // ---- Views
  // A profile does not own or copy its graph, but follows it when it is moved. Once the graph is destroyed, graph(),
  // summary(), memory_layout(), the timeline of another device, text and JSON throw Error; all others remain usable.
  // timeline() has the live bytes of `device`, whose peak is `peak`, timeline(other) those of another device.
  const Graph& graph() const;
  const MemoryTimeline& timeline() const { return *timeline_; }
  MemoryTimeline timeline(c10::Device other) const;
  const Flops& node_flops() const;
  const NodeFlops& of(NodeId node) const { return node_flops().of(node); }
  StorageKind kind(StorageId storage) const { return timeline_->kind(storage); }
  SummaryTable summary(const SummaryOptions& options = {}) const;
  const NodeScratch& scratch(NodeId node) const;
  const StepTime* time() const { return time_.get(); }  // nullptr without ProfileOptions::spec
  // Communication of collectives; nullptr if there are none.
  const Communication* communication() const { return communication_.get(); }
  // Step with overlapping communication; nullptr without collectives, ProfileOptions::spec or an interconnect.
  const OverlappedStep* overlap() const { return overlap_.get(); }
  MemoryLayout memory_layout(const MemoryLayoutOptions& options = {}) const;

 private:
  friend Profile profile(const Graph& graph, const ProfileOptions& options);
  friend class ProgramCosts;
  std::shared_ptr<const ProgramCosts> costs_;
  std::shared_ptr<ProfileViews> views_;
  std::shared_ptr<const MemoryTimeline> timeline_;
  std::shared_ptr<const StepTime> time_;
  std::shared_ptr<const Communication> communication_;
  std::shared_ptr<const OverlappedStep> overlap_;
};

Profile profile(const Graph& graph, const ProfileOptions& options = {});

nlohmann::json to_json(const Profile& profile);

// Formats the report below the summary table: sizes, saved bytes, peak by kind, FLOPs by phase, uncovered operators.
std::string to_text(const Profile& profile);

}  // namespace shadowgraph
