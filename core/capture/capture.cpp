// Captures of forward passes and training steps. The training loop follows PyTorch's Python sources.
#include "shadowgraph/capture/capture.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>

#include "core/fake/mode/modes.h"
#include "core/fake/mode_state.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/error.h"
#include "support/stopwatch.h"

namespace shadowgraph {

// The parts of a training loop that libtorch's C++ frontend lacks or implements differently from Python. Each calls the
// same operators in the same order as the Python file named above it, so that the graph is the same.

namespace {

void check(bool holds, const std::string& message) {
  if (!holds) throw Error(message);
}

// Groups tensors by device and dtype, in order of first appearance, as foreach operators require.
std::vector<Tensors> by_device_and_dtype(const Tensors& tensors) {
  std::vector<Tensors> groups;
  for (const at::Tensor& tensor : tensors) {
    const auto found = std::ranges::find_if(groups, [&](const Tensors& group) {
      return group[0].device() == tensor.device() && group[0].scalar_type() == tensor.scalar_type();
    });
    (found == groups.end() ? groups.emplace_back() : *found).push_back(tensor);
  }
  return groups;
}

at::Tensor checked_loss(const ProgramToCapture& program, const Tensors& outputs) {
  at::Tensor loss = program.loss(outputs);
  check(loss.defined(), "the loss must be a scalar tensor, but it is undefined");
  check(loss.numel() == 1, c10::str("the loss must be a scalar tensor, but it has shape ", loss.sizes(),
                                    "; reduce it, for example with mean()"));
  check(loss.requires_grad(),
        "the loss does not require grad: it does not depend on a parameter or input that requires grad. Check for "
        "NoGradGuard, detach() and frozen parameters");
  return loss;
}

}  // namespace

// Returns each parameter of the program once, under its first name.
std::vector<std::pair<std::string, at::Tensor>> parameters_of(const ProgramToCapture& program) {
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& parameter) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.emplace_back(name, parameter);
  };
  for (const auto& [name, parameter] : program.parameters) add(name, parameter);
  if (program.module != nullptr) {
    for (const auto& entry : program.module->named_parameters()) add(entry.key(), entry.value());
  }
  return parameters;
}

FiniteGradients::FiniteGradients() {
  ModeState* const mode = thread_state.mode;
  if (mode == nullptr || mode->kind != ModeKind::kFake || mode->options.host_reads.any()) return;
  mode_ = mode;
  mode_->options.host_reads.finite = true;
}

FiniteGradients::~FiniteGradients() {
  if (mode_ != nullptr) mode_->options.host_reads.finite = false;
}

// ---- torch/amp/autocast_mode.py

// Enters autocast; does nothing without a dtype. Throws Error if the device has no autocast for that dtype.
void enter_autocast(std::optional<AutocastScope>& scope, c10::DeviceType device, std::optional<c10::ScalarType> dtype) {
  if (!dtype) return;
  check(*dtype == c10::ScalarType::BFloat16 || *dtype == c10::ScalarType::Half,
        std::string("autocast supports bfloat16 and float16, not ") + c10::toString(*dtype));
  check(is_autocast_available(device), "autocast is not available on device type " + c10::DeviceTypeName(device, true));
  scope.emplace(device, dtype);
}

// ---- torch/amp/grad_scaler.py

// torch.amp.GradScaler with its default settings, for one optimizer.
class GradScaler {
 public:
  at::Tensor scale(const at::Tensor& loss) {
    constexpr double kInitialScale = 65536.0;
    if (!scale_.defined()) {
      const auto options = at::TensorOptions(loss.device());
      scale_ = at::full({}, kInitialScale, options.dtype(at::kFloat));
      growth_tracker_ = at::full({}, 0, options.dtype(at::kInt));
    }
    return loss * scale_.to(loss.device(), /*dtype=*/scale_.scalar_type(), /*non_blocking=*/true);
  }

