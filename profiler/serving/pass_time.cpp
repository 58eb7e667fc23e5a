#include "profiler/serving/pass_time.h"

#include <algorithm>
#include <cmath>

#include "profiler/program_costs.h"
#include "profiler/time/kernel_work.h"
#include "shadowgraph/passes/structure.h"
#include "shadowgraph/profile/communication.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {
namespace {

// What a matrix product reads less than the roofline of the captured program has it read, and the dtype it is in.
class StoredProducts {
 public:
  StoredProducts(const ProgramCosts& costs, const StoredWeights& weights, const ServingOptions& options)
      : graph_(costs.graph()), works_(costs, *options.spec), weights_(weights), options_(options) {}

  double seconds(NodeId node, const NodeTime& made) {
    double less = 0;
    bool stored = false;
    graph_.for_each_input(node, [&](ValueId value) {
      const double share = weights_.share(value) * hit(node, value);
      if (share >= 1) return;
      stored |= weights_.share(value) < 1;
      less += (1 - share) * static_cast<double>(graph_.logical_bytes(value));
    });
    if (less <= 0) return made.seconds;
    const DeviceSpec& spec = *options_.spec;
    KernelWork work = works_.of(node);
    work.bytes = std::max(0.0, work.bytes - less);
    if (stored && options_.weights->computes && spec.matmul.contains(*options_.weights->computes)) {
      work.dtype = *options_.weights->computes;
    }
    return kernel_seconds(spec, work).total();
  }

 private:
  // The share of experts that some row of the other operand goes to, if each takes any of them alike.
  double hit(NodeId node, ValueId value) const {
    const int64_t experts = weights_.experts(value);
    if (experts <= 1) return 1;
    int64_t rows = 0;
    graph_.for_each_input(node, [&](ValueId other) {
      if (graph_.value(other).kind != ValueKind::kTensor ||
          graph_.value(other).storage == graph_.value(value).storage) {
        return;
      }
      const auto sizes = graph_.sizes(other);
      if (sizes.size() == 2 && c10::isFloatingType(graph_.value(other).dtype)) rows = std::max(rows, sizes[0]);
    });
    if (rows == 0) return 1;  // batched: each expert has rows of its own
    return 1 - std::pow(1 - 1.0 / static_cast<double>(experts), static_cast<double>(rows));
  }

  const Graph& graph_;
  KernelWorks works_;
  const StoredWeights& weights_;
  const ServingOptions& options_;
};

}  // namespace

PassTime PassTime::of(Graph& graph, const StoredWeights& weights, const ServingOptions& options) {
  const FuseGroupsResult fused = fuse_groups(graph);
  const ProgramCosts costs(graph);
  const DeviceSpec& spec = *options.spec;
  const StepTime time = StepTime::of(costs, spec);
  StoredProducts products(costs, weights, options);
  PassTime pass;
  IdMap<NodeId, uint8_t> grouped;
  for (const FuseGroupsResult::Group& group : fused.groups) {
    KernelSeconds fused_kernel =
        kernel_seconds(spec, {.kind = KernelClass::kPointwise, .bytes = static_cast<double>(group.fused_bytes)});
    for (const NodeId node : group.nodes) {
      grouped[node] = 1;
      fused_kernel.compute += time.of(node).compute;
    }
    pass.seconds += fused_kernel.total();
  }
  for (const NodeId node : costs.nodes) {
    if (std::as_const(grouped)[node] != 0) continue;
    const NodeTime& at = time.of(node);
    if (at.kind == KernelClass::kAttention) {
      pass.attention += at.seconds;
      pass.attention_flops.push_back(costs.flops().of(node).matmul);
      graph.for_each_input(node, [&](ValueId value) {
        if (c10::isFloatingType(graph.value(value).dtype)) pass.attention_dtype = graph.value(value).dtype;
      });
    } else {
      pass.seconds += at.kind == KernelClass::kMatmul ? products.seconds(node, at) : at.seconds;
    }
  }
  pass.seconds += Communication::of(graph, {.interconnect = options.interconnect}).total().seconds;
  return pass;
}

}  // namespace shadowgraph
