#include "shadowgraph/plan/exports.h"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/export/planned_model.h"

namespace shadowgraph {
namespace {

// All layers, or none.
bool recomputes(const PlannedModel& model, const TrainingPlan& plan) {
  if (!plan.selective.empty()) throw UnsupportedError("accelerate recomputes whole layers, and the plan parts of them");
  if (plan.recomputed.empty()) return false;
  const auto layers = std::ranges::count_if(model.modules, is_layer);
  const auto again = std::ranges::count_if(plan.recomputed, is_layer);
  if (again == layers && again == std::ssize(plan.recomputed)) return true;
  throw UnsupportedError(fmt::format("accelerate recomputes all layers or none, and the plan {} of {}", again, layers));
}

}  // namespace

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
  const bool again = recomputes(PlannedModel::of(step), plan);
  if (plan.zero == 0 && again) throw UnsupportedError("accelerate recomputes with FSDP alone: plan with --zero 1");
  EngineFile file{.engine = "accelerate 1.15", .name = "accelerate.yaml"};
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
  if (plan.zero == 1 || plan.zero == 2) {
    file.differs.push_back(
        fmt::format("ZeRO {}: FSDP2 with parameters that stay gathered from forward to backward", plan.zero));
  }
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
  const int64_t samples = plan.data * plan.micro_batch * plan.microbatches;
  if (request.batch > 0 && samples > request.batch) {
    file.differs.push_back(fmt::format("batch: {} samples a step, as {} do not divide", samples, request.batch));
  }
  return file;
}

std::vector<EngineFile> engine_files(const TrainingPlan& plan, const Graph& step, const EngineRequest& request) {
  struct Engine {
    const char* name;
    const char* file;
    EngineFile (*write)(const TrainingPlan&, const Graph&, const EngineRequest&);
  };
  constexpr Engine kEngines[] = {{"PyTorch", "train.py", pytorch_script},
                                 {"torchtitan", "torchtitan_recipe.py", torchtitan_recipe},
                                 {"Megatron-LM", "megatron.args", megatron_arguments},
                                 {"accelerate", "accelerate.yaml", accelerate_config}};
  std::vector<EngineFile> files;
  for (const Engine& engine : kEngines) {
    try {
      files.push_back(engine.write(plan, step, request));
    } catch (const UnsupportedError& error) {
      files.push_back({.engine = engine.name, .name = engine.file, .why_not = error.what()});
    }
  }
  return files;
}

}  // namespace shadowgraph