  void unscale_(torch::optim::Optimizer& optimizer) {
    const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
    const at::Tensor found = at::full({}, 0.0, at::TensorOptions(scale_.device()).dtype(at::kFloat));
    Tensors gradients;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        check(parameter.grad().scalar_type() != at::kHalf,
              "GradScaler cannot unscale float16 gradients; keep the parameters in float32 and use autocast");
        gradients.push_back(parameter.grad());
      }
    }
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> inverses;
    const auto on = [](std::vector<at::Tensor>& tensors, const at::Tensor& first, c10::Device device) {
      for (const at::Tensor& tensor : tensors) {
        if (tensor.device() == device) return tensor;
      }
      return tensors.emplace_back(first.to(device, first.scalar_type(), /*non_blocking=*/true));
    };
    for (const Tensors& group : by_device_and_dtype(gradients)) {
      const c10::Device device = group[0].device();
      at::Tensor found_here = on(found_inf_, found, device);
      at::_amp_foreach_non_finite_check_and_unscale_(group, found_here, on(inverses, inverse, device));
    }
  }

  void step(torch::optim::Optimizer& optimizer) {
    double infinite = 0;
    for (const at::Tensor& found : found_inf_) infinite += found.item().toDouble();
    if (infinite == 0) optimizer.step();
  }

  void update() {
    constexpr double kGrowth = 2.0, kBackoff = 0.5;
    constexpr int64_t kInterval = 2000;
    at::Tensor found = found_inf_.at(0).to(scale_.device(), at::kFloat, /*non_blocking=*/true);
    for (size_t i = 1; i < found_inf_.size(); ++i) {
      found += found_inf_[i].to(scale_.device(), at::kFloat, /*non_blocking=*/true);
    }
    at::_amp_update_scale_(scale_, growth_tracker_, found, kGrowth, kBackoff, kInterval);
    found_inf_.clear();
  }

  // Returns the state tensors that exist.
  std::vector<std::pair<std::string, at::Tensor>> buffers() const {
    if (!scale_.defined()) return {};
    return {{"grad_scaler.scale", scale_}, {"grad_scaler.growth_tracker", growth_tracker_}};
  }

 private:
  at::Tensor scale_, growth_tracker_;  // created by the first scale()
  std::vector<at::Tensor> found_inf_;  // by device, between unscale_ and update
};

class TrainingLoop {
 public:
  // Throws Error for invalid options. Creates the averaged copies, so it must be constructed inside the module's mode.
  TrainingLoop(const ProgramToCapture& program, const FakeTensorOptions& mode)
      : program_(program),
        device_(mode.device.value_or(c10::Device(c10::kCPU)).type()),
        parameters_(parameters_of(program)) {
    const TrainingOptions& training = program.training;
    check(training.accumulate >= 1, "accumulate is the number of micro-batches and must be at least 1, not " +
                                        std::to_string(training.accumulate));
    check(!training.clip_grad_norm || (*training.clip_grad_norm > 0 && std::isfinite(*training.clip_grad_norm)),
          "clip_grad_norm must be positive and finite");
    check(!training.ema || (*training.ema >= 0 && *training.ema <= 1), "ema is a decay and must be between 0 and 1");
    check(!training.grad_scaler || program.optimizer != nullptr,
          "grad_scaler needs an optimizer, and the program has none");
    {
      std::optional<AutocastScope> probe;
      enter_autocast(probe, device_, program.autocast);
    }
    if (!training.ema) return;
    const at::NoGradGuard no_grad;
    const auto copy = [&](const std::string& name, const at::Tensor& tensor) {
      averages_.emplace_back("ema." + name, tensor.detach().clone());
    };
    for (const auto& [name, parameter] : parameters_) copy(name, parameter);
    for (const auto& [name, buffer] : program.buffers) copy(name, buffer);
    if (program.module == nullptr) return;
    for (const auto& entry : program.module->named_buffers()) copy(entry.key(), entry.value());
  }

  // Names existing state outside the module: averaged copies, gradients that stay allocated, the scaler's state.
  void name_state(Capture& session) const {
    for (const auto& [name, average] : averages_) session.name_buffer(average, name);
    for (const auto& [name, state] : scaler_.buffers()) session.name_buffer(state, name);
    for (const auto& [name, parameter] : parameters_) {
      if (parameter.grad().defined()) session.name_input(parameter.grad(), "gradient." + name);
    }
  }

