#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "parallel/export/planned_model.h"
#include "parallel/schedule/known_schedules.h"

namespace shadowgraph {
namespace {

// "Et*2|t*3|t*2L": embedding, transformer layers, loss, stage by stage.
std::string layout_of(const PlannedModel& model, const TrainingPlan& plan) {
  std::string text;
  const auto stages = modules_of_stages(model, plan);
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const auto layers = std::ranges::count_if(stages[stage], is_layer);
    if (stage > 0) text += "|";
    if (stage == 0) text += "E";
    if (layers > 0) text += layers > 1 ? fmt::format("t*{}", layers) : "t";
    if (stage + 1 == stages.size()) text += "L";
  }
  return text;
}

void check_model(const PlannedModel& model) {
  const auto lists = std::ranges::count_if(model.order, [](const std::string& name) { return name.ends_with("*"); });
  if (lists == 1) return;
  throw UnsupportedError(fmt::format("Megatron-LM supports models with one list of layers, not {} lists", lists));
}

// Returns whether norms are recomputed in all layers, all of selective recompute that Megatron-LM can express.
bool recomputes_norms(const PlannedModel& model, const TrainingPlan& plan) {
  if (plan.selective.empty()) return false;
  const auto layers = std::ranges::count_if(model.modules, is_layer);
  const auto parts = std::ranges::count_if(plan.selective, is_layer);
  if (parts == layers && plan.recomputed.empty()) return true;
  throw UnsupportedError(
      fmt::format("Megatron-LM recomputes either parts of all layers or whole layers, but the plan has {} partly and "
                  "{} wholly recomputed layers",
                  parts, plan.recomputed.size()));
}

// Number of recomputed layers per stage; empty if there are none.
std::optional<int64_t> recomputed_layers(const PlannedModel& model, const TrainingPlan& plan) {
  if (plan.recomputed.empty()) return std::nullopt;
  int64_t most = 0;
  std::vector<std::pair<int64_t, int64_t>> stages;  // recomputed, all
  for (const auto& modules : modules_of_stages(model, plan)) {
    int64_t recomputed = 0, all = 0;
    for (const std::string& module : modules) {
      if (!is_layer(module)) continue;
      const bool one = std::ranges::find(plan.recomputed, module) != plan.recomputed.end();
      if (one && recomputed != all) {
        throw UnsupportedError("Megatron-LM recomputes the first layers of a stage, but the plan recomputes " + module);
      }
      ++all;
      recomputed += one ? 1 : 0;
    }
    most = std::max(most, recomputed);
    stages.emplace_back(recomputed, all);
  }
  for (const auto& [recomputed, all] : stages) {
    if (recomputed == std::min(most, all)) continue;
    throw UnsupportedError(
        fmt::format("Megatron-LM recomputes the same number of layers in each stage, but the plan has {} and {}", most,
                    recomputed));
  }
  if (!std::ranges::all_of(plan.recomputed, is_layer)) {
    throw UnsupportedError("Megatron-LM recomputes whole layers, but the plan recomputes parts of them");
  }
  return most;
}

// TransformerEngine offloads the first layers, and supports neither recompute nor pipelines with it.
int64_t layers_on_host(const PlannedModel& model, const TrainingPlan& plan) {
  if (plan.offloaded.empty()) return 0;
  const char* why = plan.pipeline > 1                                     ? "without a pipeline"
                    : !plan.recomputed.empty() || !plan.selective.empty() ? "without recompute"
                                                                          : nullptr;
  if (why != nullptr) throw UnsupportedError(fmt::format("Megatron-LM offloads activations only {}", why));
  int64_t first = 0;
  for (const std::string& module : model.modules) {
    if (!is_layer(module)) continue;
    if (std::ranges::find(plan.offloaded, module) == plan.offloaded.end()) break;
    ++first;
  }
  if (first == std::ssize(plan.offloaded)) return first;
  throw UnsupportedError("Megatron-LM offloads the first layers, but the plan offloads others");
}

std::string offload_arguments(const PlannedModel& model, const TrainingPlan& plan) {
  std::string text;
  if (const int64_t layers = layers_on_host(model, plan); layers > 0) {
    text += fmt::format("--cpu-offloading-num-layers {}\n", layers);
  }
  if (!plan.optimizer_on_host) return text;
  if (plan.zero != 1) throw UnsupportedError("Megatron-LM offloads only the distributed optimizer: plan with --zero 1");
  return text + "--optimizer-cpu-offload\n--optimizer-offload-fraction 1.0\n--use-precision-aware-optimizer\n";
}

std::string_view attention_backend(AttentionKernel kernel) {
  using enum AttentionKernel;
  if (kernel == kEfficient) {
    throw UnsupportedError("Megatron-LM supports flash, fused (cudnn) and unfused (math) attention, but not efficient");
  }
  return kernel == kFlash ? "flash" : kernel == kCudnn ? "fused" : "unfused";
}

void check_schedule(const TrainingPlan& plan) {
  if (plan.pipeline == 1 || known_schedule(plan.schedule).in_megatron) return;
  std::vector<std::string_view> names;
  for (const KnownSchedule& known : known_schedules()) {
    if (known.in_megatron) names.push_back(known.name);
  }
  throw UnsupportedError(
      fmt::format("Megatron-LM supports the schedules {}, not {}", fmt::join(names, " and "), plan.schedule));
}

}  // namespace

