// Everything the profiler knows of a graph, as plain values, as JSON and as text.
//
//     const Profile profile = Profile::run(graph);
//     std::cout << to_json(profile).dump(2);
//     std::cout << to_text(SummaryTable::run(graph)) << to_text(profile);
//
// What is not known is absent (an empty optional, a missing JSON key) or listed (uncovered operators), never zero.
// docs/profiling.md defines every figure.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "profiler/flops.h"
#include "profiler/group_figures.h"
#include "profiler/memory_timeline.h"
#include "profiler/own_operators.h"
#include "profiler/parameter_count.h"
#include "profiler/saved_bytes.h"

namespace shadowgraph {

struct ProfileOptions {
  size_t top_at_peak = 10;
  bool timeline = false;  // live bytes of every step: large
  // The device whose memory is asked for. Empty: the graph's "device" metadata, else the one with most storage bytes.
  std::optional<c10::Device> device;
};

struct OutputInfo {
  bool defined = true;  // false: None
  std::vector<int64_t> shape;
  std::string dtype;  // "float32"
  std::vector<int64_t> stride;
  std::string device;
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

struct DevicePeak {
  std::string device;
  int64_t bytes = 0;
};

struct ModuleProfile {
  std::string path;
  std::string class_name;
  uint32_t calls = 0;
  std::vector<uint32_t> children;  // indices into Profile::modules
  GroupFigures figures;            // of the module and all below it
};

struct Profile {
  // From Graph::metadata; absent there, absent here.
  std::optional<std::string> model;
  std::optional<std::string> mode;
  std::optional<std::string> optimizer;
  std::optional<double> capture_seconds;

  std::string device;  // whose memory `peak` and `timeline` are about
  uint32_t nodes = 0;
  std::map<std::string, int64_t> operators;  // calls by operator name, placeholders included
  ParameterCount size;
  std::map<std::string, NodeFlops> flops;  // by phase: forward, backward, optimizer, and others that have any
  std::vector<UncoveredOperator> uncovered;
  std::vector<OwnOperatorFigures> own_operators;  // those of register_operator.h that were called
  SavedBytes saved;
  PeakInfo peak;
  int64_t peak_rounded_bytes = 0;
  std::vector<DevicePeak> other_devices;  // peaks of the other devices that hold storages
  std::vector<LiveStorage> top_at_peak;
  std::vector<ModuleProfile> modules;              // [0] is the root
  std::optional<std::vector<OutputInfo>> outputs;  // absent if the graph has no sg::output
  std::optional<MemoryTimeline> timeline;

  static Profile run(const Graph& graph, const ProfileOptions& options = {});
};

nlohmann::json to_json(const Profile& profile);

// The block under the summary table: sizes, saved bytes, peak by kind, FLOPs by phase, uncovered operators, the largest
// storages at the peak.
std::string to_text(const Profile& profile);

}  // namespace shadowgraph
