#include "shadowgraph/capture.h"

#include <torch/nn/module.h>

#include <chrono>

#include "core/capture/training_loop.h"
#include "core/fake/mode_state.h"
#include "core/mode/mode_options.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

void name_tensors(CaptureSession& session, const ProgramToCapture& program) {
  if (program.module != nullptr) session.name_module(*program.module);
  for (const auto& [name, tensor] : program.parameters) session.name_parameter(tensor, name);
  for (const auto& [name, tensor] : program.buffers) session.name_buffer(tensor, name);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    session.name_input(program.inputs[i],
                       i < program.input_names.size() ? program.input_names[i] : "input" + std::to_string(i));
  }
}

// Returns the options as given; the program's own tensors fill in what they leave open.
CaptureOptions completed(const ProgramToCapture& program, CaptureOptions options) {
  Tensors own;
  if (program.module != nullptr) {
    own = program.module->parameters();
    for (const at::Tensor& buffer : program.module->buffers()) own.push_back(buffer);
  }
  for (const auto& [name, tensor] : program.parameters) own.push_back(tensor);
  for (const auto& [name, tensor] : program.buffers) own.push_back(tensor);
  options.mode = options_around(own, program.inputs, std::move(options.mode));
  return options;
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void check_parameters_are_fake(const ProgramToCapture& program) {
  for (const auto& [name, parameter] : parameters_of(program)) {
    if (!is_fake(parameter)) {
      throw RealTensorError("parameter '" + name + "' is a real tensor: a training step on fake tensors would " +
                            "give it a fake gradient. Make the module inside a FakeTensorMode");
    }
  }
}

// Runs the loop of a program for the steps that are not recorded: they leave the optimizer's state and no gradients.
class WarmLoop {
 public:
  WarmLoop(const ProgramToCapture& program, const CaptureOptions& options) {
    if (!program.loss) throw Error("a training step needs a loss function");
    check_parameters_are_fake(program);
    for (const auto& [name, parameter] : parameters_of(program)) parameter.mutable_grad().reset();
    FakeTensorMode mode(options.mode);
    loop_.emplace(program, state_of(mode).options);
    at::Tensor loss;
    for (int i = 0; i < program.warmup_steps; ++i) {
      loop_->zero_grad();
      loop_->step(loss);
    }
    if (!program.training.zero_grads) loop_->zero_grad();
  }
  TrainingLoop& operator*() { return *loop_; }
  TrainingLoop* operator->() { return &*loop_; }

 private:
  std::optional<TrainingLoop> loop_;
};

}  // namespace

Capture capture_forward(const ProgramToCapture& program, const CaptureOptions& options) {
  if (program.training != TrainingOptions()) {
    throw Error(
        "accumulate, clip_grad_norm, grad_scaler, ema and zero_grads are of a training step: this is forward alone");
  }
  const Stopwatch watch;
  CaptureSession session(completed(program, options));
  name_tensors(session, program);
  const Tensors outputs = [&] {
    std::optional<AutocastScope> autocast;
    enter_autocast(autocast, state_of(session.mode()).options.device->type(), program.autocast);
    return program.forward(program.inputs);
  }();
  Graph graph = session.finish(outputs);
  return {std::move(graph), watch.seconds()};
}

namespace {

// Warms the program up and records what `body` makes the loop do; `body` returns the loss.
template <class Body>
Capture record_training(const ProgramToCapture& program, const CaptureOptions& given, const Body& body) {
  const CaptureOptions options = completed(program, given);
  WarmLoop loop(program, options);

  const Stopwatch watch;
  CaptureSession session(options);
  name_tensors(session, program);
  loop->name_state(session);
  at::Tensor loss;
  body(*loop, loss);
  Graph graph = session.finish({loss});
  return {std::move(graph), watch.seconds()};
}

}  // namespace

Capture capture_training_step(const ProgramToCapture& program, const CaptureOptions& given) {
  return record_training(program, given, [&](TrainingLoop& loop, at::Tensor& loss) {
    if (program.training.zero_grads) loop.zero_grad();
    loop.step(loss);
  });
}

Capture capture_training_run(const ProgramToCapture& program, int steps, const CaptureOptions& given) {
  if (steps < 1) throw Error("a training run has at least 1 step, not " + std::to_string(steps));
  return record_training(program, given, [&](TrainingLoop& loop, at::Tensor& loss) {
    for (int i = 0; i < steps; ++i) {
      const RegionScope step("step " + std::to_string(i + 1));
      loop.zero_grad();
      loop.step(loss);
    }
  });
}

}  // namespace shadowgraph
