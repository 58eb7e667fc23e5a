#include "cli/optimizer.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

namespace shadowgraph::cli {
namespace {

constexpr double kAdamRate = 1e-3;
constexpr double kSgdRate = 1e-2;

// Calls the operators of torch/optim/adam.py (_multi_tensor_adam) and sgd.py (_multi_tensor_sgd) in their order.
// Adam's step counters, scalars on the CPU there, are a number here.
class ForeachOptimizer final : public torch::optim::Optimizer {
 public:
  ForeachOptimizer(OptimizerKind kind, const Tensors& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::AdamWOptions>(kind == OptimizerKind::kSgd ? kSgdRate : kAdamRate)),
        kind_(kind) {}

  at::Tensor step(LossClosure closure = nullptr) override {
    const at::NoGradGuard no_grad;
    TORCH_INTERNAL_ASSERT(closure == nullptr);
    ++steps_;
    // Lists have one device and dtype each, in order of first appearance.
    std::vector<Group> groups;
    for (const at::Tensor& parameter : param_groups()[0].params()) {
      if (!parameter.grad().defined()) continue;
      const auto same = [&](const Group& group) {
        return group.parameters[0].device() == parameter.device() &&
               group.parameters[0].scalar_type() == parameter.scalar_type();
      };
      const auto found = std::ranges::find_if(groups, same);
      Group& group = found == groups.end() ? groups.emplace_back() : *found;
      group.parameters.push_back(parameter);
      group.gradients.push_back(parameter.grad());
      if (kind_ == OptimizerKind::kSgd) continue;
      const auto [state, added] = moments_.try_emplace(parameter.unsafeGetTensorImpl());
      if (added) state->second = {at::zeros_like(parameter), at::zeros_like(parameter)};
      group.means.push_back(state->second.first);
      group.squares.push_back(state->second.second);
    }
    for (const Group& group : groups) {
      if (kind_ == OptimizerKind::kSgd) {
        at::_foreach_add_(group.parameters, group.gradients, -kSgdRate);
      } else {
        adam(group);
      }
    }
    return {};
  }

 private:
  struct Group {
    Tensors parameters, gradients, means, squares;
  };

  void adam(const Group& group) const {
    constexpr double kBeta1 = 0.9;
    constexpr double kBeta2 = 0.999;
    if (kind_ == OptimizerKind::kAdamW) at::_foreach_mul_(group.parameters, 1 - kAdamRate * 1e-2);
    at::_foreach_lerp_(group.means, group.gradients, 1 - kBeta1);
    at::_foreach_mul_(group.squares, kBeta2);
    at::_foreach_addcmul_(group.squares, group.gradients, group.gradients, 1 - kBeta2);
    const std::vector<at::Scalar> steps(group.parameters.size(), -kAdamRate / (1 - std::pow(kBeta1, steps_)));
    const std::vector<at::Scalar> corrections(group.parameters.size(), std::sqrt(1 - std::pow(kBeta2, steps_)));
    const Tensors roots = at::_foreach_sqrt(group.squares);
    at::_foreach_div_(roots, corrections);
    at::_foreach_add_(roots, 1e-8);
    at::_foreach_addcdiv_(group.parameters, group.means, roots, steps);
  }

  const OptimizerKind kind_;
  double steps_ = 0;
  std::map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> moments_;  // looked up only, never iterated
};

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const CaptureRequest& request, Tensors parameters) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(parameters, [&](const at::Tensor& parameter) {
    return !parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  if (request.foreach && request.device.is_cuda()) {
    return std::make_unique<ForeachOptimizer>(request.optimizer, parameters);
  }
  if (request.optimizer == OptimizerKind::kAdamW) {
    return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(kAdamRate));
  }
  if (request.optimizer == OptimizerKind::kAdam) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(kAdamRate));
  }
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(kSgdRate));
}

}  // namespace shadowgraph::cli
