#include "shadowgraph/parallel/stage_pieces.h"

#include <fmt/format.h>

#include "ir/analysis/module_tree.h"
#include "parallel/stages/stage_parts.h"
#include "shadowgraph/error.h"

namespace shadowgraph {
namespace {

const std::vector<NodeId>& nodes_of(const StageNodes& stage, PipelineWork work) {
  switch (work) {
    case PipelineWork::kForward:
      return stage.forward;
    case PipelineWork::kBackward:
      return stage.backward;
    case PipelineWork::kInputGradient:
      return stage.input_gradient;
    case PipelineWork::kWeightGradient:
      return stage.weight_gradient;
    default:
      throw Error("pieces of a stage are forward, backward, input gradient and weight gradient: F, B, I and W");
  }
}

}  // namespace

Subgraph stage_piece(const Graph& step, const PipelineStages& stages, int32_t stage, PipelineWork work) {
  const StageParts& parts = stages.parts();
  if (parts.nodes.empty()) throw Error("stages of figures alone have no graphs: cut a captured step");
  if (stage < 0 || stage >= stages.count()) {
    throw Error(fmt::format("there is no stage {}: the step is cut into {}", stage, stages.count()));
  }
  if (parts.step_nodes != step.node_count()) {
    throw Error("the stages were cut from another graph, or this one has changed since: cut it anew");
  }
  Subgraph piece = extract(step, nodes_of(parts.nodes[static_cast<size_t>(stage)], work));
  for (size_t i = 0; i < piece.inputs.size(); ++i) {
    const NodeId producer = step.value(piece.inputs[i]).producer;
    if (!step.is_placeholder(producer)) continue;
    const std::string name = placeholder_name(step, producer);
    if (!name.empty()) piece.graph.set_note(NodeId(static_cast<uint32_t>(i)), "parameter", name);
  }
  return piece;
}

}  // namespace shadowgraph
