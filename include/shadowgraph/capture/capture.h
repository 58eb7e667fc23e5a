// Programs recorded as graphs: a module and its inputs, a training step, a TorchScript file, or a session around any
// code.
//
// The tool, the Python package and users' programs begin here. Recording costs one to two times what the call on fakes
// costs, and no memory but the graph.
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

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Records a program as one graph: forward, backward and optimizer step, with regions, saved tensors and lifetimes.
//
//     shadowgraph::CaptureSession session({.mode = {.device = at::kCUDA}});
//     Net net;                                       // made inside: fake, nothing is allocated
//     session.name_module(net);
//     at::Tensor loss = net.forward(at::empty({32, 3, 224, 224})).sum();
//     loss.backward();
//     shadowgraph::Graph graph = session.finish({loss});
//
// A session is a FakeTensorMode plus a recorder: it records below autograd, on the thread that made it, until finish()
// or its end of life. Modules and inputs may also have been made earlier under a FakeTensorMode; what the session meets
// without having seen it made becomes a placeholder. capture_forward and capture_training_step (below) wrap the usual
// cases.

class Recorder;

// The options of the fake mode that a capture runs in, and what recording adds.
//
// The device is named once, where the module is made. What `mode` leaves open is as in the mode that the module's own
// tensors were made in. Without a module these are the tensors of the program, then the inputs. Without any fake it is
// the innermost mode of this thread, and without a mode FakeTensorOptions' defaults. If that mode has ended, the device
// is the one that those tensors are on and the rest is FakeTensorOptions' defaults.
//
// Flags and sizes given here add to those of that mode. Naming a device or a profile other than that mode's throws
// Error: half of the program would run elsewhere.
struct CaptureOptions {
  FakeTensorOptions mode;     // the graph lists the data sizes that were asked for as guards
  bool saved_tensors = true;  // record what autograd keeps for backward
  bool guards = true;         // record sizes that the program asked for
  // Sources of nodes are lines of the user's C++: those of the innermost frame that is neither libtorch's nor ours,
  // inlined ones included. It costs some microseconds a node and, when the record ends, a reading of the program's
  // debug information by addr2line. Without binutils libtorch reads it, which tells no inlined frames. A program
  // without debug information (-g1) has no lines. What TorchScript and Python tell comes first.
  bool cpp_sources = false;
};

class CaptureSession {
 public:
  // What the options leave open is as in the innermost mode of this thread.
  explicit CaptureSession(const CaptureOptions& options = {});
  // For a module that is there already: as in the mode that its tensors were made in; names it, too.
  explicit CaptureSession(const torch::nn::Module& root, const CaptureOptions& options = {});
  ~CaptureSession();  // without finish(): the record is dropped, all state is restored
  CaptureSession(const CaptureSession&) = delete;
  CaptureSession& operator=(const CaptureSession&) = delete;

  // Declares the module's parameters and buffers (in registration order, shared ones once) and knows its submodules'
  // paths. The module must outlive the session. Throws Error, as name_parameter and name_buffer do, for
  // tensors of a mode with another device or profile than the session's.
  void name_module(const torch::nn::Module& root);
  void name_parameter(const at::Tensor& tensor, const std::string& name);
  void name_buffer(const at::Tensor& tensor, const std::string& name);
  // What an input holds is forgotten, since it may hold anything in the next run. It is kept if the program is to read
  // it (an attention mask, lengths); what was read is then among the graph's guards.
  void name_input(const at::Tensor& tensor, const std::string& name, bool keep_contents = false);

  // ---- For programs whose modules are no torch::nn::Module: a Python binding, one's own interpreter
  // A module is any address that stays the same: its path for enter_module.
  void name_module(const void* module, std::string path);
  // What runs until leave_module belongs to the module: to its path if it has one, otherwise to `class_name`. Calls
  // nest; leaving what was not entered throws Error. Nothing happens after finish().
  void enter_module(const void* module, const std::string& class_name);
  void leave_module();
  // "file:line" of what the program is doing, or an empty text: asked at every node that is not backward's, and kept as
  // its source. nullptr: nobody is asked.
  using Locate = std::string (*)();
  void set_locate(Locate locate);

