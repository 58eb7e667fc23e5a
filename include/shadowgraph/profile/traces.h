// A profile in other programs' formats.
//
//     write_file("nodes.csv", nodes_csv(costs));
//     write_file("trace.json", chrome_trace(costs).dump());           // ui.perfetto.dev, chrome://tracing
//     write_file("snapshot.pickle", memory_snapshot(costs));          // pytorch.org/memory_viz, torch.cuda._memory_viz
//     write_file("model_explorer.json", model_explorer(costs).dump());
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/memory.h"
#include "shadowgraph/profile/profile.h"

namespace SHADOWGRAPH_API shadowgraph {

// Writes a line a node, after one of names:
//
//   - node, phase, module, op, source, forward (the node it differentiates);
//   - matmul_flops, elementwise_flops, transcendental, read_bytes, written_bytes, intensity (FLOPs a byte);
//   - allocated_bytes, freed_bytes, live_bytes (of the profile's device, while it runs), scratch_bytes and scratch
//     (where that is known from), seconds (empty without times);
//   - what the backward nodes of a forward node take: backward_matmul_flops, backward_elementwise_flops,
//     backward_moved_bytes, backward_seconds;
//   - wire_bytes and communication_seconds (of collectives).
//
// Fields with a comma, a quote or a line break are quoted as RFC 4180 has it.
std::string nodes_csv(const Profile& profile);
// Writes a line a storage:
//
//   - storage, kind, device, bytes;
//   - born, first_use, last_forward_use, first_backward_use, last_use, freed: nodes; empty if there is none, or if it
//     lives on;
//   - module, op and source of its maker, dtype, shape;
//   - kept_by, what kept it alive: "parameter", "autograd, saved at 12" (the first forward node that saved it),
//     "output" or nothing;
//   - at_peak: "yes" for all that is alive at the peak of the profile's device.
std::string storages_csv(const Profile& profile);

// Writes the Trace Event Format, in microseconds. If the profile has times, there are rows for the host's calls and the
// device's kernels. Otherwise every node takes one microsecond, and the trace says so. If it has times of collectives,
// too, they have a row, and each stands where OverlappedStep (shadowgraph/profile/step_time.h) puts it. Modules are
// nested slices over the calls; counters show live bytes by kind, and scratch.
nlohmann::json chrome_trace(const Profile& profile);

// Writes what torch.cuda.memory._dump_snapshot writes, a pickle of protocol 2: segments, blocks and events of the
// simulated caching allocator. Modules and sources are frames, and each storage has one entry. It is about the
// profile's device.
std::string memory_snapshot(const Profile& profile, const DeviceMemoryOptions& options = {});

// Google's Model Explorer: the graph by modules, with shapes on edges, and bytes, FLOPs and seconds as attributes.
nlohmann::json model_explorer(const Profile& profile);

// A device's figures from a trace of it that torch.profiler recorded.
//
//     with torch.profiler.profile(record_shapes=True) as trace: step()
//     trace.export_chrome_trace("kineto.json")
//
//     const TraceCalibration found = calibrate_from_trace("kineto.json");
//     found.spec.write_file("mine.json");                      // rates by class, and a table of the operators
//     if (found.links) found.links->write_file("links.json");  // tables of the collectives, by processes
//
// What a call computes and moves follows from its shapes: each distinct one is made once on fake tensors. Where the
// trace has kernels, their seconds count, else those of the CPU's calls.
//
// Peaks are those of the device that the trace names, if its figures are known (DeviceSpec::named), else the most that
// the trace reached. The spec's `sources` say which. Must not be called in a fake mode (throws Error).

// Calls of one operator, or one kernel, of which nothing could be said.
struct TraceLeftOut {
  std::string op;
  std::string reason;
  int64_t calls = 0;
  double seconds = 0;
};

struct TraceCalibration {
  DeviceSpec spec;
  std::optional<Interconnect> links;  // absent without collectives
  int64_t calls = 0;                  // that were measured
  int64_t sizes = 0;                  // distinct ones, in the table
  int64_t collectives = 0;
  double seconds = 0;                  // of all that ran
  std::vector<TraceLeftOut> left_out;  // most seconds first
};

struct TraceCalibrationOptions {
  std::string device;  // a name of DeviceSpec::named, or a file: whose peaks hold; empty: as the trace says
};

// `path` is a .json or .json.gz. Throws FileError; ParseError for what is no trace, and for one without shapes.
TraceCalibration calibrate_from_trace(const std::string& path, const TraceCalibrationOptions& options = {});

// A prediction beside a trace that torch.profiler recorded of the real step: operator by operator, and what is off
// first.
//
//     const TraceComparison beside = compare_with_trace(profile(graph, {.spec = &h100}), "kineto.json.gz");
//     beside.most_off()->name; std::cout << to_text(beside);
//
// Calls of both are matched by operator, sizes and dtype. Where the trace has several steps ("ProfilerStep#3"), its
// figures are those of one of them on average. Only what a graph would have is compared: operators that are no
// composite, with the seconds of their kernels, or on a CPU their own.

struct ComparedTime {
  std::string name;                          // "aten::mm"; of a class, "matmul"; of collectives, "all_reduce of 8"
  std::string sizes;                         // "[512,1024] [1024,1024] bfloat16", of a single size; else empty
  std::string kind;                          // class of kernels
  double calls = 0, measured_calls = 0;      // of a step
  double seconds = 0, measured_seconds = 0;  // of a step
  double difference() const { return seconds - measured_seconds; }
};

struct TraceComparison {
  std::string prediction, measurement;  // what they are of
  int64_t steps = 1;                    // that the trace has
  // A step: all of it, kernels running, the device (or the CPU's operators) idle.
  ComparedTime step, busy, idle;
  // Greatest differences first.
  std::vector<ComparedTime> operators, classes, collectives;
  std::vector<ComparedTime> sizes;     // by operator, sizes and dtype
  std::vector<TraceLeftOut> left_out;  // of the trace, whole: kernels of no operator, operators that are not known here
  double matched_seconds = 0;          // of the trace: in calls of operators and sizes that both have

  // The operator, collective or idle time with the greatest difference; nullptr if nothing differs.
  const ComparedTime* most_off() const;
};

// `trace` is a .json or .json.gz. The profile must have times (throws Error). Throws as calibrate_from_trace does.
TraceComparison compare_with_trace(const Profile& prediction, const std::string& trace);
// The prediction is a trace, too: of `profile --export trace`, or of another device.
TraceComparison compare_traces(const std::string& prediction, const std::string& trace);
// Says whether a file is such a trace, by its first bytes.
bool is_trace_file(const std::string& path);

// `limit`: most lines of a list, 0 for all.
std::string to_text(const TraceComparison& comparison, size_t limit = 10);
nlohmann::json to_json(const TraceComparison& comparison);

}  // namespace shadowgraph
