// Runs the step of another optimizer on fake parameters of the graph's sizes, and puts the lives of its storages where
// the recorded optimizer's were. So state and temporaries are those that libtorch's own code makes, not a formula's.
#include <fmt/format.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <unordered_set>

#include "core/fake/pretended_devices.h"
#include "ir/analysis/module_tree.h"
#include "profiler/what_if/question.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph::step_lives {

Graph Question::optimizer_step(const std::string& name, bool steady) const {
  const FakeTensorMode mode(of_any_machine({.device = device_}));
  Tensors parameters;
  std::unordered_set<uint32_t> seen;
  for (const NodeId node : costs_.nodes) {
    if (graph_.node(node).target != target_of(Builtin::kGradient)) continue;
    const auto arguments = graph_.arguments(node);
    const ValueId parameter = arguments[0].ref.value, gradient = arguments[1].ref.value;
    if (!is_on(graph_.value(parameter).device(), device_) || !seen.insert(parameter.index).second) continue;
    const auto made = [&](ValueId value) {
      const bool converts = change_.dtype && graph_.value(value).dtype == c10::ScalarType::Float;
      return at::empty_strided(graph_.sizes(value), graph_.strides(value),
                               converts ? *change_.dtype : graph_.value(value).dtype);
    };
    parameters.push_back(made(parameter).requires_grad_());
    parameters.back().mutable_grad() = made(gradient);
  }
  const auto optimizer = [&]() -> std::unique_ptr<torch::optim::Optimizer> {
    if (name == "sgd") return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-2));
    if (name == "sgd_momentum") {
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-2).momentum(0.9));
    }
    if (name == "adam") return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
  }();
  if (steady) optimizer->step();  // makes the state, which the recorded step then finds
  CaptureSession session;
  for (size_t i = 0; i < parameters.size(); ++i) {
    session.name_parameter(parameters[i], fmt::format("parameter{}", i));
    session.name_buffer(parameters[i].grad(), fmt::format("gradient{}", i));
  }
  const PhaseScope phase("optimizer");
  optimizer->step();
  return session.finish({});
}

Lives Question::with_optimizer(const Lives& recorded, const std::string& name, bool steady) const {
  Lives lives{.steps = recorded.optimizer, .optimizer = recorded.optimizer};
  for (Life life : recorded.all) {
    if (life.born >= lives.optimizer || life.kind == StorageKind::kOptimizerState) continue;
    if (life.last >= lives.optimizer) life.last = kToTheEnd;
    lives.all.push_back(life);
  }
  if (name == "none") return lives;
  const Graph step = optimizer_step(name, steady);
  const ProgramCosts costs(step);
  const uint32_t begin = lives.steps;
  lives.steps += at_node(static_cast<uint32_t>(costs.nodes.size()));
  for (uint32_t i = 0; i < step.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = step.storage(id);
    if (!is_on(storage.device(), device_)) continue;
    const bool there = existed_before(step, storage);
    if (there && !placeholder_name(step, storage.born).starts_with("input")) continue;  // parameter, gradient
    const bool freed = storage.freed_after.valid() && !step.is_erased(storage.freed_after);
    const uint32_t born = there ? 0 : begin + at_node(costs.order[storage.born]);
    lives.all.push_back({born,
                         freed ? std::max(born, begin + at_node(costs.order[storage.freed_after])) : kToTheEnd,
                         storage.bytes,
                         there || !freed ? StorageKind::kOptimizerState : StorageKind::kTemporary,
                         {}});
  }
  return lives;
}

}  // namespace shadowgraph::step_lives
