// Process groups of a graph that is being rewritten: said by a node, and there while its operators run on fakes. Internal to
// sharding/apply.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shadowgraph/graph.h"
#include "shadowgraph/process_group.h"

namespace shadowgraph {

// 0, apart, 2 * apart, ..
std::vector<int64_t> ranks_of_group(int64_t ranks, int64_t apart);
// Behind the placeholders.
void say_group(Graph& graph, const ProcessGroupInfo& group);

// Groups that the graph names are in this process while it lives.
class GroupsOfGraph {
 public:
  explicit GroupsOfGraph(const Graph& graph);
  ~GroupsOfGraph();
  GroupsOfGraph(const GroupsOfGraph&) = delete;
  GroupsOfGraph& operator=(const GroupsOfGraph&) = delete;

 private:
  std::vector<std::string> names_;
};

}  // namespace shadowgraph
