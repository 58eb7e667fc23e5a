// Exports a training plan to the configuration format of a training framework.
//
//     for (const PlanExport& file : export_plan(plan, step, {.sequence = 8192, .batch = 2048})) {
//       if (file.why_not.empty()) write(file.name, file.text);     // train.py, megatron.args, accelerate.yaml
//     }
//
// `step` is the captured step, with all layers, of one device and one micro-batch that the plan was made for. It
// determines the modules, the order in which forward calls them, and the tensors passed between stages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/training_plan.h"

namespace SHADOWGRAPH_API shadowgraph {

class PipelineRun;  // shadowgraph/plan/pipeline.h

struct PlanExportOptions {
  int64_t sequence = 0;             // tokens per sample; 0: samples are not sequences
  int64_t batch = 0;                // requested samples per step; 0: those of the plan
  bool float8 = false;              // matrix products of layers in float8, except the head
  bool bfloat16_gradients = false;  // store and reduce gradients in bfloat16 instead of float32
};

struct PlanExport {
  std::string framework;             // "PyTorch 2.13"
  std::string name;                  // "train.py"
  std::string text;                  // "": the framework cannot run the plan
  std::string why_not;               // the reason
  std::vector<std::string> differs;  // differences between the framework's behavior and the plan
};

// Exports to all frameworks (docs/cluster-plans.md), including those that cannot run the plan.
std::vector<PlanExport> export_plan(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request = {});
std::vector<std::string> plan_export_names();

// Returns a Python script that shards an eager model with torch alone according to a plan of `shard`. `plan` has the
// lines that set MESH, DATA_AXES, PARAMETERS, USES, INPUTS, MODULES and UNITS of parallel/export/plan_runtime.py.
std::string sharding_script(const std::string& title, std::string_view plan);

// Exports MLCommons Chakra execution traces for network simulators such as ASTRA-sim, one file per process.
//
// A rank of the pipeline represents `processes_per_stage` processes that do the same. Process p of rank r has number
// r * processes_per_stage + p and sends to process p of neighboring ranks. Collectives are those of the captured step,
// among the processes of a rank; groups are numbered.
//
// Nodes are COMP (all compute between two communications) with microseconds, FLOPs (num_ops) and bytes (tensor_size),
// COMM_SEND, COMM_RECV and COMM_COLL. Each node depends on the previous one of its stream, and compute also on the
// communication it waits for. Rounding errors of durations do not accumulate. The first node lists the groups.
struct ChakraOptions {
  std::string name = "trace";
  int64_t processes_per_stage = 1;
};
struct ChakraFiles {
  int64_t files = 0;
  int64_t nodes = 0;
  int64_t bytes = 0;
};
// Creates the folder. Throws FileError; Error for unsupported collectives and groups with processes of several stages.
ChakraFiles write_chakra(const PipelineRun& run, const std::string& folder, const ChakraOptions& options = {});

}  // namespace shadowgraph