PlanExport megatron_arguments(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request) {
  const PlannedModel model = PlannedModel::of(step);
  check_schedule(plan);
  check_model(model);
  check_megatron_layout(plan, "Megatron-LM");
  check_no_curve(plan, "Megatron-LM");
  PlanExport file;
  std::string& text = file.text;
  const auto add = [&](std::string_view flag, const auto&... value) {
    text += flag;
    ((text += fmt::format(" {}", value)), ...);
    text += "\n";
  };
  add("--num-layers", std::ranges::count_if(model.modules, is_layer));
  add("--tensor-model-parallel-size", plan.tensor);
  if (plan.tensor > 1) add("--sequence-parallel");
  if (plan.context > 1) {
    add("--context-parallel-size", plan.context);
    add("--cp-comm-type", "all_gather");
  }
  if (plan.overlap == CollectiveOverlap::kPieces) add("--tp-comm-overlap");
  if (plan.experts > 1) {
    add("--expert-model-parallel-size", plan.experts);
    add("--expert-tensor-parallel-size", 1);
    add("--moe-grouped-gemm");
    add("--moe-token-dispatcher-type", "alltoall");
  }
  add("--pipeline-model-parallel-size", plan.pipeline);
  if (plan.pipeline > 1) {
    add("--pipeline-model-parallel-layout", layout_of(model, plan));
    if (plan.data_outermost) add("--use-tp-pp-dp-mapping");
  }
  add("--micro-batch-size", plan.micro_batch);
  add("--global-batch-size", samples_of(plan));
  if (request.sequence > 0) add("--seq-length", request.sequence);
  if (plan.zero == 1) add("--use-distributed-optimizer");
  if (plan.zero > 1) {
    if (plan.pipeline > 1) {
      throw UnsupportedError(fmt::format(
          "Megatron-LM does not support ZeRO {} in a pipeline: plan with --zero 1 or --pipeline 1", plan.zero));
    }
    add("--use-megatron-fsdp");
    add("--use-distributed-optimizer");
    add("--data-parallel-sharding-strategy", plan.zero == 2 ? "optim_grads" : "optim_grads_params");
    add("--ckpt-format", "fsdp_dtensor");  // the only format supported with Megatron-FSDP
  }
  if (recomputes_norms(model, plan)) {
    add("--recompute-granularity", "selective");
    add("--recompute-modules", "layernorm");
    file.differs.emplace_back("recompute: only norms; results of MLP activations are kept");
  } else if (const auto layers = recomputed_layers(model, plan)) {
    add("--recompute-granularity", "full");
    add("--recompute-method", "block");
    add("--recompute-num-layers", *layers);
  }
  text += offload_arguments(model, plan);
  if (plan.attention != AttentionKernel::kDevice) add("--attention-backend", attention_backend(plan.attention));
  if (request.bfloat16_gradients) add("--grad-reduce-in-bf16");
  if (request.float8) {
    add("--transformer-impl", "transformer_engine");
    add("--fp8-format", "hybrid");
    add("--fp8-recipe", "tensorwise");
  }
  note_batch(plan, request, file.differs);
  note(file.differs, plan.tensor > 1 && plan.overlap == CollectiveOverlap::kNone,
       "tensor parallelism: Megatron-LM overlaps backward's collectives with matmuls and does not keep gathered "
       "inputs; plan with --overlap backward");
  note(file.differs, plan.zero > 1, "environment: CUDA_DEVICE_MAX_CONNECTIONS must not be 1 with Megatron-FSDP");
  note(file.differs, plan.zero <= 1 && plan.tensor > 1,
       "environment: sequence parallelism needs CUDA_DEVICE_MAX_CONNECTIONS=1");
  file.differs.emplace_back("model sizes (--hidden-size, ...) are not in the file");
  return file;
}

}  // namespace shadowgraph
