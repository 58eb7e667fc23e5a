// A device's figures from a trace of it that torch.profiler recorded.
//
//     with torch.profiler.profile(record_shapes=True) as trace: step()
//     trace.export_chrome_trace("kineto.json")
//
//     const TraceCalibration found = calibrate_from_trace("kineto.json");
//     found.spec.write_file("mine.json");                      // rates by class, and a table of the operators
//     if (found.links) found.links->write_file("links.json");  // tables of the collectives, by processes
//
// What a call computes and moves follows from its shapes: each distinct one is made once on fake tensors. Where the trace
// has kernels, their seconds count, else those of the CPU's calls.
//
// Peaks are those of the device that the trace names, if its figures are known (DeviceSpec::named), else the most that the
// trace reached. The spec's `sources` say which. Must not be called in a fake mode (throws Error).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/interconnect.h"

namespace SHADOWGRAPH_API shadowgraph {

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

}  // namespace shadowgraph
