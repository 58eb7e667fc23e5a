// Writes a training step as a chain, for solvers of one's own.
#include <nlohmann/json.hpp>

#include <algorithm>

#include "shadowgraph/profile/flops.h"
#include "shadowgraph/profile/recompute_exports.h"
#include "shadowgraph/profile/step_time.h"

namespace shadowgraph {

nlohmann::json chain_json(const Graph& graph, const CheckpointChain& chain, const StepTime* time) {
  const Flops flops = Flops::of(graph);
  IdMap<NodeId, uint32_t> order;
  IdMap<NodeId, int32_t> stage_of(-1);
  int32_t stage = -1;
  uint32_t place = 0;
  size_t next = 0;
  for (const NodeId n : graph.nodes()) {
    order[n] = place++;
    if (next < chain.parts.size() && chain.parts[next].first == n) stage = static_cast<int32_t>(next++);
    if (stage >= 0 && graph.node(n).phase == Graph::kForward && !graph.is_placeholder(n)) stage_of[n] = stage;
  }
  struct Sums {
    int64_t forward_flops = 0, backward_flops = 0;
    double forward_seconds = 0, backward_seconds = 0;
  };
  std::vector<Sums> sums(chain.stages.size());
  for (const NodeId n : graph.nodes()) {
    const bool backward = graph.node(n).phase == Graph::kBackward;
    const NodeId of = backward ? graph.node(n).forward : n;
    const int32_t at = of.valid() && !graph.is_erased(of) ? std::as_const(stage_of)[of] : -1;
    if (at < 0) continue;
    Sums& sum = sums[static_cast<size_t>(at)];
    (backward ? sum.backward_flops : sum.forward_flops) += flops.of(n).matmul;
    if (time != nullptr) (backward ? sum.backward_seconds : sum.forward_seconds) += time->of(n).seconds;
  }
  nlohmann::json stages = nlohmann::json::array();
  for (size_t i = 0; i < chain.stages.size(); ++i) {
    const ChainStage& s = chain.stages[i];
    const int64_t saved = s.options[0].saved;
    nlohmann::json entry{{"name", s.name},
                         {"first_node", std::as_const(order)[chain.parts[i].first]},
                         {"last_node", std::as_const(order)[chain.parts[i].last]},
                         {"forward_flops", sums[i].forward_flops},
                         {"backward_flops", sums[i].backward_flops},
                         {"output_bytes", s.output},
                         {"saved_bytes", saved},
                         {"forward_scratch_bytes", std::max<int64_t>(0, s.keeping_peak - saved)},
                         {"backward_scratch_bytes", std::max<int64_t>(0, s.backward_peak - saved)},
                         {"resident_bytes", s.resident},
                         {"droppable", s.droppable},
                         {"forward_cost", s.forward},
                         {"recompute_cost", s.again},
                         {"options", nlohmann::json::array()}};
    if (time != nullptr) {
      entry["forward_seconds"] = sums[i].forward_seconds;
      entry["backward_seconds"] = sums[i].backward_seconds;
    }
    for (const ChainOption& option : s.options) {
      entry["options"].push_back({{"saved_bytes", option.saved}, {"cost", option.cost}});
      if (option.offloaded != 0) entry["options"].back()["offloaded_bytes"] = option.offloaded;
    }
    stages.push_back(std::move(entry));
  }
  return {
      {"schema", "shadowgraph-chain/1"},
      {"linear", chain.not_a_chain.empty() && !chain.stages.empty()},
      {"why_not_a_chain", chain.stages.empty() ? std::vector<std::string>{"no forward, or no backward, in this graph"}
                                               : chain.not_a_chain},
      {"elsewhere_bytes", chain.elsewhere},
      {"input_bytes", chain.input},
      {"stages", std::move(stages)}};
}

}  // namespace shadowgraph
