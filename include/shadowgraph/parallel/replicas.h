// Replicas of a pipeline: data parallel ranks that share one stage, with ZeRO or without.
//
//     const PipelineStages shared = replicated(stages, {.count = 64, .zero = 1, .ranks = ranks, .state = kMixed}, h100, &links);
//     const PipelineSchedule schedule = with_sums(PipelineSchedule::named("1f1b", size));
//     PipelineRun::of(shared, schedule, {.interconnect = &links});
//
// The step is captured for one replica. What replicas share is a law of its figures, as the engines of the field do it:
//
//     zero  what each of D ranks has                     what is sent, a step
//     0     everything                                   all_reduce of gradients
//     1     state / D                                    reduce_scatter of gradients, all_gather of parameters
//     2     state / D, gradients / D, and those of one   the same, the former each micro-batch
//           bucket whole, as computed and as sent
//     3     state, gradients, parameters / D, and those  the same, and all_gather in each forward and backward
//           of two buckets whole
//
// Experts that are on several ranks (shadowgraph/sharding/expert_ranks.h) have fewer replicas: those ranks that have the
// same ones. Theirs is the same law over these.
//
// An optimizer on the host has its state there (ZeRO-Offload, arXiv:2101.06840). Behind the last backward a rank's share
// of gradients is copied, the host steps, and parameters are copied back, one after another.
//
// What is sent goes bucket by bucket beside forward and backward. It costs what they do not hide, one bucket at least,
// and what it takes of the device meanwhile (Interconnect::device_share).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shadowgraph/export.h"
#include "shadowgraph/parallel/schedule.h"
#include "shadowgraph/parallel/stages.h"
#include "shadowgraph/profile/device_spec.h"
#include "shadowgraph/profile/interconnect.h"

namespace SHADOWGRAPH_API shadowgraph {

// Bytes of an element of a trained parameter, beside the parameter itself. Nothing: as captured.
struct TrainingState {
  // The buffer to which gradients are added. It is there from the beginning.
  std::optional<int64_t> gradient;
  // The optimizer's state, weights in higher precision included. Its step reads and writes all of it once.
  std::optional<int64_t> optimizer;
};
// Parameters in bfloat16, gradients, main weights and both moments in float32: Megatron-LM, FSDP2 with mixed precision.
constexpr TrainingState kMixedPrecision{.gradient = 4, .optimizer = 12};

struct Replicas {
  int64_t count = 1;
  int zero = 0;
  int64_t experts = 1;             // of these ranks, neighbours, share the experts of a layer
  std::vector<int64_t> ranks;      // of those that share a stage, in the whole program; empty: neighbours
  bool optimizer_on_host = false;  // its state is there: gradients go, weights come back, the host runs the step
  int64_t bucket = 0;              // bytes of parameters that are sent at once, such as a layer's; 0: all of a stage
  TrainingState state;
};

// What a rank holds of a stage beside activations. Bytes.
struct HeldBytes {
  int64_t parameters = 0;       // its share
  int64_t gathered = 0;         // buckets of parameters, whole
  int64_t gradients = 0;        // its share
  int64_t whole_gradients = 0;  // a bucket of gradients, as computed and as sent
  int64_t state = 0;            // of the optimizer: its share
  int64_t all() const { return parameters + gathered + gradients + whole_gradients + state; }
};
// `stage`: of one replica, as captured. Its parameters, weights, gradients and optimizer state count.
HeldBytes held_by(const StageFigures& stage, const Replicas& replicas);

// Throws Error for a stage of ZeRO that there is none of, and for a count below 1. Throws it, too, for experts on a number
// of ranks that does not divide the count, and for those with captured optimizer state. An optimizer on the host needs
// a device whose host's bandwidth is known, and its state by element.
PipelineStages replicated(PipelineStages stages, const Replicas& replicas, const DeviceSpec& spec,
                          const Interconnect* links);

// The same order, with UNSHARD of each stage before its first action and REDUCE_GRAD behind its last.
PipelineSchedule with_sums(const PipelineSchedule& schedule);

}  // namespace shadowgraph
