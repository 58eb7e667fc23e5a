// Runs operators that are given graphs: torch.ops.higher_order.*. Internal to core/exported.
#pragma once

#include <functional>
#include <vector>

#include "core/exported/call_arguments.h"
#include "core/exported/program.h"

namespace shadowgraph {

// Runs a graph within the node; what the graph takes is handed over.
using RunGraph = std::function<std::vector<c10::IValue>(const ExportedGraph&, std::vector<c10::IValue>)>;

struct HigherOrderCall {
  const ExportedNode& node;
  ValueTable& values;  // what the node uses last is taken out, so that it dies as soon as the inner graph allows
  RunGraph run;        // now
  RunGraph run_later;  // as the same, but also after the program is through: in backward
};

// Knows wrap_with_set_grad_enabled, wrap_with_autocast, cond, invoke_subgraph, tag_activation_checkpoint; throws Error
// for others.
std::vector<c10::IValue> call_higher_order(const HigherOrderCall& call);

}  // namespace shadowgraph
