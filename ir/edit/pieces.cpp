// Pieces of graphs, cut out and put in.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ir/graph_editor.h"
#include "ir/text/tensor_bytes.h"
#include "shadowgraph/edit/copy.h"
#include "shadowgraph/edit/insertion_point.h"
#include "shadowgraph/graph/libtorch.h"
#include "shadowgraph/text.h"

namespace shadowgraph {

namespace {

// A placeholder other than sg::constant is given from outside; a constant belongs to the piece.
bool is_given(const Graph& piece, NodeId n) {
  return piece.is_placeholder(n) && piece.node(n).target != target_of(Builtin::kConstant);
}

// The value of a placeholder; invalid if it has none.
ValueId value_of_placeholder(const Graph& graph, NodeId n) {
  const auto results = graph.results(n);
  return results.size() == 1 && results[0].kind == ArgumentKind::kValue ? results[0].ref.value : ValueId();
}

// Checks all that the piece takes for granted about an input. Strides and offset matter only where the piece makes
// views of it, since a view's geometry is written as numbers.
void check_input(const Graph& into, NodeId position, const Graph& piece, ValueId formal, ValueId actual) {
  const auto refuse = [&](const std::string& what) {
    throw GraphEditError(fmt::format("cannot splice: {}:\n  {}", what, to_text(piece, piece.value(formal).producer)));
  };
  if (actual.index >= into.value_capacity() || into.is_erased(into.value(actual).producer)) {
    refuse("there is no such value to stand for this placeholder");
  }
  const Value& a = piece.value(formal);
  const Value& b = into.value(actual);
  if (position.valid() && !into.is_before(b.producer, position)) {
    refuse("the value that stands for this placeholder is not made before the place");
  }
  if (a.kind != b.kind) refuse("a scalar and a tensor do not stand for one another");
  if (a.kind != ValueKind::kTensor) return;
  const auto same = [](auto x, auto y) { return std::equal(x.begin(), x.end(), y.begin(), y.end()); };
  if (a.dtype != b.dtype || a.device() != b.device() || !same(piece.sizes(formal), into.sizes(actual))) {
    refuse("the value that stands for this placeholder, " + type_text(into, actual) +
           ", has another dtype, device or shape");
  }
  if (!a.storage.valid()) return;
  bool views = false;
  piece.for_each_value_in(a.storage,
                          // Only a view that the piece makes itself counts; other placeholders on the storage are
                          // checked by their own.
                          [&](ValueId v) { views = views || !piece.is_placeholder(piece.value(v).producer); });
  if (!views) return;
  if (!same(piece.strides(formal), into.strides(actual))) {
    refuse("the value that stands for this placeholder has other strides, and the piece makes views of it");
  }
  if (!b.storage.valid()) refuse("the piece makes views of this placeholder, and the value for it has no storage");
  piece.for_each_value_in(a.storage, [&](ValueId v) {
    const Value& view = piece.value(v);
    const auto extent = extent_of(piece.sizes(v), piece.strides(v));
    if (piece.is_erased(view.producer) || piece.is_placeholder(view.producer) || !extent || *extent == 0) return;
    const int64_t offset = view.offset + b.offset - a.offset;
    if (offset < 0 ||
        (offset + *extent) * static_cast<int64_t>(c10::elementSize(view.dtype)) > into.storage(b.storage).bytes) {
      refuse("a view that the piece makes reaches outside the storage of the value that stands for this placeholder");
    }
  });
}

}  // namespace

// Splices a graph in. Everything that can be wrong with inputs is found before the first node is made.
std::vector<ValueId> splice(Graph& into, NodeId position, const Graph& piece, std::span<const ValueId> inputs) {
  if (&into == &piece) throw GraphEditError("cannot splice a graph into itself; clone it first");
  // The place is after the placeholders and before sg::output and sg::gradient, whatever was asked for.
  if (!position.valid()) position = InsertionPoint::at_end(into).position();
  while (position.valid() && into.is_placeholder(position)) position = into.node(position).next;
  const NodeId before = position.valid() ? into.node(position).previous : into.last();
  const bool at_end = before.valid() && (into.node(before).target == target_of(Builtin::kOutput) ||
                                         into.node(before).target == target_of(Builtin::kGradient));
  if (at_end) throw GraphEditError("cannot splice behind sg::output or sg::gradient");

  const RegionId region = position.valid() ? into.node(position).region : Graph::kRootRegion;
  NodeCopier copier(piece, into, region);
  copier.reserve(piece.node_count());
  size_t next = 0;
  for (NodeId n : piece.nodes()) {
    if (piece.node(n).target == target_of(Builtin::kGradient)) {
      throw GraphEditError("cannot splice a graph with sg::gradient nodes; erase them first");
    }
    if (!is_given(piece, n)) continue;
    const ValueId formal = value_of_placeholder(piece, n);
    if (!formal.valid()) throw GraphEditError("cannot splice: a placeholder has no result:\n  " + to_text(piece, n));
    if (next < inputs.size()) {
      check_input(into, position, piece, formal, inputs[next]);
      copier.bind(formal, inputs[next]);
    }
    ++next;
  }
  if (next != inputs.size()) {
    throw GraphEditError(
        fmt::format("the graph to be spliced has {} placeholders, {} values are given", next, inputs.size()));
  }

  // Constants of the piece go behind the placeholders that are there, since placeholders come first.
  NodeId past_placeholders = into.first();
  while (past_placeholders.valid() && into.is_placeholder(past_placeholders)) {
    past_placeholders = into.node(past_placeholders).next;
  }
  std::vector<ValueId> outputs;
  for (NodeId n : piece.nodes()) {
    if (is_given(piece, n)) continue;
    if (piece.node(n).target == target_of(Builtin::kOutput)) {
      for (const Argument& list : piece.arguments(n)) {
        if (list.kind != ArgumentKind::kList) continue;
        for (const Argument& a : piece.list(list)) {
          outputs.push_back(a.kind == ArgumentKind::kValue ? copier.value(a.ref.value) : ValueId());
        }
      }
      continue;
    }
    const bool constant = piece.is_placeholder(n);
    const NodeId copy = copier.copy(n, constant ? past_placeholders : position);
    // What the piece reads must live until its copies have read it.
    const auto touch = [&](ValueId v) {
      if (into.value(v).storage.valid()) into.extend_life(into.value(v).storage, copy);
    };
    into.for_each_input(copy, touch);
  }
  copier.finish();
  for (Guard guard : piece.guards) {
    guard.value = copier.value(guard.value);
    if (guard.value.valid()) into.guards.push_back(std::move(guard));
  }
  return outputs;
}

// Cuts nodes out as a graph of their own; `graph` stays as it is. Values from outside become sg::input, values that
// others use or save become outputs.
Subgraph extract(const Graph& graph, std::span<const NodeId> nodes) {
  Subgraph result;
  NodeCopier copier(graph, result.graph);
  std::unordered_set<NodeId> inside;
  for (NodeId n : nodes) {
    if (graph.is_placeholder(n) || graph.node(n).target == target_of(Builtin::kOutput) ||
        graph.node(n).target == target_of(Builtin::kGradient)) {
      throw GraphEditError("cannot cut out a placeholder, sg::output or sg::gradient:\n  " + to_text(graph, n));
    }
    inside.insert(n);
  }
  std::unordered_set<ValueId> seen;
  for (NodeId n : nodes) {
    graph.for_each_input(n, [&](ValueId v) {
      if (!inside.contains(graph.value(v).producer) && seen.insert(v).second) result.inputs.push_back(v);
    });
  }
  // Storages of inputs are there before the piece begins, whatever they are to the graph around. Inputs that share one
  // share it in the piece, too, so that writes and views mean the same.
  std::unordered_map<StorageId, StorageId> storages;
  for (size_t i = 0; i < result.inputs.size(); ++i) {
    const ValueId v = result.inputs[i];
    const Argument argument[] = {result.graph.string_argument("x" + std::to_string(i))};
    const NodeId placeholder = result.graph.append(target_of(Builtin::kInput), argument);
    const Value& value = graph.value(v);
    ValueId made;
    if (value.kind == ValueKind::kTensor) {
      StorageId storage = value.storage.valid() ? storages[value.storage] : StorageId();
      if (value.storage.valid() && !storage.valid()) {
        Storage copy = graph.storage(value.storage);
        copy.born = placeholder;
        copy.freed_after = NodeId();
        storage = storages[value.storage] = result.graph.add_storage(copy);
      }
      made = result.graph.add_tensor_result(placeholder, {.dtype = value.dtype,
                                                          .sizes = graph.sizes(v),
                                                          .strides = graph.strides(v),
                                                          .storage = storage,
                                                          .offset = value.offset,
                                                          .device = value.device(),
                                                          .layout = value.layout,
                                                          .requires_grad = value.requires_grad});
    } else {
      made = result.graph.new_scalar(placeholder, value.kind);
      const Argument scalar[] = {Argument::of_value(made)};
      result.graph.set_results(placeholder, scalar);
    }
    copier.bind(v, made);
  }
  for (NodeId n : nodes) copier.copy(n, NodeId());
  copier.finish();
  std::vector<Argument> outputs;
  for (NodeId n : nodes) {
    graph.for_each_output(n, [&](ValueId v) {
      bool needed = graph.is_saved_elsewhere(v);
      graph.for_each_use(v, [&](NodeId user) { needed = needed || !inside.contains(user); });
      if (!needed) return;
      result.outputs.push_back(v);
      outputs.push_back(Argument::of_value(copier.value(v)));
    });
  }
  const Argument list[] = {result.graph.make_list(outputs)};
  const NodeId end = result.graph.append(target_of(Builtin::kOutput), list);
  // Outputs are handed to the caller, so their storages live to the end.
  result.graph.for_each_input(end, [&](ValueId v) {
    const StorageId storage = result.graph.value(v).storage;
    if (storage.valid()) result.graph.extend_life(storage, end);
  });
  return result;
}

}  // namespace shadowgraph
