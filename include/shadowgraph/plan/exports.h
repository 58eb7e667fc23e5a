// A plan of training in the words of engines that people use.
//
//     for (const EngineFile& file : engine_files(plan, step, {.sequence = 8192, .batch = 2048})) {
//       if (file.why_not.empty()) write(file.name, file.text);     // train.py, megatron.args, accelerate.yaml
//     }
//
// `step` is the step of one device and one micro-batch that the plan was made for, with all its layers. It says which
// modules there are, in which order forward calls them, and what a cut hands on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/training_plan.h"

namespace SHADOWGRAPH_API shadowgraph {

struct EngineRequest {
  int64_t sequence = 0;             // tokens of a sample; 0: samples are no sequences
  int64_t batch = 0;                // samples of a step that were asked for; 0: as many as the plan has
  bool float8 = false;              // products of layers, the head's left out
  bool bfloat16_gradients = false;  // kept and summed so; in float32 otherwise
};

struct EngineFile {
  std::string engine;                // "PyTorch 2.13"
  std::string name;                  // "train.py"
  std::string text;                  // empty: the engine cannot run the plan
  std::string why_not;               // then
  std::vector<std::string> differs;  // what the engine does in another way than the plan
};

// Of all engines (docs/cluster-plans.md), with the reasons of those that cannot run the plan.
std::vector<EngineFile> engine_files(const TrainingPlan& plan, const Graph& step, const EngineRequest& request = {});
std::vector<std::string> engine_file_names();

// A plan of `shard` as Python: a file that lays an eager model out, with torch alone. `plan` are the lines that set
// MESH, DATA_AXES, PARAMETERS, USES, INPUTS, MODULES and UNITS of parallel/export/plan_runtime.py.
std::string layouts_script(const std::string& title, std::string_view plan);

// Execution traces of MLCommons Chakra, for network simulators such as ASTRA-sim: a file a process.
//
//     write_chakra(run, "traces", {.name = "llama", .processes_per_stage = 64});       // traces/llama.0.et, ...
//
// A rank of the pipeline stands for `processes_per_stage` processes that do the same. Process p of rank r has number r
// * processes_per_stage + p; it sends to process p of the neighbours. Collectives are those of the captured step, among
// the processes of the rank; groups are numbered.
//
// Nodes are what a rank does between two communications: COMP with microseconds, FLOPs (num_ops) and bytes moved
// (tensor_size), COMM_SEND, COMM_RECV, COMM_COLL. Each depends on the one before it on its stream, and computing on
// what it waits for. Durations are whole microseconds whose sums are right. The first node lists the groups.

class PipelineRun;  // shadowgraph/plan/pipeline.h

struct ChakraOptions {
  std::string name = "trace";
  int64_t processes_per_stage = 1;
};
struct ChakraFiles {
  int64_t files = 0;
  int64_t nodes = 0;
  int64_t bytes = 0;
};
// Makes the folder. Throws FileError; Error for collectives that Chakra has no kind for, and for groups that reach
// beyond the processes of a stage.
ChakraFiles write_chakra(const PipelineRun& run, const std::string& folder, const ChakraOptions& options = {});

}  // namespace shadowgraph
