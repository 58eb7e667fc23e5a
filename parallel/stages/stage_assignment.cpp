#include "parallel/stages/stage_assignment.h"

#include <utility>

namespace shadowgraph {
namespace {

void add_stage(std::vector<int32_t>& stages, int32_t stage) {
  const auto at = std::ranges::lower_bound(stages, stage);
  if (at == stages.end() || *at != stage) stages.insert(at, stage);
}

// Forward nodes whose tensors all come from parameters: weight.t(), weight.to(bf16).
IdMap<NodeId, char> nodes_of_weights(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  IdMap<NodeId, char> of_weights(0);
  for (const NodeId n : costs.nodes) {
    if (graph.is_placeholder(n)) {
      graph.for_each_output(n, [&](ValueId v) {
        const StorageId s = graph.value(v).storage;
        of_weights[n] |= s.valid() && costs.kinds[s] == StorageKind::kParameter ? 1 : 0;
      });
      continue;
    }
    bool all = graph.node(n).phase == Graph::kForward, any = false;
    graph.for_each_input(n, [&](ValueId v) {
      any = true;
      const NodeId producer = graph.value(v).producer;
      all &= producer.valid() && std::as_const(of_weights)[producer] != 0;
    });
    if (all && any) of_weights[n] = 1;
  }
  return of_weights;
}

// It makes and writes nothing: fsdp::record_grad_output_stream, for the allocator.
bool only_looks(const Graph& graph, NodeId node) {
  const Target& target = graph.target(node);
  return target.signature().returns.empty() && target.facts().written.empty();
}

}  // namespace

StageAssignment::StageAssignment(const ProgramCosts& costs, const ForwardLine& line, std::vector<int32_t> cuts)
    : cuts_(std::move(cuts)) {
  const Graph& graph = costs.graph();
  for (const NodeId n : costs.nodes) {
    const Node& node = graph.node(n);
    if (graph.is_placeholder(n) || is_end(node.target)) continue;
    const int32_t position = line.position(n);
    if (position != ForwardLine::kNowhere) stages_of_[n] = {stage_at(position)};
    piece_[n] = node.phase == Graph::kForward    ? Piece::kForward
                : node.phase == Graph::kBackward ? Piece::kInputGradient
                                                 : Piece::kOptimizer;
  }
  split_backward(costs);
  hand_back_free(costs, line);
}

// From the end: a node is W if all that use its results are ends, the optimizer's, or W and of the same forward node.
// What differentiates a view or a cast of a weight is W in any case, and so is a sum of gradients of one weight.
void StageAssignment::split_backward(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  const IdMap<NodeId, char> of_weights = nodes_of_weights(costs);
  for (auto n = costs.nodes.rbegin(); n != costs.nodes.rend(); ++n) {
    if (piece_[*n] != Piece::kInputGradient) continue;
    const NodeId forward = graph.node(*n).forward;
    bool weights_alone = true, is_used = false;
    graph.for_each_output(*n, [&](ValueId v) {
      graph.for_each_use(v, [&](NodeId user) {
        if (user == *n) return;
        is_used = true;
        const Node& by = graph.node(user);
        if (is_end(by.target) || by.phase == Graph::kOptimizer || only_looks(graph, user)) return;
        const bool together = !by.forward.valid() || by.forward == forward || of_weights[by.forward] != 0 ||
                              (forward.valid() && of_weights[forward] != 0);
        weights_alone &= together && piece_[user] == Piece::kWeightGradient;
      });
    });
    if (weights_alone && is_used) piece_[*n] = Piece::kWeightGradient;
  }
}

void StageAssignment::hand_back_free(const ProgramCosts& costs, const ForwardLine& line) {
  const Graph& graph = costs.graph();
  for (auto n = costs.nodes.rbegin(); n != costs.nodes.rend(); ++n) {
    if (!line.is_free(*n)) continue;
    std::vector<int32_t> stages;
    graph.for_each_output(*n, [&](ValueId v) {
      graph.for_each_use(v, [&](NodeId user) {
        for (const int32_t s : std::as_const(stages_of_)[user]) add_stage(stages, s);
      });
    });
    if (stages.empty()) stages.push_back(0);  // nobody looks at it: the program computes it nevertheless
    stages_of_[*n] = std::move(stages);
  }
}

}  // namespace shadowgraph
