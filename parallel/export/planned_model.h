// Says what engines are told of a model: its modules in the order of forward, stage by stage, and which linear layers
// are cut.
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

// One row of exports.cpp: all else that knows engines reads it there.
struct Engine {
  std::string_view title;  // "PyTorch 2.13"
  std::string_view file;   // "train.py"
  // Two cells of the table in docs/cluster-plans.md.
  std::string_view about, cannot_express;
  // Gives text and what differs. Throws UnsupportedError.
  EngineFile (*write)(const TrainingPlan&, const Graph& step, const EngineRequest&);
};
std::span<const Engine> engines();

// A script that trains with torch alone, on DTensor, FSDP2 and torch.distributed.pipelining.
EngineFile pytorch_script(const TrainingPlan& plan, const Graph& step, const EngineRequest& request);
// A Python function that sets a configuration of torchtitan.
EngineFile torchtitan_recipe(const TrainingPlan& plan, const Graph& step, const EngineRequest& request);
// Arguments of Megatron-LM, one a line.
EngineFile megatron_arguments(const TrainingPlan& plan, const Graph& step, const EngineRequest& request);

struct PlannedParameter {
  NodeId node;
  std::string name;
  std::vector<int64_t> sizes;
};
std::vector<PlannedParameter> parameters_of(const Graph& step);

struct PlannedModel {
  // Modules with parameters, one after another as forward calls them: "model.embed_tokens", "model.layers.0", ..
  std::vector<std::string> modules;
  // The same with "model.layers.*" for all of one list.
  std::vector<std::string> order;

  static PlannedModel of(const Graph& step);
};

// torch's policies see products of tensor parallel, and their sums over ranks.
inline constexpr std::string_view kPartsOfSumsAreKept =
    "selective recomputing: torch keeps products whose sums over ranks it keeps, too";

inline constexpr std::string_view kAttentionIsTheScripts =
    "the kernel of attention is what PyTorch takes, unless torch.nn.attention.sdpa_kernel says so";

bool is_layer(const std::string& module);
// "model.norm" of "model.norm.weight", "model" of that, and then "".
std::string module_above(const std::string& path);
// "model.layers.*.mlp.up_proj" of "model.layers.7.mlp.up_proj".
std::string with_star(const std::string& path);

struct LinearCuts {
  // By with_star(): "columns", "columns, gathered" where what comes out is needed whole, "rows", "rows of a whole
  // input". A layer with queries, keys and values in one has "columns of three". There are "columns of Conv1D" and its
  // "rows".
  std::map<std::string, std::string> styles;
  // How wide heads are in the modules around "columns of three", by with_star().
  std::map<std::string, int64_t> widths;
};
// Linear layers that tensor parallel cuts. A module's linear layers are cut in pairs or not at all, as its sizes
// divide. Throws UnsupportedError where queries, keys and values in one are no equal parts, one behind another, or
// where their attention is not known.
LinearCuts linear_cuts(const Graph& step, int64_t tensor);

// Modules whose experts are on several ranks, by with_star(), and how many grouped products their forward has.
// Throws UnsupportedError for other parameters of such a module, and for products that are not chained as a script's.
std::map<std::string, int64_t> grouped_products(const Graph& step, int64_t ranks);

// Modules of each stage. Throws UnsupportedError where stages begin at no module of the list.
std::vector<std::vector<std::string>> modules_of_stages(const PlannedModel& model, const TrainingPlan& plan);

// Throws UnsupportedError for tensors that the solver laid out over ranks of tensor parallel.
void check_laid_out_by_hand(const TrainingPlan& plan, std::string_view engine);

// Throws UnsupportedError for plans that keep layers in part by the curve.
void check_no_curve(const TrainingPlan& plan, std::string_view engine);

// Throws UnsupportedError for plans whose layers have tensors that wait on the host.
void check_layers_are_on_device(const TrainingPlan& plan, std::string_view engine);
// FSDP2's CPUOffloadPolicy is how engines have an optimizer on the host.
void say_what_is_on_host(const TrainingPlan& plan, std::vector<std::string>& differs);
// ZeRO 1 and 2, which FSDP2 has in its own way.
void say_zero(const TrainingPlan& plan, std::vector<std::string>& differs, std::string_view more = "");
void say_batch(const TrainingPlan& plan, const EngineRequest& request, std::vector<std::string>& differs);
int64_t samples_of(const TrainingPlan& plan);  // of a step

// Parameters that several stages hold. Throws UnsupportedError where more than one tensor goes to the next stage, and
// for parameters of modules that have layers inside.
std::vector<std::string> check_cuts(const Graph& step, const PlannedModel& model, const TrainingPlan& plan);

}  // namespace shadowgraph
