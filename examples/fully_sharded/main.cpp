// Trains as FSDP does it: a process owns one part in 16 of each layer's parameters. It gathers a layer just before it
// is used, lets go of it after, and gathers it again in backward. The sums of the gradients are scattered to their
// owners. One process is captured, without a GPU and without a network.
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

// Gathers the whole of a flat parameter of which each process has a part; in backward, each gets the sum of its part.
// (libtorch 2.13 has gradients for these operators in Python alone.)
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
      // What is made inside is gone after it, the gathered weights too, and made again in backward.
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

  // By hand: a layer is 2 x 1024 x 4096 float32, 32 MiB, of which 15/16 come from others: gathered twice, scattered once.
  const int64_t layer = kLayerElements * 4;
  const int64_t wire = 3 * kLayers * (layer / 16 * 15);
  const sg::Communication& communication = *profile.communication();
  const sg::CommunicationSum sent = communication.total();
  // A ring of 16 over two machines of 8: 15 hops, one of them between the machines. Filling it costs a quarter of one.
  const double seconds =
      3 * kLayers * (6.6e-6 + 14 * 0.6e-6 + 2.7e-6) + (1 + 0.25 / 15) * static_cast<double>(wire) / 370.8e9;
  const bool right = communication.of(sg::CollectiveKind::kAllGather).calls == 2 * kLayers &&
                     communication.of(sg::CollectiveKind::kReduceScatter).calls == kLayers && sent.wire == wire &&
                     std::abs(sent.seconds - seconds) < 1e-6 * seconds &&
                     communication.of(sg::Graph::kForward).calls == kLayers &&
                     // The model is 256 MiB. A process has a 16th of parameters, gradients and the two states of AdamW,
                     // 64 MiB. It also has the whole of one layer at a time, its gradient, and that of its halves.
                     profile.peak.bytes > 2 * layer && profile.peak.bytes < 64 * (1 << 20) + 5 * layer;
  std::cout << "\npeak of a process " << profile.peak.bytes << " bytes, sends " << sent.wire << " bytes in "
            << sent.seconds * 1e3 << " ms; a step takes " << profile.overlap()->seconds() * 1e3 << " ms\n"
            << (right ? "as expected\n" : "not as expected\n");
  return right ? 0 : 1;
}