  // Ends the record. `outputs` become sg::output, and (parameter, gradient) pairs sg::gradient nodes. The pairs are the
  // named parameters that have a gradient, and `more_gradients`, which hang elsewhere (at a DTensor). The session stays
  // a FakeTensorMode until it is destroyed.
  Graph finish(const std::vector<at::Tensor>& outputs,
               std::vector<std::pair<at::Tensor, at::Tensor>> more_gradients = {});

  FakeTensorMode& mode() { return mode_; }
  // The session recording on this thread, or nullptr.
  static CaptureSession* current();

 private:
  friend struct CaptureAccess;
  FakeTensorMode mode_;
  std::unique_ptr<Recorder> recorder_;
  std::vector<at::Tensor> parameters_;
  std::unordered_set<const c10::TensorImpl*> declared_;
  CaptureSession* outer_;
  bool finished_ = false;
};

// Nodes recorded while it lives belong to the phase: "forward", "backward", "optimizer", "init" or a name of one's own.
// Without one, what runs under the autograd engine is backward and everything else forward.
class PhaseScope {
 public:
  explicit PhaseScope(const std::string& name);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  CaptureSession* session_;
  PhaseId outer_;
};

// A region with a label of the user's own.
class RegionScope {
 public:
  explicit RegionScope(const std::string& label);
  ~RegionScope();
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;

 private:
  CaptureSession* session_ = nullptr;
};

// Serves bindings to other languages, where a tensor may hold others and have no memory of its own (Python's DTensor).
// Gives those inside, by which a capture knows what autograd saves. nullptr: nobody can tell. Thread-safe.
using WrapperParts = std::vector<at::Tensor> (*)(const at::Tensor& wrapper);
void set_wrapper_parts(WrapperParts parts);

// Gives the storage of a fake tensor another size, as tensor.untyped_storage().resize_(bytes) does in Python, and
// records it. What was there dies. New memory is born (aten::empty), with a copy of what both have room for. FSDP2
// gives gathered parameters back so. libtorch itself tells nobody of such a change. Without a session only the size
// changes. Throws Error if the storage has a size that cannot change, or data; DeferredError in deferred_init.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace shadowgraph

namespace torch::optim {
class Optimizer;
}

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// One call from a module to its graph.
//
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA});
//     auto net = std::make_shared<Net>();
//     torch::optim::SGD sgd(net->parameters(), 0.1);
//     auto step = shadowgraph::capture_training_step(
//         *net, {at::empty({8, 3, 32, 32})}, [](const auto& outputs) { return outputs[0].sum(); }, sgd);
//     // step.graph, step.seconds

using Tensors = std::vector<at::Tensor>;
using ForwardFunction = std::function<Tensors(const Tensors& inputs)>;
// Reduces the outputs to a scalar.
using LossFunction = std::function<at::Tensor(const Tensors& outputs)>;

struct Capture {
  Graph graph;
  double seconds = 0;  // wall time of the capture alone; not part of the graph, which stays the same from run to run
};

// What a training loop does around forward, backward and the optimizer's step. All of it combines; each piece runs the
// operators that PyTorch's own does (docs/memory.md).
struct TrainingOptions {
  // Micro-batches a step, each the inputs given: forward, loss / accumulate, backward; gradients add up in .grad.
  int64_t accumulate = 1;
  std::optional<double> clip_grad_norm;  // max_norm of torch.nn.utils.clip_grad_norm_, before the optimizer's step
  // torch.amp.GradScaler at its defaults: loss scaled, gradients unscaled, the step skipped if one is infinite. That is
  // a host read: answered as HostReads says; if it says nothing at all, no gradient is infinite.
  bool grad_scaler = false;
  // Decay of torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn: copies of parameters and buffers, there
  // before the first step as buffers "ema.NAME". The first step copies the parameters, later ones average.
  std::optional<double> ema;
  bool zero_grads = false;  // zero_grad(set_to_none=False): gradients stay allocated from step to step
  friend bool operator==(const TrainingOptions&, const TrainingOptions&) = default;
};

