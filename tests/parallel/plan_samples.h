// A small model as a step source for plans, and a request for eight devices.
#pragma once

#include <torch/optim/sgd.h>

#include <string>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"
#include "shadowgraph/plan/training_plan.h"

namespace shadowgraph::plan_samples {

inline Graph capture_small(const std::string& model, const StepSize& size, int64_t sequence = 0, bool tiny = true) {
  const FakeTensorMode mode({.device = c10::kCUDA});
  const models::BuiltModel built = models::build(
      model, {.batch = size.micro_batch, .seq = sequence, .layers = size.layers, .dtype = at::kBFloat16, .tiny = tiny});
  ProgramToCapture program = models::program_of(built);
  torch::optim::SGD optimizer(built.module->parameters(), torch::optim::SGDOptions(0.1));
  program.optimizer = &optimizer;
  return capture_training_step(program).graph;
}

// Full width with few layers, so that relative costs are those of the full model.
inline StepSource wide_source(const std::string& model, int64_t layers, int64_t sequence) {
  return {.capture =
              [=](StepSize size) {
                if (size.layers == 0) size.layers = layers;
                return capture_small(model, size, sequence, false);
              },
          .layers = layers,
          .name = model};
}

inline StepSource small_source(const std::string& model, int64_t layers, int64_t sequence = 0) {
  StepSource source{.capture =
                        [=](StepSize size) {
                          if (size.layers == 0) size.layers = layers;
                          return capture_small(model, size, sequence);
                        },
                    .layers = layers,
                    .name = model};
  if (sequence > 0) source.with_sequence = [=](int64_t tokens) { return small_source(model, layers, tokens); };
  return source;
}

inline ClusterRequest eight_devices() {
  return {.devices = 8,
          .device = DeviceSpec::named("h100"),
          .links = Interconnect::named("h100"),
          .batch = 16,
          .sequence = 16};
}

}  // namespace shadowgraph::plan_samples
