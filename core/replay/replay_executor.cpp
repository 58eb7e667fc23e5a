#include "shadowgraph/replay.h"

namespace shadowgraph {

ReplayExecutor::ReplayExecutor(Graph graph, InterpreterOptions options)
    : graph_(std::move(graph)), interpreter_(graph_, std::move(options)) {
  for (const NodeId node : graph_.nodes()) {
    if (graph_.node(node).target.index > target_of(Builtin::kInput).index) continue;
    input_names_.push_back(graph_.text(graph_.arguments(node)[0].string));
  }
}

}  // namespace shadowgraph