struct ProgramToCapture {
  const torch::nn::Module* module = nullptr;  // may be null
  // What belongs to the program besides the module's own, by name.
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::vector<std::pair<std::string, at::Tensor>> buffers;
  Tensors inputs;
  std::vector<std::string> input_names;  // parallel to inputs; missing ones are called input0, input1, ...
  ForwardFunction forward;
  LossFunction loss;                             // training: required
  torch::optim::Optimizer* optimizer = nullptr;  // training: may be null, then there is no optimizer phase
  // Training steps run before the recorded one, so that optimizer state exists: 0 gives the first step, 1 steady state.
  int warmup_steps = 0;
  TrainingOptions training;  // training alone
  // Forward and loss run under torch.autocast of the capture's device with this type: BFloat16 or Half. Backward and
  // optimizer do not, as PyTorch advises.
  std::optional<c10::ScalarType> autocast;
};

// While it lives the innermost mode of this thread takes gradients to be finite (HostReads::finite). It does not if the
// mode was told anything about host reads. A GradScaler's steps stand in this scope.
class FiniteGradients {
 public:
  FiniteGradients();
  ~FiniteGradients();
  FiniteGradients(const FiniteGradients&) = delete;
  FiniteGradients& operator=(const FiniteGradients&) = delete;

 private:
  ModeState* mode_ = nullptr;  // whose answers were changed
};

// Forward alone, in the caller's grad mode. Whatever the program throws passes through with all state restored. Throws
// Error for TrainingOptions other than the default.
Capture capture_forward(const ProgramToCapture& program, const CaptureOptions& options = {});

// Captures zero_grad, forward, loss, backward, optimizer step. Throws
//
//   - Error if the loss is not a scalar that requires grad;
//   - UnsupportedError if the module has real parameters, which would receive fake gradients: make the module inside a
//     FakeTensorMode;
//   - Error for options that make no sense: accumulate below 1, a norm or decay out of its range;
//   - Error for a GradScaler without an optimizer, or autocast to other types.
Capture capture_training_step(const ProgramToCapture& program, const CaptureOptions& options = {});

// Captures the first steps of a training run as one graph, each in a scope region "step 1", "step 2", ... What one step
// leaves to the next, and when that dies, is recorded and not assumed (shadowgraph/profile/memory.h). Throws as
// capture_training_step does, and Error for fewer than one step; warmup_steps come before.
Capture capture_training_run(const ProgramToCapture& program, int steps = 3, const CaptureOptions& options = {});

// Calls module.forward with the inputs as separate arguments, up to eight, or with all of them as one vector.
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
  attempt(std::make_index_sequence<1>());
  attempt(std::make_index_sequence<2>());
  attempt(std::make_index_sequence<3>());
  attempt(std::make_index_sequence<4>());
  attempt(std::make_index_sequence<5>());
  attempt(std::make_index_sequence<6>());
  attempt(std::make_index_sequence<7>());
  attempt(std::make_index_sequence<8>());
  if constexpr (requires { module.forward(inputs); }) {
    if (!result) result = as_list(module.forward(inputs));
  }
  if (!result) throw Error("the module's forward does not take " + std::to_string(inputs.size()) + " tensors");
  return *result;
}

template <class Module>
Capture capture_forward(Module& module, const Tensors& inputs, const CaptureOptions& options = {}) {
  return capture_forward(
      ProgramToCapture{
          .module = &module, .inputs = inputs, .forward = [&](const Tensors& in) { return call_forward(module, in); }},
      options);
}

template <class Module>
Capture capture_training_step(Module& module, const Tensors& inputs, const LossFunction& loss,
                              torch::optim::Optimizer& optimizer, const CaptureOptions& options = {}) {
  return capture_training_step(ProgramToCapture{.module = &module,
                                                .inputs = inputs,
                                                .forward = [&](const Tensors& in) { return call_forward(module, in); },
                                                .loss = loss,
                                                .optimizer = &optimizer},
                               options);
}

}  // namespace shadowgraph

