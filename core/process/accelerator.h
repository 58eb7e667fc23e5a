// Says which kind of accelerator this process seems to have: libtorch is built for one, and asks its hooks which
// (isBuilt).
//
// autograd's engine keeps the streams of that kind alone, and asserts that every gradient on an accelerator has one. So
// the answer follows what is computed:
//
//   - during a backward over fakes, the kind that its graph is on;
//   - otherwise, inside a mode, the mode's default device, or CUDA if that is none;
//   - outside, none.
// Internal to core/.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace shadowgraph {

// Says whether hooks that are ours should say that libtorch was built for `type`, now and on this thread.
bool seems_built_for(c10::DeviceType type);

// Returns a generator of a pretended device. It has seeds and offsets, no random numbers, for programs that seed every
// device. The first is this thread's own.
const at::Generator& pretended_generator(c10::Device device);
at::Generator new_pretended_generator(c10::Device device);

// Held while the engine runs a backward from `roots`. Throws EnvironmentError if the graph is on several kinds of
// accelerator, or on one that libtorch cannot be told of in this process.
class AcceleratorScope {
 public:
  explicit AcceleratorScope(const torch::autograd::edge_list& roots);
  ~AcceleratorScope();
  AcceleratorScope(const AcceleratorScope&) = delete;
  AcceleratorScope& operator=(const AcceleratorScope&) = delete;

 private:
  c10::DeviceType outer_;
};

// Call this after a backward has failed. Throws EnvironmentError if the reason is that its fakes are on an accelerator
// that is only there inside a mode.
void explain_missing_accelerator(const torch::autograd::edge_list& roots);

// Registers XPU and MPS hooks where none are. Call it before libtorch asks for them, for it caches what it finds.
void register_accelerator_hooks();
// Serves when libtorch has asked already, and found none.
void replace_missing_accelerator_hooks();

}  // namespace shadowgraph
