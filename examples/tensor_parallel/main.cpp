// Tensor parallel training like Megatron-LM: the first matrix of an MLP is sharded by columns and the second by rows,
// and attention by heads, so each needs one all-reduce in forward and one in backward. One of 8 ranks is captured and
// profiled, without GPUs and without a network.
#include <ATen/core/dispatch/Dispatcher.h>
#include <shadowgraph/capture/capture.h>
#include <shadowgraph/capture/process_group.h>
#include <shadowgraph/profile/communication.h>
#include <shadowgraph/profile/device_spec.h>
#include <shadowgraph/profile/profile.h>
#include <shadowgraph/profile/step_time.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <iostream>

namespace sg = shadowgraph;

constexpr int64_t kProcesses = 8;
constexpr int64_t kLayers = 2, kWidth = 2048, kHeads = 16, kBatch = 4, kLength = 512;

at::Tensor all_reduce(const at::Tensor& x) {
  static const auto reduce = c10::Dispatcher::singleton().findSchemaOrThrow("_c10d_functional::all_reduce", "");
  static const auto wait = c10::Dispatcher::singleton().findSchemaOrThrow("_c10d_functional::wait_tensor", "");
  torch::jit::Stack stack{x, "sum", "tp"};
  reduce.callBoxed(stack);
  wait.callBoxed(stack);
  return stack[0].toTensor();
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Start of a parallel region: identity in forward, all-reduce in backward.
struct Spread : torch::autograd::Function<Spread> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x.view(x.sizes()); }
  static variable_list backward(AutogradContext*, const variable_list& g) { return {all_reduce(g[0])}; }
};
// End of a parallel region: all-reduce in forward, identity in backward.
struct Join : torch::autograd::Function<Join> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return all_reduce(x); }
  static variable_list backward(AutogradContext*, const variable_list& g) { return {g[0]}; }
};

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    const auto linear = [this](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
    };
    qkv = linear("qkv", kWidth, 3 * kWidth / kProcesses);
    out = linear("out", kWidth / kProcesses, kWidth);
    up = linear("up", kWidth, 4 * kWidth / kProcesses);
    down = linear("down", 4 * kWidth / kProcesses, kWidth);
  }
  at::Tensor forward(at::Tensor x) {
    const sg::ModuleScope scope(*this);
    const auto heads = qkv(Spread::apply(x)).view({kBatch, kLength, 3, kHeads / kProcesses, kWidth / kHeads});
    const auto part = [&](int64_t i) { return heads.select(2, i).transpose(1, 2); };
    const auto attention = at::scaled_dot_product_attention(part(0), part(1), part(2));
    x = x + Join::apply(out(attention.transpose(1, 2).reshape({kBatch, kLength, kWidth / kProcesses})));
    return x + Join::apply(down(at::gelu(up(Spread::apply(x)))));
  }
  torch::nn::Linear qkv{nullptr}, out{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(Layer);

int main() {
  const sg::FakeMesh mesh({{"tp", kProcesses}});
  sg::FakeTensorMode mode({.device = at::kCUDA});
  torch::nn::Sequential net;
  for (int64_t i = 0; i < kLayers; ++i) net->push_back(Layer());
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const at::Tensor batch = at::empty({kBatch, kLength, kWidth}).requires_grad_();
  const auto step = sg::capture_training_step(
      *net, {batch}, [](const sg::Tensors& outputs) { return outputs[0].square().mean(); }, optimizer);

  const sg::DeviceSpec device = sg::DeviceSpec::named("h100");
  const sg::Interconnect links = sg::Interconnect::named("h100");
  const sg::Profile profile = sg::profile(step.graph, {.spec = &device, .interconnect = &links});
  std::cout << sg::to_text(profile);

  // Expected values: two all-reduces per layer in forward and two in backward, each of the hidden state of
  // 4 x 512 x 2048 float32, 16 MiB.
  const int64_t state = kBatch * kLength * kWidth * 4;
  const int64_t sums = 4 * kLayers;
  const int64_t wire = sums * (2 * (state / 8 * 7));
  // A ring of 8 ranks over NVLink: 14 hops, and a quarter of one to fill the pipeline.
  const double seconds =
      static_cast<double>(sums) * (6.6e-6 + 14 * 0.6e-6) + (1 + 0.25 / 14) * static_cast<double>(wire) / 370.8e9;
  const sg::Communication& communication = *profile.communication();
  const sg::CommunicationSum sent = communication.total();
  // 12 x width^2 parameters per layer, 1/8 of them per rank.
  const int64_t parameters = kLayers * 12 * kWidth * kWidth / kProcesses;
  const bool right = sent.calls == sums && sent.payload == sums * state && sent.wire == wire &&
                     std::abs(sent.seconds - seconds) < 1e-6 * seconds &&
                     communication.of(sg::Graph::kForward).calls == 2 * kLayers &&
                     communication.of(sg::Graph::kBackward).calls == 2 * kLayers &&
                     profile.size.parameters == parameters && profile.peak.bytes > 2 * parameters * 4 &&
                     // Nothing can overlap with an all-reduce, so nearly all of it is exposed.
                     profile.overlap()->exposed() > 0.9 * sent.seconds;
  std::cout << "\npeak of a process " << profile.peak.bytes << " bytes, sends " << sent.wire << " bytes in "
            << sent.seconds * 1e3 << " ms; a step takes " << profile.overlap()->seconds() * 1e3 << " ms\n"
            << (right ? "as expected\n" : "not as expected\n");
  return right ? 0 : 1;
}
