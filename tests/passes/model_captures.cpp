#include "tests/passes/model_captures.h"

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include "models/program.h"
#include "models/registry.h"
#include "shadowgraph/capture/capture.h"

namespace shadowgraph {

Graph capture_tiny(const std::string& name, const ModelCapture& how) {
  const FakeTensorMode mode({.device = how.device});
  const models::BuiltModel model = models::build(
      name, {.batch = how.batch, .seq = how.seq, .image_size = how.image_size, .training = how.train, .tiny = true});
  if (!how.train) {
    const at::NoGradGuard no_grad;
    return capture_forward(models::program_of(model)).graph;
  }
  std::vector<at::Tensor> parameters = model.module->parameters();
  torch::optim::AdamW adamw(parameters, torch::optim::AdamWOptions(1e-3));
  return capture_training_step(models::program_of(model, &adamw)).graph;
}

}  // namespace shadowgraph
