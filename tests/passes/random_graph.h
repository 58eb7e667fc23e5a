// Random valid graphs for tests of edits: views, in-place writes, lists, saved tensors, allocations and frees.
#pragma once

#include <random>

#include "ir/records.h"
#include "shadowgraph/graph/graph.h"

namespace shadowgraph {

// Frees storages at their last use or some nodes later; a quarter of them is never freed.
inline void free_some_storages(Graph& graph, std::mt19937& random) {
  std::vector<NodeId> last(graph.storage_count());
  for (NodeId n : graph.nodes()) {
    const auto touch = [&](ValueId v) { last[graph.value(v).storage.index] = n; };
    graph.for_each_input(n, touch);
    graph.for_each_output(n, touch);
  }
  std::vector<std::vector<StorageId>> frees(graph.node_capacity());
  for (uint32_t s = 0; s < graph.storage_count(); ++s) {
    if (random() % 4 == 0) continue;
    NodeId n = last[s];
    for (uint32_t later = random() % 3; later > 0 && graph.node(n).next.valid(); --later) n = graph.node(n).next;
    frees[n.index].push_back(StorageId(s));
  }
  for (uint32_t n = 0; n < frees.size(); ++n) {
    if (!frees[n].empty()) graph.set_frees(NodeId(n), frees[n]);
  }
}

// About `size` nodes on 4 x 4 floats: forward, then some nodes marked as backward of earlier ones, and an output.
inline Graph random_graph(std::mt19937& random, int size) {
  Graph graph;
  const TargetId relu = graph.intern_operator("aten::relu"), add = graph.intern_operator("aten::add.Tensor"),
                 t = graph.intern_operator("aten::t"), add_ = graph.intern_operator("aten::add_.Tensor"),
                 cat = graph.intern_operator("aten::cat"), contiguous = graph.intern_operator("aten::contiguous");
  const int64_t sizes[] = {4, 4};
  const int64_t strides[] = {4, 1};
  std::vector<ValueId> values;
  const auto storage = [&](NodeId born, int64_t bytes) { return graph.add_storage({.bytes = bytes, .born = born}); };
  const auto result = [&](NodeId n, StorageId s) {
    values.push_back(graph.add_tensor_result(n, {.sizes = sizes, .strides = strides, .storage = s}));
    return values.back();
  };
  for (int i = 0; i < 3; ++i) {
    const Argument name[] = {graph.string_argument("x" + std::to_string(i))};
    const NodeId n = graph.append(target_of(Builtin::kInput), name);
    result(n, storage(n, 64));
  }
  const auto some = [&] { return Argument::of_value(values[random() % values.size()]); };
  const auto storage_of = [&](const Argument& a) { return graph.value(a.ref.value).storage; };
  std::vector<NodeId> nodes;
  for (int i = 0; i < size; ++i) {
    const Argument a = some();
    const Argument b = some();
    NodeId n;
    switch (random() % 6) {
      case 0:
        n = graph.append(relu, {a});
        result(n, storage(n, 64));
        break;
      case 1:
        n = graph.append(add, {a, b, Argument::of_int(1)});
        result(n, storage(n, 64));
        break;
      case 2:
        n = graph.append(t, {a});
        result(n, storage_of(a));
        break;
      case 3:
        n = graph.append(add_, {a, b, Argument::of_int(1)});
        result(n, storage_of(a));
        break;
      case 4: {
        const Argument elements[] = {a, b, a};
        n = graph.append(cat, {graph.make_list(elements), Argument::of_int(0)});
        result(n, storage(n, 192));
        break;
      }
      default:
        n = graph.append(contiguous, {a, Argument::of_int(0)});
        result(n, random() % 2 == 0 ? storage_of(a) : storage(n, 64));
    }
    if (graph.arguments(n)[0].kind == ArgumentKind::kValue && random() % 2 == 0) {
      const SavedTensor saved[] = {{.value = a.ref.value, .role = SavedRole::kArgument, .index = 0},
                                   {.value = values.back(), .role = SavedRole::kResult, .index = 0},
                                   {.value = values[random() % values.size()]}};
      graph.set_saved(n, std::span(saved).first(1 + random() % 3));
    }
    if (!nodes.empty() && random() % 4 == 0) mutable_node(graph, n).forward = nodes[random() % nodes.size()];
    nodes.push_back(n);
  }
  free_some_storages(graph, random);
  std::vector<Argument> alive;
  for (ValueId v : values) {
    if (!graph.storage(graph.value(v).storage).freed_after.valid() && alive.size() < 3)
      alive.push_back(Argument::of_value(v));
  }
  const Argument outputs[] = {graph.make_list(alive)};
  graph.append(target_of(Builtin::kOutput), outputs);
  return graph;
}

}  // namespace shadowgraph
