#include "shadowgraph/capture.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <chrono>

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

// As given, and what that leaves open as the program's own tensors have it.
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

at::Tensor checked_loss(const ProgramToCapture& program, const Tensors& outputs) {
  at::Tensor loss = program.loss(outputs);
  if (!loss.defined() || loss.numel() != 1) {
    throw Error("the loss must be a scalar, but it " +
                (loss.defined() ? "has shape " + c10::str(loss.sizes()) : std::string("is undefined")));
  }
  if (!loss.requires_grad()) {
    throw Error("the loss does not require grad: no parameter or input that requires grad led to it");
  }
  return loss;
}

std::vector<std::pair<std::string, at::Tensor>> all_parameters(const ProgramToCapture& program) {
  auto parameters = program.parameters;
  if (program.module != nullptr) {
    for (const auto& entry : program.module->named_parameters()) parameters.emplace_back(entry.key(), entry.value());
  }
  return parameters;
}

void zero_gradients(const ProgramToCapture& program) {
  if (program.optimizer != nullptr) {
    program.optimizer->zero_grad();
  }
  for (const auto& [name, parameter] : all_parameters(program)) parameter.mutable_grad().reset();
}

void check_parameters_are_fake(const ProgramToCapture& program) {
  for (const auto& [name, parameter] : all_parameters(program)) {
    if (!is_fake(parameter)) {
      throw RealTensorError("parameter '" + name + "' is a real tensor: a training step on fake tensors would " +
                            "give it a fake gradient. Make the module inside a FakeTensorMode");
    }
  }
}

// One training step outside any recording, for its side effects on the optimizer's state.
void warm_up(const ProgramToCapture& program, const CaptureOptions& options) {
  const FakeTensorMode mode(options.mode);
  zero_gradients(program);
  checked_loss(program, program.forward(program.inputs)).backward();
  if (program.optimizer != nullptr) program.optimizer->step();
  zero_gradients(program);
}

}  // namespace

Capture capture_forward(const ProgramToCapture& program, const CaptureOptions& options) {
  const Stopwatch watch;
  CaptureSession session(completed(program, options));
  name_tensors(session, program);
  const Tensors outputs = program.forward(program.inputs);
  Graph graph = session.finish(outputs);
  return {std::move(graph), watch.seconds()};
}

Capture capture_training_step(const ProgramToCapture& program, const CaptureOptions& given) {
  if (!program.loss) throw Error("a training step needs a loss function");
  check_parameters_are_fake(program);
  const CaptureOptions options = completed(program, given);
  for (int i = 0; i < program.warmup_steps; ++i) warm_up(program, options);
  zero_gradients(program);

  const Stopwatch watch;
  CaptureSession session(options);
  name_tensors(session, program);
  Tensors outputs = program.forward(program.inputs);
  at::Tensor loss = checked_loss(program, outputs);
  // As in a training loop: only the loss is still held when backward runs.
  outputs.clear();
  {
    const PhaseScope phase("backward");  // for what runs before the engine: the first gradient
    loss.backward();
  }
  if (program.optimizer != nullptr) {
    const PhaseScope phase("optimizer");
    program.optimizer->step();
  }
  Graph graph = session.finish({loss});
  return {std::move(graph), watch.seconds()};
}

}  // namespace shadowgraph
