// Graphs of eager functions, and runs of them with kernels. Internal to tests/kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shadowgraph/kernels/kernel.h"

namespace shadowgraph::kernel_tests {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;
using Names = std::vector<std::string>;

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kFloat);

// Nodes of each group, without namespace and overload.
std::vector<Names> names(const KernelGroups& groups);

// The function on fakes of `inputs`, named "x0", "x1", ...; without gradients.
Graph graph_of(const Function& function, const Tensors& inputs);

// Tensors with the geometry of those given, and what they share; contents copied.
Tensors layout_changes(const Tensors& tensors);

// Runs of one graph on copies of the inputs: outputs, then what is left in the inputs.
Tensors run_of(const Graph& graph, const Tensors& inputs, const std::shared_ptr<NodeGroups>& groups = nullptr);

// Groups whose kernels are there and run: a cache of the process that compiles at once, nothing measured.
std::shared_ptr<KernelGroups> kernels_of(const Graph& graph, bool exact = false);

// Runs the function eagerly, node by node and with kernels. The results are the same, bit for bit (ulps 0) or within so
// many epsilons of the largest element of each tensor. Returns the groups.
std::shared_ptr<KernelGroups> expect_same(const Function& function, const Tensors& inputs, double epsilons = 0);

void expect_close(const at::Tensor& expected, const at::Tensor& found, double epsilons, const std::string& what);

}  // namespace shadowgraph::kernel_tests
