#include "sharding/apply/groups_of_graph.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/fake/process_groups.h"
#include "shadowgraph/edit/insertion_point.h"

namespace shadowgraph {

std::vector<int64_t> ranks_of_group(int64_t ranks, int64_t apart) {
  std::vector<int64_t> all;
  for (int64_t r = 0; r < ranks; ++r) all.push_back(r * apart);
  return all;
}

void say_group(Graph& graph, const ProcessGroupInfo& group) {
  NodeId first = graph.first();
  while (graph.is_placeholder(first)) first = graph.node(first).next;
  InsertionPoint(graph, first)
      .insert(graph.intern_target(process_group_target()),
              {graph.string_argument(group.name), Argument::of_int(group.size), Argument::of_int(group.rank),
               graph.int_list(group.ranks), graph.string_argument(group.axis)});
}

GroupsOfGraph::GroupsOfGraph(const Graph& graph) {
  for (const ProcessGroupInfo& info : process_groups(graph)) {
    if (find_process_group(info.name)) continue;
    fake_process_group(info);
    names_.push_back(info.name);
  }
}

GroupsOfGraph::~GroupsOfGraph() {
  for (const std::string& name : names_) unregister_fake_process_group(name);
}

}  // namespace shadowgraph
