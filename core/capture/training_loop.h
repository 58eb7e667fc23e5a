// Runs one step of a training loop as PyTorch programs write it, with the options of TrainingOptions. Internal to
// core/capture.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/fake/autocast.h"
#include "shadowgraph/capture.h"

namespace shadowgraph {

// Does what torch.amp.GradScaler does at its defaults, for one optimizer.
class GradScaler {
 public:
  at::Tensor scale(const at::Tensor& loss);
  void unscale_(torch::optim::Optimizer& optimizer);
  void step(torch::optim::Optimizer& optimizer);
  void update();
  // Returns those tensors of the state that exist.
  std::vector<std::pair<std::string, at::Tensor>> buffers() const;

 private:
  at::Tensor scale_, growth_tracker_;  // made by the first scale()
  std::vector<at::Tensor> found_inf_;  // by device, between unscale_ and update
};

class TrainingLoop {
 public:
  // Throws Error for options that make no sense. Makes the averaged copies, so it must be called inside the mode of the
  // module.
  TrainingLoop(const ProgramToCapture& program, const FakeTensorOptions& mode);

  // Names what is there already and belongs to no module: averaged copies, gradients that stay, the scaler's state.
  void name_state(CaptureSession& session) const;
  // Zeroes gradients, or lets go of them.
  void zero_grad() const;
  // Does all of one step after zero_grad. `loss` is the variable of the loop: its old tensor dies where the program
  // sets it.
  void step(at::Tensor& loss);

 private:
  void backward(const at::Tensor& loss);
  void optimizer_step();
  void clip_gradients() const;
  void update_averages();

  const ProgramToCapture& program_;
  const c10::DeviceType device_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;  // each once
  GradScaler scaler_;
  std::vector<std::pair<std::string, at::Tensor>> averages_;  // parallel to parameters_, then buffers
  int64_t averaged_ = 0;                                      // steps
};

// Each parameter of the program once, by its first name.
std::vector<std::pair<std::string, at::Tensor>> parameters_of(const ProgramToCapture& program);

// Enters autocast; nothing happens without a dtype. Throws Error if there is no autocast of that dtype on the device.
void enter_autocast(std::optional<AutocastScope>& scope, c10::DeviceType device, std::optional<c10::ScalarType> dtype);

}  // namespace shadowgraph
