#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "parallel/export/planned_model.h"

namespace shadowgraph {
namespace {

// Returns whether all layers are recomputed. Throws UnsupportedError unless it is all or none.
bool recomputes(const PlannedModel& model, const TrainingPlan& plan, std::string_view engine) {
  const auto refuse = [&](const std::string& why) { throw UnsupportedError(fmt::format("{} {}", engine, why)); };
  if (!plan.selective.empty()) refuse("recomputes only whole layers: plan with --recompute full");
  if (plan.recomputed.empty()) return false;
  const auto layers = std::ranges::count_if(model.modules, is_layer);
  const auto recomputed = std::ranges::count_if(plan.recomputed, is_layer);
  if (recomputed != layers || recomputed != std::ssize(plan.recomputed)) {
    refuse(fmt::format("recomputes all layers or none, but the plan recomputes {} of {}", recomputed, layers));
  }
  return true;
}

PlanExport accelerate_config(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request) {
  if (plan.pipeline > 1)
    throw UnsupportedError("accelerate does not support pipeline parallelism for training: plan with --pipeline 1");
  for (const auto& [degree, axis, option] : {std::tuple(plan.experts, "expert", "experts"),
                                             {plan.context, "context", "context"},
                                             {plan.tensor, "tensor", "tensor"}}) {
    if (degree == 1) continue;
    throw UnsupportedError(
        fmt::format("accelerate's FSDP does not support {} parallelism: plan with --{} 1", axis, option));
  }
  check_no_curve(plan, "accelerate's FSDP configuration");
  check_no_offload(plan, "accelerate's FSDP configuration");
  if (plan.zero == 0 && plan.optimizer_on_host) {
    throw UnsupportedError("accelerate offloads the optimizer only with FSDP: plan with --zero 1");
  }
  const bool recompute = recomputes(PlannedModel::of(step), plan, "accelerate");
  if (plan.zero == 0 && recompute)
    throw UnsupportedError("accelerate supports recompute only with FSDP: plan with --zero 1");
  PlanExport file;
  std::string& text = file.text;
  text += "compute_environment: LOCAL_MACHINE\n";
  text += fmt::format("distributed_type: {}\n", plan.zero > 0 ? "FSDP" : plan.data > 1 ? "MULTI_GPU" : "NO");
  text += request.float8 ? "mixed_precision: fp8\nfp8_config:\n  backend: ao\n" : "mixed_precision: bf16\n";
  text += fmt::format("num_processes: {}\n", plan.data);
  if (plan.zero > 0) {
    text += "fsdp_config:\n  fsdp_version: 2\n";
    text += fmt::format("  fsdp_reshard_after_forward: {}\n", plan.zero == 3);
    text += "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n";
    text += fmt::format("  fsdp_activation_checkpointing: {}\n", recompute);
    text += fmt::format("  fsdp_offload_params: {}\n  fsdp_cpu_ram_efficient_loading: true\n", plan.optimizer_on_host);
    file.differs.emplace_back("layers are the model's _no_split_modules");
  }
  note_zero(plan, file.differs);
  note_offload(plan, file.differs);
  file.differs.push_back(
      fmt::format("the batch is set in the script: {} samples per process and micro-batch, "
                  "Accelerator(gradient_accumulation_steps={})",
                  plan.micro_batch, plan.microbatches));
  file.differs.emplace_back("machines are set in the launcher: --num_machines, --machine_rank, --main_process_ip");
  note(file.differs, plan.attention != AttentionKernel::kDevice, kAttentionChosenByScript);
  note(file.differs, request.bfloat16_gradients,
       "bfloat16 gradients: set MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) in the script");
  note_batch(plan, request, file.differs);
  return file;
}

PlanExport deepspeed_config(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request) {
  if (plan.pipeline > 1)
    throw UnsupportedError("DeepSpeed's configuration cannot express pipelines: plan with --pipeline 1");
  if (plan.experts > 1 || plan.context > 1 || plan.tensor > 1) {
    throw UnsupportedError("the DeepSpeed export supports only data parallelism");
  }
  check_no_curve(plan, "DeepSpeed");
  check_no_offload(plan, "DeepSpeed");
  if (plan.zero == 0 && plan.optimizer_on_host) {
    throw UnsupportedError("DeepSpeed offloads the optimizer only with ZeRO: plan with --zero 1");
  }
  if (request.float8) throw UnsupportedError("DeepSpeed's configuration does not support float8");
  PlanExport file;
  note(file.differs, recomputes(PlannedModel::of(step), plan, "DeepSpeed"),
       "recompute: call model.gradient_checkpointing_enable() in the script");
  nlohmann::json zero{{"stage", plan.zero}};
  if (plan.optimizer_on_host) zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
  const nlohmann::json config{{"train_batch_size", samples_of(plan)},
                              {"train_micro_batch_size_per_gpu", plan.micro_batch},
                              {"gradient_accumulation_steps", plan.microbatches},
                              {"bf16", {{"enabled", true}}},
                              {"data_types", {{"grad_accum_dtype", request.bfloat16_gradients ? "bf16" : "fp32"}}},
                              {"zero_optimization", zero}};
  file.text = config.dump(2) + "\n";
  note_batch(plan, request, file.differs);
  note(file.differs, plan.attention != AttentionKernel::kDevice, kAttentionChosenByScript);
  return file;
}

constexpr TargetFramework kTargetFrameworks[] = {
    {.title = "PyTorch 2.13",
     .file = "train.py",
     .about = "only torch 2.13: DTensor, FSDP2, `torch.distributed.pipelining`, `torch.distributed.checkpoint`",
     .cannot_express =
         "stages that pass more than one tensor; ZeRO with schedules that split backward; tensor parallelism of fused "
         "QKV layers unless forward uses `split` or `chunk` into three; context parallelism of non-causal attention, "
         "or without `torch.arange` for positions; experts other than two matmuls, or three with a gate; partly "
         "recomputed layers with offloaded activations; `curve` with tensor, context or expert parallelism",
     .write = pytorch_script},
    {.title = "torchtitan 0.3.0",
     .file = "torchtitan_recipe.py",
     .about = "torchtitan 0.3.0: a function that modifies a configuration",
     .cannot_express = "[schedules](many-devices.md#schedules) without a torch class; data parallelism outermost; "
                       "other module names; `curve`; offloaded activations",
     .write = torchtitan_recipe},
    {.title = "Megatron-LM core 0.16",
     .file = "megatron.args",
     .about = "Megatron-LM core 0.16, with `--pipeline-model-parallel-layout`",
     .cannot_express =
         "most [schedules](many-devices.md#schedules); ZeRO 2 and 3 in a pipeline; recompute of layers other than the "
         "first of a stage; `selective` except for norms of all layers; `curve`; offloaded activations except of the "
         "first layers, without pipeline and recompute; optimizer offload without ZeRO 1",
     .write = megatron_arguments},
    {.title = "accelerate 1.15",
     .file = "accelerate.yaml",
     .about = "accelerate 1.15, FSDP2",
     .cannot_express = "tensor, pipeline, expert or context parallelism, recompute of some layers, `selective`, "
                       "`curve`, offloaded activations",
     .write = accelerate_config},
    {.title = "DeepSpeed",
     .file = "deepspeed.json",
     .about = "DeepSpeed's ZeRO: `deepspeed.initialize(config=\"deepspeed.json\")`; not tested with DeepSpeed",
     .cannot_express = "tensor, pipeline, expert or context parallelism, recompute of some layers, `selective`, "
                       "`curve`, offloaded activations, float8",
     .write = deepspeed_config},
};

}  // namespace

std::span<const TargetFramework> target_frameworks() { return kTargetFrameworks; }

std::vector<std::string> plan_export_names() {
  std::vector<std::string> names;
  for (const TargetFramework& engine : kTargetFrameworks) names.emplace_back(engine.file);
  return names;
}

std::vector<PlanExport> export_plan(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request) {
  std::vector<PlanExport> files;
  for (const TargetFramework& engine : kTargetFrameworks) {
    PlanExport& file = files.emplace_back();
    try {
      file = engine.write(plan, step, request);
    } catch (const UnsupportedError& error) {
      file.why_not = error.what();
    }
    file.framework = engine.title;
    file.name = engine.file;
  }
  return files;
}

}  // namespace shadowgraph
