#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string_view>

#include "parallel/export/planned_model.h"
#include "parallel/plan/layer_chain.h"
#include "parallel/schedule/known_schedules.h"
#include "support/json.h"

namespace shadowgraph {
namespace {

// torchtitan's decoders have these names: "layers.7" of "model.layers.7".
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
      fmt::format("torchtitan's decoders have tok_embeddings, layers, norm and lm_head, not {}", module));
}

std::string_view titan_schedule(const std::string& schedule) {
  const KnownSchedule& known = known_schedule(schedule);
  if (!known.torch_class.empty()) return known.torch_name();
  throw UnsupportedError(
      fmt::format("torchtitan has no schedule of the name {}{}", schedule,
                  known.v_shaped ? ", and its pipeline_parallel_schedule_csv puts stages in a loop over ranks" : ""));
}

// torchtitan's own policies are for all layers, so the recipe has one for those of the plan.
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

// The same where of some layers only what is cheap is computed again. torchtitan's own would compute each second
// product again, and keeps scores of attention by hand.
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
    if (!is_layer(module)) throw UnsupportedError("torchtitan recomputes layers, and the plan " + module);
    layers.push_back(titan_name(module));
  }
  return json_text(layers);
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
  return json_text(nlohmann::json(stages));
}

}  // namespace

EngineFile torchtitan_recipe(const TrainingPlan& plan, const Graph& step, const EngineRequest& request) {
  const PlannedModel model = PlannedModel::of(step);
  if (plan.data_outermost && plan.pipeline > 1 && plan.data > 1) {
    throw UnsupportedError("torchtitan's meshes have the pipeline outermost, and the plan data parallel");
  }
  check_laid_out_by_hand(plan, "torchtitan");
  check_no_curve(plan, "torchtitan");
  check_layers_are_on_device(plan, "torchtitan");
  EngineFile file;
  std::string& text = file.text;
  text = "\"\"\"A plan as a recipe of torchtitan 0.3.0: `planned(llama3_8b())` in its config_registry.\"\"\"\n\n";
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
  if (plan.overlap == CollectiveOverlap::kPieces) {
    set("compile", "enable", "True");  // asynchronous tensor parallel is a pass of the compiler
    set("compile", "enable_async_tensor_parallel", "True");
  }
  set("parallelism", "pipeline_parallel_degree", plan.pipeline);
  if (plan.pipeline > 1) {
    set("parallelism", "pipeline_parallel_schedule", fmt::format("\"{}\"", titan_schedule(plan.schedule)));
    set("parallelism", "pipeline_parallel_microbatch_size", plan.micro_batch);
    set("parallelism", "module_fqns_per_model_part", titan_stages(model, plan));
  }
  if (plan.optimizer_on_host) set("training", "enable_cpu_offload", "True");
  // torchtitan refuses them in a pipeline, and nothing that is captured may wait for the host.
  if (plan.pipeline > 1 || plan.optimizer_on_host) set("training", "disable_cuda_graphs", "True");
  // A pipeline's micro-batches are parts of a local batch.
  set("training", "local_batch_size", plan.micro_batch * (plan.pipeline > 1 ? plan.microbatches : 1));
  set("training", "global_batch_size", samples_of(plan));
  if (request.sequence > 0) set("training", "seq_len", request.sequence);
  text += fmt::format("    config.activation_checkpoint = {}\n    return config\n",
                      recomputes ? "PlannedAC.Config()" : "None");
  if (plan.context > 1 && plan.zero == 0) {
    file.differs.emplace_back("ZeRO 0: ranks that share sequences cut parameters, as torchtitan always does");
  }
  if (plan.overlap == CollectiveOverlap::kBackward) {
    file.differs.emplace_back(
        "tensor parallel: collectives are waited for where they stand, and gathered inputs kept; plan with --overlap "
        "none or pieces");
  }
  if (plan.tensor > 1 && !plan.selective.empty()) file.differs.emplace_back(kPartsOfSumsAreKept);
  say_zero(plan, file.differs);
  say_what_is_on_host(plan, file.differs);
  if (request.bfloat16_gradients) {
    file.differs.emplace_back("gradients: torchtitan sums them in float32, and the plan in bfloat16");
  }
  if (request.float8) {
    set("compile", "enable", "True");
    file.differs.emplace_back(
        "float8: the model's configuration decides: model_registry(.., converters=[Float8LinearConverter.Config("
        "filter_fqns=[\"lm_head\"], model_compile_enabled=True)])");
  }
  say_batch(plan, request, file.differs);
  if (plan.attention != AttentionKernel::kDevices) file.differs.emplace_back(kAttentionIsTheScripts);
  file.differs.emplace_back("the model is the recipe's: give planned() the configuration of the same one");
  return file;
}

}  // namespace shadowgraph
