// A profile of a captured step: what the costs, memory and time of its nodes come to.
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

// How large the model is: elements and bytes of its parameters and buffers, shared ones once.
//
// Two placeholders are the same tensor if they have the same storage, offset and sizes (tied weights). Parameters that
// are different parts of one storage (flattened recurrent weights) count each. Bytes are those of the tensors, not of
// the storages, which may be padded.
struct ParameterCount {
  int64_t parameters = 0;  // elements that this process holds
  // Elements on all ranks together, where placeholders say what they are a part of (note "whole_sizes"); else the same.
  int64_t whole_parameters = 0;
  int64_t parameter_bytes = 0;
  int64_t parameter_tensors = 0;
  int64_t buffers = 0;  // elements
  int64_t buffer_bytes = 0;
  int64_t buffer_tensors = 0;

  static ParameterCount of(const Graph& graph);
  friend bool operator==(const ParameterCount&, const ParameterCount&) = default;
};

// What the figures suggest, greatest stake first: what was seen, what it costs, and the option or line that changes it.
// The idea is Halide's profiler's.

struct Profile;

struct Finding {
  std::string name;    // "activations", "logits", "layout-copies", ...: the same from version to version
  std::string seen;    // with the figures that made it worth saying
  std::string remedy;  // with the option or line that does it
  int64_t bytes = 0;   // at stake, of the peak or of what is moved; 0: not about memory
  double seconds = 0;  // at stake; 0: not about time, or no times are known
};

// docs/memory.md lists the triggers.
std::vector<Finding> findings(const Profile& profile);
std::string to_text(const std::vector<Finding>& findings);

// What a group of nodes costs: the figures behind the module tree and the summary table.
//
// A group is any set of nodes: a module, a composite call, an operator. Bytes are those of whole storages, each counted
// once in a group, so that views are free and shared tensors are not counted twice.
//   incremental      storages saved for backward (activations: not what existed before), charged to the group of the
//   first
//                    forward node that saves them; the sum over all groups is saved_activation_bytes
//   output           storages allocated by the group's forward nodes that autograd saves somewhere
//   temporary        storages allocated by the group's forward nodes that nobody saves
//   parameters       parameters that the group's forward nodes read; shared ones count once in each group
//   backward         storages allocated by the group's backward nodes
//   forward_flops,   NodeFlops of the group's nodes of that phase
//   backward_flops

struct GroupFigures {
  int64_t forward_nodes = 0;
  int64_t backward_nodes = 0;
  int64_t incremental = 0;  // bytes, as all below
  int64_t output = 0;
  int64_t temporary = 0;
  int64_t parameters = 0;
  int64_t backward = 0;
  NodeFlops forward_flops;
  NodeFlops backward_flops;

  // Adds everything but `parameters`, which a sum would count twice where groups share them.
  void add_disjoint(const GroupFigures& other);
  friend bool operator==(const GroupFigures&, const GroupFigures&) = default;
};

constexpr uint32_t kNoGroup = 0xFFFFFFFFU;

// `group_of` gives each node's group, or kNoGroup. Counts only nodes of phases forward and backward that are no
// placeholders, outputs or gradient markers. `parents`, if given, is a tree over the groups (parents before children,
// kNoGroup for a root). `parameters` then counts each group's subtree, each storage once; all else is the group's own.
std::vector<GroupFigures> group_figures(const Graph& graph, const IdMap<StorageId, StorageKind>& kinds,
                                        const Flops& flops, const IdMap<NodeId, uint32_t>& group_of,
                                        uint32_t group_count, std::span<const uint32_t> parents = {});

// The analyzer's table: what each module, composite call or operator costs, one row each, in program order.
//
//   Op type      module class, "composite" or "operator"; "x12" if the row stands for twelve equal, adjacent ones
//   Op           module path, or operator with the path of the module it ran in
//   Accumulate   bytes saved for backward so far: the running sum of Saved, which ends at saved_activation_bytes
//   Saved        bytes this row is the first to save (exact definitions of this and the next: GroupFigures)
//   Output       bytes its forward allocates that autograd keeps
//   Temp         bytes its forward allocates that nobody keeps for backward
//   Param        bytes of parameters its forward reads
//   Backward     bytes its backward allocates
//   Fwd FLOPs,   matrix products, convolutions, attention: 2 per MAC
//   Bwd FLOPs
//   Fwd elem.,   elementwise operations
//   Bwd elem.
//
// All bytes are those of whole storages counted once. ColossalAI's analyzer, whose columns these are, sums the logical
// bytes of tensors keyed by data pointer. So here
//
//   - a view is free, and Output and Temp never overlap;
//   - a tensor that is saved by the operator that made it is Output rather than dropped as an alias;
//   - Backward is what backward really allocates rather than the size of the inputs.
//
// Its FLOPs are MACs: half of ours.

