// Registers a custom operator with its costs, then captures and profiles it on a simulated GPU. Neither a GPU nor a
// kernel of the operator is needed.
#include <ATen/ATen.h>
#include <shadowgraph/capture/capture.h>
#include <shadowgraph/profile/operator_costs.h>
#include <shadowgraph/profile/profile.h>
#include <shadowgraph/profile/register_operator.h>
#include <torch/library.h>

#include <iostream>

namespace sg = shadowgraph;

// y = act(x W) as a fused operator, without an implementation.
TORCH_LIBRARY(my, library) { library.def("fused_layer(Tensor x, Tensor weight) -> Tensor"); }

at::Tensor fused_layer_shape(const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(x.size(1) == weight.size(0), "fused_layer: ", x.sizes(), " does not fit ", weight.sizes());
  return at::empty({x.size(0), weight.size(1)}, x.options());
}

int main() {
  sg::register_operator(
      "my::fused_layer", &fused_layer_shape,
      {.flops = [](const sg::OperandShapes& call) { return 2 * element_count(call.argument(0)) * call.shape(1)[1]; },
       .bytes =
           [](const sg::OperandShapes& call) {
             return byte_count(call.argument(0)) + byte_count(call.argument(1)) + byte_count(call.result(0));
           },
       .scratch = [](const sg::OperandShapes& call) { return byte_count(call.result(0)); }});

  const auto fused_layer = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("my::fused_layer", "")
                               .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  sg::Capture session({.mode = {.device = at::kCUDA}});
  const at::Tensor x = at::empty({64, 256});
  const at::Tensor weight = at::empty({256, 1024});
  const sg::Graph graph = session.finish({fused_layer.call(x, weight)});

  const sg::Profile profile = sg::profile(graph);
  std::cout << to_text(profile);
  // Operands, result and scratch are alive together; 2 FLOPs a multiply-accumulate.
  const bool right = profile.peak.bytes == (64 * 256 + 256 * 1024 + 2 * 64 * 1024) * 4 &&
                     profile.flops.at("forward").matmul == int64_t{2} * 64 * 256 * 1024;
  return right ? 0 : 1;
}
