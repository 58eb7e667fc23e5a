#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string_view>

#include "codegen/literals.h"
#include "parallel/export/planned_model.h"
#include "parallel/plan/layer_chain.h"
#include "parallel/schedule/known_schedules.h"

namespace shadowgraph {
namespace {

// Name of a module in torchtitan's decoders: "layers.7" for "model.layers.7".
std::string titan_name(const std::string& module) {
  static const std::map<std::string, std::string> kNames{{"embed_tokens", "tok_embeddings"},
                                                         {"tok_embeddings", "tok_embeddings"},
                                                         {"wte", "tok_embeddings"},
                                                         {"norm", "norm"},
                                                         {"ln_f", "norm"},
                                                         {"lm_head", "lm_head"},
                                                         {"output", "lm_head"}};
  if (const auto [at, length] = number_in_path(module); length > 0) return "layers." + module.substr(at, length);
  const auto found = kNames.find(module.substr(module.rfind('.') + 1));
  if (found != kNames.end()) return found->second;
  throw UnsupportedError(
      fmt::format("torchtitan's decoders have the modules tok_embeddings, layers, norm and lm_head, not {}", module));
}

std::string_view titan_schedule(const std::string& schedule) {
  const KnownSchedule& known = known_schedule(schedule);
  if (!known.torch_class.empty()) return known.torch_name();
  throw UnsupportedError(
      fmt::format("torchtitan does not have the schedule {}{}", schedule,
                  known.v_shaped ? ", and its pipeline_parallel_schedule_csv supports only looped stages" : ""));
}

// torchtitan's checkpoint policies apply to all layers, so the recipe defines one for the plan's layers.
constexpr std::string_view kPolicy = R"(from dataclasses import dataclass

from torchtitan.distributed.activation_checkpoint import FullAC

RECOMPUTED = {}


class PlannedAC(FullAC):
    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        pass

    def _wrap_block(self, module, *, base_fqn=None):
        return super()._wrap_block(module, base_fqn=base_fqn) if base_fqn in RECOMPUTED else module


)";

// The same with selective recompute of some layers. torchtitan's own policy would recompute every second matmul and
// keep unfused attention scores.
constexpr std::string_view kSelectivePolicy = R"(from dataclasses import dataclass

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

RECOMPUTED = {}
SELECTIVE = {}


class PlannedAC(SelectiveAC):
    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self):
        return super().get_save_ops() - {{torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default}}

    def _wrap_block(self, module, *, base_fqn=None):
        if base_fqn in RECOMPUTED:
            return FullAC._wrap_block(self, module, base_fqn=base_fqn)
        if base_fqn not in SELECTIVE:
            return module
        kept = list(self.get_save_ops())
        return checkpoint_wrapper(
            module, context_fn=lambda: create_selective_checkpoint_contexts(kept), early_stop=False
        )


)";

std::string titan_layers(const std::vector<std::string>& modules) {
  std::vector<std::string> layers;
  for (const std::string& module : modules) {
    if (!is_layer(module))
      throw UnsupportedError("torchtitan recomputes whole layers, but the plan recomputes " + module);
    layers.push_back(titan_name(module));
  }
  return python::literal(layers);
}

std::string policy_of(const TrainingPlan& plan) {
  const std::string whole = titan_layers(plan.recomputed), parts = titan_layers(plan.selective);
  return plan.selective.empty() ? fmt::format(fmt::runtime(kPolicy), whole)
                                : fmt::format(fmt::runtime(kSelectivePolicy), whole, parts);
}

std::string titan_stages(const PlannedModel& model, const TrainingPlan& plan) {
  std::vector<std::vector<std::string>> stages = modules_of_stages(model, plan);
  for (auto& stage : stages) {
    for (std::string& module : stage) module = titan_name(module);
  }
  return python::literal(stages);
}

}  // namespace

