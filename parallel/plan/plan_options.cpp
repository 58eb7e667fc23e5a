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
          .group("Cluster")
          .parsed("memory", &ClusterRequest::memory, &MemoryLimit::bytes_of, &MemoryLimit::text_of,
                  "Memory per device, 80GB (default: that of --devices)", MemoryLimit::takes())
          .add("leave_free", &ClusterRequest::leave_free, "Device memory that plans leave free: 4GiB",
               {.kind = OptionKind::kBytes, .min = 0})
          .group("Step")
          .parsed(
              "captured_state", &ClusterRequest::state,
              [](const std::string& text) { return text == "true" ? TrainingState() : kMixedPrecision; },
              [](const TrainingState& state) { return std::string(state.optimizer ? "false" : "true"); },
              "Training state as captured, by --optimizer and --dtype (default: f32 gradients, weights, moments)",
              {.kind = OptionKind::kFlag})
          .words(
              "gradients", [](auto& request) -> auto& { return request.state.gradient; }, {{"f32", 4}, {"bf16", 2}},
              "Dtype in which gradients are stored and reduced over replicas: f32, bf16")
          .add("float8", &ClusterRequest::float8,
               "Linear layers in float8 except the head, as in torchao and TransformerEngine")
          .group("Search space (default: everything applicable)")
          .add("tensor", &ClusterRequest::tensor, "Tensor-parallel degrees: 4,8", {.min = 1})
          .add("context", &ClusterRequest::context,
               "Context-parallel degrees: 2,16 (default: those with at least 8,192 tokens per rank)", {.min = 1})
          .add("pipeline", &ClusterRequest::pipeline, "Pipeline-parallel degrees", {.min = 1})
          .add("stages_per_rank", &ClusterRequest::stages_per_rank, "Stages per pipeline rank", {.min = 1})
          .add("experts", &ClusterRequest::experts, "Expert-parallel degrees, over data-parallel ranks: 8,64",
               {.min = 1})
          .add("expert_capacity", &ClusterRequest::expert_capacity,
               "Expert capacity factor (1: perfectly balanced routing)", {.min = 1})
          .add("overlap", &ClusterRequest::overlap,
               "Overlap of tensor-parallel collectives: none (DTensor), backward (Megatron-LM), pieces (also split "
               "matmuls, as by --tp-comm-overlap and async tensor parallelism)")
          .add("layout", &ClusterRequest::layouts,
               "Tensor-parallel layouts: megatron (default), or found by the solver of `shard`: solved (fastest), lean "
               "(least memory); the latter two are exported only to parameter_layouts.json")
          .add("micro_batch", &ClusterRequest::micro_batch, "Micro-batch sizes, in samples", {.min = 1})
          .add("zero", &ClusterRequest::zero,
               "ZeRO stages: 1 (shards optimizer state), 2 (and gradients), 3 (and parameters)", {.min = 0, .max = 3})
          .add("schedule", &ClusterRequest::schedules,
               fmt::format("Pipeline schedules: {}", fmt::join(PipelineSchedule::names(), ", ")))
          .add("recompute", &ClusterRequest::recompute,
               "Recompute of a layer in backward: none, full, selective (all but matmuls, attention and "
               "collectives), curve (along the memory/time Pareto curve; exported only to train.py)")
          .add("offload", &ClusterRequest::offload,
               "May be offloaded to CPU: activations (saved for backward), optimizer (state and step)")
          .add("attention", &ClusterRequest::attention,
               "Kernels of scaled_dot_product_attention (default: device, PyTorch's choice)")
          .add("simulated", &ClusterRequest::simulated, "Minimum number of plans to simulate on all ranks", {.min = 1});
  return table;
}

const OptionTable<TrainingPlan>& TrainingPlan::table() {
  constexpr double kMost = 1 << 20;
  static const auto table = OptionTable<TrainingPlan>()
                                .group(kNeighbors)
                                .add("attention", &TrainingPlan::attention, "{} attention")
                                .add("layout", &TrainingPlan::layout, "{} layout")
                                .add("tensor", &TrainingPlan::tensor, "", {.min = 1, .max = kMost})
                                .add("context", &TrainingPlan::context, "", {.min = 1, .max = kMost})
                                .add("pipeline", &TrainingPlan::pipeline, "", {.min = 1, .max = kMost})
                                .add("micro_batch", &TrainingPlan::micro_batch, "", {.min = 1, .max = kMost})
                                .add("experts", &TrainingPlan::experts, "", {.min = 1, .max = kMost})
                                .add("zero", &TrainingPlan::zero, "", {.min = 0, .max = 3})
                                .group("")
                                .add("data", &TrainingPlan::data, "", {.min = 1, .max = kMost})
                                .add("microbatches", &TrainingPlan::microbatches, "", {.min = 1, .max = kMost})
                                .add("stages_per_rank", &TrainingPlan::stages_per_rank, "", {.min = 1, .max = kMost})
                                .add("schedule", &TrainingPlan::schedule, "")
                                .add("overlap", &TrainingPlan::overlap, "overlap {}")
                                .add("data_outermost", &TrainingPlan::data_outermost, "dp outermost")
                                .add("optimizer_on_host", &TrainingPlan::optimizer_on_host, "optimizer on CPU");
  return table;
}

ClusterRequest ClusterRequest::on(const std::string& devices, const std::string& links) {
  ClusterRequest request;
  const auto [end, error] = std::from_chars(devices.data(), devices.data() + devices.size(), request.devices);
  const std::string rest(end, devices.data() + devices.size());
  if (error != std::errc() || request.devices < 1 || (!rest.empty() && (rest.size() < 2 || rest.front() != 'x'))) {
    throw Error("devices '" + devices + "' is not of the form COUNTxDEVICE, such as 1024xh100", NodeId(),
                Error::Fault::kUsage);
  }
  const Machine machine = Machine::find(rest.empty() ? "" : rest.substr(1), links);
  request.device = machine.specs();
  request.links = machine.network();
  return request;
}

}  // namespace shadowgraph
