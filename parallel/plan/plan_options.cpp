// What is asked of plans, and what plans are: tables of their fields.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "parallel/plan/plan_space.h"
#include "shadowgraph/error.h"
#include "shadowgraph/plan/training_plan.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/memory.h"

namespace shadowgraph {

const OptionTable<ClusterRequest>& ClusterRequest::table() {
  static const auto table =
      OptionTable<ClusterRequest>()
          .group("The cluster")
          .parsed("memory", &ClusterRequest::memory, &MemoryLimit::bytes_of, &MemoryLimit::text_of,
                  "Memory of a device, 80GB (default: its own)", MemoryLimit::takes())
          .add("leave_free", &ClusterRequest::leave_free, "Memory of a device that plans leave free: 4GiB",
               {.kind = OptionKind::kBytes, .least = 0})
          .group("The step")
          .parsed(
              "captured_state", &ClusterRequest::state,
              [](const std::string& text) { return text == "true" ? TrainingState() : kMixedPrecision; },
              [](const TrainingState& state) { return std::string(state.optimizer ? "false" : "true"); },
              "State as --optimizer and --dtype leave it (default: float32 gradients, weights and moments)",
              {.kind = OptionKind::kFlag})
          .words(
              "gradients", [](auto& request) -> auto& { return request.state.gradient; }, {{"f32", 4}, {"bf16", 2}},
              "How gradients are kept and summed over replicas: f32, bf16")
          .add("float8", &ClusterRequest::float8,
               "Products of layers in float8, the head's left out, as torchao and TransformerEngine do")
          .group("What is tried (default: all that makes sense)")
          .add("tensor", &ClusterRequest::tensor, "Ranks of tensor parallel: 4,8", {.least = 1})
          .add("context", &ClusterRequest::context,
               "Ranks that share each sequence: 2,16 (default: those with 8,192 tokens of it, or more)", {.least = 1})
          .add("pipeline", &ClusterRequest::pipeline, "Ranks of a pipeline", {.least = 1})
          .add("stages_per_rank", &ClusterRequest::stages_per_rank, "Stages of a rank", {.least = 1})
          .add("experts", &ClusterRequest::experts, "Data ranks that share the experts of a layer: 8,64", {.least = 1})
          .add("expert_capacity", &ClusterRequest::expert_capacity,
               "Rows that a rank of experts has room for, over the mean; 1: routing is even", {.least = 1})
          .add(
              "overlap", &ClusterRequest::overlap,
              "Tensor parallel's collectives: none are hidden, as by DTensor; backward's, as by Megatron-LM; pieces of "
              "products, too, as by --tp-comm-overlap and asynchronous tensor parallel")
          .add(
              "layout", &ClusterRequest::layouts,
              "Who lays tensors out over ranks of tensor parallel: megatron (its rules, the default), or the solver of "
              "shard: solved (quickest), lean (keeps less); no engine has words for that, but layout.json")
          .add("micro_batch", &ClusterRequest::micro_batch, "Samples of a micro-batch", {.least = 1})
          .add("zero", &ClusterRequest::zero, "1: optimizer state, 2: and gradients, 3: and parameters are cut",
               {.least = 0, .most = 3})
          .add("schedule", &ClusterRequest::schedules, fmt::format("{}", fmt::join(PipelineSchedule::names(), ", ")))
          .add("recompute", &ClusterRequest::recompute,
               "What backward may compute again of a layer: nothing, whole, selective (all but products, attention and "
               "sums over ranks), curve (what is worth it; no engine but train.py has words for it)")
          .add("offload", &ClusterRequest::offload,
               "What may be on the host: activations (what layers keep for backward), optimizer (its state and step)")
          .add("attention", &ClusterRequest::attention,
               "Kernels of scaled_dot_product_attention (default: device, what PyTorch takes there)")
          .add("simulated", &ClusterRequest::simulated, "Plans that are simulated on all ranks, at least",
               {.least = 1});
  return table;
}

const OptionTable<TrainingPlan>& TrainingPlan::table() {
  constexpr double kMost = 1 << 20;
  static const auto table = OptionTable<TrainingPlan>()
                                .group(kNeighbours)
                                .add("attention", &TrainingPlan::attention, "{} attention")
                                .add("layout", &TrainingPlan::layout, "{} layout")
                                .add("tensor", &TrainingPlan::tensor, "", {.least = 1, .most = kMost})
                                .add("context", &TrainingPlan::context, "", {.least = 1, .most = kMost})
                                .add("pipeline", &TrainingPlan::pipeline, "", {.least = 1, .most = kMost})
                                .add("micro_batch", &TrainingPlan::micro_batch, "", {.least = 1, .most = kMost})
                                .add("experts", &TrainingPlan::experts, "", {.least = 1, .most = kMost})
                                .add("zero", &TrainingPlan::zero, "", {.least = 0, .most = 3})
                                .group("")
                                .add("data", &TrainingPlan::data, "", {.least = 1, .most = kMost})
                                .add("microbatches", &TrainingPlan::microbatches, "", {.least = 1, .most = kMost})
                                .add("stages_per_rank", &TrainingPlan::stages_per_rank, "", {.least = 1, .most = kMost})
                                .add("schedule", &TrainingPlan::schedule, "")
                                .add("overlap", &TrainingPlan::overlap, "overlap {}")
                                .add("data_outermost", &TrainingPlan::data_outermost, "dp outermost")
                                .add("optimizer_on_host", &TrainingPlan::optimizer_on_host, "optimizer on the host");
  return table;
}

ClusterRequest ClusterRequest::on(const std::string& devices, const std::string& links) {
  ClusterRequest request;
  const auto [end, error] = std::from_chars(devices.data(), devices.data() + devices.size(), request.devices);
  const std::string rest(end, devices.data() + devices.size());
  if (error != std::errc() || request.devices < 1 || (!rest.empty() && (rest.size() < 2 || rest.front() != 'x'))) {
    throw Error("devices '" + devices + "' is not a number of devices such as 1024xh100", NodeId(),
                Error::Fault::kUsage);
  }
  const Machine machine = Machine::find(rest.empty() ? "" : rest.substr(1), links);
  request.device = machine.specs();
  request.links = machine.network();
  return request;
}

}  // namespace shadowgraph
