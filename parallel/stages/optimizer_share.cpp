#include "parallel/stages/optimizer_share.h"

#include <numeric>

namespace shadowgraph {

OptimizerShare::OptimizerShare(const ProgramCosts& costs) {
  const Graph& graph = costs.graph();
  parent_.resize(graph.storage_count());
  std::iota(parent_.begin(), parent_.end(), 0U);
  for (const NodeId n : costs.nodes) {
    if (graph.node(n).target == target_of(Builtin::kGradient)) {
      std::vector<StorageId> pair;  // the parameter and its gradient
      graph.for_each_input(n, [&](ValueId v) { pair.push_back(graph.value(v).storage); });
      if (pair.size() == 2 && pair[0].valid() && pair[1].valid()) join(pair[0], pair[1]);
    } else if (graph.node(n).phase == Graph::kOptimizer && !graph.is_placeholder(n)) {
      join_node(graph, n);
    }
  }
  by_root_.resize(graph.storage_count());
  for (uint32_t s = 0; s < graph.storage_count(); ++s) {
    if (costs.kinds[StorageId(s)] == StorageKind::kParameter) by_root_[root(s)].push_back(StorageId(s));
  }
}

const std::vector<StorageId>& OptimizerShare::parameters_of(StorageId storage) const {
  return by_root_[root(storage.index)];
}

uint32_t OptimizerShare::root(uint32_t storage) const {
  while (parent_[storage] != storage) storage = parent_[storage] = parent_[parent_[storage]];
  return storage;
}

void OptimizerShare::join(StorageId a, StorageId b) { parent_[root(a.index)] = root(b.index); }

// What stands at one place of a node's lists belongs together; so do all tensors of a node without lists. Numbers, which
// all parameters may share, join nothing.
void OptimizerShare::join_node(const Graph& graph, NodeId node) {
  std::vector<StorageId> at_place;
  StorageId single;
  const auto take = [&](const Argument& argument, StorageId& with) {
    if (argument.kind != ArgumentKind::kValue) return;
    const ValueId v = argument.ref.value;
    const StorageId s = graph.value(v).storage;
    if (!s.valid() || graph.numel(v) <= 1) return;
    if (with.valid()) join(with, s);
    with = s;
  };
  bool has_lists = false;
  for (const auto run : {graph.arguments(node), graph.results(node)}) {
    for (const Argument& argument : run) has_lists |= argument.kind == ArgumentKind::kList;
  }
  for (const auto run : {graph.arguments(node), graph.results(node)}) {
    for (const Argument& argument : run) {
      if (argument.kind == ArgumentKind::kList) {
        const auto list = graph.list(argument);
        if (at_place.size() < list.size()) at_place.resize(list.size());
        for (size_t i = 0; i < list.size(); ++i) take(list[i], at_place[i]);
      } else if (!has_lists) {
        take(argument, single);
      }
    }
  }
}

}  // namespace shadowgraph
