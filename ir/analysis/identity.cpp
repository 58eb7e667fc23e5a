#include "ir/analysis/identity.h"

#include <algorithm>

namespace shadowgraph {

TensorGeometry TensorGeometry::of(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return {value.dtype, c10::DimVector(graph.sizes(id)), c10::DimVector(graph.strides(id)), value.offset,
          value.device()};
}

// Strides count: kernels are chosen by them, so replacing a value by one with other strides may change bits.
bool same_type(const Graph& graph, ValueId a, ValueId b) {
  const Value& x = graph.value(a);
  const Value& y = graph.value(b);
  return x.kind == ValueKind::kTensor && y.kind == ValueKind::kTensor && x.dtype == y.dtype && x.layout == y.layout &&
         x.device() == y.device() && std::ranges::equal(graph.sizes(a), graph.sizes(b)) &&
         std::ranges::equal(graph.strides(a), graph.strides(b));
}

bool same_type_and_offset(const Graph& graph, ValueId a, ValueId b) {
  return graph.value(a).offset == graph.value(b).offset && same_type(graph, a, b);
}

bool same_place(const Graph& graph, ValueId a, ValueId b) {
  return graph.value(a).storage == graph.value(b).storage && same_type_and_offset(graph, a, b);
}

// Returns whether a storage exists after the program: it belonged to the caller before, or the program returns it.
bool outlives(const Graph& graph, StorageId id) {
  const Storage& storage = graph.storage(id);
  if (storage.freed_after.valid() && !graph.is_erased(storage.freed_after)) return false;
  switch (storage.kind) {
    case StorageKind::kParameter:
    case StorageKind::kBuffer:
    case StorageKind::kInput:
    case StorageKind::kConstant:
    case StorageKind::kGradient:
    case StorageKind::kOptimizerState:
      return true;
    default:
      return false;
  }
}

ValueId only_result(const Graph& graph, NodeId node) {
  const auto results = graph.results(node);
  if (results.size() != 1 || results[0].kind != ArgumentKind::kValue) return {};
  const ValueId value = results[0].ref.value;
  return graph.value(value).kind == ValueKind::kTensor ? value : ValueId();
}

Identity Identity::of(const Graph& graph, const Effects& effects, const std::vector<bool>& without) {
  Identity result;
  result.escapes_.resize(graph.storage_count());
  for (uint32_t i = 0; i < graph.storage_count(); ++i) result.escapes_[i] = outlives(graph, StorageId(i));
  // Lazy: some tensor on the storage may be conjugated or negated by a flag only, so the bytes do not determine its
  // value.
  result.lazy_.assign(graph.storage_count(), false);
  // Initially each value is a separate object. In program order, an in-place result joins the object of its operand,
  // which is final by then.
  result.objects_.resize(graph.value_capacity());
  for (uint32_t i = 0; i < graph.value_capacity(); ++i) result.objects_[i] = i;
  result.object_changes_.assign(graph.value_capacity(), false);

  const auto mark = [&](std::vector<bool>& marks, ValueId v) {
    if (const StorageId s = graph.value(v).storage; s.valid()) marks[s.index] = true;
  };
  for (NodeId n : graph.nodes()) {
    if (!without.empty() && without[n.index]) continue;
    const TargetId target = graph.node(n).target;
    const auto arguments = graph.arguments(n);
    if (is_placeholder(target)) graph.for_each_output(n, [&](ValueId v) { mark(result.escapes_, v); });
    if (is_end(target)) graph.for_each_input(n, [&](ValueId v) { mark(result.escapes_, v); });
    const OperatorFacts& facts = graph.facts(target);
    if (facts.conjugates || facts.negates) graph.for_each_output(n, [&](ValueId v) { mark(result.lazy_, v); });
    graph.for_each_output(n, [&](ValueId v) {
      if (graph.value(v).kind == ValueKind::kTensor && c10::isComplexType(graph.value(v).dtype)) mark(result.lazy_, v);
    });
    // An unknown call may keep or change its operands, so nothing about them is certain afterwards.
    if (effects.unknown(n)) {
      graph.for_each_input(n, [&](ValueId v) {
        mark(result.escapes_, v);
        result.object_changes_[result.objects_[v.index]] = true;
      });
    }
    for (const OperatorFacts::Alias& alias : facts.aliases) {
      if (alias.argument >= arguments.size() || alias.result >= graph.results(n).size()) continue;
      const bool written = std::find(facts.written.begin(), facts.written.end(), alias.argument) != facts.written.end();
      const Argument& from = arguments[alias.argument];
      const Argument& to = graph.results(n)[alias.result];
      if (from.kind != ArgumentKind::kValue || to.kind != ArgumentKind::kValue) continue;
      const bool same = same_place(graph, from.ref.value, to.ref.value);
      // An in-place operator, and one that copies only if needed (contiguous), returns its operand itself.
      if (written || (!alias.always && same)) {
        result.objects_[to.ref.value.index] = result.objects_[from.ref.value.index];
        if (!same) result.object_changes_[result.objects_[from.ref.value.index]] = true;
      }
    }
    // set_ and resize_ change the storage or geometry of a tensor object, for all values that are this object.
    if (!facts.changes_objects) continue;
    for (const uint16_t position : facts.written) {
      if (position >= arguments.size()) continue;
      graph.for_each_value(arguments.subspan(position, 1),
                           [&](ValueId v) { result.object_changes_[result.objects_[v.index]] = true; });
    }
  }
  return result;
}

}  // namespace shadowgraph
