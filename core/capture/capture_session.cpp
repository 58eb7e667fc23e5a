#include <ATen/Context.h>
#include <torch/nn/module.h>

#include "core/calls/program_generators.h"
#include "core/capture/recorder.h"
#include "core/fake/dispatch/contents_of_call.h"
#include "core/fake/known_contents.h"
#include "core/fake/mode/modes.h"
#include "core/fake/thread_state.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

std::atomic<WrapperParts> wrapper_parts{nullptr};

// Forgets known contents, since the graph must be valid for any values of the input, not only the present ones.
void forget_input_contents(const at::Tensor& tensor) {
  close_open_literal();
  if (is_fake(tensor)) forget_contents(*tensor.storage().unsafeGetStorageImpl());
}

CaptureOptions around(const torch::nn::Module& root, CaptureOptions options) {
  Tensors tensors = root.parameters();
  for (const at::Tensor& buffer : root.buffers()) tensors.push_back(buffer);
  options.mode = options_around(tensors, {}, std::move(options.mode));
  return options;
}

}  // namespace

void set_wrapper_parts(WrapperParts parts) { wrapper_parts.store(parts, std::memory_order_release); }

std::vector<at::Tensor> parts_of(const at::Tensor& wrapper) {
  const WrapperParts look = wrapper_parts.load(std::memory_order_acquire);
  if (look == nullptr) {
    throw Error(c10::str("a tensor subclass from another language holds inner tensors (", wrapper.scalar_type(),
                         " of sizes ", wrapper.sizes(),
                         "), and no function to unwrap it is registered; call set_wrapper_parts"));
  }
  return look(wrapper);
}

Capture::Capture(const CaptureOptions& options)
    : mode_(options_around({}, {}, options.mode)),
      recorder_(std::make_unique<Recorder>(state_of(mode_))),
      outer_(std::exchange(thread_state.capture, this)) {
  ModeState& state = state_of(mode_);
  state.observer = recorder_.get();
  state.saved_tensors = options.saved_tensors ? recorder_.get() : nullptr;
  state.watch_size_reads = options.guards;
  if (options.cpp_sources) recorder_->record_backtraces();
  recorder_->watch_generators();
}

Capture::Capture(const torch::nn::Module& root, const CaptureOptions& options) : Capture(around(root, options)) {
  name_module(root);
}

Capture::~Capture() {
  state_of(mode_).observer = nullptr;
  state_of(mode_).saved_tensors = nullptr;
  thread_state.capture = outer_;
}

Capture* Capture::current() { return thread_state.capture; }

Recorder* current_recorder() {
  return thread_state.capture == nullptr ? nullptr : CaptureAccess::recorder(*thread_state.capture);
}

void Capture::name_parameter(const at::Tensor& tensor, const std::string& name) {
  // A tied parameter has several names; the first is used.
  forget_input_contents(tensor);
  if (!declared_.insert(tensor.unsafeGetTensorImpl()).second) return;
  check_is_of(state_of(mode_), tensor, name);
  recorder_->name_tensor(tensor, Builtin::kParameter, name);
  recorder_->declare(tensor);
  parameters_.push_back(tensor);
}

void Capture::name_buffer(const at::Tensor& tensor, const std::string& name) {
  check_is_of(state_of(mode_), tensor, name);
  close_open_literal();
  recorder_->name_tensor(tensor, Builtin::kBuffer, name);
  recorder_->declare(tensor);
}

void Capture::name_input(const at::Tensor& tensor, const std::string& name, bool keep_contents) {
  if (!keep_contents) forget_input_contents(tensor);
  recorder_->name_tensor(tensor, Builtin::kInput, name);
  recorder_->declare(tensor);
  if (keep_contents || !state_of(mode_).options.host_reads.masks_full || !is_fake(tensor)) return;
  const bool is_mask = tensor.scalar_type() == c10::kBool ||
                       (c10::isIntegralType(tensor.scalar_type(), false) && name.find("mask") != std::string::npos);
  if (!is_mask || !PendingCall::covers_storage(tensor)) return;
  set_uniform_contents(tensor, 1);
  recorder_->assume(tensor, kAssumedFull);
}

