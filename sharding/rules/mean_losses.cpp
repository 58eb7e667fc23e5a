// Writes a mean of losses as a sum and a division: mean(losses) = sum(losses) / total weight.
//
//     %l, %w = aten::nll_loss_forward(%x, %t, weight=None, reduction=1, ignore_index=-100)
//
//     %s, %w = aten::nll_loss_forward(%x, %t, weight=None, reduction=2, ignore_index=-100)
//     %l = aten::div.Tensor(%s, %w)
//
// The kernels do the same. Backward stays as it is: it divides by the total weight that it is given.
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

#include "shadowgraph/edit/insertion_point.h"
#include "shadowgraph/graph.h"
#include "shadowgraph/sharding/split_losses.h"

namespace shadowgraph {
namespace {

constexpr size_t kReduction = 3;

bool is_mean_loss(const Graph& graph, NodeId node) {
  const std::string& name = graph.target(node).name();
  if (name != "aten::nll_loss_forward" && name != "aten::nll_loss2d_forward") return false;
  const Argument& reduction = graph.arguments(node)[kReduction];
  return reduction.kind == ArgumentKind::kInt && reduction.i == at::Reduction::Mean;
}

}  // namespace

int64_t split_mean_losses(Graph& graph) {
  std::vector<NodeId> losses;
  for (const NodeId node : graph.nodes()) {
    if (is_mean_loss(graph, node)) losses.push_back(node);
  }
  if (losses.empty()) return 0;
  const TargetId div = graph.intern_operator("aten::div.Tensor");
  for (const NodeId node : losses) {
    const ValueId loss = graph.results(node)[0].ref.value;
    const ValueId weight = graph.results(node)[1].ref.value;
    graph.set_argument(node, kReduction, Argument::of_int(at::Reduction::Sum));
    const Value of = graph.value(loss);
    const NodeId division =
        InsertionPoint::after(graph, node).insert(div, {Argument::of_value(loss), Argument::of_value(weight)});
    const Storage before = graph.storage(of.storage);
    const StorageId storage = graph.add_storage({.bytes = before.bytes,
                                                 .device_type = before.device_type,
                                                 .device_index = before.device_index,
                                                 .born = division});
    const ValueId mean = graph.add_tensor_result(
        division, {.dtype = of.dtype, .storage = storage, .device = of.device(), .requires_grad = of.requires_grad});
    graph.replace_uses_if(loss, mean, [&](NodeId user, const Argument&) { return user != division; });
  }
  return static_cast<int64_t>(losses.size());
}

}  // namespace shadowgraph
