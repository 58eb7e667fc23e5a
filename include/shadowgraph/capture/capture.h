// Captures programs as graphs: a module and its inputs, a training step, a TorchScript file, or any code in a session.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shadowgraph/capture/fake.h"
#include "shadowgraph/export.h"
#include "shadowgraph/graph/graph.h"

namespace torch::nn {
class Module;
}

namespace torch::optim {
class Optimizer;
}

namespace SHADOWGRAPH_API shadowgraph {

// Records a program as one graph: forward, backward and optimizer step, with regions, saved tensors and lifetimes.
//
//     shadowgraph::Capture session({.mode = {.device = at::kCUDA}});
//     Net net;                                       // created in the session: fake, nothing is allocated
//     session.name_module(net);
//     at::Tensor loss = net.forward(at::empty({32, 3, 224, 224})).sum();
//     loss.backward();
//     shadowgraph::Graph graph = session.finish({loss});
//
// A session is a FakeTensorMode with a recorder. It records below autograd, on the thread that created it, until
// finish() or its destruction. Modules and inputs may also have been created earlier under a FakeTensorMode; tensors
// that were not created in the session become placeholders. Recording costs one to two times as much as the calls on
// fake tensors, and no memory except for the graph. See also capture_forward and capture_training_step below.

class Recorder;

// Options of a capture and of its fake tensor mode. Fields that `mode` leaves open are taken from the mode in which the
// module's tensors were created; without a module, those of the program, then of the inputs. If there are no fake
// tensors, they are taken from the innermost mode of this thread, or else are the defaults of FakeTensorOptions. If
// that mode has ended, the device is that of the tensors and the rest are the defaults.
//
// Flags and sizes given here are added to those of that mode. A different device or profile throws Error.
struct CaptureOptions {
  FakeTensorOptions mode;     // queried data sizes are recorded as guards of the graph
  bool saved_tensors = true;  // record the tensors that autograd saves for backward
  bool guards = true;         // record the sizes that the program reads
  // Record C++ source lines of nodes: the innermost frame, including inlined ones, outside of libtorch and shadowgraph.
  // Costs some microseconds a node, and reading the program's debug information with addr2line when the capture ends.
  // Requires debug information (-g1); inlined frames need binutils. TorchScript and Python sources take precedence.
  bool cpp_sources = false;
};

class Capture {
 public:
  // Fields that the options leave open are taken from the innermost mode of this thread.
  explicit Capture(const CaptureOptions& options = {});
  // For an existing module: takes them from the mode in which its tensors were created, and calls name_module.
  explicit Capture(const torch::nn::Module& root, const CaptureOptions& options = {});
  ~Capture();  // without finish(), discards the recording and restores all state
  C10_DISABLE_COPY_AND_ASSIGN(Capture);

  // Declares the module's parameters and buffers (in registration order, shared ones once) and the paths of its
  // submodules. The module must outlive the session. Throws Error, as do name_parameter and name_buffer, for tensors of
  // a mode with another device or profile than the session's.
  void name_module(const torch::nn::Module& root);
  void name_parameter(const at::Tensor& tensor, const std::string& name);
  void name_buffer(const at::Tensor& tensor, const std::string& name);
  // Declares an input. Its contents are discarded, since they may differ in the next run, unless the program has to
  // read them (attention mask, lengths): values read are recorded as guards of the graph.
  void name_input(const at::Tensor& tensor, const std::string& name, bool keep_contents = false);

  // ---- For programs whose modules are not torch::nn::Modules: language bindings, custom interpreters
  // Sets the path of a module, which is identified by any stable address.
  void name_module(const void* module, std::string path);
  // Enters a module: nodes up to the matching leave_module belong to its path, or to `class_name` if it has none. Calls
  // may nest; an unmatched leave_module throws Error. No effect after finish().
  void enter_module(const void* module, const std::string& class_name);
  void leave_module();
  // Sets a function that returns the current source line, "file:line" or "". Called for every node outside of backward.
  // nullptr: none.
  using Locate = std::string (*)();
  void set_locate(Locate locate);

