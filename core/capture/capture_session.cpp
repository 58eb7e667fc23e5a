#include <torch/nn/module.h>

#include "core/capture/recorder.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode_state.h"
#include "shadowgraph/capture.h"

namespace shadowgraph {
namespace {

// What comes from outside may have any contents, whatever it is filled with now.
void forget_what_it_holds(const at::Tensor& tensor) {
  close_open_literal();
  if (is_fake(tensor)) forget_contents(*tensor.storage().unsafeGetStorageImpl());
}

thread_local CaptureSession* current_session = nullptr;

// Keeps names and constants of the program apart from what libtorch does around them.
Recorder* recording() { return current_session == nullptr ? nullptr : current_session->recorder(); }

}  // namespace

CaptureSession::CaptureSession(const CaptureOptions& options)
    : mode_({.device = options.device,
             .profile = options.profile,
             .map_devices_to_default = options.map_devices_to_default,
             .data_sizes = options.data_sizes,
             .data_size_hint = options.data_size_hint}),
      recorder_(std::make_unique<Recorder>(mode_.state())),
      outer_(std::exchange(current_session, this)) {
  ModeState& state = mode_.state();
  state.observer = recorder_.get();
  state.saved_tensors = options.saved_tensors ? recorder_.get() : nullptr;
  state.watch_size_reads = options.guards;
}

CaptureSession::~CaptureSession() {
  mode_.state().observer = nullptr;
  mode_.state().saved_tensors = nullptr;
  current_session = outer_;
}

CaptureSession* CaptureSession::current() { return current_session; }

void CaptureSession::name_parameter(const at::Tensor& tensor, const std::string& name) {
  // A tied parameter comes under several names; the first counts.
  forget_what_it_holds(tensor);
  if (!declared_.insert(tensor.unsafeGetTensorImpl()).second) return;
  recorder_->name_tensor(tensor, Builtin::kParameter, name);
  recorder_->declare(tensor);
  parameters_.push_back(tensor);
}

void CaptureSession::name_buffer(const at::Tensor& tensor, const std::string& name) {
  close_open_literal();
  recorder_->name_tensor(tensor, Builtin::kBuffer, name);
  recorder_->declare(tensor);
}

void CaptureSession::name_input(const at::Tensor& tensor, const std::string& name) {
  forget_what_it_holds(tensor);
  recorder_->name_tensor(tensor, Builtin::kInput, name);
  recorder_->declare(tensor);
}

void CaptureSession::name_module(const torch::nn::Module& root) {
  for (const auto& entry : root.named_parameters()) name_parameter(entry.value(), entry.key());
  for (const auto& entry : root.named_buffers()) name_buffer(entry.value(), entry.key());
  // Walked by hand: Module::named_modules() wants the root to be owned by a shared_ptr.
  std::vector<std::pair<const torch::nn::Module*, std::string>> pending{{&root, ""}};
  while (!pending.empty()) {
    const auto [module, path] = pending.back();
    pending.pop_back();
    recorder_->name_module(module, path);
    for (const auto& child : module->named_children()) {
      pending.emplace_back(child.value().get(), path.empty() ? child.key() : path + "." + child.key());
    }
  }
}

Graph CaptureSession::finish(const std::vector<at::Tensor>& outputs) {
  if (finished_) throw Error("this capture session is finished already");
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients;
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) gradients.emplace_back(parameter, parameter.grad());
  }
  close_open_literal();
  mode_.state().observer = nullptr;
  mode_.state().saved_tensors = nullptr;
  finished_ = true;
  return recorder_->finish(outputs, gradients);
}

PhaseScope::PhaseScope(const std::string& name) : session_(current_session) {
  if (Recorder* recorder = recording()) outer_ = recorder->set_phase(recorder->phase_named(name));
}

PhaseScope::~PhaseScope() {
  if (session_ == current_session && recording() != nullptr) recording()->set_phase(outer_);
}

RegionScope::RegionScope(const std::string& label) {
  if (Recorder* recorder = recording()) {
    recorder->enter_region(RegionKind::kScope, label, "");
    session_ = current_session;
  }
}

RegionScope::~RegionScope() {
  if (session_ != nullptr && recording() != nullptr) recording()->leave_region();
}

ModuleScope::ModuleScope(const torch::nn::Module& module) {
  if (Recorder* recorder = recording()) {
    std::string class_name = module.name();
    const size_t colons = class_name.rfind("::");
    if (colons != std::string::npos) class_name.erase(0, colons + 2);
    recorder->enter_module(&module, class_name);
    entered_ = true;
  }
}

ModuleScope::~ModuleScope() {
  if (!entered_) return;
  if (Recorder* recorder = recording()) recorder->leave_region();
}

}  // namespace shadowgraph
