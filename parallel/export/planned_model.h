// Properties of a model that exports need: modules in forward order, stages, and tensor-parallel linear layers.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shadowgraph/error.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/plan/exports.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph {

// A target framework; a row of the table in exports.cpp, from which everything else is derived.
struct TargetFramework {
  std::string_view title;  // "PyTorch 2.13"
  std::string_view file;   // "train.py"
  // Cells of the table in docs/cluster-plans.md.
  std::string_view about, cannot_express;
  // Returns the text and the deviations from the plan. Throws UnsupportedError.
  PlanExport (*write)(const TrainingPlan&, const Graph& step, const PlanExportOptions&);
};
std::span<const TargetFramework> target_frameworks();

// A training script that needs only torch: DTensor, FSDP2 and torch.distributed.pipelining.
PlanExport pytorch_script(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request);
PlanExport torchtitan_recipe(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request);
// Command line arguments of Megatron-LM, one per line.
PlanExport megatron_arguments(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request);

struct PlannedParameter {
  NodeId node;
  std::string name;
  std::vector<int64_t> sizes;
};
std::vector<PlannedParameter> parameters_of(const Graph& step);

struct PlannedModel {
  // Modules with parameters in forward order: "model.embed_tokens", "model.layers.0", ...
  std::vector<std::string> modules;
  // The same with one entry "model.layers.*" per list.
  std::vector<std::string> order;

  static PlannedModel of(const Graph& step);
};

// torch's checkpoint policies cannot keep a reduction without the matmul before it.
inline constexpr std::string_view kMatmulsOfReductionsKept =
    "selective recompute: torch also keeps the matmuls whose reductions are kept";

inline constexpr std::string_view kAttentionChosenByScript =
    "the attention kernel is PyTorch's choice, unless the script sets torch.nn.attention.sdpa_kernel";

bool is_layer(const std::string& module);
// Parent path: "model.norm" of "model.norm.weight", "model" of "model.norm", "" of "model".
std::string module_above(const std::string& path);
// Replaces the layer number: "model.layers.*.mlp.up_proj" for "model.layers.7.mlp.up_proj".
std::string with_wildcard(const std::string& path);

struct LinearCuts {
  // Style by with_wildcard(): "columns", "columns, gathered" if the output is needed in full, "rows", "rows of a whole
  // input". A fused QKV layer has "columns of three"; there are also "columns of Conv1D" and "rows of Conv1D".
  std::map<std::string, std::string> styles;
  // Head size in modules that contain "columns of three", by with_wildcard().
  std::map<std::string, int64_t> widths;
};
// Returns the linear layers sharded by tensor parallelism. The layers of a module are sharded in pairs or not at all,
// depending on divisibility. Throws UnsupportedError if fused queries, keys and values are not three equal consecutive
// parts, or their attention is not recognized.
LinearCuts linear_cuts(const Graph& step, int64_t tensor);

// Returns the modules with expert parallelism, by with_wildcard(), and the number of grouped matmuls in their forward.
// Throws UnsupportedError if such a module has other parameters, or its matmuls are not chained as the script requires.
std::map<std::string, int64_t> grouped_products(const Graph& step, int64_t ranks);

// Returns the modules of each stage. Throws UnsupportedError if a stage does not begin at one of the modules.
std::vector<std::vector<std::string>> modules_of_stages(const PlannedModel& model, const TrainingPlan& plan);

// Throws UnsupportedError for tensor-parallel layouts found by the solver.
void check_megatron_layout(const TrainingPlan& plan, std::string_view engine);

void check_no_curve(const TrainingPlan& plan, std::string_view engine);

void check_no_offload(const TrainingPlan& plan, std::string_view engine);
// These functions append deviations from the plan to `differs`: one that may not apply,
inline void note(std::vector<std::string>& differs, bool applies, std::string_view text) {
  if (applies) differs.emplace_back(text);
}
// for an offloaded optimizer: FSDP2's CPUOffloadPolicy,
void note_offload(const TrainingPlan& plan, std::vector<std::string>& differs);
// FSDP2's variant of ZeRO 1 and 2, and a batch that does not divide.
void note_zero(const TrainingPlan& plan, std::vector<std::string>& differs, std::string_view more = "");
void note_batch(const TrainingPlan& plan, const PlanExportOptions& request, std::vector<std::string>& differs);
int64_t samples_of(const TrainingPlan& plan);  // per step

// Returns parameters tied over several stages. Throws UnsupportedError if more than one tensor is passed to the next
// stage, or a module with layers inside has direct parameters.
std::vector<std::string> check_cuts(const Graph& step, const PlannedModel& model, const TrainingPlan& plan);

}  // namespace shadowgraph