  // Ends the recording. `outputs` become sg::output, pairs of parameter and gradient sg::gradient nodes: those of the
  // named parameters, and `more_gradients` that are stored elsewhere (DTensor). The session remains a FakeTensorMode.
  Graph finish(const std::vector<at::Tensor>& outputs,
               std::vector<std::pair<at::Tensor, at::Tensor>> more_gradients = {});

  FakeTensorMode& mode() { return mode_; }
  // Returns the session that records on this thread, or nullptr.
  static Capture* current();

 private:
  friend struct CaptureAccess;
  FakeTensorMode mode_;
  std::unique_ptr<Recorder> recorder_;
  std::vector<at::Tensor> parameters_;
  std::unordered_set<const c10::TensorImpl*> declared_;
  Capture* outer_;
  bool finished_ = false;
};

// Sets the phase of nodes recorded in its scope: "forward", "backward", "optimizer", "init" or a custom name. By
// default, nodes run by the autograd engine are backward and all others forward.
class PhaseScope {
 public:
  explicit PhaseScope(const std::string& name);
  ~PhaseScope();
  C10_DISABLE_COPY_AND_ASSIGN(PhaseScope);

 private:
  Capture* session_;
  PhaseId outer_;
};

class RegionScope {
 public:
  explicit RegionScope(const std::string& label);
  ~RegionScope();
  C10_DISABLE_COPY_AND_ASSIGN(RegionScope);

 private:
  Capture* session_ = nullptr;
};

// For language bindings with tensor subclasses that wrap other tensors (Python's DTensor). Returns the wrapped tensors,
// so that a capture can identify saved ones. nullptr: none. Thread-safe.
using WrapperParts = std::vector<at::Tensor> (*)(const at::Tensor& wrapper);
void set_wrapper_parts(WrapperParts parts);

// Resizes the storage of a fake tensor, as tensor.untyped_storage().resize_(bytes) does in Python, and records it: the
// old memory is freed, new memory is allocated (aten::empty) and the common part is copied. FSDP2 frees gathered
// parameters this way, which libtorch does not report. Outside of a session only the size changes. Throws Error if the
// storage cannot be resized or has data; DeferredError in deferred_init.
void resize_storage(const c10::Storage& storage, size_t bytes);

// Captures a module in one call.
//
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA});
//     auto net = std::make_shared<Net>();
//     torch::optim::SGD sgd(net->parameters(), 0.1);
//     auto step = shadowgraph::capture_training_step(
//         *net, {at::empty({8, 3, 32, 32})}, [](const auto& outputs) { return outputs[0].sum(); }, sgd);
//     // step.graph, step.seconds

using Tensors = std::vector<at::Tensor>;
using ForwardFunction = std::function<Tensors(const Tensors& inputs)>;
using LossFunction = std::function<at::Tensor(const Tensors& outputs)>;

struct CaptureResult {
  Graph graph;
  double seconds = 0;  // wall time of the capture; not part of the graph, which is reproducible
};

// Parts of a training loop that can be combined; each runs the same operators as in PyTorch (docs/memory.md).
struct TrainingOptions {
  // Micro-batches per step with the same inputs: forward, loss / accumulate, backward. Gradients accumulate in .grad.
  int64_t accumulate = 1;
  std::optional<double> clip_grad_norm;  // max_norm of torch.nn.utils.clip_grad_norm_, before the optimizer's step
  // torch.amp.GradScaler with its defaults: scales the loss, unscales gradients, skips the step if one is infinite.
  // This is a host read whose result is taken from HostReads; by default, no gradient is infinite.
  bool grad_scaler = false;
  // Decay of torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn: copies of parameters and buffers, which
  // exist before the first step as buffers "ema.NAME". The first step copies the parameters, later steps average.
  std::optional<double> ema;
  bool zero_grads = false;  // zero_grad(set_to_none=False): gradients stay allocated from step to step
  friend bool operator==(const TrainingOptions&, const TrainingOptions&) = default;
};