namespace torch::nn {
class Module;
}

namespace SHADOWGRAPH_API shadowgraph {

// ---------------------------------------------------------------------------------------------------------------------
// Names the module whose forward is running, so that captured nodes carry a module path.
//
// C++ modules have no forward hooks. One line at the top of a forward function does the job:
//
//     torch::Tensor forward(torch::Tensor x) {
//       shadowgraph::ModuleScope scope(*this);
//       return fc2->forward(torch::relu(fc1->forward(x)));
//     }
//
// Leaf modules of torch::nn (Linear, Conv2d, ...) need no scope: their path is inferred from the parameters they use.
// Outside a capture the constructor costs one thread-local read and does nothing else.

class ModuleScope {
 public:
  // The module given to the capture, and its submodules, get their registered paths; any other module is shown by its
  // class name alone. Scopes nest and must be destroyed in reverse order of construction.
  explicit ModuleScope(const torch::nn::Module& module);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  bool entered_ = false;
};

// ---------------------------------------------------------------------------------------------------------------------
// Programs from TorchScript files: traced or scripted in Python, loaded and run here without it.
//
//     auto script = shadowgraph::ScriptProgram::load("net.pt");
//     shadowgraph::FakeTensorMode mode({.device = at::kCUDA, .map_devices_to_default = true});
//     script.make_fake(mode);
//     auto capture = shadowgraph::capture_forward(script.program({shadowgraph::parse_tensor_spec("f32[8,3,224,224]").make()}));
//
// Loading reads the real weights; make_fake then replaces every parameter and buffer by a fake one and drops the data.
// A trace carries the device it was made on as constants: map_devices_to_default maps those to the mode's device.

// "f32[8,3,224,224]": dtype (f64 f32 f16 bf16 i64 i32 i16 i8 u8 bool c64 c128) and sizes; "i64[]" is a scalar.
struct TensorSpecText {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  // A tensor of zeros on the active mode's device.
  at::Tensor make() const;
};
// Throws Error that says what is wrong and shows the form.
TensorSpecText parse_tensor_spec(std::string_view text);

class ScriptProgram {
 public:
  // Throws FileError if the file cannot be read, Error if it is not TorchScript.
  static ScriptProgram load(const std::string& path);
  ~ScriptProgram();
  ScriptProgram(ScriptProgram&&) noexcept;
  ScriptProgram& operator=(ScriptProgram&&) noexcept;

  // Floating-point parameters and buffers become `dtype` if one is given. Call once, with the mode active.
  void make_fake(FakeTensorMode& mode, std::optional<c10::ScalarType> dtype = std::nullopt);
  void train(bool on);

  std::vector<at::Tensor> parameters() const;
  // Forward on these inputs: tensors inside tuples, lists and dicts of the result are the outputs, in order. The loss
  // is the first output that is floating-point and requires grad: itself if it is a scalar, otherwise its mean. The
  // program refers to this object, which must outlive it.
  ProgramToCapture program(Tensors inputs) const;

 private:
  struct Module;
  explicit ScriptProgram(std::unique_ptr<Module> module);
  std::unique_ptr<Module> module_;
};

// What tensors are that a captured program makes itself: for captures around a whole program.
//
//     CaptureSession session;
//     auto net = std::make_shared<Net>();          // its parameters are born in the graph
//     session.name_module(*net);                   // and are parameters there; what made them is phase "init"
//     net->forward(x).backward();
//     mark_gradient(net->weight.grad());           // the program drops it before the capture ends

// Says that the tensor is a parameter's gradient, in the capture of this thread. What is a gradient at its end, it
// knows.
void mark_gradient(const at::Tensor& gradient);
// The same of what an optimizer keeps between steps.
void mark_optimizer_state(const at::Tensor& state);

}  // namespace shadowgraph
