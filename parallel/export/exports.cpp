// The table of engines stands at the end. Engines whose files are long have sources of their own.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "parallel/export/planned_model.h"

namespace shadowgraph {
namespace {

// All layers, or none.
bool recomputes(const PlannedModel& model, const TrainingPlan& plan, std::string_view engine) {
  const auto refuse = [&](const std::string& why) { throw UnsupportedError(fmt::format("{} {}", engine, why)); };
  if (!plan.selective.empty()) refuse("recomputes whole layers, and the plan parts of them");
  if (plan.recomputed.empty()) return false;
  const auto layers = std::ranges::count_if(model.modules, is_layer);
  const auto again = std::ranges::count_if(plan.recomputed, is_layer);
  if (again != layers || again != std::ssize(plan.recomputed)) {
    refuse(fmt::format("recomputes all layers or none, and the plan {} of {}", again, layers));
  }
  return true;
}

EngineFile accelerate_config(const TrainingPlan& plan, const Graph& step, const EngineRequest& request) {
  if (plan.pipeline > 1) throw UnsupportedError("accelerate's configuration has no pipelines that train");
  if (plan.experts > 1) throw UnsupportedError("accelerate's FSDP configuration puts no experts on several ranks");
  if (plan.context > 1) throw UnsupportedError("accelerate's FSDP configuration cuts no sequences");
  if (plan.tensor > 1) throw UnsupportedError("accelerate's FSDP configuration has no tensor parallel");
  check_no_curve(plan, "accelerate's FSDP configuration");
  check_layers_are_on_device(plan, "accelerate's FSDP configuration");
  if (plan.zero == 0 && plan.optimizer_on_host) {
    throw UnsupportedError("accelerate has an optimizer on the host with FSDP alone: plan with --zero 1");
  }
  const bool again = recomputes(PlannedModel::of(step), plan, "accelerate");
  if (plan.zero == 0 && again) throw UnsupportedError("accelerate recomputes with FSDP alone: plan with --zero 1");
  EngineFile file;
  std::string& text = file.text;
  text += "compute_environment: LOCAL_MACHINE\n";
  text += fmt::format("distributed_type: {}\n", plan.zero > 0 ? "FSDP" : plan.data > 1 ? "MULTI_GPU" : "NO");
  text += request.float8 ? "mixed_precision: fp8\nfp8_config:\n  backend: ao\n" : "mixed_precision: bf16\n";
  text += fmt::format("num_processes: {}\n", plan.data);
  if (plan.zero > 0) {
    text += "fsdp_config:\n  fsdp_version: 2\n";
    text += fmt::format("  fsdp_reshard_after_forward: {}\n", plan.zero == 3);
    text += "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n";
    text += fmt::format("  fsdp_activation_checkpointing: {}\n", again);
    text += fmt::format("  fsdp_offload_params: {}\n  fsdp_cpu_ram_efficient_loading: true\n", plan.optimizer_on_host);
    file.differs.emplace_back("layers are those of the model's _no_split_modules");
  }
  say_zero(plan, file.differs);
  say_what_is_on_host(plan, file.differs);
  file.differs.push_back(
      fmt::format("the batch is the script's: {} samples a process and micro-batch, Accelerator("
                  "gradient_accumulation_steps={})",
                  plan.micro_batch, plan.microbatches));
  file.differs.emplace_back("machines are the launcher's: --num_machines, --machine_rank, --main_process_ip");
  if (plan.attention != AttentionKernel::kDevices) file.differs.emplace_back(kAttentionIsTheScripts);
  if (request.bfloat16_gradients) {
    file.differs.emplace_back(
        "gradients: in bfloat16 by MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) in the script");
  }
  say_batch(plan, request, file.differs);
  return file;
}

EngineFile deepspeed_config(const TrainingPlan& plan, const Graph& step, const EngineRequest& request) {
  if (plan.pipeline > 1) throw UnsupportedError("DeepSpeed's configuration has no pipelines: its modules have them");
  if (plan.experts > 1 || plan.context > 1 || plan.tensor > 1) {
    throw UnsupportedError("DeepSpeed's configuration is written for data ranks alone");
  }
  check_no_curve(plan, "DeepSpeed");
  check_layers_are_on_device(plan, "DeepSpeed");
  if (plan.zero == 0 && plan.optimizer_on_host) {
    throw UnsupportedError("DeepSpeed has an optimizer on the host with ZeRO alone: plan with --zero 1");
  }
  if (request.float8) throw UnsupportedError("DeepSpeed's configuration has no products in float8");
  EngineFile file;
  if (recomputes(PlannedModel::of(step), plan, "DeepSpeed")) {
    file.differs.emplace_back("recomputing: the script's, by model.gradient_checkpointing_enable()");
  }
  nlohmann::json zero{{"stage", plan.zero}};
  if (plan.optimizer_on_host) zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  const nlohmann::json config{{"train_batch_size", samples_of(plan)},
                              {"train_micro_batch_size_per_gpu", plan.micro_batch},
                              {"gradient_accumulation_steps", plan.microbatches},
                              {"bf16", {{"enabled", true}}},
                              {"data_types", {{"grad_accum_dtype", request.bfloat16_gradients ? "bf16" : "fp32"}}},
                              {"zero_optimization", zero}};
  file.text = config.dump(2) + "\n";
  say_batch(plan, request, file.differs);
  if (plan.attention != AttentionKernel::kDevices) file.differs.emplace_back(kAttentionIsTheScripts);
  return file;
}

constexpr Engine kEngines[] = {
    {.title = "PyTorch 2.13",
     .file = "train.py",
     .about = "torch 2.13 alone: DTensor, FSDP2, `torch.distributed.pipelining`, `torch.distributed.checkpoint`",
     .cannot_express =
         "cuts that hand on more than one tensor; ZeRO under schedules with backward in two pieces; queries, keys "
         "and values in one layer that tensor parallel cuts and forward does not `split` or `chunk` in three; "
         "attention on several ranks that is not causal, or of models that do not count positions by `torch.arange`; "
         "experts that are not two products, or three of a gate; layers in part and on the host at once; `curve` "
         "where a layer is on several ranks",
     .write = pytorch_script},
    {.title = "torchtitan 0.3.0",
     .file = "torchtitan_recipe.py",
     .about = "torchtitan 0.3.0: a function that sets a configuration",
     .cannot_express = "[schedules](many-devices.md#schedules) that torch has no class for, data parallel outermost, "
                       "modules of other names; `curve`, layers on the host",
     .write = torchtitan_recipe},
    {.title = "Megatron-LM core 0.16",
     .file = "megatron.args",
     .about = "Megatron-LM core 0.16, with `--pipeline-model-parallel-layout`",
     .cannot_express =
         "most [schedules](many-devices.md#schedules); ZeRO 2 and 3 in a pipeline; other layers of a stage "
         "recomputed than the first; `selective` but for norms, of all layers; `curve`; layers on the host that are "
         "not the first, in a pipeline, or recomputed; ZeRO other than 1 with the optimizer there",
     .write = megatron_arguments},
    {.title = "accelerate 1.15",
     .file = "accelerate.yaml",
     .about = "accelerate 1.15, FSDP2",
     .cannot_express =
         "tensor parallel, pipelines, experts or sequences on several ranks, some layers recomputed, `selective`, "
         "`curve`, layers on the host",
     .write = accelerate_config},
    {.title = "DeepSpeed",
     .file = "deepspeed.json",
     .about = "DeepSpeed's ZeRO: `deepspeed.initialize(config=\"deepspeed.json\")`, not tried with DeepSpeed itself",
     .cannot_express =
         "tensor parallel, pipelines, experts or sequences on several ranks, some layers recomputed, `selective`, "
         "`curve`, layers on the host, float8",
     .write = deepspeed_config},
};

}  // namespace

std::span<const Engine> engines() { return kEngines; }

std::vector<std::string> engine_file_names() {
  std::vector<std::string> names;
  for (const Engine& engine : kEngines) names.emplace_back(engine.file);
  return names;
}

std::vector<EngineFile> engine_files(const TrainingPlan& plan, const Graph& step, const EngineRequest& request) {
  std::vector<EngineFile> files;
  for (const Engine& engine : kEngines) {
    EngineFile& file = files.emplace_back();
    try {
      file = engine.write(plan, step, request);
    } catch (const UnsupportedError& error) {
      file.why_not = error.what();
    }
    file.engine = engine.title;
    file.name = engine.file;
  }
  return files;
}

}  // namespace shadowgraph
