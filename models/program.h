// A built-in model as the program that core/capture captures.
//
//     BuiltModel model = build("gpt2", {.tiny = true});
//     torch::optim::AdamW adamw(model.module->parameters());
//     Capture step = capture_training_step(program_of(model, &adamw));
#pragma once

#include "models/model.h"
#include "shadowgraph/capture.h"

namespace shadowgraph::models {

// Forward and loss on the model's own batch. Without an optimizer a training step ends with backward. The program
// shares the model's module and batch; the module must outlive it.
ProgramToCapture program_of(const BuiltModel& model, torch::optim::Optimizer* optimizer = nullptr);

}  // namespace shadowgraph::models
