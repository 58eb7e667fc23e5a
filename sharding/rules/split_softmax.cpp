// Writes log_softmax and its gradient as operators whose maxima and sums may be partial:
//
//     log_softmax(x) = y - log(sum(exp(y))), y = x - max(x)
//     gradient       = g - exp(result) * sum(g)
//
// The dimension that is normalised may then be cut. The formulas are those of passes/decompose/.
#include <set>
#include <string>

#include "shadowgraph/passes/decompose.h"
#include "shadowgraph/sharding/split_losses.h"

namespace shadowgraph {

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
