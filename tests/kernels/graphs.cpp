#include "tests/kernels/graphs.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "shadowgraph/capture/capture.h"
#include "shadowgraph/graph/verify.h"
#include "tests/core/replay/same_bits.h"
#include "tests/kernels/cases.h"

namespace shadowgraph::kernel_tests {

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  at::manual_seed(seed);
  return at::randn(sizes).to(dtype);
}

std::vector<Names> names(const KernelGroups& groups) {
  std::vector<Names> out;
  for (const auto& report : groups.report()) {
    out.emplace_back();
    for (const std::string& name : report.operators) out.back().push_back(name.substr(6, name.find('.') - 6));
  }
  return out;
}

Graph graph_of(const Function& function, const Tensors& inputs) {
  const c10::NoGradGuard no_grad;
  Capture session({.guards = false});
  Tensors fakes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    session.name_input(inputs[i], "x" + std::to_string(i));
    fakes.push_back(session.mode().from_real(inputs[i]));
  }
  Graph graph = session.finish(function(fakes));
  verify(graph);
  return graph;
}

Tensors layout_changes(const Tensors& tensors) {
  Tensors out;
  for (const c10::IValue& copy : copy_of(torch::jit::Stack(tensors.begin(), tensors.end()))) {
    out.push_back(copy.toTensor());
  }
  return out;
}

Tensors run_of(const Graph& graph, const Tensors& inputs, const std::shared_ptr<NodeGroups>& groups) {
  const Tensors own = layout_changes(inputs);
  Bindings bindings;
  for (const NodeId node : graph.nodes()) {
    if (graph.node(node).target != target_of(Builtin::kInput)) continue;
    const std::string& name = graph.text(graph.arguments(node)[0].string);
    bindings.bind(name, own.at(std::stoul(name.substr(1))));
  }
  Interpreter interpreter(graph, {.check_results = true, .groups = groups});
  Tensors out = interpreter.run(bindings).outputs;
  out.insert(out.end(), own.begin(), own.end());
  return out;
}

std::shared_ptr<KernelGroups> kernels_of(const Graph& graph, bool exact) {
  static TemporaryFolder folder;
  static const auto cache = folder.cache();
  return group_kernels(graph, cache, {.kernels = {.exact = exact}, .measure = {.enabled = false}});
}

void expect_close(const at::Tensor& expected, const at::Tensor& found, double epsilons, const std::string& what) {
  ASSERT_EQ(expected.defined(), found.defined()) << what;
  if (!expected.defined()) return;
  if (epsilons == 0 || !expected.is_floating_point()) {
    EXPECT_TRUE(same_bits(expected, found)) << what << "\n" << expected << "\n" << found;
    return;
  }
  ASSERT_EQ(expected.sizes(), found.sizes()) << what;
  ASSERT_EQ(expected.scalar_type(), found.scalar_type()) << what;
  if (expected.numel() == 0) return;
  const at::Tensor a = expected.detach().to(at::kDouble);
  const at::Tensor b = found.detach().to(at::kDouble);
  double epsilon = std::numeric_limits<double>::epsilon();
  if (expected.scalar_type() == at::kFloat) epsilon = std::numeric_limits<float>::epsilon();
  if (expected.scalar_type() == at::kHalf) epsilon = 0x1p-10;
  if (expected.scalar_type() == at::kBFloat16) epsilon = 0x1p-7;
  const double off = (a - b).abs().max().item<double>();
  // Values that are zero except for rounding, such as the gradient of an attention key bias.
  const double largest = std::max(a.abs().max().item<double>(), 1e-4);
  EXPECT_LE(off, epsilons * epsilon * largest) << what;  // also fails for NaN
}

std::shared_ptr<KernelGroups> expect_same(const Function& function, const Tensors& inputs, double epsilons) {
  const Graph graph = graph_of(function, inputs);
  Tensors eager = layout_changes(inputs);
  {
    const c10::NoGradGuard no_grad;
    const Tensors outputs = function(eager);
    eager.insert(eager.begin(), outputs.begin(), outputs.end());
  }
  auto groups = kernels_of(graph);
  const Tensors plain = run_of(graph, inputs);
  const Tensors found = run_of(graph, inputs, groups);
  EXPECT_EQ(eager.size(), found.size());
  for (size_t i = 0; i < eager.size(); ++i) {
    EXPECT_TRUE(same_bits(eager[i], plain[i])) << "plain replay " << i;
    expect_close(eager[i], found[i], epsilons, "tensor " + std::to_string(i));
  }
  for (const auto& report : groups->report()) {
    EXPECT_EQ(report.state, KernelGroups::State::kKernel) << report.problem;
    EXPECT_EQ(report.kernel_runs, 1);
  }
  return groups;
}

}  // namespace shadowgraph::kernel_tests
