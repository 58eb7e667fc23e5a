#include "profiler/what_if/question.h"

#include <algorithm>

#include "ir/analysis/module_tree.h"
#include "shadowgraph/error.h"

namespace shadowgraph::step_lives {

std::optional<c10::ScalarType> dtype_of(const Graph& graph, StorageId storage) {
  std::optional<c10::ScalarType> dtype;
  graph.for_each_value_in(storage, [&](ValueId value) {
    if (!dtype) dtype = graph.value(value).dtype;
  });
  return dtype;
}

Question::Question(const Graph& graph, const WhatIf& change)
    : graph_(graph),
      change_(change),
      costs_(graph),
      device_(main_device(graph, change.device)),
      computes_loss_(loss_nodes()) {
  find_phases();
}

void Question::find_phases() {
  const auto steps = static_cast<uint32_t>(costs_.nodes.size());
  std::optional<uint32_t> backward;
  for (uint32_t at = 0; at < steps; ++at) {
    if (is_backward(at)) backward = at;
  }
  if (!backward) throw Error("this graph is no training step: nothing of it is in phase backward");
  optimizer_ = steps;
  for (uint32_t at = *backward + 1; at < steps && optimizer_ == steps; ++at) {
    const NodeId node = costs_.nodes[at];
    if (graph_.node(node).phase == Graph::kOptimizer && !graph_.is_placeholder(node)) optimizer_ = at;
  }
  for (uint32_t at = 0; at < *backward; ++at) {
    if (!first_backward_ && is_backward(at)) first_backward_ = at;
  }
  for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
    const StorageId id(i);
    steady_ =
        steady_ || (costs_.kinds[id] == StorageKind::kOptimizerState && existed_before(graph_, graph_.storage(id)));
  }
  if (graph_.metadata.step) steady_ = graph_.metadata.step == TrainingStep::kSteady;
}

bool Question::is_float32(NodeId node) const {
  bool found = false;
  graph_.for_each_output(node, [&](ValueId value) { found |= graph_.value(value).dtype == c10::ScalarType::Float; });
  return found;
}

uint32_t Question::end_of_call(uint32_t step) const {
  uint32_t place = place_of(step);
  if (place >= costs_.nodes.size()) return step;
  const NodeId forward = graph_.node(costs_.nodes[place]).forward;
  while (forward.valid() && place + 1 < optimizer_ && graph_.node(costs_.nodes[place + 1]).forward == forward) {
    ++place;
  }
  return at_node(place);
}

bool Question::has_float32_parameters() const {
  return std::any_of(costs_.nodes.begin(), costs_.nodes.end(), [&](NodeId node) {
    return graph_.node(node).target == target_of(Builtin::kParameter) && is_float32(node);
  });
}

bool Question::clips_or_scales() const {
  return std::any_of(costs_.nodes.begin(), costs_.nodes.end(), [&](NodeId node) {
    const std::string_view name = graph_.target(node).name();
    return name.starts_with("aten::_amp_") || name.starts_with("aten::_foreach_norm") ||
           name.starts_with("aten::_foreach_lerp_");
  });
}

std::string Question::phase_at(uint32_t step) const {
  const uint32_t place = place_of(step);
  return place < optimizer_ ? graph_.phase_name(graph_.node(costs_.nodes[place]).phase) : "optimizer";
}

Lives Question::recorded() const {
  Lives lives{.steps = at_node(static_cast<uint32_t>(costs_.nodes.size())), .optimizer = at_node(optimizer_)};
  for (uint32_t i = 0; i < graph_.storage_count(); ++i) {
    const StorageId id(i);
    const Storage& storage = graph_.storage(id);
    if (!is_on(storage.device(), device_)) continue;
    const bool freed = storage.freed_after.valid() && !graph_.is_erased(storage.freed_after);
    Life life{.born = existed_before(graph_, storage) ? 0 : at_node(costs_.order[storage.born]),
              .last = freed ? at_node(costs_.order[storage.freed_after]) : kToTheEnd,
              .bytes = storage.bytes,
              .kind = costs_.kinds[id],
              .storage = id};
    life.last = std::max(life.last, life.born);
    lives.all.push_back(life);
  }
  return lives;
}

Lives Question::later_micro_batch(const Lives& first) const {
  Lives lives{.steps = first.steps, .optimizer = first.optimizer};
  for (Life life : first.all) {
    if (life.kind == StorageKind::kGradient && life.born > 0 && life.born < first.optimizer) {
      lives.all.push_back({0, life.last, life.bytes, life.kind, life.storage});
      // AccumulateGrad takes a gradient over or copies it. Then there is none to add up but the one that was copied.
      if (graph_.target(costs_.nodes[place_of(life.born)]).name() == "aten::clone") continue;
      life.kind = StorageKind::kTemporary;
      life.last = end_of_call(life.born);
    }
    lives.all.push_back(life);
  }
  return lives;
}

}  // namespace shadowgraph::step_lives