enum class SummaryGrouping : uint8_t {
  kModule,     // one row a module, down to `depth`
  kComposite,  // one row a call: the outermost composite operator, or the operator itself outside any
  kOperator,   // one row an operator name, composite ones first taken as in kComposite
};
constexpr auto enum_names(SummaryGrouping) {
  return names_in_order<SummaryGrouping>("module", "composite", "operator");
}

struct SummaryOptions {
  SummaryGrouping grouping = SummaryGrouping::kModule;
  int depth = 0;             // kModule: levels of the module tree; 0: the deepest that fits into max_rows
  size_t max_rows = 40;      // what is beyond is summed in a last row; 0: no limit
  bool fold_repeats = true;  // kModule: numbered siblings that do the same, as in a picture, become one row
};

struct SummaryRow {
  std::string op_type;
  std::string op;
  int64_t repeats = 1;
  int64_t accumulate = 0;
  GroupFigures figures;  // of all repeats together
};

struct SummaryTable {
  std::vector<SummaryRow> rows;
  size_t left_out = 0;  // rows beyond max_rows, summed in the last one
  int depth = 0;        // kModule: the depth shown
};

// Aligned columns, human units, lines ending in '\n'.
std::string to_text(const SummaryTable& table);

// What a graph costs: memory and when, FLOPs, what autograd keeps, module by module.
//
// Reports, the page, sharding and solvers read profiles. The sums are linear in the graph. Findings and the static plan
// run allocators and planners, and are worked out when somebody asks.

struct DeviceSpec;     // shadowgraph/profile/device_spec.h
class StepTime;        // shadowgraph/profile/step_time.h
struct Interconnect;   // shadowgraph/profile/communication.h
class Communication;   // shadowgraph/profile/communication.h
class OverlappedStep;  // shadowgraph/profile/step_time.h

// ---------------------------------------------------------------------------------------------------------------------
// Everything the profiler knows of a graph, asked for in one way.
//
//     const Profile costs = profile(graph);
//     costs.peak.bytes; costs.timeline().total(step); costs.of(node).matmul;
//     std::cout << to_text(costs.summary()) << to_text(costs);
//     std::cout << to_json(costs).dump(2);
//
// What the figures are made of (FLOPs of nodes, kinds of storages, the tree of modules) is worked out once. The views
// read it, and the graph, which must not change meanwhile. The figures are values of their own. What is not known is
// absent (an empty optional, a missing JSON key) or listed (uncovered operators), never zero. docs/memory.md defines
// every figure.

struct ProfileOptions {
  size_t top_at_peak = 10;
  bool timeline = false;  // live bytes of every step in the JSON: large
  // The device whose memory is asked for. Empty: the graph's "device" metadata, else the one with most storage bytes.
  std::optional<c10::Device> device;
  const MeasuredCalls* measured = nullptr;     // of this machine: scratch and seconds of calls on the CPU
  DeviceMemoryOptions memory;                  // its device is the one above
  std::optional<MemoryLimit> limit;            // of the device's memory; it is memory.capacity, too
  const DeviceSpec* spec = nullptr;            // figures of the device that the time is estimated for; none: no time
  const Interconnect* interconnect = nullptr;  // links between processes; none: bytes of collectives, no seconds
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

// Describes a step of inference with a cache of keys and values, from the graph's metadata (shadowgraph capture --mode
// decode).
struct CacheInfo {
  std::string step;             // "prefill" or "decode"
  std::string kind;             // "grown" by cat, or "static"
  int64_t context = 0;          // tokens in it after the step
  int64_t bytes_per_token = 0;  // of one sequence
  int64_t bytes = 0;            // of the batch, after the step
  int64_t positions = 0;        // that the model was trained on
};

struct DevicePeak {
  c10::Device device = c10::kCPU;
  int64_t bytes = 0;
  std::optional<DeviceMemory> memory;  // as Profile::device_memory
  std::string out_of_memory;           // as Profile::out_of_memory
};

struct ModuleProfile {
  std::string path;
  std::string class_name;
  uint32_t calls = 0;
  std::vector<uint32_t> children;  // indices into Profile::modules
  GroupFigures figures;            // of the module and all below it
  int64_t peak = 0;  // most bytes alive on the profile's device while a node of it runs, backward included
};

class ProgramCosts;
struct ProfileViews;

struct Profile {
  // From Graph::metadata; absent there, absent here.
  std::optional<std::string> model;
  std::optional<ProgramMode> mode;
  std::optional<std::string> optimizer;
  std::optional<double> capture_seconds;  // for whoever captured it to fill in

