// Exports plans as Python scripts: plan_runtime.py followed by the constants of the plan.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "codegen/literals.h"
#include "ir/analysis/module_tree.h"
#include "parallel/export/planned_model.h"
#include "parallel/plan/candidate.h"
#include "parallel/schedule/known_schedules.h"
#include "shadowgraph/graph/edit.h"
#include "sharding/ranks/ranks.h"
#include "support/embedded_file.h"

namespace shadowgraph {

std::span<const EmbeddedFile> engine_templates();

namespace {

std::string plan_block(const TrainingPlan& plan, const Graph& step, const PlannedModel& model,
                       const std::vector<std::string>& tied, const LinearCuts& cuts, const PlanExportOptions& request) {
  std::vector<std::string> begins;
  for (const PlannedStage& stage : plan.stages) begins.push_back(stage.begins);
  if (begins.empty()) begins.emplace_back();
  const KnownSchedule& schedule = known_schedule(plan.schedule);
  std::vector<std::pair<std::string, int64_t>> mesh = {
      {"pipeline", plan.pipeline}, {"data", plan.data}, {"context", plan.context}, {"tensor", plan.tensor}};
  if (plan.data_outermost) std::swap(mesh[0], mesh[1]);
  nlohmann::json parts = nlohmann::json::array();
  for (const PartialRecompute& part : plan.in_part) parts.push_back({{"layers", part.layers}, {"keeps", part.keeps}});
  const bool efficient = plan.attention == AttentionKernel::kEfficient;
  const std::string kernel(plan.attention == AttentionKernel::kDevice ? "" : to_string(plan.attention));
  const std::vector<std::pair<std::string_view, nlohmann::json>> values = {
      {"STAGES_PER_RANK", plan.stages_per_rank},
      {"EXPERTS", plan.experts},
      {"MICRO_BATCH", plan.micro_batch},
      {"MICROBATCHES", plan.microbatches},
      {"SEQUENCE", request.sequence},
      {"ZERO", plan.zero},
      {"SCHEDULE", plan.schedule},
      {"SCHEDULE_CLASS", schedule.torch_class},
      {"SCHEDULE_ROWS",
       plan.pipeline > 1 && schedule.torch_class.empty() ? schedule_of(plan, plan.microbatches).to_csv() : ""},
      {"V_SHAPED", schedule.v_shaped},
      {"SPLITS_BACKWARD", schedule.splits_backward},
      {"ORDER", model.order},
      {"STAGES", begins},
      {"TIED", tied},
      {"RECOMPUTED", plan.recomputed},
      {"SELECTIVE", plan.selective},
      {"IN_PART", parts},
      {"OFFLOADED", plan.offloaded},
      {"OPTIMIZER_ON_HOST", plan.optimizer_on_host},
      {"ATTENTION", efficient ? "mem_efficient" : kernel},
      {"CUT", cuts.styles},
      {"FUSED", cuts.widths},
      {"GROUPED", grouped_products(step, plan.experts)},
  };
  std::string text = fmt::format("MESH = dict({})\n", python::literal(mesh));
  for (const auto& [name, value] : values) text += fmt::format("{} = {}\n", name, python::literal(value));
  return text;
}

// Selects the parts of the template that a plan uses. Optional parts are enclosed in the lines "# -- with experts" and
// "# -- end with", which may be nested, or are lines that end in "# with experts, context".
std::string with_parts(std::string_view whole, const std::set<std::string>& used) {
  std::string text;
  std::vector<bool> kept = {true};
  constexpr std::string_view kBegin = "# -- with ", kEnd = "# -- end with", kLine = "  # with ";
  const auto is_used = [&](std::string_view words) {
    return std::ranges::any_of(used, [&](const std::string& part) { return words.find(part) != words.npos; });
  };
  for (size_t begin = 0, end = 0; begin < whole.size(); begin = end + 1) {
    end = std::min(whole.find('\n', begin), whole.size());
    std::string_view line = whole.substr(begin, end - begin);
    const std::string_view words = line.substr(std::min(line.find_first_not_of(' '), line.size()));
    if (words == kEnd) kept.pop_back();
    if (words.starts_with(kBegin)) kept.push_back(kept.back() && is_used(words.substr(kBegin.size())));
    if (words == kEnd || words.starts_with(kBegin)) continue;
    if (const size_t mark = line.find(kLine); mark != line.npos) {
      if (!is_used(line.substr(mark + kLine.size()))) continue;
      line = line.substr(0, mark);
    }
    if (kept.back()) text.append(line) += '\n';
  }
  return text;
}

std::string plan_script(const std::set<std::string>& parts, const std::vector<std::string>& notes,
                        std::string_view plan) {
  std::string text = with_parts(engine_templates().front().text, parts), block;
  for (const std::string& note : notes) block += fmt::format("# {}\n", python::comment(note));
  const std::string begin_mark = "# -- the plan\n", end_mark = "# -- end of the plan\n";
  const size_t begin = text.find(begin_mark) + begin_mark.size();
  return text.replace(begin, text.find(end_mark) - begin, block.append(plan));
}

std::set<std::string> parts_of(const TrainingPlan& plan, const Graph& step, const std::vector<std::string>& tied,
                               const LinearCuts& cuts) {
  std::set<std::string> parts = {"training"};
  if (!cuts.widths.empty()) parts.insert("fused");
  if (!tied.empty()) parts.insert("tied");
  if (plan.context > 1) parts.insert("context");
  if (plan.experts > 1) parts.insert("experts");
  if (plan.pipeline > 1 && !nodes_calling(step, "aten::_grouped_mm").empty()) parts.insert("grouped");
  return parts;
}

std::vector<std::string> differences(const TrainingPlan& plan, const LinearCuts& cuts,
                                     const PlanExportOptions& request) {
  std::vector<std::string> all;
  const auto note = [&](bool applies, std::string_view text) {
    if (applies) all.emplace_back(text);
  };
  note(plan.tensor > 1, "tensor parallelism: activations between layers and the output of the head are replicated");
  note(plan.overlap != CollectiveOverlap::kNone,
       "tensor parallelism: collectives are not overlapped; plan with --overlap none");
  note(!cuts.widths.empty(), "fused QKV layer: its weight is stored and saved as three");
  note(plan.context > 1,
       "context parallelism: attention uses the flash kernel, and the loss must account for chunked labels");
  note(plan.experts > 1, "experts: ranks receive exactly the rows routed to them, without padding or dropping");
  note(plan.tensor > 1 && !plan.selective.empty(), kMatmulsOfReductionsKept);
  note_zero(plan, all, ", in addition to the rank's shard");
  if (plan.pipeline > 1 && known_schedule(plan.schedule).splits_backward) {
    all.push_back(
        fmt::format("{}: torch keeps tensors used by both parts of backward until the second", plan.schedule));
  }
  note(plan.zero > 0 && plan.pipeline > 1,
       "gradients: torch's pipelines reduce them over data ranks once, after all micro-batches");
  note(plan.zero == 0 && plan.data > 1 && !plan.optimizer_on_host,
       "ZeRO 0: in float32, gradients are averaged after backward, without overlap");
  note_offload(plan, all);
  note(request.bfloat16_gradients, "gradients: reduced in float32, in the plan in bfloat16");
  note(request.float8,
       "float8: not part of torch; convert the model in the --model function with torchao's "
       "convert_to_float8_training");
  note_batch(plan, request, all);
  return all;
}

// Throws UnsupportedError for models whose sequences the script cannot shard.
void check_sequences(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request) {
  if (plan.context == 1) return;
  if (request.sequence % (2 * plan.context) != 0) {
    throw UnsupportedError(fmt::format("{} tokens do not divide into {} equal chunks: plan with another --context",
                                       request.sequence, 2 * plan.context));
  }
  for (const NodeId node : step.nodes()) {
    if (step.target(node).kind() != TargetKind::kOperator || step.node(node).phase != Graph::kForward) continue;
    const Argument* causal = step.find_argument(node, "is_causal");
    if (causal != nullptr && causal->kind == ArgumentKind::kBool && !causal->b) {
      throw UnsupportedError(
          fmt::format("attention in {} is not causal, which the script does not support with context parallelism: plan "
                      "with --context 1",
                      module_path(step, node)));
    }
  }
  try {
    if (request.sequence > 0 && expert_layers(step).rows == request.sequence) {
      throw Error(
          "experts have as many rows as a rank has tokens, so that their indices would be mistaken for positions");
    }
    shard_sequence_over(clone(step), {.ranks = plan.context});
  } catch (const Error& error) {
    throw UnsupportedError(error.what());
  }
}

// torch's selective checkpoint holds kept tensors itself, so they cannot be offloaded.
void check_offloaded(const TrainingPlan& plan) {
  std::vector<std::string> parts = plan.selective;
  for (const PartialRecompute& part : plan.in_part) parts.insert(parts.end(), part.layers.begin(), part.layers.end());
  for (const std::string& layer : plan.offloaded) {
    if (std::ranges::find(parts, layer) == parts.end()) continue;
    throw UnsupportedError(
        fmt::format("{} is partly recomputed, and torch cannot offload the kept results of such a layer: plan with "
                    "--recompute full, or without --offload activations",
                    layer));
  }
}

}  // namespace

PlanExport pytorch_script(const TrainingPlan& plan, const Graph& step, const PlanExportOptions& request) {
  const PlannedModel model = PlannedModel::of(step);
  check_megatron_layout(plan, "the script");
  const std::vector<std::string> tied = check_cuts(step, model, plan);
  const LinearCuts cuts = linear_cuts(step, plan.tensor);
  check_sequences(plan, step, request);
  if (plan.experts > 1 && plan.replicas() % plan.experts != 0) {
    throw UnsupportedError(
        fmt::format("{} data ranks do not divide by the expert-parallel degree {}", plan.replicas(), plan.experts));
  }
  check_offloaded(plan);
  if ((plan.tensor > 1 || plan.context > 1 || plan.experts > 1) && !plan.in_part.empty()) {
    throw UnsupportedError(
        "`curve` is not supported with tensor, context or expert parallelism: plan with --recompute selective,full");
  }
  if ((plan.zero > 0 || plan.optimizer_on_host) && plan.pipeline > 1 && known_schedule(plan.schedule).splits_backward) {
    throw UnsupportedError(
        fmt::format("{} splits backward, which leaves FSDP2 parameters without gradients in torch 2.13: plan with "
                    "{}--schedule 1f1b",
                    plan.schedule, plan.optimizer_on_host ? "" : "--zero 0, or "));
  }
  PlanExport file{.differs = differences(plan, cuts, request)};
  std::vector<std::string> notes = {to_string(plan)};
  for (const std::string& difference : file.differs) notes.push_back("deviates from the plan: " + difference);
  file.text = plan_script(parts_of(plan, step, tied, cuts), notes, plan_block(plan, step, model, tied, cuts, request));
  return file;
}

std::string sharding_script(const std::string& title, std::string_view plan) {
  return plan_script({"layouts"}, {title}, plan);
}

}  // namespace shadowgraph