struct ProgramToCapture {
  const torch::nn::Module* module = nullptr;  // may be nullptr
  // Parameters and buffers in addition to the module's, by name.
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  Tensors inputs;
  std::vector<std::string> input_names;  // parallel to inputs; default: input0, input1, ...
  ForwardFunction forward;
  LossFunction loss;                             // training: required
  torch::optim::Optimizer* optimizer = nullptr;  // training: if nullptr, there is no optimizer phase
  // Training steps to run before the recorded one, to create optimizer state. 0: first step; 1: steady state.
  int warmup_steps = 0;
  TrainingOptions training;  // training only
  // Runs forward and loss under torch.autocast with this dtype, BFloat16 or Half. Not backward and the optimizer.
  std::optional<c10::ScalarType> autocast;
};

// Within its scope, the innermost mode of this thread treats gradients as finite (HostReads::finite), unless host reads
// are configured for the mode. Used for steps of a GradScaler.
class FiniteGradients {
 public:
  FiniteGradients();
  ~FiniteGradients();
  C10_DISABLE_COPY_AND_ASSIGN(FiniteGradients);

 private:
  ModeState* mode_ = nullptr;  // the mode that was changed
};

// Captures forward in the caller's grad mode. Propagates exceptions. Throws Error for non-default TrainingOptions.
CaptureResult capture_forward(const ProgramToCapture& program, const CaptureOptions& options = {});

// Captures zero_grad, forward, loss, backward and optimizer step. Throws
//
//   - Error if the loss is not a scalar that requires grad;
//   - UnsupportedError if the module has real parameters, which would receive fake gradients: create the module under a
//     FakeTensorMode;
//   - Error for invalid options: accumulate below 1, a norm or decay out of range;
//   - Error for a GradScaler without an optimizer, or an unsupported autocast dtype.
CaptureResult capture_training_step(const ProgramToCapture& program, const CaptureOptions& options = {});

// Captures the first steps of a training run as one graph, each in a scope region "step 1", "step 2", ... The lifetimes
// of tensors that outlive their step are recorded rather than assumed (shadowgraph/profile/memory.h). Throws as
// capture_training_step does, and Error for fewer than one step. warmup_steps precede the recorded steps.
CaptureResult capture_training_run(const ProgramToCapture& program, int steps = 3, const CaptureOptions& options = {});

// Calls module.forward with up to eight inputs as separate arguments, or with all inputs as one vector.
template <class Module>
Tensors call_forward(Module& module, const Tensors& inputs) {
  const auto as_list = [](auto&& result) -> Tensors {
    using Result = std::decay_t<decltype(result)>;
    if constexpr (std::is_convertible_v<Result, Tensors>) {
      return result;
    } else if constexpr (std::is_convertible_v<Result, at::Tensor>) {
      return {result};
    } else {
      return std::apply([](auto&&... elements) { return Tensors{elements...}; }, result);
    }
  };
  std::optional<Tensors> result;
  const auto attempt = [&]<size_t... I>(std::index_sequence<I...>) {
    if constexpr (requires { module.forward(inputs[I]...); }) {
      if (!result && inputs.size() == sizeof...(I)) result = as_list(module.forward(inputs[I]...));
    }
  };
  [&]<size_t... I>(std::index_sequence<I...>) { (attempt(std::make_index_sequence<I + 1>()), ...); }
  (std::make_index_sequence<8>());
  if constexpr (requires { module.forward(inputs); }) {
    if (!result) result = as_list(module.forward(inputs));
  }
  if (!result)
    throw Error("the module's forward() cannot be called with " + std::to_string(inputs.size()) + " tensors");
  return *result;
}