  c10::Device device = c10::kCPU;  // whose memory `peak` and `timeline` are about
  uint32_t nodes = 0;
  std::map<std::string, int64_t> operators;  // calls by operator name, placeholders included
  ParameterCount size;
  std::map<std::string, NodeFlops> flops;  // by phase: forward, backward, optimizer, and others that have any
  std::vector<UncoveredOperator> uncovered;
  std::vector<CustomOperatorFigures>
      custom_operators;  // those of shadowgraph/profile/register_operator.h that were called
  SavedBytes saved;
  PeakInfo peak;  // at least: without scratch; of the step that was recorded
  // The same of later steps, if the recorded one is a first that makes optimizer state; absent if not.
  std::optional<PeakInfo> steady_peak;
  const PeakInfo& leading_peak() const { return steady_peak ? *steady_peak : peak; }
  int64_t peak_rounded_bytes = 0;
  std::map<std::string, PeakInfo> phase_peaks;     // by phase: the most while its nodes run
  PeakInfo peak_with_scratch;                      // an estimate: with what is known
  std::vector<UncoveredOperator> unknown_scratch;  // calls that may take more
  // What the device holds, by the model of its caching allocator. Absent for CPUs, which have none, and if the run does
  // not fit: `out_of_memory` then says where.
  std::optional<DeviceMemory> device_memory;
  std::string out_of_memory;
  // What `fits` (shadowgraph/profile/fits.h) compares: the memory asked for, or that of ProfileOptions::spec, and what
  // a device with room for all would hold. Absent where nothing is known.
  std::optional<MemoryLimit> limit;
  std::optional<int64_t> unlimited_bytes;
  std::optional<CacheInfo> cache;
  std::optional<RunMemory> run;           // of the first steps of a training run, for whoever captured it to fill in
  std::vector<DevicePeak> other_devices;  // peaks of the other devices that hold storages
  std::vector<LiveStorage> top_at_peak;
  std::vector<ModuleProfile> modules;              // [0] is the root
  std::optional<std::vector<OutputInfo>> outputs;  // absent if the graph has no sg::output
  bool timeline_in_json = false;

  // ---- Views
  // A profile neither keeps its graph nor copies it, which may be large. It follows a graph that is moved. Once the
  // graph is gone, figures, timeline(), of(), kind(), scratch() and time() still answer. What must read it throws
  // Error: graph(), summary(), plan(), another device's timeline, text and JSON. Live bytes of `device`, whose peak is
  // `peak`; and those of another.
  const Graph& graph() const;
  const MemoryTimeline& timeline() const { return *timeline_; }
  MemoryTimeline timeline(c10::Device other) const;
  const Flops& node_flops() const;
  const NodeFlops& of(NodeId node) const { return node_flops().of(node); }
  StorageKind kind(StorageId storage) const { return timeline_->kind(storage); }
  SummaryTable summary(const SummaryOptions& options = {}) const;
  const NodeScratch& scratch(NodeId node) const;
  const StepTime* time() const { return time_.get(); }  // nullptr without ProfileOptions::spec
  // What collectives send; nullptr if the program has none.
  const Communication* communication() const { return communication_.get(); }
  // Both at once; nullptr without collectives, without ProfileOptions::spec, or without an interconnect.
  const OverlappedStep* overlap() const { return overlap_.get(); }
  MemoryPlan plan(const PlanOptions& options = {}) const;

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

// The block under the summary table: sizes, saved bytes, peak by kind, FLOPs by phase, uncovered operators, the largest
// storages at the peak.
std::string to_text(const Profile& profile);

}  // namespace shadowgraph
