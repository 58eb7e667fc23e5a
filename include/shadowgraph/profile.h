// What a graph costs: memory and when, FLOPs, what autograd keeps, module by module.
//
// Reports, the page, sharding and solvers read profiles. The sums are linear in the graph. Findings and the static plan
// run allocators and planners, and are worked out when somebody asks.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/mesh.h"
#include "shadowgraph/profile/custom_operators.h"
#include "shadowgraph/profile/device_memory.h"
#include "shadowgraph/profile/findings.h"
#include "shadowgraph/profile/flops.h"
#include "shadowgraph/profile/group_figures.h"
#include "shadowgraph/profile/live_storages.h"
#include "shadowgraph/profile/measure.h"
#include "shadowgraph/profile/memory_limit.h"
#include "shadowgraph/profile/memory_plan.h"
#include "shadowgraph/profile/parameter_count.h"
#include "shadowgraph/profile/saved_bytes.h"
#include "shadowgraph/profile/scratch.h"
#include "shadowgraph/profile/storage_kinds.h"
#include "shadowgraph/profile/summary_table.h"
#include "shadowgraph/profile/timeline.h"
#include "shadowgraph/profile/training_run.h"
#include "shadowgraph/units.h"

namespace SHADOWGRAPH_API shadowgraph {

struct DeviceSpec;     // shadowgraph/profile/device_spec.h
class StepTime;        // shadowgraph/profile/step_time.h
struct Interconnect;   // shadowgraph/profile/interconnect.h
class Communication;   // shadowgraph/profile/communication.h
class OverlappedStep;  // shadowgraph/profile/overlapped_step.h

// ---------------------------------------------------------------------------------------------------------------------
// Everything the profiler knows of a graph, asked for in one way.
//
//     const Profile costs = profile(graph);
//     costs.peak.bytes; costs.timeline().total(step); costs.of(node).matmul;
//     std::cout << to_text(costs.summary()) << to_text(costs);
//     std::cout << to_json(costs).dump(2);
//
// What the figures are made of (FLOPs of nodes, kinds of storages, the tree of modules) is worked out once. The views
// read it, and the graph, which must not change meanwhile. The figures are values of their own. What is not known is absent (an empty optional, a missing JSON key) or listed (uncovered operators), never zero.
// docs/memory.md defines every figure.

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
  std::vector<CustomOperatorFigures> custom_operators;  // those of shadowgraph/operators.h that were called
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
  // What `fits` (shadowgraph/profile/fits.h) compares: the memory asked for, or that of ProfileOptions::spec, and what a
  // device with room for all would hold. Absent where nothing is known.
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
  // graph is gone, figures, timeline(), of(), kind(), scratch() and time() still answer. What must read it throws Error:
  // graph(), summary(), plan(), another device's timeline, text and JSON.
  // Live bytes of `device`, whose peak is `peak`; and those of another.
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