template <class Module>
CaptureResult capture_forward(Module& module, const Tensors& inputs, const CaptureOptions& options = {}) {
  return capture_forward(
      ProgramToCapture{
          .module = &module, .inputs = inputs, .forward = [&](const Tensors& in) { return call_forward(module, in); }},
      options);
}

template <class Module>
CaptureResult capture_training_step(Module& module, const Tensors& inputs, const LossFunction& loss,
                                    torch::optim::Optimizer& optimizer, const CaptureOptions& options = {}) {
  return capture_training_step(ProgramToCapture{.module = &module,
                                                .inputs = inputs,
                                                .forward = [&](const Tensors& in) { return call_forward(module, in); },
                                                .loss = loss,
                                                .optimizer = &optimizer},
                               options);
}

// Marks the module whose forward is running, so that captured nodes have a module path.
//
// C++ modules have no forward hooks. Add one line at the top of a forward function:
//
//     torch::Tensor forward(torch::Tensor x) {
//       shadowgraph::ModuleScope scope(*this);
//       return fc2->forward(torch::relu(fc1->forward(x)));
//     }
//
// Leaf modules of torch::nn (Linear, Conv2d, ...) need no scope: their path is inferred from the parameters they use.
// Outside of a capture the constructor only reads a thread-local variable.

class ModuleScope {
 public:
  // The captured module and its submodules have their registered paths; other modules are shown by class name. Scopes
  // may nest and must be destroyed in reverse order of construction.
  explicit ModuleScope(const torch::nn::Module& module);
  ~ModuleScope();
  C10_DISABLE_COPY_AND_ASSIGN(ModuleScope);

 private:
  bool entered_ = false;
};

// TorchScript files: programs traced or scripted in Python, run here without Python.
//
//     auto script = shadowgraph::ScriptProgram::load("net.pt");
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA, .map_devices_to_default = true});
//     script.make_fake(mode);
//     auto input = shadowgraph::parse_tensor_spec("f32[8,3,224,224]").make();
//     auto capture = shadowgraph::capture_forward(script.program({input}));
//
// load reads the real weights; make_fake replaces parameters and buffers by fake tensors and frees the data. A trace
// contains the devices it was made on as constants; map_devices_to_default maps them to the mode's device.

// Dtype (f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool c64 c128) and sizes: "f32[8,3,224,224]"; "i64[]" is a scalar.
struct TensorSpec {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  // Returns a tensor of zeros on the active mode's device.
  at::Tensor make() const;
};
// Throws Error that states the problem and the syntax.
TensorSpec parse_tensor_spec(std::string_view text);

class ScriptProgram {
 public:
  // Throws FileError if the file cannot be read, Error if it is not TorchScript.
  static ScriptProgram load(const std::string& path);
  ~ScriptProgram();
  ScriptProgram(ScriptProgram&&) noexcept;
  ScriptProgram& operator=(ScriptProgram&&) noexcept;

  // Converts floating-point parameters and buffers to `dtype`, if given. Call once, with the mode active.
  void make_fake(FakeTensorMode& mode, std::optional<c10::ScalarType> dtype = std::nullopt);
  void train(bool on);

  std::vector<at::Tensor> parameters() const;
  // Returns the forward program on these inputs. Its outputs are the tensors in the result, including those in tuples,
  // lists and dicts, in order. The loss is the first floating-point output that requires grad, or its mean if it is not
  // a scalar. The program refers to this object, which must outlive it.
  ProgramToCapture program(Tensors inputs) const;

 private:
  struct Module;
  explicit ScriptProgram(std::unique_ptr<Module> module);
  std::unique_ptr<Module> module_;
};

// Mark the role of tensors that a program creates during capture, for captures of a whole program.

// Marks a parameter's gradient in this thread's capture; needed if it is freed before the capture ends.
void mark_gradient(const at::Tensor& gradient);
void mark_optimizer_state(const at::Tensor& state);

}  // namespace shadowgraph
