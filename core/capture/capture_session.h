// Records a program as one graph: forward, backward and optimizer step, with regions, saved tensors and lifetimes.
//
//     shadowgraph::CaptureSession session({.device = at::kCUDA});
//     Net net;                                       // made inside: fake, nothing is allocated
//     session.name_module(net);
//     at::Tensor loss = net.forward(at::empty({32, 3, 224, 224})).sum();
//     loss.backward();
//     shadowgraph::Graph graph = session.finish({loss});
//
// A session is a FakeTensorMode plus a recorder: it records below autograd, on the thread that made it, until finish() or
// its end of life. Modules and inputs may also have been made earlier under a FakeTensorMode; what the session meets
// without having seen it made becomes a placeholder. capture_forward and capture_training_step (core/capture/capture.h)
// wrap the usual cases.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/fake/fake_tensor_mode.h"
#include "ir/graph.h"

namespace torch::nn {
class Module;
}

namespace shadowgraph {

class Recorder;

struct CaptureOptions {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  DeviceProfile profile;
  bool map_devices_to_default = false;  // see FakeTensorOptions
  NamedDataSizes data_sizes = {};       // likewise; the graph lists them as path dependencies
  DataSizeHint data_size_hint = {};     // likewise
  bool saved_tensors = true;            // record what autograd keeps for backward
  bool path_dependencies = true;        // record sizes that the program asked for
};

class CaptureSession {
 public:
  explicit CaptureSession(const CaptureOptions& options = {});
  ~CaptureSession();  // without finish(): the record is dropped, all state is restored
  CaptureSession(const CaptureSession&) = delete;
  CaptureSession& operator=(const CaptureSession&) = delete;

  // Declares the module's parameters and buffers (in registration order, shared ones once) and knows its submodules'
  // paths. The module must outlive the session.
  void name_module(const torch::nn::Module& root);
  void name_parameter(const at::Tensor& tensor, const std::string& name);
  void name_buffer(const at::Tensor& tensor, const std::string& name);
  void name_input(const at::Tensor& tensor, const std::string& name);

  // Ends the record. `outputs` become sg::output, and (parameter, gradient) pairs sg::gradient nodes: by default those of
  // the named parameters that have a gradient. The session stays a FakeTensorMode until it is destroyed.
  Graph finish(const std::vector<at::Tensor>& outputs);

  FakeTensorMode& mode() { return mode_; }
  // The session recording on this thread, or nullptr.
  static CaptureSession* current();
  // nullptr after finish().
  Recorder* recorder() { return finished_ ? nullptr : recorder_.get(); }

 private:
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

}  // namespace shadowgraph
