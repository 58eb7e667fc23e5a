// Plans a call in the place of nodes, and refuses what the function's schema does not allow. Internal to ir/edit.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shadowgraph/analysis/effects.h"
#include "shadowgraph/edit/group_call.h"
#include "shadowgraph/graph.h"

namespace shadowgraph {

// What nodes do beyond making their results.
struct GroupDeeds {
  std::vector<StorageId> written;  // that others know too, sorted
  bool random = false;
  bool collective = false;
  bool anything = false;  // host reads, unknown
};

// Sums up what the nodes do to others. A write to a storage that only they know is nobody's business:
//
//     %3 = empty(..) @s3, %4 = add_(%3, 1) @s3, %5 = mul(%0, %4)        no deed: s3 is born and dies inside
GroupDeeds deeds_of(const Graph& graph, const Effects& effects, std::span<const NodeId> nodes,
                    const Boundary& boundary);

// What a call will be made of, worked out before the graph is touched.
struct GroupPlan {
  std::vector<NodeId> nodes;  // in program order
  TargetId target;
  std::vector<Argument> arguments;
  std::vector<ValueId> outputs;
};

// Works a plan out; the graph gets the target, and else stays as it is. Throws GraphEditError.
GroupPlan plan_of(Graph& graph, const Effects& effects, const GroupCall& group);

[[noreturn]] void refuse_group(const std::string& schema, const std::string& what);

}  // namespace shadowgraph