void Capture::name_module(const torch::nn::Module& root) {
  for (const auto& entry : root.named_parameters()) name_parameter(entry.value(), entry.key());
  for (const auto& entry : root.named_buffers()) name_buffer(entry.value(), entry.key());
  // Not Module::named_modules(), which requires the root to be owned by a shared_ptr.
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

void Capture::name_module(const void* module, std::string path) {
  if (!finished_) recorder_->name_module(module, std::move(path));
}

void Capture::enter_module(const void* module, const std::string& class_name) {
  if (!finished_) recorder_->enter_module(module, class_name);
}

void Capture::leave_module() {
  if (finished_) return;
  if (!recorder_->is_in_module()) throw Error("leave_module without a matching enter_module");
  recorder_->leave_region();
}

void Capture::set_locate(Locate locate) {
  if (!finished_) recorder_->set_locate(locate);
}

Graph Capture::finish(const std::vector<at::Tensor>& outputs,
                      std::vector<std::pair<at::Tensor, at::Tensor>> more_gradients) {
  if (finished_) throw Error("this capture session is already finished; create a new Capture");
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients = std::move(more_gradients);
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) gradients.emplace_back(parameter, parameter.grad());
  }
  close_open_literal();
  state_of(mode_).observer = nullptr;
  state_of(mode_).saved_tensors = nullptr;
  finished_ = true;
  Graph graph = recorder_->finish(outputs, gradients);
  name_generators(graph);
  // Affects the time of matrix products, but appears in no call.
  if (at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
      at::Float32Precision::TF32) {
    graph.metadata.set("float32_matmul", "tf32");
  }
  return graph;
}

PhaseScope::PhaseScope(const std::string& name) : session_(thread_state.capture) {
  if (Recorder* recorder = current_recorder()) {
    outer_ = recorder->set_phase(recorder->phase_named(name));
    recorder->open_scope(this);
  }
}

PhaseScope::~PhaseScope() {
  Recorder* recorder = session_ == thread_state.capture ? current_recorder() : nullptr;
  if (recorder != nullptr && recorder->close_scope(this)) recorder->set_phase(outer_);
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (!impl.resizable()) throw Error("resize_storage: the storage is not resizable");
  if (!impl.device().is_meta()) {
    throw Error(
        "resize_storage: expected the storage of a fake tensor, but this one holds data; use "
        "untyped_storage().resize_()");
  }
  ModeState* const mode = active_fake_mode();
  if (mode != nullptr && mode->observer != nullptr && thread_state.kernel_depth == 0) {
    close_open_literal();
    mode->observer->storage_resized(impl, bytes);
  }
  impl.set_nbytes(bytes);
}

RegionScope::RegionScope(const std::string& label) {
  if (Recorder* recorder = current_recorder()) {
    recorder->enter_region(RegionKind::kScope, label, "");
    recorder->open_scope(this);
    session_ = thread_state.capture;
  }
}

RegionScope::~RegionScope() {
  Recorder* recorder = session_ != nullptr && session_ == thread_state.capture ? current_recorder() : nullptr;
  if (recorder != nullptr && recorder->close_scope(this)) recorder->leave_region();
}

ModuleScope::ModuleScope(const torch::nn::Module& module) {
  if (Recorder* recorder = current_recorder()) {
    std::string class_name = module.name();
    const size_t colons = class_name.rfind("::");
    if (colons != std::string::npos) class_name.erase(0, colons + 2);
    recorder->enter_module(&module, class_name);
    entered_ = true;
  }
}

ModuleScope::~ModuleScope() {
  if (!entered_) return;
  if (Recorder* recorder = current_recorder()) recorder->leave_region();
}

}  // namespace shadowgraph
