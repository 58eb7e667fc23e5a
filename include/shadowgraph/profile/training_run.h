// What the steps of a training run hold: the first, which makes gradients and optimizer state, the second, the steady
// state.
//
//     const Capture run = capture_training_run(program, 3);
//     const RunMemory memory = RunMemory::of(run.graph);
//     memory.steps[0].peak; memory.steady().peak; memory.peak();       // live bytes
//     memory.reserved_peak();                                          // of the caching allocator
//
// Nothing is assumed of what one step leaves to the next: the run was recorded as it is, births and deaths of storages
// included. Bytes at a node are those of shadowgraph/profile/timeline.h; reserved bytes come from one pass of the
// caching allocator over the whole run. Every step has the same inputs, which are there from the beginning.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/profile/device_memory.h"

namespace SHADOWGRAPH_API shadowgraph {

struct StepMemory {
  int64_t peak = 0;  // most live bytes at a node of the step
  std::string op;    // that ran there
  std::string module;
  std::string phase;
  // Bytes of the caching allocator; absent where there is none, and in steps that a device out of memory does not
  // reach.
  std::optional<int64_t> allocated_peak;  // in blocks, during the step
  std::optional<int64_t> reserved_peak;   // in segments, during the step
  std::optional<int64_t> reserved_after;
};

struct RunMemory {
  std::vector<StepMemory> steps;
  std::string out_of_memory;  // where the run does not fit into DeviceMemoryOptions::capacity; otherwise empty

  // Takes a graph of capture_training_run; throws Error for others. `steps` of the options has no meaning here. Linear.
  static RunMemory of(const Graph& run, const DeviceMemoryOptions& options = {});

  const StepMemory& steady() const { return steps.back(); }
  int64_t peak() const;                          // live bytes, of all steps
  std::optional<int64_t> reserved_peak() const;  // of all steps
};

// The lines of a report: a row a step, and the peak of all.
std::string to_text(const RunMemory& run);

}  // namespace shadowgraph
