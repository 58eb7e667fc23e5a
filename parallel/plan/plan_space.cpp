#include "parallel/plan/plan_space.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/plan/candidate.h"
#include "parallel/schedule/known_schedules.h"

namespace shadowgraph {
namespace {

template <class Number>
std::vector<Number> given_or(const std::vector<Number>& given, std::vector<Number> usual) {
  return given.empty() ? usual : given;
}

std::vector<int64_t> powers_of_two(int64_t most) {
  std::vector<int64_t> powers;
  for (int64_t n = 1; n <= most; n *= 2) powers.push_back(n);
  return powers;
}

std::vector<int64_t> divisors(int64_t number) {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= number; ++n) {
    if (number % n == 0) all.push_back(n);
  }
  return all;
}

std::vector<std::string> schedules_of(const ClusterRequest& request, int64_t pipeline, int64_t stages_per_rank) {
  std::vector<std::string> names;
  if (pipeline == 1) return stages_per_rank == 1 ? std::vector{TrainingPlan{}.schedule} : names;
  names = request.schedules;
  for (const KnownSchedule& known : known_schedules()) {
    if (request.schedules.empty() && known.searched) names.emplace_back(known.name);
  }
  std::erase_if(names, [&](const std::string& name) {
    const KnownSchedule& known = known_schedule(name);
    return (known.stages_per_rank > 0 && known.stages_per_rank != stages_per_rank) ||
           stages_per_rank < known.min_stages_per_rank;
  });
  return names;
}

// Rounds up to full rounds for schedules that require them.
int64_t filled_rounds(const std::string& schedule, int64_t microbatches, int64_t pipeline) {
  if (!known_schedule(schedule).in_rounds || microbatches <= pipeline) return microbatches;
  return (microbatches + pipeline - 1) / pipeline * pipeline;
}

}  // namespace

void check(const ClusterRequest& request) {
  if (request.devices < 1)
    throw Error(fmt::format("the number of devices must be at least 1, not {}", request.devices));
  if (request.batch < 1) throw Error(fmt::format("the batch must have at least one sample, not {}", request.batch));
  if (request.sequence < 0) throw Error(fmt::format("the sequence length must not be negative: {}", request.sequence));
  ClusterRequest::table().check(request);
  if (request.state.gradient && !request.state.optimizer) {
    throw Error("gradients cannot be set with captured_state, which uses those of the capture; give one of them");
  }
  if (request.may_offload(Offload::kActivations) && !request.device.host) {
    throw Error(fmt::format("offload needs the bandwidth to the host: {} has no host.link; use a spec file that has it",
                            request.device.title));
  }
  if (request.float8 && !request.device.matmul.contains(c10::kFloat8_e4m3fn)) {
    throw Error(fmt::format("{} does not support float8 matmuls", request.device.title));
  }
  const std::vector<std::string> names = PipelineSchedule::names();
  for (const std::string& name : request.schedules) {
    if (std::ranges::find(names, name) != names.end()) continue;
    throw Error(fmt::format("unknown schedule '{}'; expected one of {}", name, fmt::join(names, ", ")));
  }
  for (const int64_t tensor : request.tensor) {
    if (request.devices % tensor != 0) {
      throw Error(fmt::format("tensor-parallel degree {} does not divide {} devices", tensor, request.devices));
    }
  }
}

std::vector<AttentionKernel> attention_kernels(const ClusterRequest& request) {
  return given_or(request.attention, {AttentionKernel::kDevice});
}

std::vector<TensorParallelLayout> tensor_layouts(const ClusterRequest& request, int64_t tensor) {
  if (tensor == 1) return {TensorParallelLayout::kMegatron};
  return given_or(request.layouts, {TensorParallelLayout::kMegatron});
}

LayoutSizes LayoutSizes::of(const TrainingPlan& plan) {
  return {.tensor = plan.tensor,
          .context = plan.context,
          .micro_batch = plan.micro_batch,
          .overlap = plan.overlap,
          .attention = plan.attention,
          .layout = plan.layout};
}

// By default within a node: across nodes the reductions of every layer would use slow links.
std::vector<int64_t> tensor_sizes(const ClusterRequest& request) {
  const int64_t machine = request.links.levels.empty() || request.links.levels.front().size == 0
                              ? request.devices
                              : request.links.levels.front().size;
  std::vector<int64_t> sizes = given_or(request.tensor, powers_of_two(machine));
  std::erase_if(sizes, [&](int64_t size) { return request.devices % size != 0; });
  return sizes;
}

CollectiveOverlap overlap_of(const ClusterRequest& request, int64_t tensor) {
  return tensor > 1 ? request.overlap : CollectiveOverlap::kNone;
}

// With fewer tokens per rank, communication exceeds compute.
std::vector<int64_t> context_sizes(const ClusterRequest& request) {
  constexpr int64_t kLeastTokens = 8192;
  return given_or(request.context, powers_of_two(std::max<int64_t>(1, request.sequence / kLeastTokens)));
}

