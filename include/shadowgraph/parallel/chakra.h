// Execution traces of MLCommons Chakra, for network simulators such as ASTRA-sim: a file a process.
//
//     write_chakra(run, "traces", {.name = "llama", .processes_per_stage = 64});       // traces/llama.0.et, ...
//
// A rank of the pipeline stands for `processes_per_stage` processes that do the same. Process p of rank r has number
// r * processes_per_stage + p; it sends to process p of the neighbours. Collectives are those of the captured step, among
// the processes of the rank; groups are numbered.
//
// Nodes are what a rank does between two communications: COMP with microseconds, FLOPs (num_ops) and bytes moved
// (tensor_size), COMM_SEND, COMM_RECV, COMM_COLL. Each depends on the one before it on its stream, and computing on what
// it waits for. Durations are whole microseconds whose sums are right. The first node lists the groups.
#pragma once

#include <cstdint>
#include <string>

#include "shadowgraph/export.h"

namespace SHADOWGRAPH_API shadowgraph {

class PipelineRun;  // shadowgraph/parallel/pipeline.h

struct ChakraOptions {
  std::string name = "trace";
  int64_t processes_per_stage = 1;
};
struct ChakraFiles {
  int64_t files = 0;
  int64_t nodes = 0;
  int64_t bytes = 0;
};
// Makes the folder. Throws FileError; Error for collectives that Chakra has no kind for, and for groups that reach beyond
// the processes of a stage.
ChakraFiles write_chakra(const PipelineRun& run, const std::string& folder, const ChakraOptions& options = {});

}  // namespace shadowgraph
