// Fully sharded training like FSDP: each of 16 ranks has a shard of the parameters of each layer. A layer is
// all-gathered before its forward, freed after it, and all-gathered again in backward. Gradients are reduce-scattered.
// One rank is captured and profiled, without GPUs and without a network.
#include <ATen/core/dispatch/Dispatcher.h>
#include <shadowgraph/capture/activation_checkpoint.h>
#include <shadowgraph/capture/capture.h>
#include <shadowgraph/capture/process_group.h>
#include <shadowgraph/profile/communication.h>
#include <shadowgraph/profile/device_spec.h>
#include <shadowgraph/profile/profile.h>
#include <shadowgraph/profile/step_time.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <iostream>

namespace sg = shadowgraph;

constexpr int64_t kProcesses = 16;
constexpr int64_t kLayers = 8, kWidth = 1024, kInner = 4096, kBatch = 64;
constexpr int64_t kLayerElements = 2 * kWidth * kInner;

at::Tensor call(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  c10::Dispatcher::singleton().findSchemaOrThrow("_c10d_functional::wait_tensor", "").callBoxed(stack);
  return stack[0].toTensor();
}

// All-gathers a sharded flat parameter; backward reduce-scatters its gradient. (In libtorch 2.13 only Python has
// gradients of these operators.)
struct Gather : torch::autograd::Function<Gather> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& part) {
    return call("_c10d_functional::all_gather_into_tensor", {part, kProcesses, "fsdp"});
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {call("_c10d_functional::reduce_scatter_tensor", {gradients[0].contiguous(), "sum", kProcesses, "fsdp"})};
  }
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int64_t i = 0; i < kLayers; ++i) {
      parts.push_back(register_parameter("layer" + std::to_string(i), at::empty({kLayerElements / kProcesses})));
    }
  }
  at::Tensor forward(at::Tensor x) {
    const sg::ModuleScope scope(*this);
    for (const at::Tensor& part : parts) {
      // Frees the gathered weights and activations after forward, and recomputes them in backward.
      x = sg::checkpoint(
          [part](const at::Tensor& input) {
            const at::Tensor weights = Gather::apply(part);
            const at::Tensor up = weights.narrow(0, 0, kWidth * kInner).view({kWidth, kInner});
            const at::Tensor down = weights.narrow(0, kWidth * kInner, kWidth * kInner).view({kInner, kWidth});
            return input + input.matmul(up).relu().matmul(down);
          },
          x);
    }
    return x;
  }
  std::vector<at::Tensor> parts;
};
TORCH_MODULE(Net);

int main() {
  const sg::FakeMesh mesh({{"fsdp", kProcesses}});
  sg::FakeTensorMode mode({.device = at::kCUDA});
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  const at::Tensor batch = at::empty({kBatch, kWidth});
  const auto step = sg::capture_training_step(
      *net, {batch}, [](const sg::Tensors& outputs) { return outputs[0].square().mean(); }, optimizer);

  const sg::DeviceSpec device = sg::DeviceSpec::named("h100");
  const sg::Interconnect links = sg::Interconnect::named("h100");
  const sg::Profile profile = sg::profile(step.graph, {.spec = &device, .interconnect = &links});
  std::cout << sg::to_text(profile);

  // Expected values. A layer has 2 x 1024 x 4096 float32, 32 MiB. 15/16 of it is received in two all-gathers and sent
  // in one reduce-scatter.
  const int64_t layer = kLayerElements * 4;
  const int64_t wire = 3 * kLayers * (layer / 16 * 15);
  const sg::Communication& communication = *profile.communication();
  const sg::CommunicationSum sent = communication.total();
  // A ring of 16 ranks over two nodes of 8: 15 hops, one of them between nodes. Filling the pipeline costs a quarter.
  const double seconds =
      3 * kLayers * (6.6e-6 + 14 * 0.6e-6 + 2.7e-6) + (1 + 0.25 / 15) * static_cast<double>(wire) / 370.8e9;
  const bool right = communication.of(sg::CollectiveKind::kAllGather).calls == 2 * kLayers &&
                     communication.of(sg::CollectiveKind::kReduceScatter).calls == kLayers && sent.wire == wire &&
                     std::abs(sent.seconds - seconds) < 1e-6 * seconds &&
                     communication.of(sg::Graph::kForward).calls == kLayers &&
                     // The model has 256 MiB. A rank has 1/16 of parameters, gradients and two AdamW states, 64 MiB,
                     // and one gathered layer at a time with its gradient and the gradients of its two matrices.
                     profile.peak.bytes > 2 * layer && profile.peak.bytes < 64 * (1 << 20) + 5 * layer;
  std::cout << "\npeak of a process " << profile.peak.bytes << " bytes, sends " << sent.wire << " bytes in "
            << sent.seconds * 1e3 << " ms; a step takes " << profile.overlap()->seconds() * 1e3 << " ms\n"
            << (right ? "as expected\n" : "not as expected\n");
  return right ? 0 : 1;
}