  // Zeroes the gradients, or sets them to None.
  void zero_grad() const {
    const bool to_none = !program_.training.zero_grads;
    const PhaseScope phase("optimizer");
    if (program_.optimizer != nullptr) program_.optimizer->zero_grad(to_none);
    std::unordered_set<const c10::TensorImpl*> done;
    if (program_.optimizer != nullptr && !to_none) {
      for (const auto& group : program_.optimizer->param_groups()) {
        for (const at::Tensor& parameter : group.params()) done.insert(parameter.unsafeGetTensorImpl());
      }
    }
    for (const auto& [name, parameter] : parameters_) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (to_none) gradient.reset();
      if (!gradient.defined() || done.contains(parameter.unsafeGetTensorImpl())) continue;
      gradient.detach_();
      gradient.zero_();
    }
  }

  // Runs one step after zero_grad. `loss` is the loop's variable: its previous tensor is freed when it is reassigned,
  // as in the program.
  void step(at::Tensor& loss) {
    for (int64_t i = 0; i < program_.training.accumulate; ++i) {
      {
        std::optional<AutocastScope> autocast;
        enter_autocast(autocast, device_, program_.autocast);
        Tensors outputs = program_.forward(program_.inputs);
        loss = checked_loss(program_, outputs);
        // As in a training loop: only the loss is still referenced when backward runs.
        outputs.clear();
        if (program_.training.accumulate > 1) loss = loss / program_.training.accumulate;
      }
      backward(loss);
    }
    const PhaseScope phase("optimizer");
    optimizer_step();
    if (program_.training.ema) update_averages();
  }

 private:
  void backward(const at::Tensor& loss) {
    const at::Tensor scaled = program_.training.grad_scaler ? scaler_.scale(loss) : loss;
    const PhaseScope phase("backward");  // covers the initial gradient, created before the engine starts
    scaled.backward();
  }

  void optimizer_step() {
    const TrainingOptions& training = program_.training;
    std::optional<FiniteGradients> finite;
    if (training.grad_scaler) {
      finite.emplace();
      scaler_.unscale_(*program_.optimizer);
    }
    if (training.clip_grad_norm) clip_gradients();
    if (training.grad_scaler) {
      scaler_.step(*program_.optimizer);
      scaler_.update();
    } else if (program_.optimizer != nullptr) {
      program_.optimizer->step();
    }
  }

  // torch/nn/utils/clip_grad.py; libtorch's C++ version reads the norm back and does not use foreach operators.
  void clip_gradients() const {
    const at::NoGradGuard no_grad;
    Tensors gradients;
    for (const auto& [name, parameter] : parameters_) {
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
    }
    if (gradients.empty()) return;
    const auto groups = by_device_and_dtype(gradients);
    const auto total = [&] {
      Tensors norms;
      for (const Tensors& group : groups) {
        for (const at::Tensor& norm : at::_foreach_norm(group, 2)) norms.push_back(norm.to(gradients[0].device()));
      }
      return at::linalg_vector_norm(at::stack(norms), 2);
    }();
    const at::Tensor coefficient = (total + 1e-6).reciprocal() * *program_.training.clip_grad_norm;
    const at::Tensor clamped = at::clamp(coefficient, std::nullopt, 1.0);
    for (const Tensors& group : groups) at::_foreach_mul_(group, clamped.to(group[0].device()));
  }

  // torch/optim/swa_utils.py: AveragedModel.update_parameters without its update counter, a CPU tensor.
  void update_averages() {
    const at::NoGradGuard no_grad;
    Tensors averages, current;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      current.push_back(parameters_[i].second.detach());
      averages.push_back(averages_[i].second.detach());
      if (averaged_ == 0) averages_[i].second.detach().copy_(current[i]);
    }
    if (averaged_++ == 0) return;
    // An average has its parameter's device and dtype, so both lists are grouped in the same way.
    const auto grouped = by_device_and_dtype(averages);
    const auto with = by_device_and_dtype(current);
    for (size_t i = 0; i < grouped.size(); ++i) at::_foreach_lerp_(grouped[i], with[i], 1 - *program_.training.ema);
  }

  const ProgramToCapture& program_;
  const c10::DeviceType device_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;  // unique
  GradScaler scaler_;
  std::vector<std::pair<std::string, at::Tensor>> averages_;  // parallel to parameters_, then buffers
  int64_t averaged_ = 0;                                      // steps
};

