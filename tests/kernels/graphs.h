// Captures graphs of eager functions and runs them with kernels. Internal to tests/kernels.
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

// Operator names in each group, without namespace and overload.
std::vector<Names> names(const KernelGroups& groups);

// Captures the function on fakes of `inputs`, named "x0", "x1", ..., without gradients.
Graph graph_of(const Function& function, const Tensors& inputs);

// Copies tensors with the same geometry and the same aliases.
Tensors layout_changes(const Tensors& tensors);

// Runs a graph on copies of the inputs; returns the outputs, then the inputs after the run.
Tensors run_of(const Graph& graph, const Tensors& inputs, const std::shared_ptr<NodeGroups>& groups = nullptr);

// Groups with compiled kernels: an in-process cache that compiles immediately and measures nothing.
std::shared_ptr<KernelGroups> kernels_of(const Graph& graph, bool exact = false);

// Runs the function eagerly, node by node, and with kernels. Results must be bitwise equal (epsilons 0) or within so
// many epsilons of the largest element of each tensor. Returns the groups.
std::shared_ptr<KernelGroups> expect_same(const Function& function, const Tensors& inputs, double epsilons = 0);

void expect_close(const at::Tensor& expected, const at::Tensor& found, double epsilons, const std::string& what);

}  // namespace shadowgraph::kernel_tests
