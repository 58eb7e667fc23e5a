// Rewrites a mean loss as a sum and a division: mean(losses) = sum(losses) / total weight.
//
//     %l, %w = aten::nll_loss_forward(%x, %t, weight=None, reduction=1, ignore_index=-100)      becomes
//     %s, %w = aten::nll_loss_forward(%x, %t, weight=None, reduction=2, ignore_index=-100)
//     %l = aten::div.Tensor(%s, %w)
//
// The kernels compute the same. Backward is unchanged: it divides by the total weight that it receives.
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <string>
#include <vector>

#include "shadowgraph/graph/edit.h"
#include "shadowgraph/graph/graph.h"
#include "shadowgraph/passes/functional.h"
#include "shadowgraph/shard/shard.h"

namespace shadowgraph {

constexpr size_t kReduction = 3;

static bool is_mean_loss(const Graph& graph, NodeId node) {
  const std::string& name = graph.target(node).name();
  if (name != "aten::nll_loss_forward" && name != "aten::nll_loss2d_forward") return false;
  const Argument& reduction = graph.arguments(node)[kReduction];
  return reduction.kind == ArgumentKind::kInt && reduction.i == at::Reduction::Mean;
}

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

// Decomposes log_softmax and its gradient into operators whose maxima and sums may be partial:
//
//     log_softmax(x) = y - log(sum(exp(y))), y = x - max(x)
//     gradient       = g - exp(result) * sum(g)
//
// The normalized dimension can then be sharded. The formulas are those of passes/decompose/.
int64_t split_log_softmaxes(Graph& graph) {
  constexpr const char* kSplit[] = {"aten::_log_softmax", "aten::_log_softmax_backward_data"};
  std::set<std::string> stay{"aten::amax", "aten::sub", "aten::exp", "aten::sum",
                             "aten::log",  "aten::mul", "aten::to",  "aten::_to_copy"};
  for (const NodeId node : graph.nodes()) {
    if (graph.target(node).kind() == TargetKind::kOperator) stay.insert(graph.target(node).name());
  }
  for (const char* name : kSplit) stay.erase(name);
  int64_t count = 0;
  for (const auto& [name, calls] : decompose(graph, {.to = OperatorSet::of(std::move(stay))}).expanded) count += calls;
  return count;
}

}  // namespace shadowgraph