namespace {

void name_tensors(Capture& session, const ProgramToCapture& program) {
  if (program.module != nullptr) session.name_module(*program.module);
  for (const auto& [name, tensor] : program.parameters) session.name_parameter(tensor, name);
  for (const auto& [name, tensor] : program.buffers) session.name_buffer(tensor, name);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    session.name_input(program.inputs[i],
                       i < program.input_names.size() ? program.input_names[i] : "input" + std::to_string(i));
  }
}

// Fills options that were left open from the program's tensors.
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

// Runs the warmup steps, which are not recorded: they leave the optimizer's state and no gradients.
void warm_up(std::optional<TrainingLoop>& loop, const ProgramToCapture& program, const CaptureOptions& options) {
  check(program.loss != nullptr, "a training step needs a loss function; set ProgramToCapture::loss");
  const auto parameters = parameters_of(program);
  for (const auto& [name, parameter] : parameters) {
    if (is_fake(parameter)) continue;
    throw UnsupportedError("parameter '" + name + "' is a real tensor, and a training step on fake tensors would " +
                           "give it a fake gradient. Create the module inside a FakeTensorMode");
  }
  for (const auto& [name, parameter] : parameters) parameter.mutable_grad().reset();
  FakeTensorMode mode(options.mode);
  loop.emplace(program, state_of(mode).options);
  at::Tensor loss;
  for (int i = 0; i < program.warmup_steps; ++i) {
    loop->zero_grad();
    loop->step(loss);
  }
  if (!program.training.zero_grads) loop->zero_grad();
}

// Warms the program up and records `body`, which runs the loop and sets the loss.
template <class Body>
CaptureResult record_training(const ProgramToCapture& program, const CaptureOptions& given, const Body& body) {
  const CaptureOptions options = completed(program, given);
  std::optional<TrainingLoop> loop;
  warm_up(loop, program, options);

  const Stopwatch watch;
  Capture session(options);
  name_tensors(session, program);
  loop->name_state(session);
  at::Tensor loss;
  body(*loop, loss);
  Graph graph = session.finish({loss});
  return {std::move(graph), watch.seconds()};
}

}  // namespace

CaptureResult capture_forward(const ProgramToCapture& program, const CaptureOptions& options) {
  if (program.training != TrainingOptions()) {
    throw Error(
        "accumulate, clip_grad_norm, grad_scaler, ema and zero_grads apply to a training step; this captures forward "
        "only. Use capture_training_step");
  }
  const Stopwatch watch;
  Capture session(completed(program, options));
  name_tensors(session, program);
  const Tensors outputs = [&] {
    std::optional<AutocastScope> autocast;
    enter_autocast(autocast, state_of(session.mode()).options.device->type(), program.autocast);
    return program.forward(program.inputs);
  }();
  Graph graph = session.finish(outputs);
  return {std::move(graph), watch.seconds()};
}

CaptureResult capture_training_step(const ProgramToCapture& program, const CaptureOptions& given) {
  return record_training(program, given, [&](TrainingLoop& loop, at::Tensor& loss) {
    if (program.training.zero_grads) loop.zero_grad();
    loop.step(loss);
  });
}

CaptureResult capture_training_run(const ProgramToCapture& program, int steps, const CaptureOptions& given) {
  if (steps < 1) throw Error("a training run needs at least 1 step, not " + std::to_string(steps));
  CaptureResult result = record_training(program, given, [&](TrainingLoop& loop, at::Tensor& loss) {
    for (int i = 0; i < steps; ++i) {
      const RegionScope step("step " + std::to_string(i + 1));
      loop.zero_grad();
      loop.step(loss);
    }
  });
  result.graph.metadata.other["steps"] = std::to_string(steps);
  return result;
}

}  // namespace shadowgraph
