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
  throw UnsupportedError(
      fmt::format("Megatron-LM's layouts are of models with one list of layers, not of {} lists", lists));
}

// Whether norms are computed again in all layers. It is the part of selective recomputing that Megatron-LM has words
// for.
bool recomputes_norms(const PlannedModel& model, const TrainingPlan& plan) {
  if (plan.selective.empty()) return false;
  const auto layers = std::ranges::count_if(model.modules, is_layer);
  const auto parts = std::ranges::count_if(plan.selective, is_layer);
  if (parts == layers && plan.recomputed.empty()) return true;
  throw UnsupportedError(fmt::format(
      "Megatron-LM recomputes parts of all layers, or whole ones, and the plan parts of {} and {} whole ones", parts,
      plan.recomputed.size()));
}

// In how many layers of each stage activations are computed again; nothing: in none.
std::optional<int64_t> recomputed_layers(const PlannedModel& model, const TrainingPlan& plan) {
  if (plan.recomputed.empty()) return std::nullopt;
  int64_t most = 0;
  std::vector<std::pair<int64_t, int64_t>> stages;  // recomputed, all
  for (const auto& modules : modules_of_stages(model, plan)) {
    int64_t again = 0, all = 0;
    for (const std::string& module : modules) {
      if (!is_layer(module)) continue;
      const bool one = std::ranges::find(plan.recomputed, module) != plan.recomputed.end();
      if (one && again != all) {
        throw UnsupportedError("Megatron-LM recomputes the first layers of a stage, and the plan others: " + module);
      }
      ++all;
      again += one ? 1 : 0;
    }
    most = std::max(most, again);
    stages.emplace_back(again, all);
  }
  for (const auto& [again, all] : stages) {
    if (again == std::min(most, all)) continue;
    throw UnsupportedError(fmt::format(
        "Megatron-LM recomputes as many layers in each stage, and the plan {} in one and {} in another", most, again));
  }
  int64_t known = 0;
  for (const std::string& module : plan.recomputed) known += is_layer(module) ? 1 : 0;
  if (known != std::ssize(plan.recomputed)) {
    throw UnsupportedError("Megatron-LM recomputes whole layers, and the plan parts of them");
  }
  return most;
}

// TransformerEngine's offload is of the first layers, and goes with neither recomputing nor pipelines.
int64_t layers_on_host(const PlannedModel& model, const TrainingPlan& plan) {
  if (plan.offloaded.empty()) return 0;
  const char* why = plan.pipeline > 1                                     ? "in no pipeline"
                    : !plan.recomputed.empty() || !plan.selective.empty() ? "without recomputing"
                                                                          : nullptr;
  if (why != nullptr) throw UnsupportedError(fmt::format("Megatron-LM keeps layers on the host {}", why));
  int64_t first = 0;
  for (const std::string& module : model.modules) {
    if (!is_layer(module)) continue;
    if (std::ranges::find(plan.offloaded, module) == plan.offloaded.end()) break;
    ++first;
  }
  if (first == std::ssize(plan.offloaded)) return first;
  throw UnsupportedError("Megatron-LM keeps the first layers on the host, and the plan others");
}

std::string offload_arguments(const PlannedModel& model, const TrainingPlan& plan) {
  std::string text;
  if (const int64_t layers = layers_on_host(model, plan); layers > 0) {
    text += fmt::format("--cpu-offloading-num-layers {}\n", layers);
  }
  if (!plan.optimizer_on_host) return text;
  if (plan.zero != 1) {
    throw UnsupportedError(
        "Megatron-LM has an optimizer on the host with its distributed one alone: plan with --zero 1");
  }
  return text + "--optimizer-cpu-offload\n--optimizer-offload-fraction 1.0\n--use-precision-aware-optimizer\n";
}

std::string attention_argument(const TrainingPlan& plan) {
  switch (plan.attention) {
    case AttentionKernel::kDevices:
      return "";
    case AttentionKernel::kFlash:
      return "--attention-backend flash\n";
    case AttentionKernel::kCudnn:
      return "--attention-backend fused\n";
    case AttentionKernel::kMath:
      return "--attention-backend unfused\n";
    case AttentionKernel::kEfficient:
      break;
  }
  throw UnsupportedError("Megatron-LM has flash, fused and unfused attention, no memory-efficient one");
}

void check_schedule(const TrainingPlan& plan) {
  if (plan.pipeline == 1 || known_schedule(plan.schedule).in_megatron) return;
  std::vector<std::string_view> names;
  for (const KnownSchedule& known : known_schedules()) {
    if (known.in_megatron) names.push_back(known.name);
  }
  throw UnsupportedError(
      fmt::format("Megatron-LM has the schedules {}, not {}", fmt::join(names, " and "), plan.schedule));
}

}  // namespace

EngineFile megatron_arguments(const TrainingPlan& plan, const Graph& step, const EngineRequest& request) {
  const PlannedModel model = PlannedModel::of(step);
  check_schedule(plan);
  check_model(model);
  check_laid_out_by_hand(plan, "Megatron-LM");
  check_no_curve(plan, "Megatron-LM");
  EngineFile file;
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
      throw UnsupportedError(
          fmt::format("Megatron-LM has no ZeRO {} in a pipeline: plan with --zero 1 or --pipeline 1", plan.zero));
    }
    add("--use-megatron-fsdp");
    add("--use-distributed-optimizer");
    add("--data-parallel-sharding-strategy", plan.zero == 2 ? "optim_grads" : "optim_grads_params");
    add("--ckpt-format", "fsdp_dtensor");  // Megatron-LM refuses others with its FSDP
  }
  if (recomputes_norms(model, plan)) {
    add("--recompute-granularity", "selective");
    add("--recompute-modules", "layernorm");
    file.differs.emplace_back("recomputing: norms alone; what activations of an MLP give is kept");
  } else if (const auto layers = recomputed_layers(model, plan)) {
    add("--recompute-granularity", "full");
    add("--recompute-method", "block");
    add("--recompute-num-layers", *layers);
  }
  text += offload_arguments(model, plan);
  text += attention_argument(plan);
  if (request.bfloat16_gradients) add("--grad-reduce-in-bf16");
  if (request.float8) {
    add("--transformer-impl", "transformer_engine");
    add("--fp8-format", "hybrid");
    add("--fp8-recipe", "tensorwise");
  }
  say_batch(plan, request, file.differs);
  if (plan.tensor > 1 && plan.overlap == CollectiveOverlap::kNone) {
    file.differs.emplace_back(
        "tensor parallel: backward's collectives run beside products here, and gathered inputs are not kept; plan with "
        "--overlap backward");
  }
  if (plan.zero > 1) {
    file.differs.emplace_back("the environment: CUDA_DEVICE_MAX_CONNECTIONS is not 1, as Megatron-LM's FSDP wants it");
  } else if (plan.tensor > 1) {
    file.differs.emplace_back("the environment: CUDA_DEVICE_MAX_CONNECTIONS=1, as sequence parallel wants it");
  }
  file.differs.emplace_back("the model's own sizes (--hidden-size and the like) are not in the file");
  return file;
}

}  // namespace shadowgraph
