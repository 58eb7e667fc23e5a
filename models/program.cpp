#include "models/program.h"

namespace shadowgraph::models {

ProgramToCapture program_of(const BuiltModel& model, torch::optim::Optimizer* optimizer) {
  ProgramToCapture program;
  program.module = model.module.get();
  program.inputs = model.inputs;
  program.input_names = model.input_names;
  program.forward = model.forward;
  program.loss = [loss = model.loss, inputs = model.inputs](const Tensors& outputs) { return loss(outputs, inputs); };
  program.optimizer = optimizer;
  return program;
}

}  // namespace shadowgraph::models