// With context parallelism only micro-batches of one sample: larger ones send more than a lower degree does.
std::vector<int64_t> micro_batches(const ClusterRequest& request, int64_t context) {
  std::vector<int64_t> sizes = given_or(request.micro_batch, powers_of_two(context == 1 ? 8 : 1));
  std::erase_if(sizes, [&](int64_t size) { return size > request.batch; });
  return sizes;
}

std::vector<int64_t> expert_sizes(const ClusterRequest& request, int64_t experts) {
  std::vector<int64_t> sizes = given_or(request.experts, powers_of_two(experts));
  std::erase_if(sizes, [&](int64_t size) { return size > 1 && (experts % size != 0 || request.devices % size != 0); });
  return sizes;
}

std::vector<TrainingPlan> plans_of(const ClusterRequest& request, const LayoutSizes& sizes, int64_t units) {
  std::vector<TrainingPlan> plans;
  const auto [tensor, context, micro_batch, experts, overlap, attention, layout] = sizes;
  if (request.devices % (tensor * context) != 0) return plans;
  const int64_t rest = request.devices / (tensor * context);
  const int64_t machine = request.links.levels.empty() ? 0 : request.links.levels.front().size;
  for (const int64_t pipeline : given_or(request.pipeline, divisors(rest))) {
    if (rest % pipeline != 0 || pipeline > units) continue;
    const int64_t data = rest / pipeline;
    if (data * context % experts != 0) continue;
    if (data * micro_batch > request.batch) continue;  // some ranks would have no sample
    const int64_t microbatches = (request.batch + data * micro_batch - 1) / (data * micro_batch);
    for (const int64_t stages_per_rank : given_or(request.stages_per_rank, {1, 2, 3, 4, 6, 8})) {
      if (pipeline * stages_per_rank > units) continue;
      for (const std::string& schedule : schedules_of(request, pipeline, stages_per_rank)) {
        for (const int zero : data* context == 1 ? std::vector<int>{0} : given_or(request.zero, {1, 2, 3})) {
          const bool orders_differ = pipeline > 1 && data > 1 && machine != 0;
          for (const bool data_outermost : {false, true}) {
            // Expert-parallel ranks must be adjacent.
            if (data_outermost && (!orders_differ || experts > 1)) continue;
            TrainingPlan plan{.tensor = tensor,
                              .context = context,
                              .data = data,
                              .pipeline = pipeline,
                              .stages_per_rank = stages_per_rank,
                              .experts = experts,
                              .micro_batch = micro_batch,
                              .microbatches = filled_rounds(schedule, microbatches, pipeline),
                              .zero = zero,
                              .schedule = schedule,
                              .layout = layout,
                              .overlap = overlap,
                              .attention = attention,
                              .data_outermost = data_outermost};
            plans.push_back(plan);
            plan.optimizer_on_host = true;
            if (request.may_offload(Offload::kOptimizer)) plans.push_back(std::move(plan));
          }
        }
      }
    }
  }
  return plans;
}

std::vector<PlacedAxis> placement_of(const TrainingPlan& plan, const Interconnect& links) {
  std::vector<PlacedAxis> axes{{.axis = "tensor", .ranks = plan.tensor, .apart = 1},
                               {.axis = "context", .ranks = plan.context, .apart = plan.tensor},
                               {.axis = "data",
                                .ranks = plan.data,
                                .apart = plan.tensor * plan.context * (plan.data_outermost ? plan.pipeline : 1)},
                               {.axis = "pipeline", .ranks = plan.pipeline, .apart = rank_stride(plan)}};
  std::erase_if(axes, [](const PlacedAxis& axis) { return axis.ranks == 1; });
  std::ranges::stable_sort(axes, {}, &PlacedAxis::apart);
  for (PlacedAxis& axis : axes) {
    // Groups are aligned to their span, or lie in an aligned block.
    const int64_t span = axis.ranks * axis.apart;
    for (const LinkLevel& level : links.levels) {
      axis.level = level.name;
      if (level.size == 0 || (span <= level.size && level.size % span == 0)) break;
    }
  }
  return axes;
}

std::string to_string(const std::vector<PlacedAxis>& placed) {
  std::string text;
  for (const PlacedAxis& axis : placed) {
    text += fmt::format("{}{} {} over {}", text.empty() ? "" : ", ", axis.axis, axis.ranks, axis.level);
  }
  return text;
}

void check_links(const ClusterRequest& request) {
  const Interconnect& links = request.links;
  if (!links.levels.empty() && links.levels.back().size > 0 && request.devices > links.levels.back().size) {
    throw Error(
        fmt::format("the interconnect '{}' joins at most {} devices (level '{}'), but {} are requested: add an outer "
                    "level, or omit its size",
                    links.name, links.levels.back().size, links.levels.back().name, request.devices));
  }
  for (const auto& [axis, figures] : links.axes) {
    if (axis == "tp" || axis == "dp") continue;
    throw Error(fmt::format("the interconnect '{}' has costs for the unknown axis '{}'; plans have the axes tp and dp",
                            links.name, axis));
  }
}

}  // namespace shadowgraph