PlanExport torchtitan_recipe(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request) {
  const PlannedModel model = PlannedModel::of(step);
  if (plan.data_outermost && plan.pipeline > 1 && plan.data > 1) {
    throw UnsupportedError(
        "torchtitan's meshes have the pipeline outermost, but the plan has data parallelism outermost");
  }
  check_megatron_layout(plan, "torchtitan");
  check_no_curve(plan, "torchtitan");
  check_no_offload(plan, "torchtitan");
  PlanExport file;
  std::string& text = file.text;
  text = "\"\"\"A plan for torchtitan 0.3.0: use `planned(llama3_8b())` in its config_registry.\"\"\"\n\n";
  const bool recomputes = !plan.recomputed.empty() || !plan.selective.empty();
  if (recomputes) text += policy_of(plan);
  text += "def planned(config):\n";
  const auto set = [&](std::string_view part, std::string_view key, const auto& value) {
    text += fmt::format("    config.{}.{} = {}\n", part, key, value);
  };
  set("parallelism", "data_parallel_replicate_degree", plan.zero == 0 ? plan.data : 1);
  set("parallelism", "data_parallel_shard_degree", plan.zero == 0 ? 1 : plan.data);
  set("parallelism", "fsdp_reshard_after_forward", plan.zero == 3 ? "\"always\"" : "\"never\"");
  set("parallelism", "tensor_parallel_degree", plan.tensor);
  if (plan.context > 1) set("parallelism", "context_parallel_degree", plan.context);
  if (plan.experts > 1) set("parallelism", "expert_parallel_degree", plan.experts);
  const bool in_pieces = plan.overlap == CollectiveOverlap::kPieces;
  // Async tensor parallelism is a compiler pass, and only the compiler fuses the casts of float8.
  if (in_pieces || request.float8) set("compile", "enable", "True");
  if (in_pieces) set("compile", "enable_async_tensor_parallel", "True");
  set("parallelism", "pipeline_parallel_degree", plan.pipeline);
  if (plan.pipeline > 1) {
    set("parallelism", "pipeline_parallel_schedule", fmt::format("\"{}\"", titan_schedule(plan.schedule)));
    set("parallelism", "pipeline_parallel_microbatch_size", plan.micro_batch);
    set("parallelism", "module_fqns_per_model_part", titan_stages(model, plan));
  }
  if (plan.optimizer_on_host) set("training", "enable_cpu_offload", "True");
  // torchtitan does not support CUDA graphs in a pipeline, and captured graphs must not wait for the host.
  if (plan.pipeline > 1 || plan.optimizer_on_host) set("training", "disable_cuda_graphs", "True");
  // In a pipeline, micro-batches are parts of the local batch.
  set("training", "local_batch_size", plan.micro_batch * (plan.pipeline > 1 ? plan.microbatches : 1));
  set("training", "global_batch_size", samples_of(plan));
  if (request.sequence > 0) set("training", "seq_len", request.sequence);
  text += fmt::format("    config.activation_checkpoint = {}\n    return config\n",
                      recomputes ? "PlannedAC.Config()" : "None");
  note(file.differs, plan.context > 1 && plan.zero == 0,
       "ZeRO 0: torchtitan always shards parameters over context-parallel ranks");
  note(file.differs, plan.overlap == CollectiveOverlap::kBackward,
       "tensor parallelism: collectives are not overlapped and gathered inputs are kept; plan with --overlap none or "
       "pieces");
  note(file.differs, plan.tensor > 1 && !plan.selective.empty(), kMatmulsOfReductionsKept);
  note_zero(plan, file.differs);
  note_offload(plan, file.differs);
  note(file.differs, request.bfloat16_gradients, "gradients: torchtitan reduces them in float32, the plan in bfloat16");
  note(file.differs, request.float8,
       "float8: set in the model configuration: model_registry(.., converters=[Float8LinearConverter.Config("
       "filter_fqns=[\"lm_head\"], model_compile_enabled=True)])");
  note_batch(plan, request, file.differs);
  note(file.differs, plan.attention != AttentionKernel::kDevice, kAttentionChosenByScript);
  file.differs.emplace_back("the model is not part of the recipe: pass planned() the configuration of the same model");
  return file;
}

}  // namespace shadowgraph
